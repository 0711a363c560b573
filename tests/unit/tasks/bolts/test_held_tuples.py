"""Trap: a held tuple that is unpickled twice is two objects with two counters and two "done" flags."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acktree import Bolt, Config, KeyValueState
from acktree.core.state.key_value_state import KeyValueState as State
from acktree.core.state.store import Below
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import MisuseError
from tests.drawn import drawn
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench, looking

BY = {"same": lambda tup: tup, "copy": copy.copy, "deepcopy": copy.deepcopy}
places = st.sampled_from([0, 0, 1, 2, 3])
actions = st.one_of(
    st.tuples(st.just("copy"), places, places, st.sampled_from(sorted(BY))),
    st.tuples(st.sampled_from(["emit", "emit", "emit", "ack", "fail", "drop"]), places),
)


class KeepsOneInManyPlaces(Bolt):
    """Keeps the first tuple in up to four places, and does to it there what later tuples say."""

    outputs = {"default": ["value"], "said": ["word"]}
    remembers = ["boxes", "state"]

    def prepare(self, config, context, collector):
        self.collector = collector
        self.boxes, self.state = {}, KeyValueState()

    def execute(self, tup):
        if tup["value"] == "keep":
            self.boxes[0] = [tup]
            return
        action, place, *further = tup["value"]
        shelf = self.boxes if place < 2 else self.state
        if place in shelf:
            try:
                self.act(action, shelf[place][0], shelf, place, *further)
                self.collector.emit(["done"], stream="said")
            except MisuseError:
                self.collector.emit(["refused"], stream="said")
        self.collector.ack(tup)

    def act(self, action, kept, shelf, place, other=0, how="same"):
        if action == "copy":
            (self.boxes if other < 2 else self.state).setdefault(other, [None])[0] = BY[how](kept)
        elif action == "drop":
            del shelf[place]
        elif action == "emit":
            self.collector.emit(["child"], anchors=[kept, BY["copy"](kept)])
        else:
            getattr(self.collector, action)(kept)


@settings(max_examples=drawn(60))
@given(st.lists(st.tuples(actions, st.sampled_from([True, True, False])), max_size=14))
@example([(("ack", 0), True), (("ack", 0), True), (("emit", 0), True)])
@example([(("copy", 0, 2, "same"), True), (("emit", 2), True), (("emit", 0), True), (("fail", 2), True)])
@example([(("copy", 0, 3, "deepcopy"), False), (("emit", 3), False), (("emit", 0), True), (("ack", 3), True)])
def test_trap_unpickled_twice_a_held_tuple_is_of_one_mind_wherever_it_is_kept(script):
    acks = Calls(lambda bolt, tup, collector: None)
    with (
        looking() as seen,
        bench(KeepsOneInManyPlaces(), acks, config=Config(enable_message_timeouts=False)) as running,
    ):
        running.feed((["keep"], 0))
        kept, done, children, expected = {0}, None, 0, []
        for number, ((action, place, *further), is_last_of_batch) in enumerate(script, start=1):
            running.feeder.feed([(action, place, *further)], message_id=number)
            if is_last_of_batch:
                running.cluster.advance()
            if place not in kept:
                continue
            is_refused = done is not None and action in {"ack", "fail", "emit"}
            expected.append("refused" if is_refused else "done")
            if action == "copy":
                kept.add(further[0])
            elif action == "drop":
                kept.remove(place)
            elif not is_refused:
                children += action == "emit"
                done = action if action in {"ack", "fail"} else done
        running.cluster.advance()
        root = seen.pairs[0][0]
        edges = [edge for its_root, edge in seen.pairs if its_root == root]
        assert running.tuples("b0", "said") == expected
        assert len(set(edges)) == len(edges) == 1 + children
        assert (0 in running.acked, 0 in running.failures) == (done == "ack", done == "fail")
        assert len(names_in_the_table(running)) == bool(kept)


def names_in_the_table(running):
    """The names of the tuples that task b0 holds."""
    store = running.running._levels._store(1, 0)
    table = State()
    table.bind(
        Below(store, f"task/{running.running.plan.topology.tasks['b0'][0]}/held/"), pickle.dumps, pickle.loads
    )
    return [name for name in table if name != ""]


def test_a_tuple_is_the_same_object_wherever_it_is_restored():
    def execute(bolt, tup):
        if bolt.boxes:
            same = bolt.boxes["a"][0] is bolt.boxes["b"] is bolt.state["c"]["d"]
            bolt.collector.emit([same])
        else:
            bolt.boxes.update(a=[tup], b=tup)
            bolt.state["c"] = {"d": tup}

    keeps = CallsByHand(execute, remembers=("boxes", "state"), boxes=dict, state=KeyValueState)
    with bench(keeps) as running:
        running.feed(1)
        running.feed(2)
        assert running.tuples("b0") == [True]


def test_a_tuple_may_be_a_key_or_a_value_of_an_otherwise_plain_dict():
    def execute(bolt, tup):
        if bolt.as_key:
            ((key, one),) = bolt.as_key.items()
            ((other, value),) = bolt.as_value.items()
            bolt.collector.emit([(key is value, one, other)])
            bolt.collector.ack(key)
        else:
            bolt.as_key, bolt.as_value = {tup: 1}, {2: tup}

    keeps = CallsByHand(execute, remembers=("as_key", "as_value"), as_key=dict, as_value=dict)
    with bench(keeps) as running:
        running.feed("kept")
        running.feed("later")
        assert running.tuples("b0") == [(True, 1, 2)]
        assert running.acked == ["kept"]


def test_a_held_tuple_comes_back_as_it_was():
    def execute(bolt, tup):
        for held in (bolt.held, tup):
            if held is not None:
                shown = (
                    held["a"],
                    held[1],
                    held.as_dict(),
                    held.fields,
                    held.stream,
                    held.component,
                    held.attempt,
                )
                bolt.collector.emit([(*shown, sorted(held.anchors.items()), held.task_id, repr(held))])
        bolt.held = tup

    keeps = CallsByHand(execute, remembers=("held",), held=None)
    with bench(keeps, outputs=("a", "b")) as running:
        running.feed(([(1, "x"), 2.5], 1))
        running.feed(([None, b"y"], 2))
        first, again, _ = running.tuples("b0")
        assert first == again


def test_a_tuple_that_nothing_names_any_more_is_dropped_from_the_table_and_times_out():
    def execute(bolt, tup):
        bolt.held = tup if bolt.held is None else "gone"

    with bench(CallsByHand(execute, remembers=("held",), held=None)) as running:
        running.feed(1)
        assert len(names_in_the_table(running)) == 1
        running.feed(2)
        assert names_in_the_table(running) == []
        running.cluster.advance(60)
        assert {key: failure.kind for key, failure in running.failures.items()} == {
            1: "TIMED_OUT",
            2: "TIMED_OUT",
        }


def test_a_tuple_in_two_blobs_stays_until_both_are_gone():
    def execute(bolt, tup):
        match tup["value"]:
            case "keep":
                bolt.boxes["a"] = bolt.state["b"] = tup
            case "drop box":
                bolt.boxes.clear()
            case "drop state":
                bolt.state.clear()
        bolt.collector.ack(tup) if tup["value"] != "keep" else None

    keeps = CallsByHand(execute, remembers=("boxes", "state"), boxes=dict, state=KeyValueState)
    with bench(keeps) as running:
        for command, held in (("keep", 1), ("drop box", 1), ("drop state", 0)):
            running.feed(command)
            assert len(names_in_the_table(running)) == held


def test_a_tuple_that_is_kept_out_of_memory_is_refused_in_a_later_micro_batch():
    """On a cluster the process may be another one by then; in a test it must show."""
    KEPT.clear()
    with bench(CallsByHand(keep_in_a_global)) as running:
        running.feed("first")
        running.feed("second")
        assert running.acked == []
        failure = running.failures["second"]
        assert failure.cause is FailureCause.MISUSE
        assert "was not given in this micro-batch" in failure.reason
        assert "attributes that the bolt `remembers`" in failure.reason


KEPT = []


def keep_in_a_global(bolt, tup):
    KEPT.append(tup)
    if len(KEPT) > 1:
        bolt.collector.ack(KEPT[0])


def remember_from_a_global(bolt, tup):
    KEPT.append(tup)
    bolt.held = KEPT[0]
    bolt.collector.ack(tup)


def test_a_tuple_of_an_earlier_micro_batch_cannot_be_smuggled_into_memory():
    KEPT.clear()
    with bench(CallsByHand(remember_from_a_global, remembers=("held",), held=None)) as running:
        running.feed("first")
        running.feed("second")
        assert running.acked == ["first"]
        assert "is remembered that this task was not given" in running.failures["second"].reason


def test_a_tuple_that_is_pickled_by_hand_is_refused():
    def execute(bolt, tup, collector):
        return pickle.dumps(tup)

    with bench(Calls(execute)) as running:
        running.feed(1)
        assert "a tuple was pickled outside of its bolt's memory" in running.failures[1].reason


def test_a_tuple_that_is_emitted_as_a_value_fails_its_anchor():
    with bench(Calls(lambda bolt, tup, collector: tup if tup["value"] == 2 else 0)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        assert "cannot be pickled, so it cannot be sent" in running.failures[2].reason
        assert running.tuples("b0") == [0, 0]


@pytest.mark.parametrize("thing", ["a value", None, [1]])
def test_only_a_tuple_can_be_acked_failed_or_anchored_to(thing):
    def execute(bolt, tup):
        action = tup["value"]
        if action == "emit":
            bolt.collector.emit([1], anchors=[thing])
        else:
            getattr(bolt.collector, action)(thing)

    with bench(CallsByHand(execute)) as running:
        running.feed("ack", "fail", "reset_timeout", "emit")
        assert running.acked == []
        assert all("which is not a tuple of the topology" in f.reason for f in running.failures.values())


class Window(Bolt):
    """Holds tuples; "part" emits from all of them and keeps what cannot be saved; "finish" emits and acks."""

    outputs = ["value"]
    remembers = ["held", "extra"]

    def prepare(self, config, context, collector):
        self.collector, self.held, self.extra = collector, [], None

    def execute(self, tup):
        what = tup["value"]
        if what.startswith("hold"):
            self.held.append(tup)
            return
        if what == "ack":
            self.collector.ack(self.held.pop())
        elif what != "look":
            self.collector.emit([what], anchors=self.held[:1])
        if what in {"part", "ack", "look"}:
            self.extra = threading.Lock()
        else:
            for held in self.held:
                self.collector.ack(held)
            self.held = []
        self.collector.ack(tup)


class Fails(Bolt):
    """Acks the first child of a window and forgets the second."""

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        if tup["value"] == "part":
            self.collector.ack(tup)


def test_a_save_that_fails_fails_the_held_tuples_that_were_emitted_from_and_not_the_others():
    with bench(Window(), Fails()) as running:
        running.feed("hold 1", "hold 2")
        running.feed("part")
        assert set(running.failures) == {"hold 1", "part"}
        running.feed("finish")  # a child with the edge of the first, which is never acked
        assert running.acked == ["hold 2", "finish"]
        assert "cannot pickle" in running.failures["hold 1"].reason


@pytest.mark.parametrize(("what", "failed"), [("ack", {"ack", "hold"}), ("look", {"look"})])
def test_a_save_that_fails_fails_the_held_tuples_that_were_acked_and_none_that_was_left_alone(what, failed):
    with bench(Window()) as running:
        running.feed("hold")
        running.feed(what)
        assert set(running.failures) == failed
        assert running.acked == []
