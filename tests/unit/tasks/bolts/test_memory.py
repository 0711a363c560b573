"""Trap: ``state.setdefault(k, []).append(x)`` changes a value in place and no key."""

from __future__ import annotations

import copy
import threading
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import BasicBolt, ColumnState, Config, KeyValueState
from acktree.core.state.store import Below, MemoryStore
from acktree.core.state.stored_state import StoredState
from acktree.errors import MisuseError
from acktree.tasks.bolts.memory import TaskMemory
from tests.drawn import drawn
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench

NAMES = ["state", "table", "thing"]


class Remembering(SimpleNamespace):
    """What a bolt's attributes are before anything is remembered."""

    def __init__(self):
        super().__init__(state=KeyValueState(), table={}, thing=Thing())


class Thing:
    """An object of the user's."""

    def __init__(self):
        self.items = []

    def __eq__(self, other):
        return self.items == other.items

    __hash__ = None


def plain(remembering):
    """The same as plain Python, to compare and to keep apart."""
    return copy.deepcopy((dict(remembering.state), remembering.table, remembering.thing.items))


keys = st.sampled_from(["a", "b", 1, (2, "c")])
mutations = st.one_of(
    st.tuples(st.just("append"), keys, st.integers(0, 9)),
    st.tuples(st.just("count"), keys, st.integers(0, 9)),
    st.tuples(st.just("nested"), keys, st.integers(0, 9)),
    st.tuples(st.just("deque"), keys, st.integers(0, 9)),
    st.tuples(st.just("array"), keys, st.integers(0, 9)),
    st.tuples(st.just("bytes"), keys, st.integers(0, 9)),
    st.tuples(st.just("replace"), keys, st.integers(0, 9)),
    st.tuples(st.just("delete"), keys, st.just(0)),
    st.tuples(st.just("read"), keys, st.just(0)),
    st.tuples(st.just("thing"), keys, st.integers(0, 9)),
    st.tuples(st.just("fresh"), keys, st.integers(0, 9)),
    st.tuples(st.just("clear"), keys, st.just(0)),
)
FIRST = {
    "append": list,
    "count": Counter,
    "nested": lambda: {"deep": [[]]},
    "deque": deque,
    "array": lambda: [np.zeros(3).tolist()],
    "bytes": bytearray,
}


def mutate(remembering, how, key, n):  # noqa: C901  # a list of mutations
    """Change something in place: no key is set where the value is there already."""
    for shelf in (remembering.state, remembering.table):
        match how:
            case "append" | "deque":
                shelf.setdefault((how, key), FIRST[how]()).append(n)
            case "count":
                shelf.setdefault((how, key), FIRST[how]())[n] += 1
            case "nested":
                shelf.setdefault((how, key), FIRST[how]())["deep"][0].append(n)
            case "array":
                shelf.setdefault((how, key), FIRST[how]())[0][n % 3] = n
            case "bytes":
                shelf.setdefault((how, key), FIRST[how]()).append(n)
            case "replace":
                shelf["replace", key] = n
            case "delete":
                shelf.pop(("append", key), None)
            case "read":
                shelf.get(("nested", key))
            case "clear":
                shelf.clear()
    if how == "thing":
        remembering.thing.items.append((key, n))
    if how == "fresh":
        remembering.state = type(remembering.state)({("replace", key): n})


@settings(max_examples=drawn(100))
@given(st.lists(st.lists(mutations, max_size=6), max_size=6))
def test_trap_changed_in_place_what_a_bolt_changed_is_what_it_finds_in_the_next_micro_batch(batches):
    store, model = MemoryStore(), Remembering()
    model.state = {}
    for batch in batches:
        remembering = Remembering()  # as prepared, in another process
        memory = TaskMemory(NAMES, store, None)
        memory.restore(remembering)
        assert plain(remembering) == plain(model)
        for mutation in batch:
            mutate(remembering, *mutation)
            mutate(model, *mutation)
        assert plain(remembering) == plain(model)
        memory.save(remembering)
    remembering = Remembering()
    TaskMemory(NAMES, store, None).restore(remembering)
    assert plain(remembering) == plain(model)


