"""Undeclared memory is refused by name, on the tuple that wrote it."""

from __future__ import annotations

import copy
import enum
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, KeyValueState
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import MisuseError
from acktree.tasks.bolts.guard import WATCHED_CLOSELY, Guard
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench

Pair = namedtuple("Pair", "left right")  # noqa: PYI024  # an old one, with a list in it


class Colour(enum.Enum):
    RED = 1


def refused(failure, name):
    """Whether a failure is the misuse of this attribute, with the fix."""
    return (
        failure.cause is FailureCause.MISUSE
        and f"changed its attribute {name!r}, which it does not remember" in failure.reason
        and f"remembers = [{name!r}]" in failure.reason
    )


def changes(change, **attributes):
    """A bolt that changes itself at value 2, and only there."""

    def execute(bolt, tup, collector):
        if tup["value"] == 2:
            change(bolt)

    return Calls(execute, **attributes)


REBOUND = {
    "a number": 7,
    "None": None,
    "a string": "x",
    "bytes": b"x",
    "a tuple": (1,),
    "a list": [1],
    "a dict": {1: 2},
    "a set": {1},
    "a frozenset": frozenset({1}),
    "a deque": deque([1]),
    "a bytearray": bytearray(b"x"),
    "a Decimal": Decimal(1),
    "a Fraction": Fraction(1, 2),
    "a date": date(2026, 1, 1),
    "a moment": datetime(2026, 1, 1, tzinfo=UTC),
    "a timedelta": timedelta(1),
    "a UUID": uuid.UUID(int=7),
    "an enum": Colour.RED,
    "a KeyValueState": KeyValueState(),
}


