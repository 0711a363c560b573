"""What a task knows of its topology, and what it may share with its neighbours in the process."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError, replace

import pytest

from acktree.core.data import context as module
from acktree.core.data.context import Clock, TaskContext, forget_inherited


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    monkeypatch.setattr(module, "_cached", {})


@pytest.fixture
def context():
    return TaskContext("words", "count", 3, 1, {"count": (2, 3), "split": (4,)})


def test_a_task_knows_the_tasks_of_every_component(context):
    assert context.task_ids("count") == (2, 3)
    assert context.task_ids("split") == (4,)
    with pytest.raises(KeyError, match="'words' has no component 'nobody': there are 'count' and 'split'"):
        context.task_ids("nobody")


def test_a_context_does_not_change(context):
    with pytest.raises(FrozenInstanceError):
        context.task_id = 4


def test_what_is_dear_is_made_once_in_a_process(context):
    made = [context.cached("client", object) for _ in range(3)]
    assert made[0] is made[1] is made[2]
    assert replace(context, task_id=2, task_index=0).cached("client", object) is made[0]


def test_none_is_remembered_like_anything_else(context):
    calls = []
    for _ in range(2):
        assert context.cached("nothing", lambda: calls.append(1)) is None
    assert calls == [1]


@pytest.mark.parametrize("other", [{"component_id": "split"}, {"topology_name": "others"}])
def test_components_and_topologies_do_not_share(context, other):
    assert context.cached("client", object) is not replace(context, **other).cached("client", object)


def test_keys_do_not_share(context):
    assert context.cached("a", object) is not context.cached("b", object)


def test_a_factory_that_raised_is_asked_again(context):
    with pytest.raises(ZeroDivisionError):
        context.cached("client", lambda: 1 / 0)
    assert context.cached("client", lambda: 5) == 5


def test_threads_that_ask_at_once_are_given_the_same(context):
    both_are_inside = threading.Barrier(2)
    given = []

    def factory():
        both_are_inside.wait(timeout=120)
        return object()

    threads = [threading.Thread(target=lambda: given.append(context.cached("c", factory))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert given[0] is given[1]


def test_a_forked_child_makes_its_own_and_lets_go_of_nothing_of_its_parents(context):
    closed = []

    class Connection:
        def __del__(self):
            closed.append(self)

    parents = id(context.cached("connection", Connection))
    forget_inherited()
    assert id(context.cached("connection", Connection)) != parents
    assert closed == []


def test_a_task_knows_the_time_that_its_clock_shows():
    clock = Clock(5)
    context = TaskContext("words", "count", 3, 1, {}, _clock=clock)
    assert context.now_ms() == 5
    clock.now_ms = 7
    assert context.now_ms() == 7
    assert context == TaskContext("words", "count", 3, 1, {})
