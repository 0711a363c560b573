"""Rows of a resident query: nothing is lost on the way, and a marker comes last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from acktree.core.data.frames import WireRow
from acktree.spark.realtime import frames
from acktree.spark.realtime.frames import (
    Frame,
    FrameKind,
    frame_batch,
    frames_in,
    frames_of,
    packed,
    unpacked,
)

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.builds(WireRow, st.integers(0, 2), INT, INT, INT, LONG, LONG, st.binary(), st.binary()), max_size=6
)


@given(ROWS)
def test_packed_rows_are_read_as_they_were(rows):
    assert unpacked(packed(rows)) == rows


@given(ROWS, st.integers(1, 60))
def test_each_target_gets_its_rows_in_order_and_the_last_of_them_is_the_marker(rows, part_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_PART_BYTES", part_bytes)
        sent = list(frames_of(4, 17, rows, range(3)))
    for target in range(3):
        *parts, marker = [frame for frame in sent if frame.target == target]
        assert [frame.kind for frame in parts] == [FrameKind.PART] * len(parts)
        assert marker.kind == FrameKind.MARKER
        arrived = [row for frame in (*parts, marker) for row in unpacked(frame.body)]
        assert arrived == [row for row in rows if row.partition == target]
    assert {(frame.sender, frame.epoch) for frame in sent} == {(4, 17)}


@given(ROWS)
def test_a_level_reads_what_another_one_sent_without_the_pushes(rows):
    sent = list(frames_of(1, 2, rows, range(3)))
    push = Frame(0, 0, FrameKind.PUSH, 0, b"")
    given = [frame_batch([push, *sent[:1]]), frame_batch([push, *sent[1:], push]), frame_batch([push])]
    assert [frame._replace(body=bytes(frame.body)) for frame in frames_in(given)] == sent
