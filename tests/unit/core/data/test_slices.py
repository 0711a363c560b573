"""A micro-batch's chunks are divided in order, in equal parts, and nothing is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.frames import Kind
from acktree.core.data.slices import Slice, divided

SIZES = st.lists(st.integers(0, 200), max_size=8)


@given(SIZES, st.integers(1, 17), st.data())
def test_every_row_is_in_one_slice_in_order(sizes, partitions, data):
    only = data.draw(st.none() | st.integers(0, partitions - 1))
    found = list(divided(sizes, partitions, only))
    rows = [(index, row) for index, _, first, end in found for row in range(first, end)]
    assert rows == [(index, row) for index, size in enumerate(sizes) for row in range(size)]
    assert [partition for _, partition, _, _ in found] == sorted(p for _, p, _, _ in found)


@given(SIZES, st.integers(1, 17))
def test_parts_are_equal_but_for_one_row(sizes, partitions):
    counts = [0] * partitions
    for _, partition, first, end in divided(sizes, partitions):
        counts[partition] += end - first
    assert max(counts) - min(counts) <= 1


@given(SIZES, st.integers(1, 17), st.data())
def test_one_partition_may_get_all(sizes, partitions, data):
    only = data.draw(st.integers(0, partitions - 1))
    assert {partition for _, partition, _, _ in divided(sizes, partitions, only)} <= {only}


def test_a_row_names_its_slice_and_counts_from_0_where_it_carries_it():
    part = Slice("7", 2, 5)
    named, carrying = part.row(1, 3, 7, 60), part.row(1, 3, 7, 60, b"rows")
    assert Slice.of_head(named.head) == part
    assert Slice.of_head(carrying.head) == Slice("7", 0, 3)
    assert (named.body, carrying.body) == (b"", b"rows")
    assert (named.partition, named.level, named.kind, named.source) == (1, 0, Kind.CHUNK, 3)
    assert (named.sequence, named.clock_ms) == (7, 60)
