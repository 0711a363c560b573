"""Which messages each tuple of a frame belongs to, and the edge it carries for each.

Storm hangs a map root -> edge on every tuple object. Here the maps of all tuples of a frame stand in a few
arrays, so that acking a frame is one ``bitwise_xor.reduceat`` and no object per tuple is made.

Two forms, one meaning:

* :class:`Runs`: every tuple has exactly one root. Children stand in the order of their parents, so roots
  come in runs: one root and one first row for each run, one edge for each tuple. What nearly every frame is.
* :class:`Sparse`: tuple i has any number of (root, edge) pairs: after a join with several anchors, or none
  for an untracked tuple.

Attempts travel beside the roots; ``None`` says that all are first attempts.

Source: Storm's ``tuple/MessageId`` (the map) and ``task/OutputCollector`` (what ack sends).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from acktree.core.ids import Int32s, Int64s, UInt64s, fold
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack

_RUNS, _SPARSE = 0, 1


class Lineage(ABC):
    """The lineage of the rows of one frame. Immutable."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows (tuples) this speaks of."""

    @abstractmethod
    def take(self, rows: Int64s) -> Lineage:
        """The lineage of these rows, in this order; shape (m,)."""

    @abstractmethod
    def sparse(self) -> Sparse:
        """The same in the general form."""

    @abstractmethod
    def folds(self) -> UInt64s:
        """One number per row that names the tuple among all of its trees; zero for an untracked row. (n,)."""

    @abstractmethod
    def is_tracked(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which rows have a root at all. (n,)."""

    @abstractmethod
    def acks(self, rows: Int64s | None, ack_values: Int64s) -> tuple[Int64s, Int64s]:
        """What acking rows adds to the sums of their roots.

        Args:
            rows: The rows acked, ascending; None for all.
            ack_values: For each row of the frame (n,), the XOR of the edges created while anchored to it.

        Returns:
            Roots and deltas, equal shapes. A root may stand there more than once; neighbours are summed.
        """

    @abstractmethod
    def roots_of(self, rows: Int64s) -> Int64s:
        """The distinct roots that these rows hang on, ascending."""

    @abstractmethod
    def anchors(self, row: int) -> dict[int, int]:
        """Root -> edge of one row: Storm's MessageId. Empty when untracked."""

    @abstractmethod
    def root_attempts(self, row: int) -> dict[int, int]:
        """Root -> the attempt it stands for, of one row. Empty when every row's is a first attempt."""

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


@dataclass(frozen=True, eq=False)
class Runs(Lineage):
    """Every row has one root; roots come in runs.

    Attributes:
        roots: Root of each run, shape (r,).
        starts: First row of each run and, last, the number of rows; ascending, shape (r + 1,).
        edges: Edge of each row, shape (n,).
        run_attempts: Attempt of each run, shape (r,), or None when all are 1.
    """

    roots: Int64s
    starts: Int64s
    edges: Int64s
    run_attempts: Int32s | None = None

    @classmethod
    def of_rows(cls, roots: Int64s, edges: Int64s, attempts: Int32s | None = None) -> Runs:
        """From a root and an edge for each row; equal neighbours become a run."""
        changes = np.flatnonzero(roots[1:] != roots[:-1]) + 1
        starts = np.concatenate(([0], changes, [len(roots)])) if len(roots) else np.zeros(1, dtype=np.int64)
        firsts = starts[:-1]
        return cls(roots[firsts], starts, edges, None if attempts is None else attempts[firsts])

    @cached_property
    def run_of_row(self) -> Int64s:
        """Which run each row is in, shape (n,)."""
        return np.repeat(np.arange(len(self.roots)), np.diff(self.starts))

    def __len__(self) -> int:
        return len(self.edges)

    def take(self, rows: Int64s) -> Runs:
        return self._of_rows(rows, self.edges[rows])

    def _of_rows(self, rows: Int64s, edges: Int64s) -> Runs:
        """Tuples, each below one of these rows, with edges of their own; a run is looked at once."""
        runs = self.run_of_row[rows]
        firsts = np.flatnonzero(np.r_[True, runs[1:] != runs[:-1]][: len(runs)])
        return self._of_runs(runs[firsts], firsts, edges)

    def _of_runs(self, runs: Int64s, firsts: Int64s, edges: Int64s) -> Runs:
        """Rows of some of these runs, the first row of each; neighbours of one root become one."""
        roots = self.roots[runs]
        changes = np.flatnonzero(np.r_[True, roots[1:] != roots[:-1]][: len(roots)])
        attempts = None if self.run_attempts is None else self.run_attempts[runs[changes]]
        return Runs(roots[changes], np.append(firsts[changes], len(edges)), edges, attempts)

    def sparse(self) -> Sparse:
        attempts = None if self.run_attempts is None else self.run_attempts[self.run_of_row]
        return Sparse(np.arange(len(self) + 1), self.roots[self.run_of_row], self.edges, attempts)

    def folds(self) -> UInt64s:
        return self.edges.view(np.uint64)

    def is_tracked(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.ones(len(self), dtype=np.bool_)

    def acks(self, rows: Int64s | None, ack_values: Int64s) -> tuple[Int64s, Int64s]:
        if rows is not None:
            return self.take(rows).acks(None, ack_values[rows])
        if not len(self):
            return self.roots, self.edges
        return self.roots, np.bitwise_xor.reduceat(self.edges ^ ack_values, self.starts[:-1])

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
        return self.run_attempts[self.run_of_row]

    def children(self, parents: Int64s, edges: Int64s) -> Lineage:
        if len(parents) and parents.min() < 0:
            return self.sparse().children(parents, edges)
        return self._of_rows(parents, edges)

    def to_bytes(self) -> bytes:
        attempts = b"" if self.run_attempts is None else self.run_attempts
        return pack(np.array([_RUNS]), self.roots, self.starts, self.edges, attempts)


@dataclass(frozen=True, eq=False)
class Sparse(Lineage):
    """Each row has any number of roots.

    Attributes:
        offsets: Row i owns the pairs offsets[i] to offsets[i + 1]; shape (n + 1,).
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
        """From a map root -> edge for each row, and the attempt of each root (1 where it does not say)."""
        offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
        roots = np.array([root for row in rows for root in row], dtype=np.int64)
        edges = np.array([edge for row in rows for edge in row.values()], dtype=np.int64)
        tries = np.array([attempts.get(root, 1) for row in rows for root in row], dtype=np.int32)
        return cls(offsets, roots, edges, tries if (tries != 1).any() else None)

    @cached_property
    def row_of_pair(self) -> Int64s:
        """Which row each pair is of, shape (p,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Int64s) -> Sparse:
        pairs, offsets = self._pairs_of(rows)
        attempts = None if self.pair_attempts is None else self.pair_attempts[pairs]
        return Sparse(offsets, self.roots[pairs], self.edges[pairs], attempts)

    def _pairs_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Indices of the pairs of these rows, in order, and the offsets that cut them into rows again."""
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

    def acks(self, rows: Int64s | None, ack_values: Int64s) -> tuple[Int64s, Int64s]:
        if rows is not None:
            return self.take(rows).acks(None, ack_values[rows])
        return self.roots, self.edges ^ ack_values[self.row_of_pair]

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
            np.maximum.at(attempts, self.row_of_pair, self.pair_attempts)
        return attempts

    def children(self, parents: Int64s, edges: Int64s) -> Sparse:
        # One more row, without pairs, stands last: -1 finds it.
        offsets = np.append(self.offsets, self.offsets[-1:])
        taken = Sparse(offsets, self.roots, self.edges, self.pair_attempts).take(parents)
        return Sparse(taken.offsets, taken.roots, edges[taken.row_of_pair], taken.pair_attempts)

    def to_bytes(self) -> bytes:
        attempts = b"" if self.pair_attempts is None else self.pair_attempts
        return pack(np.array([_SPARSE]), self.offsets, self.roots, self.edges, attempts)


def lineage_from_bytes(blob: Buffer) -> Lineage:
    """Read what :meth:`Lineage.to_bytes` wrote; the arrays are views of the blob."""
    form, first, second, third, attempts = unpack(blob)
    tries = int32s(attempts) if len(attempts) else None
    if int64s(form)[0] == _RUNS:
        return Runs(int64s(first), int64s(second), int64s(third), tries)
    return Sparse(int64s(first), int64s(second), int64s(third), tries)
