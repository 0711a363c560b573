"""What is recorded of messages never changes what becomes of them, and is found again."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Config, TopologyBuilder
from acktree.core.data.frames import Kind, WireRow
from acktree.core.ids import root_ids
from acktree.core.micro_batch import MicroBatch
from acktree.core.tracking.attempts import CHOSEN, NAMED
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.tasks.chunk import Chunk
from acktree.tasks.observers.previews import previews
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing import FeederSpout, LocalCluster
from acktree.texts import short_repr
from acktree.traces.recorder import TraceRecorder, searched_id
from acktree.traces.store import IN_MEMORY, TraceStore
from acktree.traces.traces import Traces
from acktree.traces.writer import Writer
from tests.generated.hostile import COLUMNS, column
from tests.unit.traces.facts import body_of

VALUES = pa.record_batch({"n": [1, 2, 3]})
TRACED = np.full(3, CHOSEN | 1, np.int32)
CHUNK = Chunk("spout", 1, "default", True, 0, 1, VALUES, TRACED)  # noqa: FBT003
BEYOND = {
    "date": lambda: pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
    "time": lambda: pa.array([10**15], pa.int64()).cast(pa.timestamp("s")),
    "zone": lambda: pa.array([1], pa.timestamp("s", "Nowhere/Bad")),
    "duration": lambda: pa.array([2**62], pa.duration("s")),
}


def column_of(name):
    if name in COLUMNS:
        return column(name)[:1]
    return pa.record_batch([BEYOND[name]()], names=["key"])


@pytest.mark.parametrize(
    ("name", "debug"), [*((name, False) for name in BEYOND), *((name, True) for name in [*BEYOND, *COLUMNS])]
)
def test_values_that_python_cannot_represent_are_recorded_and_judged_as_without_traces(name, debug):
    class Emits(ArrowBolt):
        outputs = ["key"]

        def execute_batch(self, batch, collector):
            collector.emit_batch(column_of(name), parents=[0])

    class Ends(ArrowBolt):
        outputs = []

        def execute_batch(self, batch, collector):
            pass

    def verdicts(rate):
        feeder = FeederSpout(["n"])
        builder = TopologyBuilder("values")
        builder.set_spout("source", feeder)
        builder.set_bolt("emits", Emits()).shuffle_grouping("source")
        builder.set_bolt("ends", Ends(), parallelism=2).all_grouping("emits")
        with LocalCluster() as cluster:
            running = cluster.submit(builder.create_topology(), config=Config(trace_sample_rate=rate))
            if debug and rate:
                running.debug(percent=100)
            feeder.feed([1], message_id="one")
            cluster.advance()
            tuples = sum(len(running.traces.get(each.root).tuples) for each in running.traces.find())
        return feeder.acked, [message_id for message_id, _ in feeder.failed], tuples

    acked, failed, _ = verdicts(0)
    assert (acked, failed) == verdicts(1)[:2]
    assert verdicts(1)[2] > 0


@pytest.mark.parametrize("name", BEYOND)
def test_a_value_that_python_cannot_represent_is_shown_by_its_type_and_hides_no_neighbour(name):
    beyond = BEYOND[name]()
    nothing = pa.nulls(1, beyond.type)
    values = pa.record_batch(
        [pa.concat_arrays([nothing, beyond, nothing]), ["a", "b", "c"]], ["value", "word"]
    )
    shown = f"<{beyond.type}, not representable>"
    assert list(previews(values, [0, 1, 2])) == [[None, "a"], [shown, "b"], [None, "c"]]
    assert list(previews(values, [1])) == [[shown, "b"]]


def test_a_lone_surrogate_hides_no_neighbour():
    class Fails(BasicBolt):
        outputs = []

        def execute(self, tup, collector):
            if tup["n"] == 1:
                raise ValueError("bad \ud800")

    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("surrogates")
    builder.set_spout("source", feeder)
    builder.set_bolt("fails", Fails()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(trace_sample_rate=1))
        for n in range(4):
            feeder.feed([n], message_id=f"\ud800{n}")
        cluster.advance()
        found = {each.message_id: each.verdict for each in running.traces.find()}
    assert sorted(found.values()) == ["ACKED", "ACKED", "ACKED", "FAILED"]
    assert len(found) == 4


def test_facts_of_messages_that_are_not_stored_are_left_out():
    store = TraceStore(IN_MEMORY)
    links = [[7, 8, [7], "s", 1, "default", "b", 2, []]]
    store.add_facts(1, 1, [body_of(links, [[7, 8, "b", 2, 1, 1.0, 1, "acked", ""]], [[7, "b", 5]])])
    for table in ("messages", "packs", "later"):
        assert store.select(f"SELECT * FROM {table}") == []


@pytest.mark.parametrize("rate", [1.0, 0.0001])
def test_messages_of_an_earlier_run_get_the_verdicts_that_this_one_gives(tmp_path, rate):
    file = tmp_path / "traces.sqlite"
    store = TraceStore(file)
    TraceRecorder(store, 1.0, 5, lambda: 9, is_threaded=False).emitted(CHUNK, ["a", "b", "c"])
    store.close()
    store = TraceStore(file)
    later = TraceRecorder(store, rate, 5, lambda: 9, is_threaded=False)
    later.judged(MicroBatch(1, 9), {1: VerdictBatch(acked=np.arange(3))})
    assert [each.verdict for each in Traces(store).find()] == ["ACKED"] * 3


def test_a_micro_batch_is_looked_at_only_while_a_traced_message_is_open():
    """To wake the thread for each would take a tenth of the driver's time at a low rate."""
    recorder = TraceRecorder(TraceStore(IN_MEMORY), 1.0, 5, lambda: 9)
    given: list[int] = []
    try:
        for number in range(3):
            assert recorder.settle()
            before = recorder._writer._given
            recorder.judged(MicroBatch(number, 9), {1: VerdictBatch(acked=np.arange(3))})
            given.append(recorder._writer._given - before)
            if number == 0:
                recorder.emitted(CHUNK, ["a", "b", "c"])
    finally:
        recorder.close()
    assert given == [0, 1, 0]


