"""What strangers' files, DataFrames and odd Python values do: nothing of it is run, and each fails alone."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
import re
import sys
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import ArrowBolt, BasicBolt, Bolt, Config, Retry, TopologyBuilder, bolt
from acktree.core.data.batches import alone
from acktree.core.data.values import batch_to_bytes
from acktree.errors import MisuseError
from acktree.spout import EndOfStream, Spout
from acktree.testing import FeederSpout, LocalCluster
from tests.drawn import drawn
from tests.generated.hostile import makers

MARK = {b"acktree": b"pickle"}
LATE = pa.array([0, 10**12, 5], pa.int64()).cast(pa.timestamp("s"))


class WritesAMark:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


class Emits(Spout):
    """Emits one batch; acked and failed are lists of the class's copies together."""

    def __init__(self, batch, outputs=None, message_ids=None):
        self.batch, self.message_ids = batch, message_ids
        self.outputs = batch.schema.names if outputs is None else outputs
        self.acked, self.failed, self.raised = [], {}, []

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector, self.is_done = collector, False

    def next_tuple(self):
        if self.is_done:
            raise EndOfStream
        self.is_done = True
        ids = list(range(self.batch.num_rows)) if self.message_ids is None else self.message_ids
        try:
            self.collector.emit_batch(self.batch, message_ids=ids)
        except MisuseError as error:
            self.raised.append(error)

    def ack(self, message_id):
        self.acked.append(message_id)

    def fail(self, message_id, failure):
        self.failed[message_id] = failure.reason


class Reads(BasicBolt):
    def execute(self, tup, collector):
        assert len(tup.values) == len(tup.fields)


class ReadsByHand(Bolt):
    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        assert len(tup.values) == len(tup.fields)
        self.collector.ack(tup)


class TakesBatches(ArrowBolt):
    def execute_batch(self, batch, collector):
        assert batch.num_rows


READERS = {"basic": Reads, "hand": ReadsByHand, "arrow": TakesBatches}


def run(spout, *bolts, fields=None, retry=None, secs=60, config=None):
    """Run a line of bolts behind a spout, the last by a fields grouping if fields are named."""
    builder = TopologyBuilder("line")
    builder.set_spout("spout", spout, retry=retry)
    source = "spout"
    for at, each in enumerate(bolts):
        declarer = builder.set_bolt(f"b{at}", each, parallelism=2 if fields else 1)
        if fields and at == len(bolts) - 1:
            declarer.fields_grouping(source, fields)
        else:
            declarer.shuffle_grouping(source)
        source = f"b{at}"
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=config)
        cluster.advance(secs)
        return running.errors, list(running.dead_letters) if retry else []


class Again(ArrowBolt):
    """Emits what it was given, with the schema that a stranger wrote."""

    outputs = ["value"]

    def __init__(self, schema=None):
        self.schema = schema

    def execute_batch(self, batch, collector):
        schema = self.schema or batch.schema
        given = pa.RecordBatch.from_arrays([batch.column(0)], schema=schema)
        collector.emit_batch(given, parents=range(batch.num_rows))


# ---- nothing from outside is unpickled --------------------------------------------------------------------


@pytest.mark.parametrize("way", ["names", "schema", "bolt", "nested", "marked schema"])
def test_metadata_of_a_stranger_unpickles_nothing(way, tmp_path):
    mark = tmp_path / "mark"
    payload = pa.array([pickle.dumps(WritesAMark(mark))])
    marked = pa.field("value", pa.binary(), metadata=MARK)
    if way == "nested":
        inner = pa.field("inner", pa.binary(), metadata=MARK)
        payload = pa.StructArray.from_arrays([payload], fields=[inner])
        marked = pa.field("value", payload.type, metadata=MARK)
    schema = pa.schema([marked], metadata={b"acktree.target": b"7", b"theirs": b"kept"})
    pq.write_table(pa.Table.from_arrays([payload], schema=schema), tmp_path / "stranger.parquet")
    (batch,) = pq.read_table(tmp_path / "stranger.parquet").to_batches()
    outputs = {"schema": pa.schema([("value", pa.binary())]), "marked schema": schema}.get(way, ["value"])
    spout = Emits(batch, outputs)
    bolts = [Again(schema), Reads()] if way == "bolt" else [Reads()]
    run(spout, *bolts, fields=["value"])
    assert spout.acked == [0]
    assert not mark.exists()


