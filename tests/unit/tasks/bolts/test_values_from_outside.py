"""What strangers' files, DataFrames and odd Python values do: nothing of it is run, and each fails alone."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import ArrowBolt, BasicBolt, Bolt, Config, Retry, TopologyBuilder
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


# ---- one object under two names ---------------------------------------------------------------------------


class Plain:
    pass


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
