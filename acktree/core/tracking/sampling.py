"""A sample of messages to trace, and the traced tuples of a frame with their edges.

A message is drawn once, where it gets its root: in its spout task within a bound; on the source level for a
row of a DataFrame. Then its attempt has a mark (``attempts.py``), which travels with its root. So each level,
a second run, a verdict minutes later and the next run agree.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s
from acktree.core.tracking.attempts import is_traced
from acktree.core.tracking.lineage import Lineage
from acktree.core.tracking.lineage_runs import Runs, siblings

Bools = npt.NDArray[np.bool_]
UInt32s = npt.NDArray[np.uint32]

_FIRST: Final = np.uint32(0x9E3779B1)
_SECOND: Final = np.uint32(0x85EBCA77)
_S15: Final = np.uint32(15)
_ALL: Final = 1 << 32
_AT_ONCE: Final = 16_384
"""How many roots are mixed at once: their numbers stay in the processor's cache."""
_NONE: Final = np.zeros(0, np.int64)


def traced_pairs(lineage: Lineage, among: Int64s | None = None) -> tuple[Int64s, Int64s, Int64s]:
    """The (row, root, edge) of each traced tuple of a frame, by row; three arrays, shape (m,).

    Args:
        lineage: The lineage of the frame.
        among: Rows, ascending, of which the roots of all traced tuples are known to be; None for all.
    """
    if not lineage.has_attempts:
        return _NONE, _NONE, _NONE
    if isinstance(lineage, Runs) and lineage.run_attempts is not None:
        if among is None:
            runs = np.flatnonzero(is_traced(lineage.run_attempts))
        else:
            runs = np.unique(np.searchsorted(lineage.starts, among, side="right") - 1)  # of few rows
        return _pairs_of_runs(lineage, runs) if len(runs) else (_NONE, _NONE, _NONE)
    sparse = lineage.sparse()
    assert sparse.pair_attempts is not None, "it has attempts"
    pairs = np.flatnonzero(is_traced(sparse.pair_attempts))
    return sparse.row_of_pair[pairs], sparse.roots[pairs], sparse.edges[pairs]


def is_sampled(roots: Int64s, share: float) -> Bools:
    """Which roots are in a sample, shape (n,): a share of all roots, 0 to 1.

    Roots of a spout task are consecutive, so they are mixed: a remainder would keep step with periodic input.

    >>> is_sampled(np.arange(100_000), 0.01).sum().item()
    930
    """
    if share >= 1 or share <= 0:
        return np.full(len(roots), share >= 1)
    sampled: Bools = np.empty(len(roots), np.bool_)
    mixed, shifted = np.empty((2, min(len(roots), _AT_ONCE)), np.uint32)
    halves = np.ascontiguousarray(roots).view(np.uint32)
    for at in range(0, len(roots), _AT_ONCE):
        few = halves[2 * at : 2 * (at + _AT_ONCE)]
        count = len(few) // 2
        _mix(few, mixed[:count], shifted[:count])
        np.less(mixed[:count], np.uint32(share * _ALL), out=sampled[at : at + count])
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
