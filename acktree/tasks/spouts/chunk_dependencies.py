"""Chunk dependencies: a chunk with a later attempt is kept as long as the chunk with the attempt before it.

A restart reads the inbox. A chunk with one open message is still there with all of its messages, and the
journal has the verdicts of the others. A message that failed is emitted again, unless a later chunk holds its
next attempt. So the later chunk must be kept as long as the earlier one, even if all of its messages have a
verdict.
"""

from __future__ import annotations

from collections.abc import Iterable


class ChunkDependencies:
    """Which later chunks depend on which earlier chunks.

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
