"""The inbox of a ``LocalCluster``: chunks in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from acktree.tasks.chunk import Chunk

__all__ = ["LocalInbox"]

ROUND_MESSAGES: Final = 10_000
"""How many messages of each spout task one round takes at the most: what a micro-batch is to Spark."""


class LocalInbox:
    """Chunks in a dict; room is never scarce, since a round empties it."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}
        self._fresh: list[int] = []
        self._unneeded: set[int] = set()
        self._next = 0

    def append(self, chunks: Sequence[Chunk], parked: Sequence[Chunk] = ()) -> int:
        """Store chunks; they run in the next micro-batch, except parked ones."""
        first = self._next
        for chunk in [*chunks, *parked]:
            self.chunks[self._next] = chunk.to_bytes()
            self._next += 1
        self._fresh += [number for number, chunk in enumerate(chunks, first) if len(chunk)]
        return first

    def read(self, number: int) -> Chunk:
        """Read a chunk that was not released."""
        return Chunk.from_bytes(self.chunks[number])

    def room(self, wanted: int = 1) -> int:
        """As much as is wanted."""
        return wanted  # a round takes all

    @property
    def chunk_rows(self) -> int:
        """How many messages a chunk, and a round of one spout task, holds at the most."""
        return ROUND_MESSAGES

    def release(self, number: int) -> None:
        """Delete a chunk, or let it be deleted once it was taken."""
        if number in self._fresh:
            self._unneeded.add(number)  # after the micro-batch that reads it
        else:
            del self.chunks[number]

    def take(self) -> list[tuple[int, Chunk]]:
        """The chunks that no micro-batch has had, by number."""
        taken = [(number, self.read(number)) for number in self._fresh]
        for number in self._unneeded:
            del self.chunks[number]
        self._fresh, self._unneeded = [], set()
        return taken