@settings(max_examples=drawn(100))
@given(st.lists(st.lists(mutations, max_size=6), max_size=6))
def test_a_memory_with_what_stayed_is_as_one_that_is_read(batches):
    store, model, remembering = MemoryStore(), Remembering(), Remembering()
    model.state, kept = {}, {}
    for batch in batches:
        memory = TaskMemory(NAMES, store, None, kept=kept)
        memory.restore(remembering)
        assert plain(remembering) == plain(model)
        for mutation in batch:
            mutate(remembering, *mutation)
            mutate(model, *mutation)
        memory.save(remembering)
        kept = memory.staying
    fresh = Remembering()
    TaskMemory(NAMES, store, None).restore(fresh)
    assert plain(fresh) == plain(model)


def test_a_state_that_something_else_took_the_place_of_does_not_come_back():
    store, held = MemoryStore(), SimpleNamespace(counts=KeyValueState({"a": 1}))
    memory = TaskMemory(["counts"], store, held)
    memory.restore(held)
    memory.save(held)
    memory = TaskMemory(["counts"], store, held, kept=memory.staying)
    memory.restore(held)
    held.counts = table = {}
    memory.save(held)
    TaskMemory(["counts"], store, held, kept=memory.staying).restore(held)
    assert held.counts is not table, "it is restored"
    fresh = SimpleNamespace(counts=KeyValueState())
    TaskMemory(["counts"], store, fresh).restore(fresh)
    assert fresh.counts == {}


def test_setdefault_and_append_is_remembered_by_a_topology():
    def execute(bolt, tup, collector):
        bolt.lists.setdefault(tup["value"] % 2, []).append(tup["value"])
        return list(bolt.lists[tup["value"] % 2])

    with bench(Calls(execute, remembers=("lists",), lists=KeyValueState)) as running:
        for batch in ((0, 1), (2, 3), (4, 5)):
            running.feed(*batch)
        assert running.tuples("b0")[-2:] == [[0, 2, 4], [1, 3, 5]]


def test_the_ttl_is_what_this_program_prepares():
    store = MemoryStore()
    runs = [
        (0, None, {}),
        (1, 10, {0: 1}),  # what has no time yet counts as written now
        (10_000, 20, {0: 1, 1: 1}),
        (10_001, 10, {10_000: 1}),
        (90_000, None, {10_000: 1, 10_001: 1}),  # what had not expired stays
    ]
    for now_ms, ttl_secs, expected in runs:
        held = SimpleNamespace(counts=KeyValueState(ttl_secs=ttl_secs))
        memory = TaskMemory(["counts"], store, held, now_ms=now_ms)
        memory.restore(held)
        assert dict(held.counts) == expected
        held.counts[now_ms] = 1
        memory.save(held)


def test_a_topology_forgets_keys_by_the_clock_of_its_micro_batches():
    def execute(bolt, tup, collector):
        bolt.seen[tup["value"]] = bolt.seen.get(tup["value"], 0) + 1
        return tup["value"], bolt.seen[tup["value"]], len(bolt.seen)

    ages = lambda: KeyValueState(ttl_secs=60)  # noqa: E731  # a factory, as KeyValueState itself
    with bench(Calls(execute, remembers=("seen",), seen=ages)) as running:
        running.feed("a")
        running.cluster.advance(secs=59)
        running.feed("a", "b")
        running.cluster.advance(secs=59)
        running.feed("c")
        running.cluster.advance(secs=1)
        running.feed("a")
        assert running.tuples("b0") == [("a", 1, 1), ("a", 2, 1), ("b", 1, 2), ("c", 1, 3), ("a", 1, 2)]


def test_a_micro_batch_that_changes_nothing_writes_nothing():
    store = MemoryStore()
    for read in (None, "a", "b"):
        remembering = Remembering()
        memory = TaskMemory(NAMES, store, None)
        memory.restore(remembering)
        if read is None:
            remembering.state.update(a=[1], b=[2])
        else:
            assert remembering.state[read]
        before = dict(store.blobs)
        memory.save(remembering)
        if read is not None:
            assert all(store.blobs[name] is before[name] for name in store.blobs)


class TalliesInItsClass(BasicBolt):
    """Its first value is set in the class, and not in prepare."""

    outputs = ["value"]
    remembers = ["tally", "state"]
    tally = []  # the point
    state = KeyValueState()

    def prepare(self, config, context):
        self.task = context.task_id

    def execute(self, tup, collector):
        self.tally.append(tup["value"])
        self.state[tup["value"]] = True
        collector.emit([(self.task, list(self.tally), sorted(self.state))])


