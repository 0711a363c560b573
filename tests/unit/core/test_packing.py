"""What is packed comes out as it went in, as views, in a layout that later releases can read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.packing import int32s, int64s, pack, unpack

longs = st.lists(st.integers(-(1 << 63), (1 << 63) - 1)).map(lambda values: np.array(values, dtype=np.int64))
ints = st.lists(st.integers(-(1 << 31), (1 << 31) - 1)).map(lambda values: np.array(values, dtype=np.int32))
parts_of_any_kind = st.lists(longs | ints | st.binary() | st.binary().map(memoryview))


def read_as(part, given_part):
    if isinstance(given_part, np.ndarray):
        values = int64s(part) if given_part.dtype == np.int64 else int32s(part)
        assert values.dtype == given_part.dtype
        return values.tolist()
    return bytes(part)


def plain(part):
    return part.tolist() if isinstance(part, np.ndarray) else bytes(part)


@given(parts_of_any_kind)
def test_parts_come_out_as_they_went_in(parts):
    out = unpack(pack(*parts))
    assert list(map(read_as, out, parts)) == list(map(plain, parts))


@given(parts_of_any_kind, st.binary(max_size=9))
def test_a_blob_may_lie_inside_another_and_have_something_after_it(parts, tail):
    (outer, _) = unpack(pack(pack(*parts), tail))
    assert list(map(read_as, unpack(outer), parts)) == list(map(plain, parts))
    assert list(map(read_as, unpack(pack(*parts) + tail), parts)) == list(map(plain, parts))


@given(parts_of_any_kind)
def test_every_part_begins_on_a_multiple_of_eight(parts):
    blob = pack(*parts)
    assert len(blob) % 8 == 0
    start = np.frombuffer(blob, dtype=np.uint8).__array_interface__["data"][0]
    for part in unpack(blob):
        at = np.frombuffer(part, dtype=np.uint8).__array_interface__["data"][0] if len(part) else start
        assert (at - start) % 8 == 0


def test_what_is_read_is_a_view_and_cannot_be_written():
    blob = pack(np.arange(4))
    values = int64s(unpack(blob)[0])
    assert values.base is not None
    assert np.shares_memory(values, np.frombuffer(blob, dtype=np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 9


def test_every_other_row_of_an_array_is_packed_as_those_rows():
    assert int64s(unpack(pack(np.arange(10)[::2]))[0]).tolist() == [0, 2, 4, 6, 8]


def test_a_view_of_wider_items_is_counted_in_bytes():
    first, second = unpack(pack(memoryview(np.arange(3)), b"after"))
    assert int64s(first).tolist() == [0, 1, 2]
    assert bytes(second) == b"after"


def test_nothing_packs_to_a_count_of_zero():
    assert pack() == bytes(8)
    assert unpack(pack()) == []


def test_the_layout_is_the_one_that_checkpoints_hold():
    blob = pack(np.array([1, -1]), np.array([2], dtype=np.int32), b"abc")
    words = [
        b"\3\0\0\0\0\0\0\0",  # three parts
        b"\20\0\0\0\0\0\0\0", b"\1\0\0\0\0\0\0\0", b"\377\377\377\377\377\377\377\377",
        b"\4\0\0\0\0\0\0\0", b"\2\0\0\0\0\0\0\0",
        b"\3\0\0\0\0\0\0\0", b"abc\0\0\0\0\0",
    ]  # fmt: skip
    assert blob == b"".join(words)
