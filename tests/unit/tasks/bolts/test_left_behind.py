"""What calls leave behind, raise or wait for harms no other tuple of a concurrent bolt."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from acktree import BasicBolt, Bolt, Config
from acktree.core.tracking.verdicts import FailureCause
from acktree.system.stopped_by import EndOfLevelError
from acktree.tasks.bolts.concurrent.calls import Call, current_call
from acktree.tasks.bolts.concurrent.event_loop import host
from acktree.tasks.bolts.concurrent.turns import Turns
from tests.unit.tasks.bolts.bolt_harness import bench

QUICK = Config(execute_timeout_secs=0.4)
SEEN: list[object] = []
"""What bolts write down. A bolt is pickled with its globals; functions of this module go by name."""
GO = threading.Event()
"""Lets a thread that was left behind go on."""
MEETING = threading.Barrier(40)


class EndsLevelError(EndOfLevelError):
    """As the loss of the state's channel."""


def note(what: object) -> None:
    SEEN.append(what)


def go() -> None:
    GO.set()


def wait_to_go() -> None:
    GO.wait(120)


def meet() -> None:
    MEETING.wait(120)


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()
    GO.clear()
    yield
    GO.set()


@pytest.mark.parametrize("is_async", [True, False])
def test_a_stop_iteration_fails_its_tuple_at_once(is_async):
    class Takes(BasicBolt):
        threads = None if is_async else 2

        def take(self, tup):
            next(iter(tup["value"] * [0]))

    class Async(Takes):
        async def execute(self, tup, collector):
            self.take(tup)

    class OnThreads(Takes):
        def execute(self, tup, collector):
            self.take(tup)

    with bench(Async() if is_async else OnThreads(), config=QUICK) as running:
        running.feed(0, 1)
        assert running.acked == [1]
        assert "StopIteration" in running.failures[0].reason


def test_what_is_no_exception_of_a_tuple_ends_the_micro_batch_and_the_tuples_behind_it_do_not_begin():
    class Ends(BasicBolt):
        max_concurrency = 2

        async def execute(self, tup, collector):
            note(tup["value"])
            if tup["value"] == 1:
                raise EndsLevelError
            await asyncio.sleep(0.01)

    with bench(Ends(), config=QUICK) as running:
        with pytest.raises(EndsLevelError):
            running.feed(0, 1, 2)
        host().run(asyncio.sleep(0.03))
        assert SEEN == [0, 1]


def test_a_cancel_that_a_call_asks_for_itself_meets_no_other_tuple():
    class Cancels(BasicBolt):
        max_concurrency = 1

        async def execute(self, tup, collector):
            if tup["value"] == 0:
                asyncio.current_task().cancel()  # it would be raised at the next await
            else:
                await asyncio.sleep(0)

    with bench(Cancels(), config=QUICK) as running:
        running.feed(0, 1)
        assert running.acked == [0, 1]


def test_to_wait_for_what_is_remembered_is_no_time_of_the_call():
    class Slow(BasicBolt):
        remembers = ("count",)
        threads = 10

        def prepare(self, config, context):
            self.count = 0

        def execute(self, tup, collector):
            self.count += 1
            time.sleep(0.08)

    with bench(Slow(), config=QUICK) as running:
        running.feed(*range(10))
        assert running.acked == list(range(10))


def test_a_call_that_is_given_up_while_it_waits_for_its_turn_does_not_take_it():
    turns, raised = Turns(), []
    owner, late = Call(None, 0), Call(None, 1)

    def take(call: Call) -> None:
        current_call.set(call)
        try:
            turns.take("counts")
        except Exception as error:  # noqa: BLE001  # which it is does not matter: it has no rows
            raised.append(error)

    contextvars.copy_context().run(take, owner)
    waiting = threading.Thread(target=contextvars.copy_context().run, args=(take, late))
    waiting.start()
    while late.waiting_since is None:
        time.sleep(0.001)
    late.is_over = True
    assert turns.leave_behind(late, interrupt=lambda: raised.append("interrupted"))
    assert not turns.leave_behind(owner, interrupt=lambda: raised.append("interrupted"))
    turns.give_back(owner)
    waiting.join(120)
    assert len(raised) == 1
    assert turns.owner is None


def test_a_thread_that_outlives_the_calls_is_refused_also_in_a_later_hook():
    class Leaves(Bolt):
        outputs = ("value",)
        threads = 2

        def prepare(self, config, context, collector):
            self.collector = collector

        def execute(self, tup):
            def later() -> None:
                wait_to_go()
                for say in (lambda: self.collector.emit([1], anchors=tup), lambda: self.collector.ack(tup)):
                    try:
                        say()
                        note("accepted")
                    except Exception as error:  # noqa: BLE001  # reported below
                        note(type(error).__name__)

            self.left = threading.Thread(target=later)
            self.left.start()

        def flush(self, collector):
            go()
            self.left.join()
            self.left = None
            collector.emit([2])

    with bench(Leaves(), config=QUICK) as running:
        running.feed(0)
        assert SEEN == ["MisuseError", "MisuseError"]
        assert running.tuples("b0") == [2]
        assert running.acked == []


def test_the_collector_of_another_tuple_is_refused():
    class Keeps(BasicBolt):
        outputs = ("value",)

        async def execute(self, tup, collector):
            self.collector = collector
            await asyncio.sleep(0.02 * tup["value"])
            self.collector.emit([tup["value"]])

    with bench(Keeps()) as running:
        running.feed(0, 1)
        assert running.acked == [1]
        assert "collector of another tuple" in running.failures[0].reason
        assert running.tuples("b0") == [1]


def test_an_exception_has_no_context_of_ours():
    class Raises(BasicBolt):
        async def execute(self, tup, collector):
            try:
                int("x")
            except ValueError as error:
                note(error.__context__)

    with bench(Raises()) as running:
        running.feed(0)
        assert SEEN == [None]


def test_to_thread_has_a_thread_for_each_call():
    class Meets(BasicBolt):
        async def execute(self, tup, collector):
            await asyncio.to_thread(meet)

    with bench(Meets(), config=Config(execute_timeout_secs=60)) as running:
        running.feed(*range(40))
        assert running.acked == list(range(40))


def test_what_hangs_in_to_thread_fails_alone():
    class Hangs(BasicBolt):
        async def execute(self, tup, collector):
            await asyncio.to_thread(wait_to_go if tup["value"] == 1 else int)

    with bench(Hangs(), config=QUICK) as running:
        running.feed(0, 1, 2)
        assert running.acked == [0, 2]
        assert running.failures[1].cause is FailureCause.HUNG


def test_a_thread_that_a_tick_leaves_behind_emits_under_no_tuple():
    class Ticks(BasicBolt):
        outputs = ("value",)
        threads = 1
        tick_secs = 1

        def tick(self, tup, collector):
            def later() -> None:
                wait_to_go()
                try:
                    collector.emit(["of the tick"])
                except Exception as error:  # noqa: BLE001  # reported below
                    note(type(error).__name__)

            collector.emit(["in time"])
            self.left = threading.Thread(target=later)
            self.left.start()

        def execute(self, tup, collector):
            pass

        def flush(self, collector):
            go()
            self.left.join()
            self.left = None

    def build(builder):
        builder.set_bolt("b", Ticks()).global_grouping("source")

    with bench(build=build) as running:
        running.cluster.advance(1)
        assert SEEN == ["MisuseError"]
        assert running.tuples("b") == ["in time"]