@pytest.mark.parametrize("value", REBOUND.values(), ids=REBOUND.keys())
@pytest.mark.parametrize("is_new", [False, True], ids=["prepared", "new"])
def test_rebinding_an_attribute_is_refused_at_once_and_fails_that_tuple_alone(value, is_new):
    attributes = {} if is_new else {"thing": 0}
    with bench(changes(lambda bolt: setattr(bolt, "thing", value), **attributes)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        assert refused(running.failures[2], "thing")


def test_adding_to_a_number_is_rebinding_it():
    def add(bolt):
        bolt.count += 1

    with bench(changes(add, count=0)) as running:
        running.feed(1, 2, 3)
        assert refused(running.failures[2], "count")


def test_keeping_the_tuple_in_an_attribute_is_refused():
    def execute(bolt, tup):
        bolt.last = tup

    with bench(CallsByHand(execute)) as running:
        running.feed(1)
        assert refused(running.failures[1], "last")


CHANGED = {
    "list": ([1], lambda c: c.append(2)),
    "list item": ([1], lambda c: c.__setitem__(0, 2)),
    "dict": ({1: 1}, lambda c: c.__setitem__(2, 2)),
    "dict value": ({1: 1}, lambda c: c.__setitem__(1, 2)),
    "set": ({1}, lambda c: c.add(2)),
    "deque": (deque([1, 2]), lambda c: c.rotate()),
    "full deque": (deque([1, 2], maxlen=2), lambda c: c.append(3)),
    "bytearray": (bytearray(b"ab"), lambda c: c.__setitem__(0, 0)),
    "defaultdict": (defaultdict(int), lambda c: c[1]),
    "Counter": (Counter("a"), lambda c: c.update("a")),
    "OrderedDict": (OrderedDict(a=1), lambda c: c.update(a=2)),
    "nested list": ([[1], [2]], lambda c: c[1].append(3)),
    "nested dict": ({"a": {"b": [1]}}, lambda c: c["a"]["b"].append(2)),
    "nested set": ({"a": {1}}, lambda c: c["a"].clear()),
    "deque of bytearrays": (deque([bytearray(b"a")]), lambda c: c[0].append(1)),
    "tuple of lists": (([1], [2]), lambda c: c[1].append(3)),
    "named tuple of lists": (Pair([1], [2]), lambda c: c.left.clear()),
    "tuple of tuples of lists": ((1, (2, [3])), lambda c: c[1][1].append(4)),
    "KeyValueState": (KeyValueState({1: [1]}), lambda c: c.__setitem__(2, 2)),
    "in a KeyValueState": (KeyValueState({1: [1]}), lambda c: c[1].append(2)),
    "shared twice": ([shared := [1], shared], lambda c: c[1].append(2)),
}


@pytest.mark.parametrize(("container", "change"), CHANGED.values(), ids=CHANGED.keys())
def test_a_container_that_is_changed_in_place_is_noticed_after_the_tuple_that_changed_it(container, change):
    with bench(changes(lambda bolt: change(bolt.thing), thing=container)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        assert refused(running.failures[2], "thing")


@pytest.mark.parametrize(("container", "change"), CHANGED.values(), ids=CHANGED.keys())
@pytest.mark.parametrize("others", [{}, {"few": [1], "many": [0] * 1000}])
def test_the_look_after_each_tuple_sees_what_a_check_would_find_and_nothing_else(container, change, others):
    bolt = Calls(print)
    bolt.thing = copy.deepcopy(container)
    vars(bolt).update(others)
    guard = Guard(bolt, (), "b")
    assert not guard.may_have_changed()
    for _ in range(2):  # what was reported once is the new state
        before = copy.deepcopy(bolt.thing)
        change(bolt.thing)
        assert guard.may_have_changed() == (bolt.thing != before)
        if guard.may_have_changed():
            with pytest.raises(MisuseError, match="'thing'"):
                guard.check()
        assert not guard.may_have_changed()


def test_a_change_that_is_undone_by_the_next_tuple_is_reported_of_both():
    def execute(bolt, tup, collector):
        bolt.thing.append(1) if tup["value"] == 1 else bolt.thing.clear()

    with bench(Calls(execute, thing=list)) as running:
        running.feed(1, 2, 3)
        assert (running.acked, sorted(running.failures)) == ([3], [1, 2])


@pytest.mark.parametrize(
    ("container", "change"),
    [
        ([[n] for n in range(WATCHED_CLOSELY)], lambda c: c[9].append(1)),
        ({n: n for n in range(200)}, lambda c: c.__setitem__(7, 0)),
        ([0] * 100, lambda c: c.__setitem__(50, 1)),
    ],
)
def test_items_of_a_large_container_are_compared_when_the_frame_is_done_and_fail_all_of_it(container, change):
    with bench(changes(lambda bolt: change(bolt.thing), thing=container)) as running:
        running.feed(1, 2, 3)
        assert running.acked == []
        assert all(refused(failure, "thing") for failure in running.failures.values())
        assert len(running.reasons("b0")) == 1


def test_the_length_of_a_large_container_is_looked_at_after_each_tuple():
    with bench(changes(lambda bolt: bolt.thing.append(0), thing=[0] * 1000)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        assert refused(running.failures[2], "thing")


class Opaque:
    """Somebody's client: may keep what it likes."""

    def __init__(self):
        self.calls = []


def test_opaque_objects_are_exempt_wherever_they_are():
    def execute(bolt, tup, collector):
        bolt.client.calls.append(tup["value"])
        bolt.clients["a"].calls.append(tup["value"])
        bolt.lock.acquire()
        bolt.lock.release()
        bolt.array[0] = tup["value"]

    attributes = {
        "client": Opaque,
        "clients": lambda: {"a": Opaque(), "b": [np.zeros(2)]},
        "lock": threading.Lock,
        "array": lambda: np.zeros(3),
    }
    with bench(Calls(execute, **attributes)) as running:
        running.feed(1, 2)
        assert running.acked == [1, 2]


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared as None", "not prepared"])
def test_a_client_may_be_opened_when_it_is_first_needed_and_changed_for_another(prepared):
    def execute(bolt, tup, collector):
        if getattr(bolt, "client", None) is None or tup["value"] == 2:
            bolt.client = Opaque()
        bolt.client.calls.append(tup["value"])
        return list(bolt.client.calls)

    with bench(Calls(execute, **({"client": None} if prepared else {}))) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 2, 3]
        assert running.tuples("b0") == [[1], [2], [2, 3]]


def test_a_client_may_be_let_go():
    def execute(bolt, tup, collector):
        bolt.client = None

    with bench(Calls(execute, client=Opaque)) as running:
        running.feed(1)
        assert running.acked == [1]


def test_what_a_bolt_remembers_may_change():
    def execute(bolt, tup, collector):
        bolt.count += 1
        bolt.seen.append([tup["value"]])

    with bench(Calls(execute, remembers=("count", "seen"), count=0, seen=list)) as running:
        running.feed(1, 2)
        assert running.acked == [1, 2]


class CountsInItsClass(BasicBolt):
    """Its counters hang on the class."""

    outputs = []  # the point
    seen = []
    count = 0

    def execute(self, tup, collector):
        if tup["value"] == 2:
            self.seen.append(2)
        if tup["value"] == 3:
            self.count += 1


class Inherits(CountsInItsClass):
    """The container hangs on a base."""


@pytest.mark.parametrize("kind", [CountsInItsClass, Inherits])
def test_a_container_of_the_class_is_watched_too(kind):
    with bench(kind()) as running:
        running.feed(1, 2, 3, 4)
        assert running.acked == [1, 4]
        assert refused(running.failures[2], "seen")
        assert refused(running.failures[3], "count")
    CountsInItsClass.seen.clear()


class AppendsByHand(Bolt):
    """Acks, and then changes itself."""

    outputs = []  # a class's list

    def prepare(self, config, context, collector):
        self.collector, self.seen = collector, []

    def execute(self, tup):
        self.collector.ack(tup)
        if tup["value"] == 2:
            self.seen.append(2)


class AppendsToBatches(ArrowBolt):
    """Changes itself in its second batch."""

    def prepare(self, config, context):
        self.seen = [0] * 100

    def execute_batch(self, batch, collector):
        if batch["value"][0].as_py() == 2:
            self.seen[50] = 1


def test_a_change_after_the_ack_fails_the_tuple():
    with bench(AppendsByHand()) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        assert refused(running.failures[2], "seen")


def test_an_arrow_bolt_that_changes_itself_fails_its_batch():
    with bench(AppendsToBatches()) as running:
        running.feed(1)
        running.feed(2, 3)
        running.feed(4)
        assert running.acked == [1, 4]
        assert all(refused(running.failures[n], "seen") for n in (2, 3))


def test_whoever_changes_a_container_and_raises_is_blamed_and_its_neighbours_are_not():
    def execute(bolt, tup, collector):
        if tup["value"] == 2:
            bolt.seen.append(2)
            raise ValueError(2)

    with bench(Calls(execute, seen=list)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        assert running.failures[2].reason == "ValueError: 2"
        assert running.failures[2].others == 1  # the misuse


def test_two_containers_changed_by_one_tuple_are_that_tuple_s_doing_alone():
    def both(bolt):
        bolt.a.append(1)
        bolt.b.append(1)

    with bench(changes(both, a=list, b=list)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]


def test_a_tick_that_changes_the_bolt_is_reported_and_no_tuple_is_blamed():
    class Ticks(Calls):
        tick_secs = 1

        def tick(self, tup, collector):
            self.seen.append(1)
            self.large[3] = 1

    with bench(Ticks(lambda bolt, tup, collector: None, seen=list, large=lambda: [0] * 500)) as running:
        running.cluster.advance(0.9)
        running.feeder.feed([1], message_id=1)
        running.cluster.advance(0.1)
        assert running.acked == [1]
        assert running.reasons("b0") == [
            "MisuseError: bolt 'b0' changed its attribute 'seen', which it does not remember"
        ]


def test_a_list_with_itself_in_it_is_no_trouble():
    loop = [1]
    loop.append(loop)
    bolt = Calls(print)
    bolt.loop = loop
    guard = Guard(bolt, (), "b")
    guard.check_all()
    loop[0] = 2
    with pytest.raises(MisuseError, match="'loop'"):
        guard.check_all()
    guard.check_all()  # reported once


class CannotBeCompared:
    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


@pytest.mark.parametrize("item", [lambda: np.zeros(2), CannotBeCompared])
def test_an_item_that_cannot_be_compared_has_changed_when_it_is_another(item):
    bolt = Calls(print)
    bolt.items = [item()]
    guard = Guard(bolt, (), "b")
    guard.check_all()
    assert not guard.may_have_changed()
    bolt.items[0] = item()
    assert guard.may_have_changed()
    with pytest.raises(MisuseError, match="'items'"):
        guard.check()


def test_a_closed_bolt_is_of_its_class_and_looks_like_it():
    bolt = Inherits()
    Guard(bolt, (), "b")
    assert isinstance(bolt, Inherits)
    assert (type(bolt).__name__, type(bolt).__module__) == ("Inherits", Inherits.__module__)
    assert Inherits().__class__ is Inherits  # another one is not closed


def test_a_bolt_with_a_setattr_of_its_own_keeps_it():
    class Notes(Calls):
        def __setattr__(self, name, value):
            super().__setattr__(name, ("set", value) if name == "mine" else value)

    bolt = Notes(print)
    Guard(bolt, ("mine",), "b")
    bolt.mine = 1
    assert bolt.mine == ("set", 1)


def test_objects_of_a_class_are_closed_by_one_class_and_what_is_set_there_is_not_for_the_next():
    class Plain:
        pass

    one, other, third = Plain(), Plain(), Plain()
    for each in (one, other):
        Guard(each, (), "bolt")
    assert type(one) is type(other) is not Plain
    type(one).seen = 1
    Guard(third, (), "bolt")
    assert not hasattr(third, "seen")
