"""The open messages of a spout task: emitted with a message id, and without a verdict so far.

Rules of this file
------------------
1. Each open message is removed exactly once, and only by :meth:`Pending.close`.
2. This file reads no clock and does not see verdicts: ``now_ms`` is an argument, and the caller decides
   whether a closed message is acked, retried or given up.
3. The unit is the segment, never the message: no Python loop runs once per message.

A spout task numbers its tracked tuples consecutively, and writes consecutive messages to consecutive rows of
one chunk of the inbox. These messages are a *segment*. It holds the message ids as they were added (a list or
an array) and one flag for each message. So 10,000 messages are one entry, and the index of a message in its
segment is a subtraction. The cost: message ids of closed messages are freed only with their whole segment.

Source: the ``pending`` map of Storm's ``SpoutExecutor``. Storm's map rotates because it also times messages
out; this one does not, because only the acker decides TIMED_OUT.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain
from operator import itemgetter
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s, Int64s
from acktree.errors import ProtocolError

MessageIds = Sequence[object] | npt.NDArray[Any]
"""Message ids of consecutive tuples: any objects, or an array. An array is returned as an array."""


class IdArray(Sequence[object]):
    """A sequence over an array of message ids; makes a Python object only for an id that is accessed.

    ``numpy.asarray`` of it copies nothing. It is equal to any sequence of the same ids.

    >>> ids = IdArray(np.arange(3))
    >>> ids[1], list(ids), ids == [0, 1, 2], bool(ids), np.asarray(ids).sum()
    (1, [0, 1, 2], True, True, np.int64(3))
    """

    __slots__ = ("_array",)
    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array.view()
        self._array.flags.writeable = False  # the array also holds ids of messages that are still open

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, position: int) -> object: ...
    @overload
    def __getitem__(self, position: slice) -> IdArray: ...
    def __getitem__(self, position: int | slice) -> object:
        return IdArray(self._array[position]) if isinstance(position, slice) else self._array.item(position)

    def __iter__(self) -> Iterator[object]:
        return iter(self._array.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(self._array.tolist())

    def __array__(
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001  # as numpy asks
    ) -> npt.NDArray[Any]:
        return np.array(self._array, dtype, copy=copy)


@dataclass(frozen=True, slots=True, eq=False)
class Closed:
    """Messages of one segment, such as a call of :meth:`Pending.close` took out; n of them, n >= 1.

    Attributes:
        message_ids: The user's ids, by sequence, length n: an array where one was added, else a list.
        chunk: The chunk of the inbox that holds them; ``rows`` are rows of it, from which a message can be
            read and emitted again.
    """

    message_ids: list[object] | npt.NDArray[Any]
    chunk: int
    _segment: _Segment
    _positions: Int64s

    @property
    def sequences(self) -> Int64s:
        """The sequences, ascending, shape (n,)."""
        return self._positions + self._segment.start

    @property
    def rows(self) -> Int64s:
        """The row of each in the chunk, shape (n,)."""
        return self._positions + self._segment.first_row

    @property
    def attempts(self) -> Int32s:
        """The attempt of each, from 1, shape (n,)."""
        attempts = self._segment.attempts
        return np.ones(len(self._positions), np.int32) if attempts is None else attempts[self._positions]

    @property
    def first_emitted_ms(self) -> Int64s:
        """When the first attempt of each message was emitted, shape (n,)."""
        emitted_ms = self._segment.first_emitted_ms
        if isinstance(emitted_ms, int):
            return np.full(len(self._positions), emitted_ms, dtype=np.int64)
        return emitted_ms[self._positions]

    def waited_ms(self, now_ms: int) -> int:
        """The sum of the times since the first emit of each."""
        emitted_ms = self._segment.first_emitted_ms
        if isinstance(emitted_ms, int):
            return (now_ms - emitted_ms) * len(self._positions)
        return int((now_ms - emitted_ms[self._positions]).sum())

    def waits_ms(self, now_ms: int) -> int | Int64s:
        """The time since the first emit of each, shape (n,); one number where it is that of all."""
        emitted_ms = self._segment.first_emitted_ms
        return now_ms - (emitted_ms if isinstance(emitted_ms, int) else emitted_ms[self._positions])

    def message_sequence(self) -> Sequence[Any]:
        """The message ids as a sequence of Python objects, made on access."""
        ids = self.message_ids
        return IdArray(ids) if isinstance(ids, np.ndarray) else ids

    def message_list(self) -> list[Any]:
        """The message ids as a list of Python objects."""
        ids = self.message_ids
        return ids.tolist() if isinstance(ids, np.ndarray) else ids


class Pending:
    """The open messages of one spout task.

    >>> pending = Pending()
    >>> pending.add(40, ["a", "b", "c"], None, chunk=7, first_row=0, now_ms=1000)
    >>> [closed.message_ids for closed in pending.close(np.array([41, 99]))]
    [['b']]
    >>> pending.open_count, pending.open_in_chunk(7).tolist(), pending.chunks_done()
    (2, [0, 2], [])
    """

    __slots__ = ("_by_chunk", "_clock_ms", "_done", "_open_count", "_segments", "_starts", "_unused")

    def __init__(self) -> None:
        self._segments: list[_Segment] = []  # ascending; each has at least one open message
        self._starts: list[int] = []  # the first sequence of each
        self._by_chunk: dict[int, dict[int, _Segment]] = {}  # chunk -> start -> segment
        self._done: dict[int, None] = {}  # a set that keeps the order
        self._unused = 0  # the lowest sequence that was never added
        self._open_count = 0
        self._clock_ms: int | None = None

    def look_at_clock(self, now_ms: int) -> None:
        """Called before anything is added: no message was emitted later than now.

        The clock may be set back, and that of an earlier run may have been ahead.
        """
        if self._clock_ms is None or now_ms < self._clock_ms:
            for segment in self._segments:
                segment.emit_by(now_ms)
        self._clock_ms = now_ms

    def add(
        self,
        first_sequence: int,
        message_ids: MessageIds,
        attempts: Int32s | None,
        chunk: int,
        first_row: int,
        now_ms: int,
        *,
        first_emitted_ms: Int64s | None = None,
    ) -> None:
        """Open a segment: messages with consecutive sequences in consecutive rows of one chunk.

        Args:
            first_sequence: Sequence of the first; higher than any sequence that was added before.
            message_ids: One for each message, length n. Copied, so the caller may reuse the list or array.
                Equal ids may be open at the same time. An empty list opens nothing; a chunk without open
                messages is then done.
            attempts: The attempt of each, shape (n,); None when all are first attempts.
            chunk: The chunk of the inbox that holds them. A chunk may have several segments; add all of them
                before calling :meth:`chunks_done`.
            first_row: The row of the first message in that chunk.
            now_ms: When they were emitted.
            first_emitted_ms: When the first attempt of each was emitted, shape (n,); None when that is now.

        Raises:
            ProtocolError: The sequences are not higher than those before, or the lengths differ.
        """
        count = len(message_ids)
        if first_sequence < self._unused:
            raise _broken(f"sequence {first_sequence} comes after sequence {self._unused - 1}", chunk)
        for values in (attempts, first_emitted_ms):
            if values is not None and values.shape != (count,):
                raise _broken(f"an array of shape {values.shape} came with {count} message ids", chunk)
        self._unused = first_sequence + count
        if count == 0:
            if chunk not in self._by_chunk:
                self._done[chunk] = None
            return
        emitted_ms = int(now_ms) if first_emitted_ms is None else first_emitted_ms.astype(np.int64)
        attempts = None if attempts is None else attempts.astype(np.int32)
        ids = message_ids.copy() if isinstance(message_ids, np.ndarray) else list(message_ids)
        segment = _Segment(first_sequence, ids, attempts, chunk, first_row, first_emitted_ms=emitted_ms)
        self._segments.append(segment)
        self._starts.append(first_sequence)
        self._by_chunk.setdefault(chunk, {})[first_sequence] = segment
        self._done.pop(chunk, None)
        self._open_count += count

    @property
    def open_count(self) -> int:
        """The number of open messages."""
        return self._open_count

    def has_room(self, limit: int | None, waiting: int = 0) -> bool:
        """Whether the spout task may emit more messages.

        Args:
            limit: ``max_spout_pending``; None or 0, as in Storm: no limit.
            waiting: Messages that wait for a retry; they count as open too.
        """
        return not limit or self._open_count + waiting < limit

    @property
    def first_sequence(self) -> int | None:
        """A sequence that no open message is below; None if none is open."""
        return self._starts[0] if self._starts else None

    def oldest_ms(self) -> int | None:
        """When the oldest open message was first emitted; None if none is open. Scans all segments."""
        return min((segment.oldest_ms() for segment in self._segments), default=None)

    def close(self, sequences: Int64s) -> list[Closed]:
        """Remove the messages that got a verdict; see :meth:`closing`."""
        return list(self.closing(sequences))

    def closing(self, sequences: Int64s) -> Iterator[Closed]:
        """Remove messages, a segment each time the iterator is advanced; others may be removed in between.

        Args:
            sequences: Their sequences, shape (n,), any order. Sequences that were never added, or are closed
                already, are ignored: a verdict may be delivered twice.

        Yields:
            The messages that were open, one ``Closed`` for each segment, ascending.

        Costs one sort unless they are ascending, and a few numpy calls for each segment that they touch.
        """
        wanted = np.asarray(sequences, dtype=np.int64)
        if not (wanted[1:] > wanted[:-1]).all():
            wanted = np.unique(wanted)
        at = 0
        while at < len(wanted) and self._segments:
            index = bisect_right(self._starts, int(wanted[at])) - 1
            if index < 0:  # lower than all open sequences
                at = int(wanted.searchsorted(self._starts[0]))
                continue
            segment = self._segments[index]
            end = int(wanted.searchsorted(segment.end))
            if end > at:
                yield from self._close_in(segment, index, wanted[at:end] - segment.start)
                at = end
            elif index + 1 < len(self._starts):  # in a gap between two segments
                at = int(wanted.searchsorted(self._starts[index + 1]))
            else:
                break

    def _close_in(self, segment: _Segment, index: int, positions: Int64s) -> list[Closed]:
        if segment.open_count < len(segment.message_ids):
            positions = positions[segment.is_open[positions]]
        if not len(positions):
            return []
        closed = segment.take(positions)
        self._open_count -= len(positions)
        if segment.open_count == 0:
            del self._segments[index], self._starts[index]
            in_chunk = self._by_chunk[segment.chunk]
            del in_chunk[segment.start]
            if not in_chunk:
                del self._by_chunk[segment.chunk]
                self._done[segment.chunk] = None
        return [closed]

    def each_open(self) -> Iterator[Closed]:
        """The open messages, one ``Closed`` for each segment, ascending; they stay open."""
        for segment in self._segments:
            positions = np.flatnonzero(segment.is_open)
            yield Closed(segment.ids_at(positions), segment.chunk, segment, positions)

    def open_in_chunk(self, chunk: int) -> Int64s:
        """The rows of a chunk whose messages are open, by sequence; empty for an unknown chunk."""
        segments = self._by_chunk.get(chunk, {}).values()
        rows = [segment.first_row + np.flatnonzero(segment.is_open) for segment in segments]
        return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)

    def chunks_done(self) -> list[int]:
        """The chunks whose last open message was closed since the last call, in that order."""
        done = list(self._done)
        self._done.clear()
        return done

    def emitted_by(self, moment_ms: int) -> Iterator[MessageIds]:
        """The ids of the open messages whose first attempt was emitted at a moment or before it, in parts."""
        for segment in self._segments:
            places = segment.emitted_by(moment_ms)
            if len(places):
                yield segment.ids_at(places)

    def oldest(self, most: int) -> list[tuple[int, int, object, int]]:
        """The oldest open messages as (first emitted ms, sequence, message id, attempt), at most ``most``.

        Looks at each segment, and at the messages of as many as it takes.
        """
        messages: list[tuple[int, int, object, int]] = []
        for segment in nsmallest(most, tuple(self._segments), key=_Segment.oldest_ms):
            messages += segment.oldest(most)
        return nsmallest(most, messages, key=itemgetter(0, 1))

    def ids_at(self, sequences: Int64s) -> MessageIds:
        """The message id of each sequence, None where no segment has it. Any thread may call it.

        Args:
            sequences: Ascending, shape (n,).
        """
        parts: list[MessageIds] = []
        done = 0
        for segment in tuple(self._segments):
            first, end = sequences.searchsorted((segment.start, segment.end)).tolist()
            if first < end:
                parts += ([None] * (first - done), segment.ids_at(sequences[first:end] - segment.start))
                done = end
        return ids_together([*parts, [None] * (len(sequences) - done)])

    def items(self) -> Iterator[tuple[int, object]]:
        """Each open message as (sequence, message id), ascending. Loops over all messages: call it rarely."""
        for segment in self._segments:
            for position in np.flatnonzero(segment.is_open).tolist():
                yield segment.start + position, segment.id_at(position)


def one_by_one(parts: Iterable[MessageIds]) -> Iterator[Any]:
    """Message ids that are in several sequences, as Python objects."""
    for ids in parts:
        yield from ids.tolist() if isinstance(ids, np.ndarray) else ids


class _Segment:
    """Messages that were added together, with a flag for each that is open. Positions count from 0."""

    __slots__ = (
        "attempts",
        "chunk",
        "end",
        "first_emitted_ms",
        "first_row",
        "is_open",
        "message_ids",
        "open_count",
        "start",
    )

    def __init__(
        self,
        start: int,
        message_ids: list[object] | npt.NDArray[Any],
        attempts: Int32s | None,
        chunk: int,
        first_row: int,
        first_emitted_ms: int | Int64s,
    ) -> None:
        self.start = start
        self.end = start + len(message_ids)
        self.message_ids = message_ids
        self.attempts = attempts  # None: all 1
        self.chunk = chunk
        self.first_row = first_row
        self.first_emitted_ms = first_emitted_ms
        self.is_open = np.ones(len(message_ids), dtype=np.bool_)
        self.open_count = len(message_ids)

    def oldest_ms(self) -> int:
        if isinstance(self.first_emitted_ms, int):
            return self.first_emitted_ms
        return int(self.first_emitted_ms[self.is_open].min())

    def emit_by(self, now_ms: int) -> None:
        """Let no message be emitted later than now."""
        emitted_ms = self.first_emitted_ms
        if isinstance(emitted_ms, int):
            self.first_emitted_ms = min(emitted_ms, now_ms)
        else:
            self.first_emitted_ms = np.minimum(emitted_ms, now_ms)

    def emitted_by(self, moment_ms: int) -> Int64s:
        """The positions of the open messages whose first attempt was emitted at ``moment_ms`` or before."""
        return np.flatnonzero(self.is_open & (self.first_emitted_ms <= moment_ms))

    def oldest(self, most: int) -> Iterator[tuple[int, int, object, int]]:
        """See :meth:`Pending.oldest`."""
        positions = np.flatnonzero(self.is_open)
        emitted_ms = self.first_emitted_ms
        if not isinstance(emitted_ms, int):
            positions = positions[np.argsort(emitted_ms[positions], kind="stable")]
        for at in positions[:most].tolist():
            first_ms = emitted_ms if isinstance(emitted_ms, int) else int(emitted_ms[at])
            attempt = 1 if self.attempts is None else int(self.attempts[at])
            yield first_ms, self.start + at, self.id_at(at), attempt

    def take(self, positions: Int64s) -> Closed:
        """Close the messages at these positions: open ones, ascending, at least one."""
        self.is_open[positions] = False
        self.open_count -= len(positions)
        return Closed(self.ids_at(positions), self.chunk, self, positions)

    def id_at(self, position: int) -> object:
        """A message id: an integer of Python's where an array holds them, for it is shown and compared."""
        ids = self.message_ids
        return ids[position].item() if isinstance(ids, np.ndarray) else ids[position]

    def ids_at(self, positions: Int64s) -> list[object] | npt.NDArray[Any]:
        """The message ids at these positions: ascending, at least one."""
        first, last = int(positions[0]), int(positions[-1])
        if last - first == len(positions) - 1:
            return self.message_ids[first : last + 1]
        if isinstance(self.message_ids, np.ndarray):
            return self.message_ids[positions]
        return list(itemgetter(*positions.tolist())(self.message_ids))


def ids_together(several: Iterable[MessageIds]) -> MessageIds:
    """The message ids of several, in this order: as an array if all of them are arrays."""
    parts = [ids for ids in several if len(ids)]
    arrays = [ids for ids in parts if isinstance(ids, np.ndarray)]
    if arrays and len(arrays) == len(parts):
        together: MessageIds = np.concatenate(arrays)
        return together
    return [*chain.from_iterable(ids.tolist() if isinstance(ids, np.ndarray) else ids for ids in parts)]


def _broken(what: str, chunk: int) -> ProtocolError:
    return ProtocolError(what, f"Pending.add, chunk {chunk}", "this is a bug in acktree: please report it")