def test_a_first_value_in_the_class_is_not_shared_by_tasks_runs_or_micro_batches():
    def build(builder):
        builder.set_bolt("tallies", TalliesInItsClass(), parallelism=2).fields_grouping("source", ["value"])

    for _ in range(2):
        with bench(build=build) as running:
            running.feed(*range(6))
            running.feed(*range(6))
            last = {task: (tally, state) for task, tally, state in running.tuples("tallies")}
            assert sorted(value for tally, _ in last.values() for value in tally) == sorted([*range(6)] * 2)
            assert sorted(value for _, state in last.values() for value in state) == [*range(6)]
            assert len(last) == 2
    assert TalliesInItsClass.tally == []
    assert len(TalliesInItsClass.state) == 0


def test_one_state_under_two_names_is_refused_since_it_would_be_two_later():
    def prepare(bolt):
        bolt.a = bolt.b = KeyValueState()

    class Twins(Calls):
        def prepare(self, config, context):
            prepare(self)

    with bench(Twins(lambda bolt, tup, collector: None, remembers=("a", "b"))) as running:
        running.feed(1)
        assert "['a', 'b'] are one KeyValueState" in running.failures[1].reason


def test_two_states_that_change_places_are_refused_and_nothing_is_lost():
    def execute(bolt, tup, collector):
        bolt.a[tup["value"]] = "a"
        if tup["value"] == 2:
            bolt.a, bolt.b = bolt.b, bolt.a
        return sorted(bolt.a), sorted(bolt.b)

    swaps = Calls(execute, remembers=("a", "b"), a=KeyValueState, b=KeyValueState)
    with bench(swaps) as running:
        for value in (1, 2, 3):
            running.feed(value)
        assert running.acked == [1, 3]
        assert "are one KeyValueState" in running.failures[2].reason
        assert running.tuples("b0")[-1] == ([1, 3], [])


def columns(**numbers):
    state = ColumnState(str, int)
    state.update(numbers)
    return state


@pytest.mark.parametrize(
    "replacement",
    [lambda: {"plain": 1}, lambda: KeyValueState({"fresh": 2}), lambda: columns(fresh=2), lambda: None],
)
def test_a_state_that_is_replaced_is_forgotten_with_what_it_held(replacement):
    store = MemoryStore()
    for turn in range(3):
        remembering = Remembering()
        memory = TaskMemory(["state"], store, None)
        memory.restore(remembering)
        if turn == 0:
            remembering.state.update({n: [n] for n in range(600)})
        elif turn == 1:
            assert len(remembering.state) == 600
            remembering.state = replacement()
        memory.save(remembering)
    expected = replacement()
    found = remembering.state
    assert type(found) is type(expected)
    assert (dict(found) if isinstance(found, StoredState) else found) == (
        dict(expected) if isinstance(expected, StoredState) else expected
    )
    buckets = [name for name in store.blobs if name.startswith("state/state/bucket")]
    assert len(buckets) == (1 if isinstance(expected, StoredState) else 0)


@pytest.mark.parametrize("other", [KeyValueState, dict, lambda given: list(given.items())])
def test_columns_take_the_place_of_another_kind_and_give_it_back(other):
    store, expected = MemoryStore(), {f"word {number}": number for number in range(2000)}
    for make in (other, None, columns, None, other, None, columns, None):
        remembering = SimpleNamespace()
        memory = TaskMemory(["state"], store, None)
        memory.restore(remembering)
        if make is columns:
            remembering.state = columns(**dict(remembering.state))
        elif make is not None:
            remembering.state = make(dict(getattr(remembering, "state", expected)))
        assert dict(remembering.state) == expected
        memory.save(remembering)
    assert sum(name.startswith("state/") for name in store.blobs) == 3


def test_a_plain_value_that_becomes_a_state_is_a_state_from_then_on():
    def execute(bolt, tup, collector):
        if not isinstance(bolt.memory, KeyValueState):
            bolt.memory = KeyValueState(bolt.memory)
        bolt.memory[tup["value"]] = True
        return sorted(bolt.memory), bolt.memory.is_bound

    with bench(Calls(execute, remembers=("memory",), memory={0: True})) as running:
        running.feed(1)
        running.feed(2)
        assert running.tuples("b0") == [([0, 1], False), ([0, 1, 2], True)]


def test_what_prepare_does_not_set_may_be_remembered_from_the_first_tuple_on():
    def execute(bolt, tup, collector):
        bolt.last = [*getattr(bolt, "last", []), tup["value"]]
        return bolt.last

    with bench(Calls(execute, remembers=("last",))) as running:
        running.feed(1)
        running.feed(2, 3)
        assert running.tuples("b0") == [[1], [1, 2], [1, 2, 3]]


