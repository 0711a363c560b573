"""Which chunks must outlive which: that a message was tried again stands in its next chunk alone.

At a restart the inbox is all there is. A chunk with one open message is there whole; of its other messages
the journal says what became of them. One that had failed is tried again, unless a later chunk says that it
was. So the later chunk stays as long as the earlier one, though all of its own messages may be through.
"""

from __future__ import annotations

from collections.abc import Iterable


class ChunkDependencies:
    """Chunks with later attempts, and the chunks of the attempts before.

    >>> dependencies = ChunkDependencies()
    >>> dependencies.add(9, {5})
    >>> dependencies.let_go(9), dependencies.let_go(5)
    ([], [5, 9])
    """

    def __init__(self) -> None:
        self._needed_by: dict[int, set[int]] = {}  # later chunk -> earlier ones that are still there
        self._later: dict[int, set[int]] = {}
        self._waiting: set[int] = set()

    def add(self, later: int, earlier: Iterable[int]) -> None:
        """Say that a chunk holds the next attempts of messages of earlier ones, all of which are there."""
        for number in earlier:
            self._needed_by.setdefault(later, set()).add(number)
            self._later.setdefault(number, set()).add(later)

    def let_go(self, chunk: int) -> list[int]:
        """A chunk's own messages are through; returns which chunks may go now, in this order."""
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