@pytest.mark.parametrize("rate", [0.0, 0.001])
def test_a_rate_that_changes_while_verdicts_wait_loses_none(rate):
    store, gate = TraceStore(IN_MEMORY), threading.Event()
    recorder = TraceRecorder(store, 1.0, 5, lambda: 9)
    try:
        recorder._writer.put(gate.wait)
        recorder.emitted(CHUNK, ["a", "b", "c"])
        recorder.judged(MicroBatch(1, 9), {1: VerdictBatch(acked=np.arange(2))})
        recorder.set_rate(rate)
        recorder.judged(MicroBatch(2, 9), {1: VerdictBatch(acked=np.arange(2, 3))})
        gate.set()
        assert recorder.settle()
        assert [each.verdict for each in Traces(store).find()] == ["ACKED"] * 3
    finally:
        gate.set()
        recorder.close()


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_attempts_that_only_levels_know_get_their_verdicts(later):
    """Rows of a DataFrame have no hand-over. The rate changes before they are stored."""
    count, store, gate = 20_000, TraceStore(IN_MEMORY), threading.Event()
    recorder = TraceRecorder(store, 0.0002, 5, lambda: 9)
    traced = root_ids(5, 1, np.arange(0, count, 100)).tolist()
    links = [[root, root, [], "spout", 1, "default", "spout", 1, []] for root in traced]
    try:
        recorder._writer.put(gate.wait)
        recorder.add(MicroBatch(1, 1), [WireRow(0, 0, Kind.TRACE, 0, 0, 0, b"", body_of(links))])
        recorder.judged(MicroBatch(1, 1), {1: VerdictBatch(acked=np.arange(count))})
        recorder.set_rate(later)
        gate.set()
        assert recorder.settle()
    finally:
        gate.set()
        recorder.close()
    found = store.select("SELECT verdict, count(*) AS count FROM messages GROUP BY verdict")
    assert found == [{"verdict": "ACKED", "count": len(traced)}]


def test_only_messages_that_are_stored_are_exported():
    put: list[int] = []
    export = SimpleNamespace(put=put.extend, close=lambda: None, exported=0, dropped=0)
    recorder = TraceRecorder(TraceStore(IN_MEMORY), 1.0, 5, lambda: 9, export=export, is_threaded=False)
    recorder.emitted(CHUNK, ["a", "b", "c"])
    recorder.judged(MicroBatch(1, 9), {1: VerdictBatch(acked=np.arange(5))})
    assert put == root_ids(5, 1, np.arange(3)).tolist()


