"""The bytes of a lineage: read in place, small, and read where an earlier release wrote them."""

from __future__ import annotations

import numpy as np

from acktree.core.packing import pack
from acktree.core.tracking.lineage_runs import Runs
from acktree.core.tracking.lineages import lineage_from_bytes
from tests.unit.core.tracking.test_lineage import int64s, well_formed


def test_the_wire_form_is_read_without_a_copy():
    for lineage in (
        Runs.of_rows(int64s([1, 2]), int64s([3, 4])),
        Runs(int64s([1, 2]), int64s([0, 1, 2]), sums=int64s([3, 4])),
    ):
        blob = lineage.to_bytes()
        assert np.shares_memory(lineage_from_bytes(blob).edges, np.frombuffer(blob, dtype=np.uint8))


def test_a_held_tuple_that_an_earlier_release_saved_is_read():
    for form, stored in ((0, [5, 6, 7]), (2, [5, 1])):  # without the number of rows
        saved = pack(int64s([form]), int64s([3, 4]), np.array([1, 2], np.uint8), int64s(stored), b"")
        lineage = lineage_from_bytes(saved)
        well_formed(lineage)
        assert len(lineage) == 3
        assert lineage.starts.tolist() == [0, 1, 3]
    one = lineage_from_bytes(pack(int64s([0]), int64s([3]), np.array([1], np.uint8), int64s([5]), b""))
    assert (one.anchors(0), one.starts.tolist()) == ({3: 5}, [0, 1])
    loose = lineage_from_bytes(pack(int64s([1]), int64s([0, 1]), int64s([3]), int64s([5]), b""))
    assert loose.anchors(0) == {3: 5}


def test_siblings_travel_as_one_number():
    starts = np.arange(0, 601, 6)
    few, many = (
        Runs(np.arange(100), starts, sums=np.arange(100)).to_bytes(),
        Runs(np.arange(100), starts, edges=np.arange(600)).to_bytes(),
    )
    assert len(few) == len(many) - 500 * 8
    assert len(few) < 100 * 17 + 100
