"""Which messages each tuple of a frame belongs to, and the edge it carries for each.

Storm keeps a map root -> edge in every tuple object. Here a few arrays hold the maps of all tuples of a
frame. Acking a frame is one ``bitwise_xor.reduceat``, and no object per tuple is made.

There are two forms with the same meaning:

* ``Runs`` (``lineage_runs.py``): every tuple has exactly one root. Children are in the order of their
  parents, so equal roots are adjacent: a run. A run of siblings needs one number, the sum (XOR) of its edges,
  as long as all of them are acked together, which is the usual case. Single edges are derived from it.
* :class:`Sparse`: tuple i has any number of (root, edge) pairs: several after a join with several anchors,
  none for an untracked tuple.

Attempts are stored beside the roots; ``None`` means that all are first attempts.

Source: Storm's ``tuple/MessageId`` (the map) and ``task/OutputCollector`` (what ack sends).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s, Int64s, UInt64s, fold
from acktree.core.packing import Buffer, pack
from acktree.core.tracking.attempts import number_of

UInts = npt.NDArray[np.unsignedinteger[Any]]
LineageParts = tuple[npt.NDArray[np.integer[Any]] | Buffer, ...]
"""Its form (of runs: also the number of rows), and four arrays."""

RUNS, SPARSE, BUNDLES = 0, 1, 2
"""The forms on the wire: runs with the edges of their rows, pairs, runs with sums."""
FORM: Final = struct.Struct("<q")
"""Which form it is. A :class:`Sparse` is stored with held tuples: its bytes change with a version alone."""


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
    def roots_by_row(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """The number of roots of each of these rows, shape (m,), and the roots, row after row."""

    @abstractmethod
    def anchors(self, row: int) -> dict[int, int]:
        """Root -> edge of one row: Storm's MessageId. Empty when untracked."""

    @abstractmethod
    def root_attempts(self, row: int) -> dict[int, int]:
        """Root -> its attempt with its mark, for one row. Empty when all rows are unmarked first attempts."""

    @property
    @abstractmethod
    def has_attempts(self) -> bool:
        """Whether something is known of attempts; if not, all rows are of unmarked first attempts."""

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
    def parts(self) -> LineageParts:
        """For the wire; :func:`lineage_of_parts` reads it."""

    def to_bytes(self) -> bytes:
        """All parts as one; :func:`lineage_from_bytes` reads it."""
        return pack(*self.parts())


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

    def roots_by_row(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        pairs, offsets = self._pairs_of(rows)
        return np.diff(offsets), self.roots[pairs]

    def anchors(self, row: int) -> dict[int, int]:
        pairs = slice(self.offsets[row], self.offsets[row + 1])
        return dict(zip(self.roots[pairs].tolist(), self.edges[pairs].tolist(), strict=True))

    @property
    def has_attempts(self) -> bool:
        return self.pair_attempts is not None

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

    def parts(self) -> LineageParts:
        attempts = b"" if self.pair_attempts is None else self.pair_attempts
        return FORM.pack(SPARSE), self.offsets, self.roots, self.edges, attempts
