"""A bolt receives what was there at the emit, whatever its emitter does with the value afterwards."""

from __future__ import annotations

import copy
import re
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, TopologyBuilder, bolt
from acktree.spout import EndOfStream, Spout
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.tasks.bolts.test_values_from_outside import Again, Emits, Plain, Reads


@dataclass
class Counted:
    number: int = 0
    seen: list[int] = field(default_factory=list)


def count(value):
    value.number += 1
    value.seen.append(value.number)


def put(value):
    value[0] += 1


CHANGING = {
    "list": (lambda: [0], lambda value: value.append(len(value))),
    "dict": (dict, lambda value: value.update({len(value): "x"})),
    "set": (set, lambda value: value.add(len(value))),
    "bytearray": (bytearray, lambda value: value.append(1)),
    "numpy": (lambda: np.zeros(2), put),
    "dataclass": (Counted, count),
    "object": (Plain, lambda value: setattr(value, "number", len(vars(value)))),
    "deque": (deque, lambda value: value.append(1)),
    "in a tuple": (lambda: (1, [0]), lambda value: value[1].append(1)),
    "a function in a list": (lambda: [lambda: 0], lambda value: value.append(1)),
}
TURNS = 3


class Changes:
    """A value that is changed after each emit."""

    def __init__(self, name):
        make, self.change = CHANGING[name]
        self.value = make()

    def emit(self, emit, number=0):
        emit([self.value, number])
        self.change(self.value)

    @classmethod
    def expected(cls, name):
        made, shown = cls(name), []
        for _ in range(TURNS):
            made.emit(lambda values: shown.append(shown_of(values[0])))
        return shown


def shown_of(value):
    if isinstance(value, Plain):
        return repr(vars(value))
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


class ChangesInASpout(Spout):
    outputs = ["value", "number"]

    def __init__(self, name, *, is_direct):
        self.name, self.is_direct = name, is_direct

    def open(self, config, context, collector):
        self.collector, self.context, self.is_done = collector, context, False

    def next_tuple(self):
        if self.is_done:
            raise EndOfStream
        self.is_done, changes = True, Changes(self.name)
        for number in range(TURNS):
            if self.is_direct:
                (task,) = self.context.task_ids("shows")
                changes.emit(
                    lambda values, task=task: self.collector.emit_direct(task, values, message_id=1), number
                )
            else:
                changes.emit(lambda values: self.collector.emit(values, message_id=1), number)


class ChangesInABolt(BasicBolt):
    outputs = ["value", "number"]

    def __init__(self, name):
        self.name = name

    def execute(self, tup, collector):
        changes = Changes(self.name)
        for number in range(TURNS):
            changes.emit(collector.emit, number)


class ChangesDirectly(ChangesInABolt):
    def prepare(self, config, context):
        (self.task,) = context.task_ids("shows")

    def execute(self, tup, collector):
        changes = Changes(self.name)
        for number in range(TURNS):
            changes.emit(lambda values: collector.emit_direct(self.task, values), number)


class ChangesInTime(ChangesInABolt):
    async def execute(self, tup, collector):
        changes = Changes(self.name)
        for number in range(TURNS):
            changes.emit(collector.emit, number)


class ChangesInThreads(ChangesInABolt):
    threads = 2


class ChangesByHand(Bolt):
    outputs = ["value", "number"]

    def __init__(self, name, *, several=False):
        self.name, self.several = name, several

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        changes = Changes(self.name)
        anchors = [tup, copy.copy(tup)] if self.several else tup
        for number in range(TURNS):
            changes.emit(lambda values: self.collector.emit(values, anchors=anchors), number)
        self.collector.ack(tup)


def yields(name):
    @bolt(outputs=["value", "number"])
    def changes(tup):
        changes = Changes(name)
        for number in range(TURNS):
            yield [changes.value, number]
            changes.change(changes.value)

    return changes


class Shows(BasicBolt):
    outputs = ["number", "shown"]

    def execute(self, tup, collector):
        collector.emit([tup["number"], shown_of(tup["value"])])


EMITTERS = {
    "spout": lambda name: ChangesInASpout(name, is_direct=False),
    "direct spout": lambda name: ChangesInASpout(name, is_direct=True),
    "basic": ChangesInABolt,
    "direct": ChangesDirectly,
    "async": ChangesInTime,
    "threads": ChangesInThreads,
    "hand": ChangesByHand,
    "several anchors": lambda name: ChangesByHand(name, several=True),
    "function": yields,
}


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("emitter", EMITTERS)
def test_what_is_emitted_is_what_was_there_at_the_emit(emitter, name):
    emits, builder = EMITTERS[emitter](name), TopologyBuilder("changes")
    feeder = emits if isinstance(emits, Spout) else FeederSpout(["x"])
    builder.set_spout("spout", feeder)
    source = "spout"
    if feeder is not emits:
        feeder.feed([1], message_id=1)
        builder.set_bolt("changes", emits).shuffle_grouping("spout")
        source = "changes"
    declarer = builder.set_bolt("shows", Shows())
    (declarer.direct_grouping if emitter.startswith("direct") else declarer.shuffle_grouping)(source)
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        cluster.advance(1)
        assert [text for _, text in sorted(cluster.tuples("shows"))] == Changes.expected(name)


