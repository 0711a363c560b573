"""The gate: which staged tuples go on, once the messages that they hang on have their verdicts.

A tuple that is sent through a gate leaves its tree: it gets no edge, and nobody acks it. It is staged, and
waits for the verdicts of its roots. If it passes, it goes on as a message of its own.

Rules of this file
------------------
1. A tuple passes when each of its roots is ACKED; one without a root passes at once. It is dropped with the
   first root that is neither ACKED nor open: one that failed, timed out, or was forgotten with the run that
   opened it. Otherwise it waits.
2. The tuples that pass in one micro-batch are a *passage*: their order, and the numbers of the messages that
   they become, are part of the decision. A second run of the micro-batch decides anew, and the first
   decision is thrown away. Once Spark has committed the micro-batch, nothing changes a passage.
3. A passage is kept until :meth:`Gate.hand_over` says that the inbox has it.
4. This file handles roots, not values. A tuple is a row of a *frame*; frames have numbers, which ascend in
   the order in which the frames were staged.
5. Each micro-batch returns a *change*. A gate that replays the changes of another has the same state.

Source: Storm's Trident, which commits the states of its batches in order. Here a message is the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.errors import CheckpointError

_NONE: Final = np.zeros(0, dtype=np.int64)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Staged:
    """Tuples in front of a gate, in groups: consecutive rows of a frame that hang on the same roots.

    Attributes:
        frames: The number of each group's frame, ascending; shape (g,).
        firsts: The first row of each group; shape (g,).
        counts: The number of rows of each group; shape (g,).
        degrees: The number of roots of each group; shape (g,).
        roots: The roots of all groups; shape (sum of ``degrees``,).
    """

    frames: Int64s
    firsts: Int64s
    counts: Int64s
    degrees: Int64s
    roots: Int64s

    @classmethod
    def nothing(cls) -> Staged:
        """No tuples."""
        return cls(_NONE, _NONE, _NONE, _NONE, _NONE)

    @classmethod
    def groups(cls, number: int, counts: Int64s, degrees: Int64s, roots: Int64s) -> Staged:
        """A frame, by its groups; the arguments are as the attributes."""
        return cls(np.full(len(counts), number), np.cumsum(counts) - counts, counts, degrees, roots)

    @classmethod
    def frame(cls, number: int, rows: Sequence[Sequence[int]]) -> Staged:
        """A frame, by the roots of each row.

        >>> Staged.frame(7, [[1], [1], [], [1, 2]]).counts.tolist()
        [2, 1, 1]
        """
        groups = [list(group) for _, group in groupby(enumerate(rows), key=lambda row: row[1])]
        return cls(
            _array(number for _ in groups),
            _array(group[0][0] for group in groups),
            _array(len(group) for group in groups),
            _array(len(group[0][1]) for group in groups),
            _array(root for group in groups for root in group[0][1]),
        )

    @classmethod
    def joined(cls, parts: Sequence[Staged]) -> Staged:
        """The tuples of several, in this order."""
        parts = [part for part in parts if len(part)] or [cls.nothing()]
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.frames for part in parts]),
            np.concatenate([part.firsts for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.degrees for part in parts]),
            np.concatenate([part.roots for part in parts]),
        )

    @property
    def rows(self) -> int:
        """The number of tuples."""
        return int(self.counts.sum())

    @cached_property
    def group_of_root(self) -> Int64s:
        """The group of each root."""
        return np.repeat(np.arange(len(self.frames)), self.degrees)

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.frames)

    def having(self, is_so: Mask) -> Mask:
        """Which groups have a root of which ``is_so`` is true; shape (g,)."""
        if not is_so.any():
            return np.zeros(len(self), dtype=np.bool_)
        return np.bincount(self.group_of_root[is_so], minlength=len(self)) > 0

    def take(self, is_taken: Mask, without: Mask) -> Staged:
        """The chosen groups without the left-out roots; shapes (g,) and (number of roots,)."""
        if not is_taken.any():
            return Staged.nothing()
        stays = is_taken[self.group_of_root] & ~without
        degrees = np.bincount(self.group_of_root[stays], minlength=len(self))
        return Staged(
            self.frames[is_taken], self.firsts[is_taken], self.counts[is_taken], degrees[is_taken],
            self.roots[stays],
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """20 bytes for each group, and 8 for each of its roots."""
        small = (column.astype(np.int32) for column in (self.firsts, self.counts, self.degrees))
        return pack(self.frames, *small, self.roots)

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Staged:
        """Read what :meth:`to_bytes` wrote."""
        frames, *small, roots = unpack(blob)
        firsts, counts, degrees = (int32s(part).astype(np.int64) for part in small)
        return cls(int64s(frames), firsts, counts, degrees, int64s(roots))


@dataclass(frozen=True, eq=False)
class Passage:
    """The tuples that one decision lets through, in their order: slices of frames.

    Attributes:
        first: The number of the first tuple, as a message of this gate; the others follow without a gap.
        frames: The number of each slice's frame, ascending; shape (s,).
        firsts: The first row of each slice; shape (s,).
        counts: The number of rows of each slice; shape (s,).
    """

    first: int
    frames: Int64s
    firsts: Int64s
    counts: Int64s

    @classmethod
    def of(cls, first: int, staged: Staged, is_passing: Mask) -> Passage:
        """All tuples of the groups that pass. Adjacent groups become one slice."""
        frames, firsts, counts = (
            column if is_passing.all() else column[is_passing]
            for column in (staged.frames, staged.firsts, staged.counts)
        )
        ends = firsts + counts
        is_start = np.ones(len(frames), dtype=np.bool_)
        is_start[1:] = (frames[1:] != frames[:-1]) | (firsts[1:] != ends[:-1])
        starts = np.flatnonzero(is_start)
        sums = np.add.reduceat(counts, starts) if len(starts) else _NONE
        return cls(first, frames[starts], firsts[starts], sums)

    @property
    def end(self) -> int:
        """The number of the message after the last."""
        return self.first + int(self.counts.sum())

    def rows(self) -> list[tuple[int, int]]:
        """(frame, row) of each tuple."""
        slices = zip(self.frames.tolist(), self.firsts.tolist(), self.counts.tolist(), strict=True)
        return [(frame, row) for frame, first, count in slices for row in range(first, first + count)]

    def row_of(self, number: int) -> tuple[int, int]:
        """The frame and the row of one message."""
        at = int(np.searchsorted(self._ends, number, side="right"))
        return int(self.frames[at]), int(self.firsts[at] + self.counts[at] - self._ends[at]) + number

    @cached_property
    def _ends(self) -> Int64s:
        """The number of the message after each slice."""
        return self.first + np.cumsum(self.counts)

    def to_bytes(self) -> bytes:
        """16 bytes for each slice."""
        small = (column.astype(np.int32) for column in (self.firsts, self.counts))
        return pack(np.array([self.first]), self.frames, *small)

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Passage:
        """Read what :meth:`to_bytes` wrote."""
        first, frames, *small = unpack(blob)
        firsts, counts = (int32s(part).astype(np.int64) for part in small)
        return cls(int(int64s(first)[0]), int64s(frames), firsts, counts)


@dataclass(frozen=True, eq=False)
class Decision:
    """What a gate decided in one micro-batch.

    Attributes:
        passage: The tuples that pass.
        dropped: The number of tuples that never will.
        waiting: The number of tuples that wait for a verdict, those of earlier micro-batches included.
        change: For :meth:`Gate.replay`; empty when the gate did not change.
    """

    passage: Passage
    dropped: int
    waiting: int
    change: bytes


class Gate:
    """The tuples that wait in front of a gate, and the passages that the inbox does not have."""

    def __init__(self, whole: Buffer | None = None) -> None:
        """Make an empty gate, or restore the one that :meth:`to_bytes` wrote."""
        self._last_change = self._next = 0
        self._waiting = Staged.nothing()
        self._passages: list[Passage] = []
        if whole is not None:
            head, waiting, *passages = unpack(whole)
            self._last_change, self._next = int64s(head).tolist()
            self._waiting = Staged.from_bytes(waiting)
            self._passages = [Passage.from_bytes(part) for part in passages]

    def to_bytes(self) -> bytes:
        """The whole gate."""
        head = np.array([self._last_change, self._next])
        return pack(head, self._waiting.to_bytes(), *(passage.to_bytes() for passage in self._passages))

    @property
    def waiting(self) -> int:
        """The number of tuples that wait for a verdict."""
        return self._waiting.rows

    @property
    def end(self) -> int:
        """The number of the message after the last that passed."""
        return self._next

    @property
    def passages(self) -> Sequence[Passage]:
        """The passages that the inbox does not have, in the order of their micro-batches."""
        return self._passages

    @property
    def frames(self) -> Int64s:
        """The numbers of the frames that are still needed, ascending."""
        return np.unique(
            np.concatenate([self._waiting.frames, *(passage.frames for passage in self._passages)])
        )

    def decide(
        self, staged: Staged, acked: Callable[[Int64s], Mask], still_open: Callable[[Int64s], Int64s]
    ) -> Decision:
        """Split what waits, after the acker has judged a micro-batch.

        Args:
            staged: The tuples of this micro-batch.
            acked: Returns which of some roots were ACKED in this micro-batch, shape kept.
            still_open: Returns the open ones of some roots, ascending: ``Ledger.still_open``.
        """
        asked = Staged.joined([self._waiting, staged])
        is_acked = acked(asked.roots)
        others = np.unique(asked.roots[~is_acked])
        is_open = among(asked.roots, still_open(others))
        has_open = asked.having(~is_acked & is_open)
        is_dropped = asked.having(~is_acked & ~is_open)
        is_passing = ~has_open & ~is_dropped
        passage = Passage.of(self._next, asked, is_passing)
        dropped = int(asked.counts[is_dropped].sum())
        waits = has_open & ~is_dropped
        before = len(self._waiting)
        is_new = np.arange(len(asked)) >= before
        change = _Change(
            self._last_change + 1,
            np.unique(self._waiting.roots[is_acked[: len(self._waiting.roots)]]),
            np.flatnonzero(~waits[:before]),
            asked.take(waits & is_new, is_acked),
            passage,
        )
        if change:
            self._apply(change)
        return Decision(passage, dropped, self.waiting, change.to_bytes() if change else b"")

    def replay(self, change: Buffer) -> None:
        """Apply the change of a micro-batch to the state before it. Changes are replayed in order.

        Raises:
            CheckpointError: The number of the change does not follow that of the last one.
        """
        again = _Change.from_bytes(change)
        if again.number != self._last_change + 1:
            raise CheckpointError(
                f"the gate's log has a gap: change number {again.number} follows number {self._last_change}",
                "a gate",
                "restore the missing files, or give the topology a new checkpoint",
            )
        self._apply(again)

    def hand_over(self, end: int) -> None:
        """Forget the passages that the inbox has.

        Args:
            end: The inbox has the messages before this number.
        """
        self._passages = [passage for passage in self._passages if passage.end > end]

    def _apply(self, change: _Change) -> None:
        stays = np.ones(len(self._waiting), dtype=np.bool_)
        stays[change.gone] = False
        kept = self._waiting.take(stays, among(self._waiting.roots, change.acked))
        self._waiting = Staged.joined([kept, change.waiting])
        self._last_change, self._next = change.number, change.passage.end
        if len(change.passage.frames):
            self._passages = [*self._passages, change.passage]


@dataclass(frozen=True, eq=False)
class _Change:
    """The effect of one micro-batch on a gate.

    Attributes:
        number: The sequence number of the change, from 1.
        acked: The roots of waiting groups that were ACKED, ascending.
        gone: Which of the waiting groups pass or are dropped: their indices, ascending.
        waiting: The groups of this micro-batch that wait.
        passage: The tuples that pass.
    """

    number: int
    acked: Int64s
    gone: Int64s
    waiting: Staged
    passage: Passage

    def __bool__(self) -> bool:
        return any(len(part) > 0 for part in (self.acked, self.gone, self.waiting, self.passage.frames))

    def to_bytes(self) -> bytes:
        head = np.array([self.number])
        return pack(head, self.acked, self.gone, self.waiting.to_bytes(), self.passage.to_bytes())

    @classmethod
    def from_bytes(cls, blob: Buffer) -> _Change:
        head, acked, gone, waiting, passage = unpack(blob)
        return cls(
            int(int64s(head)[0]), int64s(acked), int64s(gone),
            Staged.from_bytes(waiting), Passage.from_bytes(passage),
        )  # fmt: skip


def _array(numbers: Iterable[int]) -> Int64s:
    return np.fromiter(numbers, dtype=np.int64)


def among(values: Int64s, ascending: Int64s) -> Mask:
    """Which of the values are in an array that ascends without repeats."""
    if not len(ascending):
        return np.zeros(len(values), dtype=np.bool_)
    first, last = int(ascending[0]), int(ascending[-1])
    if last - first == len(ascending) - 1:  # all numbers between
        return (values >= first) & (values <= last)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    is_found: Mask = ascending[places] == values
    return is_found
