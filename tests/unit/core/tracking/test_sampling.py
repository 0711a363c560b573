"""Which messages are in a sample is known from their names alone; traced tuples are found by their marks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.tracking.attempts import CHOSEN, NAMED
from acktree.core.tracking.lineage import Lineage, Sparse
from acktree.core.tracking.lineage_runs import Runs
from acktree.core.tracking.sampling import is_sampled, traced_pairs

rates = st.sampled_from([0.0, 1e-9, 0.0001, 0.02, 0.3, 0.999, 1.0])
names = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=30)
attempts = st.sampled_from([1, 2, NAMED | 1, CHOSEN | 1, CHOSEN | 2, CHOSEN | NAMED | 3])


@given(names, rates, rates)
def test_each_name_is_drawn_alone_and_a_larger_sample_has_the_smaller_one(drawn, one, other):
    low, high = sorted((one, other))
    alone = [bool(is_sampled(np.array([name]), low)[0]) for name in drawn]
    assert is_sampled(np.array(drawn, np.int64), low).tolist() == alone
    assert not (is_sampled(np.array(drawn, np.int64), high) < alone).any()


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5])
def test_of_consecutive_names_the_share_is_drawn(share):
    assert is_sampled(np.arange(1 << 20), share).mean() == pytest.approx(share, rel=0.2)


def naive(lineage: Lineage) -> list[tuple[int, int, int]]:
    return [
        (row, root, edge)
        for row in range(len(lineage))
        for root, edge in sorted(lineage.anchors(row).items())
        if lineage.root_attempts(row).get(root, 1) < 0
    ]


@given(st.lists(st.tuples(st.integers(1, 4), attempts), min_size=1, max_size=9), st.data())
def test_the_traced_tuples_of_a_frame_are_those_with_the_mark(runs, data):
    lengths = np.array([length for length, _ in runs])
    starts = np.concatenate(([0], np.cumsum(lengths)))
    edges = np.arange(100, 100 + starts[-1])
    tries = np.array([attempt for _, attempt in runs], np.int32)
    of_runs = Runs(np.arange(1, len(runs) + 1), starts, edges=edges, attempts=tries)
    joined = [data.draw(st.sets(st.integers(1, len(runs)), max_size=3)) for _ in runs]
    sparse = Sparse.of_anchors(
        [{root: 7 * root for root in sorted(roots)} for roots in joined], dict(enumerate(tries.tolist(), 1))
    )
    for lineage in (of_runs, of_runs.sparse(), sparse):
        assert list(zip(*(each.tolist() for each in traced_pairs(lineage)), strict=True)) == naive(lineage)
    marked = np.flatnonzero(np.repeat(tries < 0, lengths))
    among = traced_pairs(of_runs, marked[:1])
    assert (
        among[1].tolist()
        == of_runs.roots[np.searchsorted(starts, marked[:1], "right") - 1].repeat(len(among[0])).tolist()
    )


def test_where_nothing_is_known_of_attempts_nothing_is_traced():
    assert [len(each) for each in traced_pairs(Runs.of_rows(np.arange(3), np.arange(3)))] == [0, 0, 0]
