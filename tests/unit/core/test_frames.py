"""A frame that travelled is the frame that was sent, and each task finds its tuples in it, in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.frames import SINK_LEVEL, Frame, Kind, WireRow
from acktree.core.lineage import Runs, Sparse
from acktree.core.values import decode_rows, encode_rows

names = st.text(max_size=8)


@st.composite
def frames(draw):
    count = draw(st.integers(0, 6))
    fields = draw(st.sampled_from([(), ("word",), ("word", "count")]))
    rows = [tuple(f"{field}{at}" for field in fields) for at in range(count)]
    tasks = draw(st.integers(1, 4) | st.lists(st.integers(1, 4), min_size=count, max_size=count))
    roots = np.array(draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)), dtype=np.int64)
    tracked = draw(st.booleans())
    return Frame(
        draw(names), draw(names), draw(names), draw(st.integers(-1, 9)), draw(st.integers(0, 1 << 40)),
        tasks if isinstance(tasks, int) else np.array(tasks, dtype=np.int32),
        encode_rows(fields, rows),
        Runs.of_rows(roots, np.arange(count)) if tracked else Sparse.untracked(count),
    )  # fmt: skip


def tuples_of(frame):
    """Each tuple of a frame: its task, its values, its roots and edges."""
    rows = decode_rows(frame.values)
    tasks = [frame.tasks] * len(rows) if isinstance(frame.tasks, int) else frame.tasks.tolist()
    anchors = [frame.lineage.anchors(row) for row in range(len(frame.lineage))]
    return list(zip(tasks, rows, anchors, strict=True))


def told(frame):
    return frame.component, frame.stream, frame.subscriber, frame.source_task, frame.sequence


@given(frames())
def test_a_frame_that_travelled_is_the_frame_that_was_sent(frame):
    head, body = frame.head(), frame.body()
    row = WireRow(0, 1, Kind.FRAME, frame.source_task, frame.sequence, 99, head, body)
    arrived = Frame.from_wire(row)
    assert told(arrived) == told(frame)
    assert tuples_of(arrived) == tuples_of(frame)
    assert type(arrived.tasks) is type(frame.tasks)
    assert arrived.values.schema == frame.values.schema


@given(frames())
def test_each_tuple_is_found_by_its_task_and_by_no_other(frame):
    for task in range(1, 5):
        mine = frame.of_task(task)
        expected = [tup for tup in tuples_of(frame) if tup[0] == task]
        assert (tuples_of(mine) if mine is not None else []) == expected
        if mine is not None:
            assert told(mine) == told(frame)
            assert mine.tasks == task


def test_a_frame_for_one_task_is_not_copied_for_it():
    frame = Frame("a", "b", "c", 1, 0, 4, encode_rows(["x"], [(1,)]), Sparse.untracked(1))
    assert frame.of_task(4) is frame
    assert frame.of_task(5) is None


def test_a_name_with_a_lone_surrogate_travels_too():
    frame = Frame("\ud800", "b", "c", 1, 0, 4, encode_rows([], [()]), Sparse.untracked(1))
    row = WireRow(0, 1, Kind.FRAME, 1, 0, 99, frame.head(), frame.body())
    assert Frame.from_wire(row).component == "\ud800"


def test_kinds_are_the_numbers_that_are_on_the_wire():
    # None: taken once, and not to be used for anything else.
    kinds = ("CHUNK", "FRAME", "TICK", "DELTAS", "CLOCK", None, "STATISTICS", "ERROR", "ROWS",
             "PAYLOADS", "EMITTED")  # fmt: skip
    assert {kind.name: kind.value for kind in Kind} == {name: at for at, name in enumerate(kinds) if name}


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
    assert [task for task, _, _ in tuples_of(arrived)] == [1, 2, 1][:count]
    if count:
        assert decode_rows(arrived.of_task(1).values) == [(), ()]
