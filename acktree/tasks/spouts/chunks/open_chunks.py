"""The chunks of a spout task that were not released yet, and the open messages in them.

A chunk is released when three conditions hold: all of its messages have a verdict, no retry and no dead
letter needs a payload in it, and all chunks that hold earlier attempts of its messages were released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from acktree.core.ids import Int64s
from acktree.core.spouts.pending import Closed, MessageIds, Pending
from acktree.core.tracking.attempts import number_of
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.chunks.sent_streams import SentStreams
from acktree.tasks.spouts.host import Inbox
from acktree.tasks.spouts.retries import Attempt, attempts_in


class ChunkDependencies:
    """Which later chunks depend on which earlier chunks: those with the attempts before.

    A restart reads the inbox. A chunk with one open message is still there with all of its messages, and the
    journal has the verdicts of the others. A message that failed is emitted again, unless a later chunk holds
    its next attempt. So the later chunk must be kept as long as the earlier one, even if all of its messages
    have a verdict.

    >>> dependencies = ChunkDependencies()
    >>> dependencies.add(9, {5})
    >>> dependencies.let_go(9), dependencies.let_go(5)
    ([], [5, 9])
    """

    def __init__(self) -> None:
        self._needed_by: dict[int, set[int]] = {}  # later chunk -> earlier chunks that were not released yet
        self._later: dict[int, set[int]] = {}
        self._waiting: set[int] = set()

    def add(self, later: int, earlier: Iterable[int]) -> None:
        """Note that a chunk holds next attempts of messages of earlier chunks, none of them released."""
        for number in earlier:
            self._needed_by.setdefault(later, set()).add(number)
            self._later.setdefault(number, set()).add(later)

    def let_go(self, chunk: int) -> list[int]:
        """Note that a chunk's own messages are finished. Returns the chunks to release now, in this order."""
        if self._needed_by.get(chunk):
            self._waiting.add(chunk)
            return []
        gone = [chunk]
        for later in sorted(self._later.pop(chunk, ())):
            self._needed_by[later].discard(chunk)
            if not self._needed_by[later]:
                del self._needed_by[later]
                if later in self._waiting:
                    self._waiting.discard(later)
                    gone += self.let_go(later)
        return gone


class OpenChunks:
    """The chunks of one spout task.

    Attributes:
        pending: The open messages in them.
        sent: The streams of all messages that may get a verdict.
        roots_of: Returns the roots of the given sequences of the task.
    """

    def __init__(
        self, inbox: Inbox, is_needed: Callable[[int], bool], roots_of: Callable[[Int64s], Int64s]
    ) -> None:
        """Start without chunks.

        Args:
            inbox: Where chunks are read and released.
            is_needed: Whether a retry or a dead letter may read a payload of the chunk again.
            roots_of: As the attribute.
        """
        self.roots_of = roots_of
        self.pending = Pending()
        self.sent = SentStreams()
        self._inbox, self._is_needed = inbox, is_needed
        self._streams: dict[int, str] = {}
        self._dependencies = ChunkDependencies()

    def __contains__(self, number: object) -> bool:
        return number in self._streams

    def announce(self, chunks: Sequence[Chunk]) -> None:
        """Call before chunks are handed over: verdicts may be counted before the messages are open."""
        oldest = self.pending.first_sequence
        for chunk in chunks:
            self.sent.add(
                chunk.first_sequence, chunk.stream, chunks[0].first_sequence if oldest is None else oldest
            )

    def add(self, number: int, chunk: Chunk, message_ids: MessageIds) -> None:
        """Open the messages of a chunk. Call in ascending order of the numbers."""
        self.announce([chunk])
        self._streams[number] = chunk.stream
        attempts = None if chunk.attempts is None else number_of(chunk.attempts)
        self.pending.add(
            chunk.first_sequence, message_ids, attempts, chunk=number, first_row=0, now_ms=chunk.emitted_ms,
            first_emitted_ms=chunk.first_emitted_ms,
        )  # fmt: skip

    def keep(self, number: int, stream: str) -> None:
        """Keep a chunk in which no message is open yet."""
        self._streams[number] = stream

    def must_outlive(self, later: int, earlier: Iterable[int]) -> None:
        """Keep a chunk as long as the chunks that hold the previous attempts of its messages."""
        self._dependencies.add(later, [number for number in earlier if number in self])

    def stream_of(self, number: int) -> str:
        """The stream that a chunk's messages were emitted on."""
        return self._streams[number]

    def attempts_of(self, closed: Closed) -> Iterator[Attempt]:
        """The finished attempt of each closed message."""
        return attempts_in(closed, self.stream_of(closed.chunk))

    def close_through(self, last: int) -> Iterator[Closed]:
        """Close all open messages in the chunks up to and including ``last``, in ascending order."""
        for number in sorted(number for number in self._streams if number <= last):
            rows = self.pending.open_in_chunk(number)
            if len(rows):
                yield from self.pending.close(self._inbox.read(number).first_sequence + rows)

    def release_done(self) -> None:
        """Release the chunks whose last open message was closed, unless a payload in them is needed."""
        for chunk in self.pending.chunks_done():
            if not self._is_needed(chunk):
                self._release(chunk)

    def release_unneeded(self, chunks: Iterable[int]) -> None:
        """Release those of the given chunks that have no open message and no needed payload."""
        for chunk in sorted(chunks):
            if not self._is_needed(chunk) and not len(self.pending.open_in_chunk(chunk)):
                self._release(chunk)

    def _release(self, chunk: int) -> None:
        if chunk in self:
            for number in self._dependencies.let_go(chunk):
                del self._streams[number]
                self._inbox.release(number)
