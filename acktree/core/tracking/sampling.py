"""Which messages are traced, and the edges of their tuples in a frame.

Whether a message is traced is a pure function of its root, its attempt and the rate. So every level, every
worker and a second run agree, and nothing about it is sent with a tuple. What cannot be known from a root is
a mark of its attempt (``attempts.py``): attempts after the first, and messages that someone has named.

The sequences of a spout task are cut into blocks. Messages of even blocks are sampled, those of odd
blocks are *passed over*: none is traced without a mark. A spout task that would have too many messages traced
takes sequences of an odd block (``tasks/spouts/trace_pace.py``). So the number of traces a second is bounded,
and nothing about the bound is stored or sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import SEQUENCE_BITS, Int32s, Int64s, sequence_names
from acktree.core.tracking.attempts import is_marked
from acktree.core.tracking.lineage import Lineage
from acktree.core.tracking.lineage_runs import Runs, siblings

__all__ = ["TRACE_BLOCK", "TraceRule", "is_sampled"]

Bools = npt.NDArray[np.bool_]
UInt32s = npt.NDArray[np.uint32]

TRACE_BLOCK: Final = 1 << 18
"""How many sequences a block has. No chunk of new messages has more messages."""
_FIRST: Final = np.uint32(0x9E3779B1)
_SECOND: Final = np.uint32(0x85EBCA77)
_S15: Final = np.uint32(15)
_ALL: Final = 1 << 32
_BLOCK_BIT: Final = np.uint64(TRACE_BLOCK)
_AT_ONCE: Final = 16_384
"""How many roots are mixed at once: their numbers stay in the processor's cache."""


@dataclass(frozen=True)
class TraceRule:
    """Which messages of a topology are traced, and which of their tuples a frame has.

    Attributes:
        run_salt: What root ids are made of.
        numbered: The spout tasks whose messages have sequences.
        has_rows: Whether there may be messages without: rows of a DataFrame, whose roots are mixed. None of
            them is passed over; if there are none, ``numbered`` need not be known.
    """

    run_salt: int
    numbered: tuple[int, ...] = ()
    has_rows: bool = True

    def is_traced(self, roots: Int64s, rate: float, attempts: Int32s | None = None) -> Bools:
        """Which roots are traced, shape (n,).

        Args:
            roots: Root ids, shape (n,).
            rate: The share of unmarked attempts that is traced where they are not passed over, 0 to 1.
            attempts: The attempt of each, shape (n,), with its marks; None when all are unmarked first ones.
        """
        if rate >= 1:
            return np.ones(len(roots), np.bool_)
        if attempts is None:
            return self._is_sampled(roots, rate)
        marked = is_marked(attempts, rate)
        return marked | self._is_sampled(roots, rate) if rate > 0 else marked

    def _is_sampled(self, roots: Int64s, rate: float) -> Bools:
        """Which roots are traced by a rate below 1, without a look at their attempts; shape (n,)."""
        traced: Bools = np.zeros(len(roots), np.bool_)
        if rate <= 0:
            return traced
        for at in range(0, len(roots), _AT_ONCE):
            few = slice(at, at + _AT_ONCE)
            if not self._are_all_passed_over(roots[few]):
                traced[few] = is_sampled(roots[few], rate)
        found = np.flatnonzero(traced)
        traced[found] = ~self._are_passed_over(roots[found])
        return traced

    def _are_passed_over(self, roots: Int64s) -> Bools:
        """Which roots are of an odd block, shape (n,)."""
        names = sequence_names(self.run_salt, roots)
        passed_over: Bools = (names & _BLOCK_BIT) != 0
        if self.has_rows:
            tasks = names >> np.uint64(SEQUENCE_BITS)
            passed_over &= np.isin(tasks, np.array(self.numbered, np.uint64))
        return passed_over

    def _are_all_passed_over(self, roots: Int64s) -> bool:
        """Whether all are known to be, which takes a fraction of the time that mixing them takes."""
        if self.has_rows:
            return False
        if self._is_odd_set:
            return bool(int(np.bitwise_and.reduce(roots)) & TRACE_BLOCK)
        return not int(np.bitwise_or.reduce(roots)) & TRACE_BLOCK

    @cached_property
    def _is_odd_set(self) -> bool:
        """Whether the bit of odd blocks is set in a root of one."""
        (name,) = sequence_names(self.run_salt, np.zeros(1, np.int64))
        return not int(name) & TRACE_BLOCK

    def pairs(
        self, lineage: Lineage, rate: float, among: Int64s | None = None
    ) -> tuple[Int64s, Int64s, Int64s]:
        """The (row, root, edge) of each traced tuple of a frame, by row; three arrays, shape (m,).

        Args:
            lineage: The lineage of the frame.
            rate: The share of messages that is traced.
            among: Rows, ascending, of which the roots of all traced tuples are known to be; None for all.
        """
        if isinstance(lineage, Runs):
            if among is None:
                runs = np.flatnonzero(self.is_traced(lineage.roots, rate, lineage.run_attempts))
            else:
                runs = np.unique(np.searchsorted(lineage.starts, among, side="right") - 1)  # of few rows
            if not len(runs):
                return runs, runs, runs
            return _pairs_of_runs(lineage, runs)
        sparse = lineage.sparse()
        pairs = np.flatnonzero(self.is_traced(sparse.roots, rate, sparse.pair_attempts))
        if not len(pairs):
            return pairs, pairs, pairs
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