def test_attempts_of_an_earlier_run_are_closed_too(tmp_path):
    file, count = tmp_path / "traces.sqlite", 500
    batch = pa.record_batch({"n": range(count)})
    chunk = replace(CHUNK, values=batch, attempts=np.full(count, CHOSEN | 2, dtype=np.int32))
    store = TraceStore(file)
    TraceRecorder(store, 0.001, 5, lambda: 9, is_threaded=False).emitted(chunk, [*map(str, range(count))])
    assert store.count() == count
    store.close()
    store = TraceStore(file)
    later = TraceRecorder(store, 0.001, 5, lambda: 9, is_threaded=False)
    later.judged(MicroBatch(1, 9), {1: VerdictBatch(acked=np.arange(count))})
    assert Traces(store).find(verdict="OPEN") == []


def test_what_cannot_be_recorded_of_emitted_messages_stops_no_spout(caplog):
    recorder = TraceRecorder(TraceStore(IN_MEMORY), 1.0, 5, lambda: 9, is_threaded=False)
    recorder.emitted(CHUNK, [])  # a chunk of three
    assert "recorded less" in caplog.text


def test_many_groups_of_failures_are_looked_up_at_once(monkeypatch):
    calls, fromiter = [], np.fromiter

    def count(*given):
        calls.append(given)
        return fromiter(*given)

    store = TraceStore(IN_MEMORY)
    recorder = TraceRecorder(store, 0.0001, 5, lambda: 9, is_threaded=False)
    recorder.emitted(replace(CHUNK, attempts=np.full(3, CHOSEN | NAMED | 1, dtype=np.int32)), ["a", "b", "c"])
    why = [
        Failure(str(n), FailureKind.FAILED, FailureCause.EXCEPTION, "b", None, (), None, 1, final=True)
        for n in range(5)
    ]
    failed = [(np.arange(n, n + 1) if n < 2 else np.arange(0), each) for n, each in enumerate(why)]
    monkeypatch.setattr(np, "fromiter", count)
    recorder.judged(MicroBatch(1, 9), {1: VerdictBatch(acked=np.arange(2, 3), failed=failed)})
    assert len(calls) == 1
    found = {each.message_id: (each.verdict, each.reason) for each in Traces(store).find()}
    assert found == {"'a'": ("FAILED", "0"), "'b'": ("FAILED", "1"), "'c'": ("ACKED", None)}
    assert recorder._open == {}


def test_ids_that_differ_where_they_are_shortened_are_told_apart():
    ids = [f"{'a' * 60}{middle}{'z' * 60}" for middle in "123"]
    ids += [(*range(9), last) for last in (1, 2)]
    assert len({*map(searched_id, ids)}) == 5
    store = TraceStore(IN_MEMORY)
    TraceRecorder(store, 1.0, 5, lambda: 9, is_threaded=False).emitted(CHUNK, ids[:3])
    (found,) = Traces(store).find(message_id=ids[1])
    assert found.message_id == searched_id(ids[1])
    assert Traces(store).attempts(found) == [found]
    assert len(Traces(store).find(message_id=short_repr(ids[1]))) == 3  # as `acktree open` shows all of them
    assert Traces(store).find(message_id="'aaa") == []


def test_waiting_for_what_was_given_does_not_wait_for_what_is_given_later():
    writer = Writer("test")
    over = threading.Event()

    def give():
        while not over.wait(0.001):
            writer.put(lambda: over.wait(0.002))

    giver = threading.Thread(target=give)
    giver.start()
    try:
        over.wait(0.1)
        assert writer.settle(20)
    finally:
        over.set()
        giver.join()
        writer.close()


def test_a_writer_outlives_what_leaves_a_users_logger():
    writer, done = Writer("test"), []

    def leave():
        raise SystemExit(1)

    writer.put(leave)
    writer.put(lambda: done.append(1))
    assert writer.settle()
    writer.close()
    assert done == [1]
    assert writer.dropped == 1
