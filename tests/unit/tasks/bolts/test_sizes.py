"""What is large is handed on in parts, and what is too large fails as the one message that it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import BasicBolt, Config, IterableSpout, Retry, TopologyBuilder
from acktree.core.data import values as codec
from acktree.core.data.fields import declare_streams
from acktree.core.data.values import decode_rows, encode_rows
from acktree.errors import MisuseError
from acktree.tasks import chunk
from acktree.tasks.bolts import level
from acktree.tasks.bolts.outputs import emission
from acktree.tasks.bolts.outputs.emission import Emission, pieces_of
from acktree.tasks.bolts.outputs.outlets import Outlet
from acktree.tasks.chunk import Chunk, chunks_together
from acktree.tasks.spouts import collector as spout_collector
from acktree.tasks.spouts import runs
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing import LocalCluster
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits


def batch_of(sizes):
    return encode_rows(["v"], [[bytes(size)] for size in sizes])


def joined(batches):
    return [row for batch in batches for row in decode_rows(batch)]


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 2000), st.booleans(), st.data())
def test_an_emission_in_pieces_says_what_it_said_whole(sizes, most, direct, data):
    count, anchors = len(sizes), st.sampled_from(range(max(1, len(sizes))))
    whole = Emission(
        "default", batch_of(sizes), np.arange(count) - 1,
        {row: [row] for row in data.draw(st.sets(anchors)) if row < count},
        np.arange(count, dtype=np.int32) if direct else None,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emission, "PIECE_BYTES", most)
        parts = list(pieces_of(whole))
    assert joined(part.batch for part in parts) == decode_rows(whole.batch)
    assert np.concatenate([part.parents for part in parts]).tolist() == whole.parents.tolist()
    assert [who for part in parts for _, who in sorted(part.joins.items())] == [
        whole.joins[row] for row in sorted(whole.joins)
    ]
    starts = np.cumsum([0, *(part.batch.num_rows for part in parts)])
    at = [row + start for part, start in zip(parts, starts, strict=False) for row in sorted(part.joins)]
    assert at == sorted(whole.joins)
    if direct:
        assert np.concatenate([part.tasks for part in parts]).tolist() == whole.tasks.tolist()
    if whole.batch.nbytes > most:
        assert len(parts) == min(count, -(-whole.batch.nbytes // most))


def attempts_of(chunks):
    return [n for each in chunks for n in ([1] * len(each) if each.attempts is None else each.attempts)]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.sampled_from([None, 2, -5])),
        max_size=10,
    ),
    st.integers(1, 3000),
)
def test_chunks_are_put_together_up_to_so_many_bytes_and_lose_nothing(each, most):
    chunks, first = [], 0
    for sizes, attempt in each:
        attempts = None if attempt is None else np.full(len(sizes), attempt, np.int32)
        chunks.append(Chunk("s", 1, "default", True, first, 0, batch_of(sizes), attempts))  # noqa: FBT003
        first += len(sizes)
    together = list(chunks_together(chunks, 10**6, most))
    assert joined(each.values for each in together) == joined(each.values for each in chunks)
    assert [n for each in together for n in each.sequences.tolist()] == list(range(first))
    assert attempts_of(together) == attempts_of(chunks)
    alone = max((each.values.nbytes for each in chunks), default=0)
    # Put together, bytes are fewer: there is one array of offsets, and it begins once.
    assert all(each.values.nbytes <= max(most, alone) for each in together)


def test_what_one_batch_cannot_hold_goes_as_several(monkeypatch):
    real = Outlet.batch

    def small(self, cells, count):
        if count > 3:
            raise MisuseError("too large", "here", "less")
        return real(self, cells, count)

    monkeypatch.setattr(Outlet, "batch", small)
    outlet = Outlet(declare_streams(["v"], "test")["default"], "bolt")
    outlet.cells, outlet.parents, outlet.tasks = list(range(10)), list(range(10)), list(range(10))
    outlet.cells[5] = (n for n in ())  # does not pickle: this one cannot go at all
    outlet.joins = {7: ["who"]}
    unfit = []
    found = outlet.emissions(unfit)
    assert [refused.parent for refused in unfit] == [5]
    assert [row for part in found for row in part.parents.tolist()] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert all(part.batch.num_rows == len(part.parents) == len(part.tasks) <= 3 for part in found)
    assert [
        int(part.parents[row]) for part in found for row, who in part.joins.items() if who == ["who"]
    ] == [7]


class Children(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        for n in range(tup["n"]):
            collector.emit([n])


class Texts(BasicBolt):
    outputs = []
    remembers = ["seen"]

    def prepare(self, config, context):
        self.seen = 0

    def execute(self, tup, collector):
        self.seen += 1


def test_children_that_outnumber_a_frame_are_one_tree(monkeypatch):
    monkeypatch.setattr(emission, "PIECE_BYTES", 1000)
    monkeypatch.setattr(level, "PIECE_BYTES", 30)
    monkeypatch.setattr(level, "FRAME_MESSAGES", 2)
    builder = TopologyBuilder("many")
    builder.set_spout("numbers", IterableSpout([5000, 0, 3, 1, 2000], ["n"]))
    builder.set_bolt("children", Children(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("texts", Texts(), parallelism=2).fields_grouping("children", ["n"])
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(partitions=2))
        cluster.advance()
        stats = running.stats()
    assert stats["numbers"].total.acked == 5
    assert stats["texts"].total.executed == 7004


def test_large_messages_are_handed_over_at_once_and_in_chunks_of_limited_weight(monkeypatch):
    for module in (codec, spout_collector):
        monkeypatch.setattr(module, "LOOKED_AT", 10)
    for module in (spout_collector, runs):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    harness = Harness(Source(emits(*((bytes(300), n) for n in range(10)), (bytes(5000), 10), (b"small", 11))))
    harness.task.step(0)
    assert harness.task.has_enough
    assert [len(each) for each in harness.run()] == [3, 3, 3, 1, 2]  # the small one is not weighed
    assert not harness.task.has_enough
    assert harness.task.open_count == 12


def test_a_step_that_asks_again_stops_when_it_has_enough(monkeypatch):
    for module in (codec, spout_collector):
        monkeypatch.setattr(module, "LOOKED_AT", 10)
    for module in (spout_collector, runs):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    harness = Harness(Source(*(emits((bytes(300), n)) for n in range(10))))
    harness.task.step(0, enough=100, until=float("inf"))
    assert harness.task.buffered_count == 4


def test_what_is_tried_again_comes_in_chunks_of_limited_weight_and_is_let_go_of_when_all_is_there(
    monkeypatch,
):
    monkeypatch.setattr(chunk, "CHUNK_BYTES", 1000)
    harness = Harness(
        Source(emits(*((bytes([n]) * 300, n) for n in range(8)))), retry=Retry(3, backoff_secs=(1, 1))
    )
    harness.run()
    harness.task.dispatch(VerdictBatch(failed=[(np.arange(8), BROKEN)]))
    harness.run()
    assert harness.inbox.released == []
    harness.now_ms = 10_000
    again = harness.run()
    assert [len(each) for each in again] == [3, 3, 2]
    assert sorted(row[0][0] for each in again for row in each) == list(range(8))
    assert harness.inbox.released == [0]
    assert harness.task.open_count == 8
    harness.verdict(acked=range(8, 16))
    assert sorted(call[:2] for call in harness.spout.delivered()) == [("ack", n) for n in range(8)]
    assert harness.task.is_idle


def too_large(*_, **__):
    raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")


@pytest.mark.parametrize(
    "made", [too_large, lambda column, kind: pa.chunked_array([[b"1"], [b"2"]])], ids=["one value", "many"]
)
@pytest.mark.parametrize("value", [b"bytes", (1, 2)], ids=["native", "pickled"])
def test_a_column_that_arrow_has_no_room_for_is_refused(monkeypatch, made, value):
    monkeypatch.setattr(codec.pa, "array", made)
    with pytest.raises(MisuseError, match="more than 2 GiB"):
        encode_rows(["v"], [[value]])


def test_a_typed_value_that_arrow_has_no_room_for_is_refused(monkeypatch):
    monkeypatch.setattr(codec.pa, "array", too_large)
    with pytest.raises(MisuseError, match="does not fit field 'v'"):
        encode_rows(["v"], [[b"1"]], pa.schema([("v", pa.binary())]))


@given(st.lists(st.integers(0, 30), max_size=20))
def test_parts_are_of_limited_weight_and_lose_nothing(weights):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK_BYTES", 25)
        parts = list(chunk.in_parts(weights, lambda weight: weight))
    assert [weight for part in parts for weight in part] == weights
    assert all(part and (len(part) == 1 or sum(part) <= 25) for part in parts)
