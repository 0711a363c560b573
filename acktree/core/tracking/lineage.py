"""Which messages each tuple of a frame belongs to, and the edge it carries for each.

Storm keeps a map root -> edge in every tuple object. Here a few arrays hold the maps of all tuples of a
frame. Acking a frame is one ``bitwise_xor.reduceat``, and no object per tuple is made.

There are two forms with the same meaning:

* :class:`Runs`: every tuple has exactly one root. Children are in the order of their parents, so equal roots
  are adjacent: a run. A run of siblings needs one number, the sum (XOR) of its edges, as long as all of them
  are acked together, which is the usual case. Single edges are derived from that sum on demand.
* :class:`Sparse`: tuple i has any number of (root, edge) pairs: several after a join with several anchors,
  none for an untracked tuple.

Attempts are stored beside the roots; ``None`` means that all are first attempts.

Source: Storm's ``tuple/MessageId`` (the map) and ``task/OutputCollector`` (what ack sends).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from acktree.core.ids import Int32s, Int64s, UInt64s, channel_id, edges_at, fold
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.runs import starts_of_runs
from acktree.core.tracking.attempts import number_of

_NONE: Final = np.zeros(0, dtype=np.int64)
_RUNS, _SPARSE, _BUNDLES = 0, 1, 2
_SIBLING = channel_id("", "siblings", 0)
"""The channel from which edges of siblings are derived; no component has an empty name."""


class Lineage(ABC):
    """The lineage of the rows of one frame. Immutable."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows (tuples)."""

    @abstractmethod
    def take(self, rows: Int64s) -> Lineage:
        """The lineage of these rows, in this order; shape (m,)."""

    @abstractmethod
    def sparse(self) -> Sparse:
        """The same lineage in the general form."""

    @abstractmethod
    def folds(self) -> UInt64s:
        """One number per row that identifies the tuple in all of its trees; 0 for an untracked row. (n,)."""

    @abstractmethod
    def is_tracked(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which rows have at least one root. (n,)."""

    @abstractmethod
    def acks(self, rows: Int64s | None, ack_values: Int64s | None) -> tuple[Int64s, Int64s]:
        """What acking rows adds to the sums of their roots.

        Args:
            rows: The rows acked, ascending; None for all.
            ack_values: For each row of the frame (n,), the XOR of the edges created while anchored to it;
                None when none was.

        Returns:
            Roots and deltas, equal shapes. A root may occur more than once; adjacent equal roots are summed.
        """

    @abstractmethod
    def roots_of(self, rows: Int64s) -> Int64s:
        """The distinct roots of these rows, ascending."""

    @abstractmethod
    def anchors(self, row: int) -> dict[int, int]:
        """Root -> edge of one row: Storm's MessageId. Empty when untracked."""

    @abstractmethod
    def root_attempts(self, row: int) -> dict[int, int]:
        """Root -> its attempt with its mark, for one row. Empty when all rows are unmarked first attempts."""

    @abstractmethod
    def attempts(self) -> Int32s:
        """The attempt that each row belongs to (the latest, if its roots differ); 1 when untracked. (n,)."""

    @abstractmethod
    def children(self, parents: Int64s, edges: Int64s) -> Lineage:
        """The lineage of tuples that are each anchored to one row of this frame.

        Args:
            parents: The row each child is anchored to, shape (m,); -1 for not anchored.
            edges: The edge of each child, shape (m,).
        """

    @abstractmethod
    def to_bytes(self) -> bytes:
        """For the wire; :func:`lineage_from_bytes` reads it."""


class Runs(Lineage):
    """Every row has one root; rows with equal adjacent roots form a run.

    Attributes:
        roots: Root of each run, shape (r,).
        starts: First row of each run and, last, the number of rows; ascending, shape (r + 1,).
        run_attempts: Attempt of each run, shape (r,), or None when all are 1.
        has_edges: Whether the edges of single rows are stored; otherwise they are derived from the sums.
    """

    def __init__(
        self,
        roots: Int64s,
        starts: Int64s,
        *,
        edges: Int64s | None = None,
        sums: Int64s | None = None,
        attempts: Int32s | None = None,
    ) -> None:
        """Make it from the edges, shape (n,), or from the sum of the edges of each run, shape (r,)."""
        self.roots, self.starts, self.run_attempts = roots, starts, attempts
        self.has_edges = edges is not None
        self._edges, self._sums = edges, sums

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
        return np.repeat(np.arange(len(self.roots)), np.diff(self.starts))

    def __len__(self) -> int:
        return int(self.starts[-1])

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

    def anchors(self, row: int) -> dict[int, int]:
        return {int(self.roots[self.run_of_row[row]]): int(self.edges[row])}

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
        at = np.searchsorted(self.starts, cuts).tolist()
        for start, end in zip([0, *at], [*at, len(self.roots)], strict=True):
            attempts = None if self.run_attempts is None else self.run_attempts[start:end]
            starts = self.starts[start : end + 1] - self.starts[start]
            yield Runs(self.roots[start:end], starts, sums=self._sums[start:end], attempts=attempts)

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

    def to_bytes(self) -> bytes:
        form, stored = (_RUNS, self._edges) if self.has_edges else (_BUNDLES, self._sums)
        assert stored is not None, "one of both was given"
        attempts = b"" if self.run_attempts is None else self.run_attempts
        lengths = np.diff(self.starts)
        narrow = np.min_scalar_type(int(lengths.max(initial=0)))
        return pack(np.array([form]), self.roots, lengths.astype(narrow), stored, attempts)


@dataclass(frozen=True, eq=False)
class Sparse(Lineage):
    """Each row has any number of roots.

    Attributes:
        offsets: Row i has the pairs offsets[i] to offsets[i + 1]; shape (n + 1,).
        roots: Root of each pair, shape (p,); distinct within a row.
        edges: Edge of each pair, shape (p,).
        pair_attempts: Attempt of each pair's root, shape (p,), or None when all are 1.
    """

    offsets: Int64s
    roots: Int64s
    edges: Int64s
    pair_attempts: Int32s | None = None

    @classmethod
    def untracked(cls, rows: int) -> Sparse:
        """Rows without any root."""
        none = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(rows + 1, dtype=np.int64), none, none)

    @classmethod
    def of_anchors(cls, rows: Sequence[Mapping[int, int]], attempts: Mapping[int, int]) -> Sparse:
        """Make it from a map root -> edge for each row, and the attempt of each root (default 1)."""
        offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
        roots = np.array([root for row in rows for root in row], dtype=np.int64)
        edges = np.array([edge for row in rows for edge in row.values()], dtype=np.int64)
        tries = np.array([attempts.get(root, 1) for row in rows for root in row], dtype=np.int32)
        return cls(offsets, roots, edges, tries if (tries != 1).any() else None)

    @cached_property
    def row_of_pair(self) -> Int64s:
        """The row of each pair, shape (p,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Int64s) -> Sparse:
        pairs, offsets = self._pairs_of(rows)
        attempts = None if self.pair_attempts is None else self.pair_attempts[pairs]
        return Sparse(offsets, self.roots[pairs], self.edges[pairs], attempts)

    def _pairs_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Indices of the pairs of these rows, in order, and the offsets that divide them into rows."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        return np.repeat(self.offsets[:-1][rows], counts) + within, offsets

    def sparse(self) -> Sparse:
        return self

    def folds(self) -> UInt64s:
        folds = np.zeros(len(self), dtype=np.uint64)
        counts = np.diff(self.offsets)
        single = counts == 1
        folds[single] = self.edges[self.offsets[:-1][single]].view(np.uint64)
        for row in np.flatnonzero(counts > 1):
            pairs = slice(self.offsets[row], self.offsets[row + 1])
            folds[row] = fold(self.roots[pairs], self.edges[pairs])
        return folds

    def is_tracked(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.diff(self.offsets) > 0

    def acks(self, rows: Int64s | None, ack_values: Int64s | None) -> tuple[Int64s, Int64s]:
        if rows is not None:
            return self.take(rows).acks(None, None if ack_values is None else ack_values[rows])
        return self.roots, self.edges if ack_values is None else self.edges ^ ack_values[self.row_of_pair]

    def roots_of(self, rows: Int64s) -> Int64s:
        return np.unique(self.roots[self._pairs_of(rows)[0]])

    def anchors(self, row: int) -> dict[int, int]:
        pairs = slice(self.offsets[row], self.offsets[row + 1])
        return dict(zip(self.roots[pairs].tolist(), self.edges[pairs].tolist(), strict=True))

    def root_attempts(self, row: int) -> dict[int, int]:
        if self.pair_attempts is None:
            return {}
        pairs = slice(self.offsets[row], self.offsets[row + 1])
        return dict(zip(self.roots[pairs].tolist(), self.pair_attempts[pairs].tolist(), strict=True))

    def attempts(self) -> Int32s:
        attempts = np.ones(len(self), dtype=np.int32)
        if self.pair_attempts is not None:
            np.maximum.at(attempts, self.row_of_pair, number_of(self.pair_attempts))
        return attempts

    def children(self, parents: Int64s, edges: Int64s) -> Sparse:
        # An empty row is appended: index -1 (not anchored) selects it.
        offsets = np.append(self.offsets, self.offsets[-1:])
        taken = Sparse(offsets, self.roots, self.edges, self.pair_attempts).take(parents)
        return Sparse(taken.offsets, taken.roots, edges[taken.row_of_pair], taken.pair_attempts)

    def to_bytes(self) -> bytes:
        attempts = b"" if self.pair_attempts is None else self.pair_attempts
        return pack(np.array([_SPARSE]), self.offsets, self.roots, self.edges, attempts)


def lineage_from_bytes(blob: Buffer) -> Lineage:
    """Read what :meth:`Lineage.to_bytes` wrote; the arrays are views of the blob."""
    form_part, first, second, third, attempts_part = unpack(blob)
    form, attempts = int64s(form_part)[0], int32s(attempts_part) if len(attempts_part) else None
    if form == _SPARSE:
        return Sparse(int64s(first), int64s(second), int64s(third), attempts)
    roots, stored = int64s(first), int64s(third)
    starts = np.zeros(len(roots) + 1, dtype=np.int64)
    if len(roots):
        np.cumsum(np.frombuffer(second, dtype=f"u{len(second) // len(roots)}"), out=starts[1:])
    if form == _RUNS:
        return Runs(roots, starts, edges=stored, attempts=attempts)
    return Runs(roots, starts, sums=stored, attempts=attempts)


def siblings(sums: Int64s, starts: Int64s) -> Int64s:
    """Derive the edges of siblings from their XOR; shape (n,).

    All edges of a bundle but the last are derived from the sum; the last one makes the XOR equal to the sum.

    Args:
        sums: XOR of the edges of each bundle, shape (b,).
        starts: First of each bundle and, last, how many siblings there are, shape (b + 1,).
    """
    lengths = np.diff(starts)
    seeds = np.repeat(sums.view(np.uint64) + _SIBLING, lengths)
    edges = edges_at(seeds, np.arange(starts[-1]) - np.repeat(starts[:-1], lengths))
    edges[starts[1:] - 1] ^= sums ^ np.bitwise_xor.reduceat(edges, starts[:-1])
    return edges
