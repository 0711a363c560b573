"""Pending: what one spout task has emitted with a message id and has no verdict for yet.

Rules of this file
------------------
1. Each open message leaves exactly once, and only because :meth:`Pending.close` named it.
2. Nothing here knows the time or has an opinion on a verdict: ``now_ms`` arrives as an argument, and whether
   a closed message is acked, retried or given up is for others to say.
3. The unit is the segment, never the message: no loop of Python runs once a message.

A spout task numbers its tracked tuples one after the other, and a run of them goes into one chunk of the
inbox, row after row: that run is a *segment*. It is kept as it came (a list of message ids, or an array that
stays an array) with one flag a message. So 10,000 messages are one entry, and a verdict finds its message by
subtraction. The price: message ids that were closed are let go with the last open one of their segment.

Source: the ``pending`` map of Storm's ``SpoutExecutor``, which rotates because time lives there; ours does
not, because the acker alone says TIMED_OUT.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s, Int64s
from acktree.errors import ProtocolError

__all__ = ["Closed", "IdArray", "MessageIds", "Pending"]

MessageIds = Sequence[object] | npt.NDArray[Any]
"""Message ids of a run of tuples: any objects, or an array. What came as an array is handed back as one."""


class IdArray(Sequence[object]):
    """Message ids that came as an array, as a sequence: Python objects are made of those that are looked at.

    ``numpy.asarray`` of one copies nothing. Equal to any sequence of the same ids.

    >>> ids = IdArray(np.arange(3))
    >>> ids[1], list(ids), ids == [0, 1, 2], bool(ids), np.asarray(ids).sum()
    (1, [0, 1, 2], True, True, np.int64(3))
    """

    __slots__ = ("_array",)
    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array.view()
        self._array.flags.writeable = False  # others of the same emit are still open

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, place: int) -> object: ...
    @overload
    def __getitem__(self, place: slice) -> IdArray: ...
    def __getitem__(self, place: int | slice) -> object:
        return IdArray(self._array[place]) if isinstance(place, slice) else self._array.item(place)

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
    """Messages of one segment that a call of :meth:`Pending.close` took out; n of them, n >= 1.

    Attributes:
        message_ids: The user's ids, by sequence, length n: an array where one was added, else a list.
        chunk: The chunk of the inbox that holds them; ``rows`` are places in it, so that a message can be
            read again and emitted anew.
    """

    message_ids: list[object] | npt.NDArray[Any]
    chunk: int
    _segment: _Segment
    _places: Int64s

    @property
    def sequences(self) -> Int64s:
        """Ascending, shape (n,)."""
        return self._places + self._segment.start

    @property
    def rows(self) -> Int64s:
        """Row in the chunk of each, shape (n,)."""
        return self._places + self._segment.first_row

    @property
    def attempts(self) -> Int32s:
        """Which attempt each was, from 1, shape (n,)."""
        attempts = self._segment.attempts
        return np.ones(len(self._places), np.int32) if attempts is None else attempts[self._places]

    @property
    def first_emitted_ms(self) -> Int64s:
        """When the first attempt of each message was emitted, shape (n,)."""
        emitted_ms = self._segment.first_emitted_ms
        if isinstance(emitted_ms, int):
            return np.full(len(self._places), emitted_ms, dtype=np.int64)
        return emitted_ms[self._places]

    def waited_ms(self, now_ms: int) -> int:
        """How long all of them have waited, together."""
        emitted_ms = self._segment.first_emitted_ms
        if isinstance(emitted_ms, int):
            return (now_ms - emitted_ms) * len(self._places)
        return int((now_ms - emitted_ms[self._places]).sum())

    def message_sequence(self) -> Sequence[Any]:
        """The message ids as a sequence of Python objects, which are made only where somebody looks."""
        ids = self.message_ids
        return IdArray(ids) if isinstance(ids, np.ndarray) else ids

    def message_list(self) -> list[Any]:
        """The message ids as Python objects, also where they were an array."""
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

    __slots__ = ("_by_chunk", "_done", "_open_count", "_segments", "_starts", "_unused")

    def __init__(self) -> None:
        self._segments: list[_Segment] = []  # ascending, never empty of open messages
        self._starts: list[int] = []  # the first sequence of each
        self._by_chunk: dict[int, dict[int, _Segment]] = {}  # chunk -> start -> segment
        self._done: dict[int, None] = {}  # a set that keeps the order
        self._unused = 0  # the lowest sequence that was never added
        self._open_count = 0

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
            message_ids: One a message, length n. Copied, so the caller may use the list or array again.
                Equal ids may be open at the same time. None at all (n = 0) opens nothing, and the chunk,
                if nothing else is open in it, is done.
            attempts: Which attempt each is, shape (n,); None when all are the first.
            chunk: The chunk of the inbox that holds them. A chunk may have several segments; add them all
                before asking :meth:`chunks_done`.
            first_row: Row in that chunk of the first.
            now_ms: When they were emitted.
            first_emitted_ms: When the first attempt of each was emitted, shape (n,); None when that is now.

        Raises:
            ProtocolError: Sequences go back, or the lengths differ.
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
        segment = _Segment(first_sequence, ids, attempts, chunk, first_row, emitted_ms)
        self._segments.append(segment)
        self._starts.append(first_sequence)
        self._by_chunk.setdefault(chunk, {})[first_sequence] = segment
        self._done.pop(chunk, None)
        self._open_count += count

    @property
    def open_count(self) -> int:
        """How many messages are open."""
        return self._open_count

    def has_room(self, limit: int | None, waiting: int = 0) -> bool:
        """Whether the spout task may be asked for more.

        Args:
            limit: ``max_spout_pending``; None or 0, as in Storm: no limit.
            waiting: Messages that wait for a retry; they count as open and are kept elsewhere.
        """
        return not limit or self._open_count + waiting < limit

    def oldest_ms(self) -> int | None:
        """When the oldest open message was first emitted; None if nothing is open. Looks at each segment."""
        return min((segment.oldest_ms() for segment in self._segments), default=None)

    def close(self, sequences: Int64s) -> list[Closed]:
        """Take messages out, whatever their verdict; see :meth:`closing`."""
        return list(self.closing(sequences))

    def closing(self, sequences: Int64s) -> Iterator[Closed]:
        """Take messages out, a segment each time the iterator is asked; others may go in between.

        Args:
            sequences: Which ones, shape (n,), any order. One that was never added or is closed already is
                passed over: a verdict may be told twice, and the second telling must find nothing.

        Yields:
            What was open among them, a segment at a time, ascending.

        Costs one sort unless they are ascending, and a few numpy calls for each segment that they touch.
        """
        wanted = np.asarray(sequences, dtype=np.int64)
        if not (wanted[1:] > wanted[:-1]).all():
            wanted = np.unique(wanted)
        at = 0
        while at < len(wanted) and self._segments:
            index = bisect_right(self._starts, int(wanted[at])) - 1
            if index < 0:  # below all that is open
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

    def _close_in(self, segment: _Segment, index: int, places: Int64s) -> list[Closed]:
        if segment.open_count < len(segment.message_ids):
            places = places[segment.is_open[places]]
        if not len(places):
            return []
        closed = segment.take(places)
        self._open_count -= len(places)
        if segment.open_count == 0:
            del self._segments[index], self._starts[index]
            in_chunk = self._by_chunk[segment.chunk]
            del in_chunk[segment.start]
            if not in_chunk:
                del self._by_chunk[segment.chunk]
                self._done[segment.chunk] = None
        return [closed]

    def open_in_chunk(self, chunk: int) -> Int64s:
        """The rows of a chunk whose messages are open, by sequence; none for an unknown chunk."""
        segments = self._by_chunk.get(chunk, {}).values()
        rows = [segment.first_row + np.flatnonzero(segment.is_open) for segment in segments]
        return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)

    def chunks_done(self) -> list[int]:
        """The chunks that lost their last open message since last asked, in the order they did."""
        done = list(self._done)
        self._done.clear()
        return done

    def emitted_by(self, moment_ms: int) -> Iterator[object]:
        """The ids of the open messages whose first attempt was emitted at a moment or before it."""
        for segment in self._segments:
            places = segment.emitted_by(moment_ms)
            ids = segment.message_ids
            if isinstance(ids, np.ndarray):
                yield from ids[places].tolist()
            else:
                yield from map(ids.__getitem__, places.tolist())

    def items(self) -> Iterator[tuple[int, object]]:
        """Each open message as (sequence, message id), ascending. A loop over messages: for rare moments."""
        for segment in self._segments:
            for place in np.flatnonzero(segment.is_open).tolist():
                yield segment.start + place, segment.message_ids[place]


class _Segment:
    """A run of messages as it was added, with a flag for each that is still open. Places count from 0."""

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

    def emitted_by(self, moment_ms: int) -> Int64s:
        """The places of the open messages whose first attempt was emitted at a moment or before it."""
        return np.flatnonzero(self.is_open & (self.first_emitted_ms <= moment_ms))

    def take(self, places: Int64s) -> Closed:
        """Close the messages at these places: open ones, ascending, at least one."""
        self.is_open[places] = False
        self.open_count -= len(places)
        return Closed(self._ids_at(places), self.chunk, self, places)

    def _ids_at(self, places: Int64s) -> list[object] | npt.NDArray[Any]:
        first, last = int(places[0]), int(places[-1])
        if last - first == len(places) - 1:
            return self.message_ids[first : last + 1]
        if isinstance(self.message_ids, np.ndarray):
            return self.message_ids[places]
        return list(itemgetter(*places.tolist())(self.message_ids))


def _broken(what: str, chunk: int) -> ProtocolError:
    return ProtocolError(what, f"Pending.add, chunk {chunk}", "this is a bug in acktree: please report it")
