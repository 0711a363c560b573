"""The lineage of tuples that each have one root: runs of siblings, with one sum for a run.

See ``lineage.py`` for the two forms of a lineage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from acktree.core.ids import Int32s, Int64s, UInt64s, channel_id, edges_at
from acktree.core.runs import starts_of_runs
from acktree.core.tracking.attempts import number_of
from acktree.core.tracking.lineage import BUNDLES, RUNS, Lineage, LineageParts, Sparse, UInts

_FORM: Final = struct.Struct("<qq")
"""Which form, and how many rows. Held tuples that an earlier release saved have the form alone."""
_NONE: Final = np.zeros(0, dtype=np.int64)
_SIBLING: Final = channel_id("", "siblings", 0)
"""The channel from which edges of siblings are derived; no component has an empty name."""


class Runs(Lineage):
    """Every row has one root; rows with equal adjacent roots form a run.

    Attributes:
        roots: Root of each run, shape (r,).
        run_attempts: Attempt of each run, shape (r,), or None when all are 1.
        has_edges: Whether the edges of single rows are stored; otherwise they are derived from the sums.
    """

    def __init__(
        self,
        roots: Int64s,
        starts: Int64s | None,
        *,
        edges: Int64s | None = None,
        sums: Int64s | None = None,
        attempts: Int32s | None = None,
        lengths: UInts | None = None,
        rows: int = 0,
    ) -> None:
        """Make it from the edges, shape (n,), or from the sum of the edges of each run, shape (r,).

        Args:
            roots: As the attribute.
            starts: As the attribute; None if the lengths of the runs are known, or if each has one row.
            edges: Edge of each row.
            sums: XOR of the edges of each run.
            attempts: As ``run_attempts``.
            lengths: The rows of each run, shape (r,), where ``starts`` is None.
            rows: The number of rows, where there are ``lengths``.
        """
        self.roots, self.run_attempts = roots, attempts
        self.has_edges = edges is not None
        self._edges, self._sums, self._lengths = edges, sums, lengths
        self._rows = rows if lengths is not None else len(roots)
        if starts is not None:
            self.starts, self._rows = starts, int(starts[-1])

    @classmethod
    def of_messages(cls, roots: Int64s, attempts: Int32s | None) -> Runs:
        """A spout's messages: each is a root, and its copies are children of the root."""
        return cls(roots, np.arange(len(roots) + 1), edges=roots, attempts=attempts)

    @classmethod
    def of_rows(cls, roots: Int64s, edges: Int64s, attempts: Int32s | None = None) -> Runs:
        """Make it from a root and an edge for each row; adjacent equal roots become a run."""
        starts = starts_of_runs(roots)
        firsts = starts[:-1]
        attempts = None if attempts is None else attempts[firsts]
        return cls(roots[firsts], starts, edges=edges, attempts=attempts)

    @property
    def edges(self) -> Int64s:
        """Edge of each row, shape (n,)."""
        if self._edges is None:
            assert self._sums is not None, "one of both was given"
            self._edges = self._sums if len(self.roots) == len(self) else siblings(self._sums, self.starts)
        return self._edges

    @property
    def sums(self) -> Int64s:
        """XOR of the edges of each run, shape (r,)."""
        if self._sums is None:
            assert self._edges is not None, "one of both was given"
            has_rows = len(self.roots) < len(self)
            self._sums = np.bitwise_xor.reduceat(self._edges, self.starts[:-1]) if has_rows else self._edges
        return self._sums

    @cached_property
    def run_of_row(self) -> Int64s:
        """Which run each row is in, shape (n,)."""
        return np.repeat(np.arange(len(self.roots)), self.starts[1:] - self.starts[:-1])

    @cached_property
    def starts(self) -> Int64s:
        """First row of each run and, last, the number of rows; ascending, shape (r + 1,)."""
        return _starts_of(self.lengths, len(self.roots))

    @property
    def lengths(self) -> UInts | None:
        """The rows of each run, in a type that just holds them, shape (r,); None if each run has one row."""
        if self._rows == len(self.roots):
            return None
        if self._lengths is None:
            lengths = self.starts[1:] - self.starts[:-1]
            self._lengths = lengths.astype(np.min_scalar_type(int(lengths.max())))
        return self._lengths

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: Int64s) -> Runs:
        return self._below(rows, self.edges[rows])

    def sparse(self) -> Sparse:
        attempts = None if self.run_attempts is None else self.run_attempts[self.run_of_row]
        return Sparse(np.arange(len(self) + 1), self.roots[self.run_of_row], self.edges, attempts)

    def folds(self) -> UInt64s:
        return self.edges.view(np.uint64)

    def is_tracked(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.ones(len(self), dtype=np.bool_)

    def acks(self, rows: Int64s | None, ack_values: Int64s | None) -> tuple[Int64s, Int64s]:
        if rows is not None:
            return self.take(rows).acks(None, None if ack_values is None else ack_values[rows])
        if ack_values is None or not len(self):
            return self.roots, self.sums
        if len(self.roots) < len(self):
            ack_values = np.bitwise_xor.reduceat(ack_values, self.starts[:-1])
        return self.roots, self.sums ^ ack_values

    def roots_of(self, rows: Int64s) -> Int64s:
        return np.unique(self.roots[self.run_of_row[rows]])

    def roots_by_row(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        runs = rows if self.lengths is None else self.run_of_row[rows]
        return np.ones_like(runs), self.roots[runs]

    def anchors(self, row: int) -> dict[int, int]:
        return {int(self.roots[self.run_of_row[row]]): int(self.edges[row])}

    @property
    def has_attempts(self) -> bool:
        return self.run_attempts is not None

    def root_attempts(self, row: int) -> dict[int, int]:
        run = self.run_of_row[row]
        return {} if self.run_attempts is None else {int(self.roots[run]): int(self.run_attempts[run])}

    def attempts(self) -> Int32s:
        if self.run_attempts is None:
            return np.ones(len(self), dtype=np.int32)
        return number_of(self.run_attempts)[self.run_of_row]

    def children(self, parents: Int64s, edges: Int64s) -> Lineage:
        if len(parents) and parents.min() < 0:
            return self.sparse().children(parents, edges)
        return self._below(parents, edges)

    def _below(self, rows: Int64s, edges: Int64s) -> Runs:
        """The lineage of tuples that each have the root of one of these rows, and the given edges."""
        runs = self._runs_of(rows)
        firsts = starts_of_runs(runs)
        roots, attempts, starts, _ = self._joined(runs[firsts[:-1]], firsts)
        return Runs(roots, starts, edges=edges, attempts=attempts)

    def bundles(self, parents: Int64s, firsts: Int64s, sums: Int64s, cuts: Int64s = _NONE) -> Runs:
        """The lineage of siblings in bundles, each below one row of this frame.

        Args:
            parents: The row each bundle is anchored to, shape (b,).
            firsts: First child of each bundle and, last, the number of children; ascending, shape (b + 1,).
            sums: XOR of the edges of each bundle, shape (b,).
            cuts: Bundles, except the first, at which a run begins whatever its root: see :meth:`pieces`.
        """
        roots, attempts, starts, kept = self._joined(self._runs_of(parents), firsts, cuts)
        if len(roots) < len(sums):
            sums = np.bitwise_xor.reduceat(sums, kept)
        return Runs(roots, starts, sums=sums, attempts=attempts)

    def _runs_of(self, rows: Int64s) -> Int64s:
        return rows if len(self.roots) == len(self) else self.run_of_row[rows]

    def pieces(self, cuts: Int64s) -> Iterator[Runs]:
        """Divide it, made of sums, at rows where runs begin; ascending, without the first."""
        assert self._sums is not None, "runs with edges are not divided"
        roots, sums, attempts, lengths = self.roots, self._sums, self.run_attempts, self.lengths
        rows = [0, *cuts.tolist(), len(self)]
        at = rows if lengths is None else [0, *np.searchsorted(self.starts, cuts).tolist(), len(roots)]
        for (start, end), (first, last) in zip(pairwise(at), pairwise(rows), strict=True):
            yield Runs(
                roots[start:end], None, sums=sums[start:end],
                attempts=None if attempts is None else attempts[start:end],
                lengths=None if lengths is None else lengths[start:end], rows=last - first,
            )  # fmt: skip

    def _joined(
        self, runs: Int64s, firsts: Int64s, cuts: Int64s = _NONE
    ) -> tuple[Int64s, Int32s | None, Int64s, Int64s]:
        """Join adjacent runs of one root.

        Args:
            runs: Some of these runs, shape (m,).
            firsts: The first row of each and, last, the number of rows, shape (m + 1,).
            cuts: Some of ``runs`` that are joined with none before.

        Returns:
            Roots, attempts and starts of the new runs, and the index in ``runs`` at which each begins.
        """
        roots = self.roots[runs]
        kept = starts_of_runs(roots, cuts)
        if len(kept) == len(firsts):  # no two adjacent runs have one root
            return roots, None if self.run_attempts is None else self.run_attempts[runs], firsts, kept[:-1]
        starts, kept = firsts[kept], kept[:-1]
        attempts = None if self.run_attempts is None else self.run_attempts[runs[kept]]
        return roots[kept], attempts, starts, kept

    def parts(self) -> LineageParts:
        form, stored = (RUNS, self._edges) if self.has_edges else (BUNDLES, self._sums)
        assert stored is not None, "one of both was given"
        attempts = b"" if self.run_attempts is None else self.run_attempts
        lengths = b"" if self.lengths is None else self.lengths
        return _FORM.pack(form, self._rows), self.roots, lengths, stored, attempts


def _starts_of(lengths: UInts | None, count: int) -> Int64s:
    """The first row of each of ``count`` runs and, last, the number of rows; without lengths all have one."""
    starts = np.arange(count + 1)
    if lengths is not None:
        np.cumsum(lengths, out=starts[1:])
    return starts


def siblings(sums: Int64s, starts: Int64s) -> Int64s:
    """Derive the edges of siblings from their XOR; shape (n,).

    All edges of a bundle but the last are derived from the sum; the last one makes the XOR equal to the sum.

    Args:
        sums: XOR of the edges of each bundle, shape (b,).
        starts: First of each bundle and, last, how many siblings there are, shape (b + 1,).
    """
    lengths = starts[1:] - starts[:-1]
    seeds = np.repeat(sums.view(np.uint64) + _SIBLING, lengths)
    edges = edges_at(seeds, np.arange(starts[-1]) - np.repeat(starts[:-1], lengths))
    edges[starts[1:] - 1] ^= sums ^ np.bitwise_xor.reduceat(edges, starts[:-1])
    return edges
