"""What a row is called by its message depends on no row of another message, and no two are called alike."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.frames import Frame
from acktree.core.tracking.lineage import Sparse
from acktree.tasks.bolts.rows.row_names import MessageNames, Names

TASK = 4

anchors = st.frozensets(st.integers(-3, 3), max_size=3)
"""The roots of a row."""


def frame_of(rows: list[frozenset[int]], stream: str = "default") -> Frame:
    lineage = Sparse.of_anchors(
        [{root: 17 * place + root for root in row} for place, row in enumerate(rows)], {}
    )
    values = pa.record_batch({"value": np.arange(len(rows))})
    return Frame("before", stream, "bolt", 1, 0, TASK, values, lineage)


def names_of(*frames: list[frozenset[int]]) -> list[int]:
    names = MessageNames()
    return [name for rows in frames for name in names.of(frame_of(rows), TASK)]


@given(st.lists(anchors, max_size=12), st.sets(anchors))
def test_a_row_keeps_its_name_when_rows_of_other_messages_come_or_go(rows, gone) -> None:
    kept = [row for row in rows if row not in gone]
    named = zip(rows, names_of(rows), strict=True)
    assert names_of(kept) == [name for row, name in named if row not in gone]


@given(st.lists(anchors, max_size=12), st.integers(0, 12))
def test_a_row_keeps_its_name_in_whatever_frames_it_comes(rows, cut) -> None:
    assert names_of(rows[:cut], rows[cut:]) == names_of(rows)


@given(st.lists(anchors, max_size=12))
def test_no_two_rows_have_one_name(rows) -> None:
    names = MessageNames()
    streams = [names.of(frame_of(rows, stream), task) for stream in ("a", "b") for task in (1, 2)]
    named = [name for each in streams for name in each]
    assert len(set(named)) == len(named)
    assert all(0 <= name < 1 << 62 for name in named)


def test_names_by_place_are_numbered_on_and_there_are_none_where_rows_may_move() -> None:
    assert list(Names(5, 100, range(5)).part(1, 3).by_place) == [101, 102]
    assert list(Names(5, 100, range(5)).part(1, 3).by_message) == [1, 2]
    assert list(Names(5).part(1, 3).by_place) == []
