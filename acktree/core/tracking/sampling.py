"""Which messages are traced, and the edges of their tuples in a frame.

Whether a message is traced is a pure function of its root, its attempt and the rate. So every level, every
worker and a second run agree, and nothing about it is sent with a tuple.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s, Int64s
from acktree.core.tracking.attempts import NAMED, number_of
from acktree.core.tracking.lineage import Lineage
from acktree.core.tracking.lineage_runs import Runs, siblings

__all__ = ["RETRY_FACTOR", "is_sampled", "sampled_pairs"]

Bools = npt.NDArray[np.bool_]
UInt32s = npt.NDArray[np.uint32]

RETRY_FACTOR: Final = 50
"""Attempts after the first are traced this many times as often: a message that failed is looked for."""
_FIRST: Final = np.uint32(0x9E3779B1)
_SECOND: Final = np.uint32(0x85EBCA77)
_S15: Final = np.uint32(15)
_ALL: Final = 1 << 32
_BLOCK: Final = 16_384
"""How many roots are mixed at once: their numbers stay in the processor's cache."""


def is_sampled(roots: Int64s, rate: float, attempts: Int32s | None = None) -> Bools:
    """Which roots are traced, shape (n,).

    Roots of a spout task are consecutive, so they are mixed: a remainder would keep step with periodic input.

    Args:
        roots: Root ids, shape (n,).
        rate: The share of first attempts that is traced, 0 to 1.
        attempts: The attempt of each, shape (n,), with the mark of those that are traced at any rate but 0;
            None when all are unmarked first attempts.

    >>> is_sampled(np.arange(100_000), 0.01).sum().item()
    930
    """
    if rate >= 1 or rate <= 0 or not len(roots):
        return np.full(len(roots), rate >= 1)
    sampled: Bools = np.empty(len(roots), np.bool_)
    mixed, shifted = np.empty((2, min(len(roots), _BLOCK)), np.uint32)
    halves = np.ascontiguousarray(roots).view(np.uint32)
    for at in range(0, len(roots), _BLOCK):
        few = halves[2 * at : 2 * (at + _BLOCK)]
        count = len(few) // 2
        _mix(few, mixed[:count], shifted[:count])
        of_few = np.less(mixed[:count], np.uint32(rate * _ALL), out=sampled[at : at + count])
        if attempts is not None:
            again = attempts[at : at + count]
            raised = np.uint32(min(RETRY_FACTOR * rate * _ALL, _ALL - 1))
            of_few |= (number_of(again) > 1) & (mixed[:count] <= raised)
            of_few |= again >= NAMED
    return sampled


def _mix(halves: UInt32s, mixed: UInt32s, shifted: UInt32s) -> None:
    """Mix the low and the high halves of roots; numpy shifts 64 bits many times slower than it reads them.

    Args:
        halves: Shape (2n,).
        mixed: Takes the result, shape (n,).
        shifted: Is overwritten, shape (n,).
    """
    np.bitwise_xor(halves[::2], halves[1::2], out=mixed)
    mixed *= _FIRST
    np.right_shift(mixed, _S15, out=shifted)
    mixed ^= shifted
    mixed *= _SECOND


def sampled_pairs(
    lineage: Lineage, rate: float, among: Int64s | None = None
) -> tuple[Int64s, Int64s, Int64s]:
    """The (row, root, edge) of each traced tuple of a frame, by row; three arrays, shape (m,).

    Args:
        lineage: The lineage of the frame.
        rate: The share of messages that is traced.
        among: Rows, ascending, of which the roots of all traced tuples are known to be; None for all rows.
    """
    if isinstance(lineage, Runs):
        if among is None:
            runs = np.flatnonzero(is_sampled(lineage.roots, rate, lineage.run_attempts))
        else:
            runs = np.unique(np.searchsorted(lineage.starts, among, side="right") - 1)  # of few rows
        if not len(runs):
            return runs, runs, runs
        return _pairs_of_runs(lineage, runs)
    sparse = lineage.sparse()
    pairs = np.flatnonzero(is_sampled(sparse.roots, rate, sparse.pair_attempts))
    if not len(pairs):
        return pairs, pairs, pairs
    return sparse.row_of_pair[pairs], sparse.roots[pairs], sparse.edges[pairs]


def _pairs_of_runs(lineage: Runs, runs: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """All rows of some runs. Edges are derived for these runs alone: a frame has thousands."""
    firsts = lineage.starts[runs]
    lengths = lineage.starts[runs + 1] - firsts
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    rows = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths) + np.repeat(firsts, lengths)
    if lineage.has_edges:
        edges = lineage.edges[rows]
    elif len(lineage.roots) == len(lineage):
        edges = lineage.sums[runs]
    else:
        edges = siblings(lineage.sums[runs], starts)
    return rows, np.repeat(lineage.roots[runs], lengths), edges