@pytest.mark.parametrize("in_spout", [True, False], ids=["spout", "bolt"])
def test_a_batch_on_a_stream_that_is_read_directly_is_refused(in_spout):
    spout, builder = Emits(pa.record_batch({"value": [1, 2]})), TopologyBuilder("direct")
    builder.set_spout("spout", spout)
    if not in_spout:
        builder.set_bolt("again", Again()).shuffle_grouping("spout")
    builder.set_bolt("reads", Reads()).direct_grouping("spout" if in_spout else "again")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        cluster.advance(1)
    reasons = [str(error) for error in spout.raised] if in_spout else [*spout.failed.values()]
    assert len(reasons) == (1 if in_spout else 2)
    assert all("emit_direct" in reason for reason in reasons)


TYPED = {
    "list": (pa.list_(pa.int64()), lambda: [0], lambda value: value.append(1)),
    "numpy": (pa.list_(pa.float64()), lambda: np.zeros(2), put),
    "struct": (
        pa.struct([("a", pa.list_(pa.int64()))]),
        lambda: {"a": [0]},
        lambda value: value["a"].append(1),
    ),
    "bytearray": (pa.binary(), bytearray, lambda value: value.append(1)),
    "view": (pa.binary(), lambda: memoryview(bytearray(2)), put),
    "views": (pa.list_(pa.binary()), lambda: [memoryview(bytearray(2))], lambda value: put(value[0])),
    "defaultdict": (
        pa.struct([("a", pa.int64())]),
        lambda: defaultdict(lambda: 0, a=1),
        lambda value: value.update(a=value["a"] + 1),
    ),
}


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("in_spout", [True, False], ids=["spout", "bolt"])
def test_a_typed_value_is_what_was_there_at_the_emit(name, in_spout):
    kind, make, change = TYPED[name]

    class Typed(BasicBolt):
        outputs = pa.schema([("value", kind)])

        def execute(self, tup, collector):
            emit_all(collector.emit)

    class TypedSpout(ChangesInASpout):
        outputs = Typed.outputs

        def next_tuple(self):
            emit_all(self.collector.emit)
            raise EndOfStream

    def emit_all(emit):
        value = make()
        for _ in range(TURNS):
            emit([value])
            change(value)

    rows, value = [], make()
    for _ in range(TURNS):
        rows.append(pa.array([value], kind).to_pylist())
        change(value)
    feeder, builder = FeederSpout(["x"]), TopologyBuilder("typed")
    feeder.feed([1], message_id=1)
    builder.set_spout("spout", TypedSpout("list", is_direct=False) if in_spout else feeder)
    if not in_spout:
        builder.set_bolt("typed", Typed()).shuffle_grouping("spout")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        cluster.advance(1)
        assert cluster.tuples("spout" if in_spout else "typed") == rows


def read_only(numbers):
    view = numbers.view()
    view.flags.writeable = False  # as a column of a pandas DataFrame with Copy-on-Write
    return pa.array(view)


def as_dictionary(numbers):
    return pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(numbers))


VIEWS = {
    "plain": pa.array,
    "read-only": read_only,
    "dictionary": as_dictionary,
    "list": lambda numbers: pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(numbers)),
    "dictionary in a struct": lambda numbers: pa.StructArray.from_arrays([as_dictionary(numbers)], ["a"]),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("in_spout", [True, False], ids=["spout", "bolt"])
def test_a_batch_over_memory_that_is_written_again_is_what_was_there_at_the_emit(in_spout, view):
    ids = [0]

    def emit_all(emit):
        numbers = np.zeros(1, dtype=np.int64)
        for _ in range(TURNS):
            emit(pa.record_batch({"number": VIEWS[view](numbers)}))
            numbers += 1
            ids[0] += 1

    class Writes(ArrowBolt):
        outputs = ["number"]

        def execute_batch(self, batch, collector):
            emit_all(lambda made: collector.emit_batch(made, parents=[0]))

    class WritesInASpout(FeederSpout):
        def next_tuple(self):
            emit_all(lambda made: self._collector.emit_batch(made, message_ids=ids))
            raise EndOfStream

    feeder, builder = FeederSpout(["x"]), TopologyBuilder("writes")
    feeder.feed([1], message_id=1)
    spout = WritesInASpout(["number"])
    builder.set_spout("spout", spout if in_spout else feeder)
    if not in_spout:
        builder.set_bolt("writes", Writes()).shuffle_grouping("spout")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        cluster.advance(1)
        emitted = cluster.tuples("spout" if in_spout else "writes")
    assert emitted == [VIEWS[view](np.array([number])).to_pylist() for number in range(TURNS)]
    assert sorted(spout.acked) == ([0, 1, 2] if in_spout else [])