def test_the_mark_of_a_hidden_column_hides_nothing():
    marked = pa.field("a", pa.int64(), metadata={b"acktree": b"rows"})
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array([2])], schema=pa.schema([marked, ("b", pa.int64())])
    )
    spout = Emits(batch)
    run(spout, Reads())
    assert spout.acked == [0]


def test_a_letter_of_a_stranger_s_row_names_no_target():
    schema = pa.schema([("value", pa.int64())], metadata={b"acktree.target": b"7"})
    spout = Emits(pa.RecordBatch.from_arrays([pa.array([1])], schema=schema))
    _, (letter,) = run(spout, Fails(), retry=Retry(max_attempts=1))
    assert b"acktree.target" not in letter.payload


class Fails(BasicBolt):
    def execute(self, tup, collector):
        raise ValueError("x")


# ---- a value that nobody can handle fails alone -----------------------------------------------------------


@pytest.mark.parametrize("reader", ["basic", "hand"])
@pytest.mark.parametrize("grouping", ["shuffle", "fields"])
def test_a_value_that_python_cannot_hold_fails_its_message_alone(reader, grouping):
    spout = Emits(pa.record_batch({"when": LATE, "n": [1, 2, 3]}))
    run(spout, READERS[reader](), fields=["when"] if grouping == "fields" else None)
    assert sorted(spout.acked) == [0, 2]
    (reason,) = spout.failed.values()
    assert "spout" in reason
    assert "default" in reason
    assert "'when'" in reason
    assert "fix:" in reason


def test_a_bolt_that_does_not_read_such_a_value_is_not_troubled_by_it():
    class ReadsN(BasicBolt):
        def execute(self, tup, collector):
            assert tup["n"]
            assert "OverflowError" in repr(tup) or tup["n"] != 2 or "MisuseError" in repr(tup)

    spout = Emits(pa.record_batch({"when": LATE, "n": [1, 2, 3]}))
    run(spout, ReadsN())
    assert sorted(spout.acked) == [0, 1, 2]


class Holds(Bolt):
    """Holds every tuple over a micro-batch."""

    remembers = ["held"]
    tick_secs = 1

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        self.held.append(tup)

    def tick(self, tup):
        for held in self.held:
            try:
                held["when"]
            except MisuseError as error:
                self.collector.fail(held, error.what)
            else:
                self.collector.ack(held)
        self.held = []


def test_a_tuple_with_such_a_value_can_be_held():
    spout = Emits(pa.record_batch({"when": LATE, "n": [1, 2, 3]}))
    run(spout, Holds())
    assert sorted(spout.acked) == [0, 2]
    assert "cannot be read as a Python value" in spout.failed[1]


@dataclass
class HalfMade:
    a: int
    b: int = field(init=False)


class NoZone(dt.tzinfo):
    def utcoffset(self, moment):
        raise RuntimeError("no database of zones")


class OddKey:
    def __init__(self, *names):
        self.names = names

    def __eq__(self, other):
        raise KeyError("eq")

    def __hash__(self):
        raise KeyError("hash")

    def __repr__(self):
        raise KeyError("repr")


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


LOOP = []
LOOP.append(LOOP)
ODD_KEYS = {
    "nested": nested(300 if sys.version_info < (3, 12) else 3000),
    "recursive": LOOP,
    "half made": HalfMade(1),
    "zone": dt.datetime(2020, 1, 1, tzinfo=NoZone()),
    "complex": 1j,
    "odd": OddKey(),
}


@pytest.mark.parametrize("key", ODD_KEYS.values(), ids=ODD_KEYS.keys())
def test_a_key_that_cannot_be_hashed_fails_its_message_alone(key):
    feeder = FeederSpout(["key"])
    for number, value in enumerate(["good", key, "fine"]):
        feeder.feed([value], message_id=number)
    run(feeder, Reads(), fields=["key"])
    assert sorted(feeder.acked) == [0, 2]
    ((failed, failure),) = feeder.failed
    assert failed == 1
    assert "'spout'" in failure.reason


PLAIN = {
    "string view": pa.array(["a", "b" * 40, None], pa.string_view()),
    "binary view": pa.array([b"a", b"b", None], pa.binary_view()),
    "list view": pa.array([[1], [2, 3], None], pa.list_view(pa.int64())),
    "views in lists": pa.array([["a"], ["b" * 40], None], pa.list_(pa.string_view())),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), pa.array(["a", "b", "c"])),
    "dictionary": pa.array(["a", "b", None]).dictionary_encode(),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a"] * 3)]
    ),
    "null": pa.nulls(3),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([0, 0, 1])]),
    "decimal": pa.array([1, 2, None]).cast(pa.decimal256(60, 3)),
    "extension": pa.array([b"0" * 16, b"1" * 16, None], pa.binary(16)).cast(pa.uuid()),
}


