"""A frame that travelled is the frame that was sent, and each task finds its tuples in it, in order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.frames import (
    FULL,
    FULL_BYTES,
    SINK_LEVEL,
    SMALL,
    SMALL_BYTES,
    Frame,
    Kind,
    WireRow,
    put_together,
)
from acktree.core.data.values import decode_rows, encode_rows
from acktree.core.tracking.lineage import Sparse
from acktree.core.tracking.lineage_runs import Runs

names = st.text(max_size=8)


def int32s(tasks):
    return tasks if isinstance(tasks, int) else np.array(tasks, dtype=np.int32)


@st.composite
def frames(draw, texts=None):
    count = draw(st.integers(0, 6))
    fields = draw(st.sampled_from([(), ("word",), ("word", "count")]))
    rows = [tuple(f"{field}{at}" for field in fields) for at in range(count)]
    tasks = draw(st.integers(1, 4) | st.lists(st.integers(1, 4), min_size=count, max_size=count))
    sources = draw(st.integers(-1, 9) | st.lists(st.integers(-1, 9), min_size=count, max_size=count))
    roots = np.array(draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)), dtype=np.int64)
    tracked = draw(st.booleans())
    return Frame(
        *draw(st.tuples(names, names, names) if texts is None else st.sampled_from(texts)),
        draw(st.integers(-1, 9)) if count == 0 else int32s(sources), draw(st.integers(0, 1 << 40)),
        int32s(tasks),
        encode_rows(fields, rows),
        Runs.of_rows(roots, np.arange(count)) if tracked else Sparse.untracked(count),
    )  # fmt: skip


def tuples_of(frame):
    """Each tuple of a frame: its task, its values, its roots and edges."""
    rows = decode_rows(frame.values)
    tasks, sources = (np.broadcast_to(each, len(rows)).tolist() for each in (frame.tasks, frame.source_tasks))
    anchors = [frame.lineage.anchors(row) for row in range(len(frame.lineage))]
    return list(zip(tasks, sources, rows, anchors, strict=True))


def shown(frame):
    return frame.component, frame.stream, frame.subscriber, frame.sequence


@given(frames())
def test_a_frame_that_travelled_is_the_frame_that_was_sent(frame):
    head, body = frame.head(), frame.body()
    row = WireRow(0, 1, Kind.FRAME, frame.source, frame.sequence, 99, head, body)
    arrived = Frame.from_wire(row)
    assert shown(arrived) == shown(frame)
    assert tuples_of(arrived) == tuples_of(frame)
    assert type(arrived.tasks) is type(frame.tasks)
    assert arrived.values.schema == frame.values.schema


def test_a_frame_of_few_rows_is_sent_without_the_rest_of_its_dictionary():
    words = pa.array(["used", *(f"unused {number}" for number in range(999))]).dictionary_encode()
    values = pa.record_batch({"word": words.slice(0, 1)})
    frame = Frame("split", "default", "count", 1, 0, 1, values, Sparse.untracked(1))
    arrived = Frame.from_wire(WireRow(0, 1, Kind.FRAME, 1, 0, 99, frame.head(), frame.body()))
    assert decode_rows(arrived.values) == [("used",)]
    assert arrived.values.schema == values.schema
    assert b"unused" not in frame.body()


@given(frames())
def test_each_tuple_is_found_by_its_task_and_by_no_other(frame):
    by_task = dict(frame.by_task())
    assert list(by_task) == sorted(by_task)
    for task in range(1, 5):
        expected = [tup for tup in tuples_of(frame) if tup[0] == task]
        assert (tuples_of(by_task[task]) if task in by_task else []) == expected
    for task, mine in by_task.items():
        assert shown(mine) == shown(frame)
        assert mine.tasks == task


def test_a_frame_for_one_task_is_not_copied_for_it():
    frame = Frame("a", "b", "c", 1, 0, 4, encode_rows(["x"], [(1,)]), Sparse.untracked(1))
    assert [(task, mine is frame) for task, mine in frame.by_task()] == [(4, True)]


@given(st.lists(frames([("a", "s", "x"), ("a", "t", "x"), ("b", "s", "x")]), max_size=12))
def test_frames_put_together_hold_the_tuples_of_each_stream_in_their_order(given_frames):
    few = put_together(given_frames)
    for stream in {shown(frame)[:3] for frame in given_frames}:
        before, after = (
            [tup for frame in all_of_them if shown(frame)[:3] == stream for tup in tuples_of(frame)]
            for all_of_them in (given_frames, few)
        )
        assert after == before
    for frame in few:
        assert tuples_of(
            Frame.from_wire(WireRow(0, 1, Kind.FRAME, 0, 0, 99, frame.head(), frame.body()))
        ) == (tuples_of(frame))
    kinds = {(shown(frame)[:3], str(frame.values.schema)) for frame in given_frames if len(frame)}
    if len({stream for stream, _ in kinds}) == len(kinds):  # each stream's tuples have the same fields
        assert len(few) == len(kinds)


@given(st.lists(st.sampled_from([1, SMALL, SMALL + 1, FULL]), max_size=30))
def test_only_small_frames_are_copied_and_none_becomes_too_large(sizes):
    values = pa.record_batch({"x": np.zeros(FULL, dtype=np.int8)})
    frames = [Frame("a", "s", "x", 1, at, 2, values.slice(0, size), Sparse.untracked(size))
              for at, size in enumerate(sizes)]  # fmt: skip
    few = put_together(frames)
    assert sum(map(len, few)) == sum(sizes)
    assert all(len(frame) <= FULL for frame in few)
    assert [frame for frame in frames if len(frame) > SMALL] == [frame for frame in few if frame in frames
                                                                 and len(frame) > SMALL]  # fmt: skip
    assert len(few) <= 2 * sum(size > SMALL for size in sizes) + 1 + sum(sizes) // (FULL - SMALL)


def test_frames_of_many_bytes_are_not_copied_either_and_what_is_put_together_stays_within_bounds():
    def frame(size):
        return Frame("a", "s", "x", 1, 0, 2, pa.record_batch({"x": [b"x" * size]}), Sparse.untracked(1))

    large, small = frame(SMALL_BYTES), frame(SMALL_BYTES // 2)
    assert put_together([large, large]) == [large, large]
    assert put_together([small, large, small]) == [small, large, small]
    few = put_together([small] * 100)
    assert sum(map(len, few)) == 100
    assert 4 <= len(few) <= 5
    assert all(each.values.nbytes <= FULL_BYTES for each in few)


def test_a_name_with_a_lone_surrogate_travels_too():
    frame = Frame("\ud800", "b", "c", 1, 0, 4, encode_rows([], [()]), Sparse.untracked(1))
    row = WireRow(0, 1, Kind.FRAME, 1, 0, 99, frame.head(), frame.body())
    assert Frame.from_wire(row).component == "\ud800"


def test_kinds_are_the_numbers_that_are_on_the_wire():
    # None: taken once, and not to be used for anything else.
    kinds = ("CHUNK", "FRAME", "BROADCAST", "DELTAS", None, None, "STATISTICS", "ERROR", "ROWS",
             "PAYLOADS", "EMITTED", "IDS", "FORGOTTEN")  # fmt: skip
    later = {"METRICS": 20, "EVENTS": 22, "TRACE": 23, "COMBINED": 24, "MEMORY": 25, "STAGED": 26, "KEYS": 27}
    assert {kind.name: kind.value for kind in Kind} == later | {
        name: at for at, name in enumerate(kinds) if name
    }


def test_the_sink_lies_above_every_level():
    assert SINK_LEVEL > 1_000_000
    assert WireRow._fields == (
        "partition", "level", "kind", "source", "sequence", "clock_ms", "head", "body",
    )  # fmt: skip


@pytest.mark.parametrize("count", [0, 3])
def test_tuples_without_fields_keep_their_number(count):
    frame = Frame("a", "b", "c", 1, 0, np.array([1, 2, 1][:count], np.int32), encode_rows([], [()] * count),
                  Sparse.untracked(count))  # fmt: skip
    arrived = Frame.from_wire(WireRow(0, 0, Kind.FRAME, 1, 0, 0, frame.head(), frame.body()))
    assert [task for task, *_ in tuples_of(arrived)] == [1, 2, 1][:count]
    if count:
        assert decode_rows(dict(arrived.by_task())[1].values) == [(), ()]
        assert len(decode_rows(put_together([arrived, arrived])[0].values)) == 2 * count