def test_prepare_runs_in_every_micro_batch_and_memory_is_restored_over_what_it_set():
    def execute(bolt, tup, collector):
        bolt.count += 1
        return bolt.count

    with bench(Calls(execute, remembers=("count",), count=100)) as running:
        running.feed(1, 2)
        running.feed(3)
        assert running.tuples("b0") == [101, 102, 103]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_memory_that_does_not_pickle_fails_the_tuples_of_its_micro_batch_and_stays_as_it_was(by_hand):
    def remember(bolt, value):
        bolt.good.append(value)
        bolt.state[value] = [value]
        bolt.bad = threading.Lock() if value == 3 else None
        return list(bolt.good), sorted(bolt.state)

    def basic(bolt, tup, collector):
        return remember(bolt, tup["value"])

    def hand(bolt, tup):
        bolt.collector.emit([remember(bolt, tup["value"])], anchors=tup)
        bolt.collector.ack(tup)

    kind = CallsByHand(hand, remembers=("good", "state", "bad"), good=list, state=KeyValueState, bad=None)
    if not by_hand:
        kind = Calls(basic, remembers=("good", "state", "bad"), good=list, state=KeyValueState, bad=None)
    with bench(kind) as running:
        for batch in ((1,), (2, 3), (4,)):
            running.feed(*batch)
        assert running.acked == [1, 4]
        assert "what is remembered as 'bad' cannot be saved: TypeError: cannot pickle '_thread.lock'" in (
            running.failures[2].reason
        )
        assert running.failures[3].component == "b0"
        assert running.running.stats()["b0"].total.failed == 2
        assert running.tuples("b0")[-1] == ([1, 4], [1, 4])


def test_held_tuples_that_were_acked_fail_too_if_the_memory_cannot_be_saved():
    """Else a message were done whose work is not remembered."""

    def execute(bolt, tup):
        if tup["value"] == "release":
            bolt.collector.ack(bolt.held)
            bolt.bad = threading.Lock()
            bolt.collector.ack(tup)
        else:
            bolt.held = tup

    with bench(CallsByHand(execute, remembers=("held", "bad"), held=None, bad=None)) as running:
        running.feed("hold")
        running.feed("release")
        assert running.acked == []
        assert sorted(running.failures) == ["hold", "release"]


def test_a_memory_that_cannot_be_read_fails_the_tuples_and_is_kept():
    def execute(bolt, tup, collector):
        bolt.thing = Breaks() if tup["value"] == "break" else None
        return tup["value"]

    with bench(Calls(execute, remembers=("thing",), thing=None)) as running:
        running.feed("break")
        running.feed("later")
        assert running.acked == ["break"]
        assert "cannot be read back" in running.failures["later"].reason
        Breaks.is_mended = True
        running.feed("mended")
        assert running.acked == ["break", "mended"]


class Breaks:
    is_mended = False

    def __reduce__(self):
        return _break, ()


def _break():
    if not Breaks.is_mended:
        raise RuntimeError("cannot be read back")


def test_memories_of_two_tasks_in_one_partition_do_not_mix():
    def execute(bolt, tup, collector):
        bolt.seen.append(tup["value"])
        return list(bolt.seen)

    def build(builder):
        counting = Calls(execute, remembers=("seen",), seen=list)
        builder.set_bolt("b", counting, parallelism=3).all_grouping("source")

    with bench(build=build, config=Config(partitions=2)) as running:
        for value in (1, 2):
            running.feed(value)
        assert running.tuples("b") == [[1]] * 3 + [[1, 2]] * 3


def test_a_memory_lies_in_its_own_corner_of_the_store():
    store = MemoryStore()
    for corner in ("task/1/", "task/2/"):
        remembering = Remembering()
        memory = TaskMemory(["state"], Below(store, corner), None)
        memory.restore(remembering)
        remembering.state[corner] = 1
        memory.save(remembering)
    remembering = Remembering()
    TaskMemory(["state"], Below(store, "task/1/"), None).restore(remembering)
    assert dict(remembering.state) == {"task/1/": 1}
    with pytest.raises(MisuseError, match="are one KeyValueState"):
        TaskMemory(["state"], Below(store, "task/3/"), None).restore(remembering)