@pytest.mark.parametrize("column", PLAIN.values(), ids=PLAIN.keys())
@pytest.mark.parametrize("reader", READERS)
def test_every_type_of_arrow_passes_through_spout_bolt_and_grouping(column, reader):
    batch = pa.RecordBatch.from_arrays([column], names=["value"])
    spout = Emits(batch)
    run(spout, Again(), Again(), READERS[reader]())
    assert sorted(spout.acked) == [0, 1, 2]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.list_view(pa.string())])
def test_a_declared_view_is_a_plain_column(kind):
    feeder = FeederSpout(pa.schema([("value", kind)]))
    feeder.feed(["text" if kind == pa.string_view() else ["text"]], message_id=1)
    run(feeder, Reads(), fields=["value"])
    assert feeder.acked == [1]


def test_one_text_among_integers_fails_nothing_before_an_arrow_bolt():
    feeder = FeederSpout(["x"])
    for number in range(100):
        feeder.feed(["text" if number == 50 else number], message_id=number)
    run(feeder, TakesBatches(), retry=Retry(max_attempts=3, jitter=False))
    assert sorted(feeder.acked) == [*range(100)]


def test_a_run_that_no_one_batch_can_hold_goes_in_several():
    feeder = FeederSpout(pa.schema([("x", pa.dictionary(pa.int8(), pa.string()))]))
    for number in range(300):
        feeder.feed([f"v{number}"], message_id=number)
    run(feeder, Reads())
    assert sorted(feeder.acked) == [*range(300)]


class Dictionaries(BasicBolt):
    outputs = pa.schema([("x", pa.dictionary(pa.int8(), pa.string()))])

    def execute(self, tup, collector):
        collector.emit([f"w{tup['x']}"])


def test_frames_that_no_one_batch_can_hold_go_in_several():
    feeder = FeederSpout(["x"])
    for number in range(300):
        feeder.feed([number], message_id=number)
    run(feeder, Dictionaries(), Reads(), fields=["x"], config=Config(partitions=2))
    assert sorted(feeder.acked) == [*range(300)]


class Plain:
    pass


# ---- values that are changed after their emit -------------------------------------------------------------


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


def test_a_row_that_does_not_fit_the_declared_types_of_an_arrow_bolt_fails_alone():
    class Typed(ArrowBolt):
        outputs = pa.schema([("v", pa.int32())])

        def execute_batch(self, batch, collector):
            collector.emit_batch(pa.record_batch({"v": batch["x"]}), parents=range(batch.num_rows))

    feeder = FeederSpout(["x"])
    for number in (1, 2**40, 3):
        feeder.feed([number], message_id=number)
    run(feeder, Typed(), Reads())
    assert sorted(feeder.acked) == [1, 3]
    assert "'v'" in feeder.failed[0][1].reason


# ---- what a letter holds ----------------------------------------------------------------------------------


SECRET = "4111-1111-1111-1111"


@pytest.mark.parametrize(
    "kind",
    [
        None,
        pa.string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_a_dead_letter_holds_no_byte_of_its_neighbours(kind):
    is_list = kind is not None and pa.types.is_list(kind)
    feeder = FeederSpout(["body"] if kind is None else pa.schema([("body", kind)]))
    for number, text in enumerate(["alice", SECRET * 4, "amy"]):
        feeder.feed([[text] if is_list else text], message_id=number)

    class Bad(BasicBolt):
        def execute(self, tup, collector):
            if str(tup["body"]).strip("['").startswith("a"):
                raise ValueError("x")

    _, letters = run(feeder, Bad(), retry=Retry(max_attempts=2))
    assert len(letters) == 2
    for letter in letters:
        assert SECRET[:4].encode() not in letter.payload
    letters.sort(key=lambda letter: letter.message_id_repr)
    assert [letter.values[0] for letter in letters] == ([["alice"], ["amy"]] if is_list else ["alice", "amy"])


def test_a_letter_of_a_value_that_python_cannot_hold_can_be_shown():
    spout = Emits(pa.record_batch({"when": LATE, "n": [1, 2, 3]}))
    _, (letter,) = run(spout, Reads(), retry=Retry(max_attempts=2))
    assert "cannot hold" in letter.story()
    assert letter.plain_values["n"] == 2
    with pytest.raises(MisuseError, match="cannot be read"):
        _ = letter.values


def test_batches_of_one_row_are_as_large_as_that_row():
    batch = pa.record_batch({"x": [b"a", b"b" * 100_000, None], "y": [True, None, False]})
    assert [alone(batch, row).to_pylist() for row in range(3)] == [[each] for each in batch.to_pylist()]
    assert len(batch_to_bytes(alone(batch, 0))) < 1000


# ---- message ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message_id", [lambda: 0, OddKey(1, 2)], ids=["lambda", "odd"])
def test_an_id_that_the_inbox_cannot_keep_is_refused_at_its_emit(message_id):
    feeder = FeederSpout(["x"], redelivers=False)
    feeder.feed([1], message_id=1)
    if isinstance(message_id, OddKey):
        message_id.names = (n for n in range(3))
    feeder.feed([2], message_id=message_id)
    feeder.feed([3], message_id=(3, "c"))
    errors, _ = run(feeder, Reads())
    assert feeder.acked == [1, (3, "c")]
    (error,) = errors
    assert "does not survive pickle" in error.reason


def test_ids_of_a_batch_must_survive_pickle_too():
    spout = Emits(pa.record_batch({"x": [1, 2]}), message_ids=[1, lambda: 0])
    spout.redelivers = False
    run(spout, Reads())
    assert "does not survive pickle" in str(spout.raised[0])
    assert spout.acked == []


BAD_IDS = {
    "a set": {1, 2},
    "a mapping": {1: 1, 2: 2},
    "a text": "ab",
    "None among them": [1, None],
    "a null among them": pa.array([1, None]),
    "floats": np.array([1.0, float("nan")]),
    "truths": np.array([True, False]),
    "two dimensions": np.array([[1], [2]]),
    "too few": [1],
    "an iterator": iter([1, 2]),
}


@pytest.mark.parametrize("ids", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_message_ids_that_can_be_meant_in_two_ways_are_refused(ids):
    spout = Emits(pa.record_batch({"x": [1, 2]}), message_ids=ids)
    run(spout, Reads())
    assert len(spout.raised) == 1
    assert "message id" in str(spout.raised[0])
    assert (spout.acked, spout.failed) == ([], {})


@pytest.mark.parametrize(
    "ids", [[1, 2], np.array([1, 2]), pa.array([1, 2]), pa.array(["a", "b"]), np.array(["a", "b"])]
)
def test_message_ids_in_other_forms_are_delivered_as_they_are(ids):
    spout = Emits(pa.record_batch({"x": [1, 2]}), message_ids=ids)
    run(spout, Reads())
    assert spout.acked == (ids if isinstance(ids, list) else np.asarray(ids).tolist())


def test_columns_are_matched_by_name_and_a_name_may_have_a_dot():
    spout = Emits(pa.record_batch({"n": [1], "a.b": ["x"]}), outputs=["a.b", "n"])

    class Sees(BasicBolt):
        def execute(self, tup, collector):
            assert (tup["a.b"], tup["n"], tup[0]) == ("x", 1, "x")

    run(spout, Sees(), fields=["a.b"])
    assert spout.acked == [0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "7"),
        (pa.int64(), 1.5),
        (pa.string(), 7),
        (pa.string(), b"7"),
        (pa.bool_(), "true"),
        (pa.int8(), 300),
        (pa.float64(), "1.5"),
    ],
    ids=str,
)
def test_a_batch_is_refused_where_emit_refuses(kind, value):
    spout = Emits(pa.record_batch({"x": [value]}), outputs=pa.schema([("x", kind)]))
    run(spout, Reads())
    assert "field 'x'" in str(spout.raised[0])
    feeder = FeederSpout(pa.schema([("x", kind)]))
    feeder.feed([value], message_id=1)
    errors, _ = run(feeder, Reads())
    assert len(errors) == 1
    assert feeder.acked == spout.acked == []


# ---- rows that fail ---------------------------------------------------------------------------------------


class FailsRows(ArrowBolt):
    def __init__(self, make):
        self.make = make

    def execute_batch(self, batch, collector):
        collector.fail_rows(self.make(batch), "bad")


MASKS = {
    "an Arrow mask": lambda batch: pa.compute.is_null(batch["x"]),
    "a chunked mask": lambda batch: pa.chunked_array([pa.compute.is_null(batch["x"])]),
    "a numpy mask": lambda batch: np.array([False, False, True, True, False]),
    "a list of truths": lambda batch: [False, False, True, True, False],
    "numpy truths in a list": lambda batch: list(np.array([False, False, True, True, False])),
    "numbers": lambda batch: [2, 3],
    "numpy numbers": lambda batch: np.array([2, 3], dtype=np.uint8),
    "numpy numbers in a list": lambda batch: list(np.array([2, 3])),
    "a range": lambda batch: range(2, 4),
    "a set": lambda batch: {2, 3},
    "Arrow numbers": lambda batch: pa.array([2, 3], pa.uint64()),
}


@pytest.mark.parametrize("make", MASKS.values(), ids=MASKS.keys())
def test_fail_rows_takes_a_mask_or_numbers(make):
    feeder = FeederSpout(["x"])
    for number, value in enumerate([10, 11, None, None, 14]):
        feeder.feed([value], message_id=number)
    run(feeder, FailsRows(make))
    assert feeder.acked == [0, 1, 4]
    assert [(each, failure.reason) for each, failure in feeder.failed] == [(2, "bad"), (3, "bad")]


NO_ROWS = {
    "floats": [0.9, 1.9],
    "numpy floats": np.array([0.0, 1.0]),
    "a short mask": [True, False],
    "a long mask": np.array([True] * 6),
    "a null in a mask": pa.array([True, None, False, False, False]),
    "a null among numbers": pa.array([0, None]),
    "truths among numbers": [True, 2],
    "beyond": [5],
    "before": [-1],
    "a text": "01",
    "texts": ["0", "1"],
    "one number": 3,
    "two dimensions": np.array([[0, 1]]),
    "a mapping": {0: "x"},
}


@pytest.mark.parametrize("rows", NO_ROWS.values(), ids=NO_ROWS.keys())
def test_fail_rows_refuses_rows_that_it_cannot_identify(rows):
    feeder = FeederSpout(["x"])
    for number in range(5):
        feeder.feed([number], message_id=number)
    errors, _ = run(feeder, FailsRows(lambda batch: rows))
    assert feeder.acked == []
    assert all("fail_rows(" in failure.reason for _, failure in feeder.failed)
    assert len(errors) == 1


# ---- one object under two names ---------------------------------------------------------------------------


class Twice(BasicBolt):
    remembers = ["a", "b"]

    def __init__(self, make):
        self.make = make

    def prepare(self, config, context):
        self.a = self.b = self.make()

    def execute(self, tup, collector):
        pass


class Hoards(BasicBolt):
    """Remembers every value that it is given, and the tuple itself never."""

    remembers = ["values"]

    def prepare(self, config, context):
        self.values = []

    def execute(self, tup, collector):
        self.values.append(tup["x"])


@given(st.lists(makers, max_size=5))
@settings(max_examples=drawn(40), deadline=None)
def test_whatever_is_remembered_fails_at_most_its_own_micro_batch(drawn):
    feeder = FeederSpout(["x"])
    builder = TopologyBuilder("hoard")
    builder.set_spout("spout", feeder)
    builder.set_bolt("hoards", Hoards()).shuffle_grouping("spout")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for number, make in enumerate(drawn):
            feeder.feed([make()], message_id=number)
            cluster.advance(1)
            feeder.feed([1], message_id=("good", number))
            cluster.advance(1)
    delivered = [*feeder.acked, *(message_id for message_id, _ in feeder.failed)]
    assert {("good", number) for number in range(len(drawn))} <= {*feeder.acked}
    assert len(delivered) == len({*delivered})


@pytest.mark.parametrize(
    "make", [list, dict, set, lambda: np.zeros(2), Plain], ids=["list", "dict", "set", "numpy", "object"]
)
def test_one_object_under_two_remembered_names_is_refused(make):
    feeder = FeederSpout(["x"])
    feeder.feed([1], message_id=1)
    run(feeder, Twice(make))
    assert "['a', 'b'] are one" in feeder.failed[0][1].reason


def test_what_cannot_change_may_have_two_remembered_names():
    for value in ("text", 5, None, (1, 2), dt.date(2020, 1, 1), dt.UTC):
        feeder = FeederSpout(["x"])
        feeder.feed([1], message_id=1)
        run(feeder, Twice(lambda value=value: value))
        assert feeder.acked == [1]


class TwiceLater(Twice):
    def prepare(self, config, context):
        self.a, self.b = [], []

    def execute(self, tup, collector):
        self.b = self.a


def test_one_object_that_gets_a_second_remembered_name_is_refused_when_it_is_saved():
    feeder = FeederSpout(["x"])
    feeder.feed([1], message_id=1)
    run(feeder, TwiceLater(list))
    assert "['a', 'b'] are one list" in feeder.failed[0][1].reason
