"""How large a share of messages is traced where very many are emitted."""

from __future__ import annotations

from typing import Final

__all__ = ["MOST_PER_SEC", "SMALL", "TracePace"]

MOST_PER_SEC: Final = 100
"""While more messages than this are traced a second, a small share is lowered: the store has the last 100,000
messages, and those should be of the last quarter of an hour at least."""
SMALL: Final = 0.01
"""The largest share that is lowered. Who asks for more gets it."""
_LOOK_MS: Final = 2000
_LOOK_BATCHES: Final = 3
"""The traced messages are counted for that long, and over this many micro-batches: the levels obey another
share from one micro-batch to the next, not within one."""
_MOST_DIVISOR: Final = 1 << 20


class TracePace:
    """The share of messages that is traced: what was asked for, or a half, a quarter, ... of it.

    A lower share is a subset of the higher one: whether a message is traced depends on a number of its own,
    which is below the share. So who is traced at the lower share was traced at the higher one.

    Args:
        wanted: The share that was asked for.
    """

    def __init__(self, wanted: float) -> None:
        self._wanted = wanted
        self._divisor = self._proposed = 1
        self._counted = self._batches = 0
        self._since_ms: int | None = None

    @property
    def proposed(self) -> float:
        """The share that should be traced from now on; then :meth:`agree` or :meth:`refuse` is called."""
        return self._wanted / self._proposed

    @property
    def is_lowered(self) -> bool:
        """Whether less is traced than was asked for."""
        return self._divisor > 1

    def agree(self) -> None:
        """The levels were told what is proposed."""
        self._divisor = self._proposed
        self._since_ms = None

    def refuse(self) -> None:
        """The levels could not be told; the messages are counted anew."""
        self._proposed = self._divisor
        self._since_ms = None

    def emitted(self, count: int) -> None:
        """So many traced messages were emitted, without those that are traced at any share."""
        self._counted += count

    def judged(self, clock_ms: int) -> bool:
        """A micro-batch is over. Returns whether the messages were counted for long enough.

        Args:
            clock_ms: The time of the micro-batch, or of its end: always the same of the two.
        """
        if self._wanted > SMALL or self._proposed != self._divisor:
            return False
        if self._since_ms is None or clock_ms < self._since_ms:
            self._since_ms, self._counted, self._batches = clock_ms, 0, 0
            return False
        self._batches += 1
        took_ms = clock_ms - self._since_ms
        if self._batches < _LOOK_BATCHES or took_ms < _LOOK_MS:
            return False
        per_sec = 1000 * self._counted / took_ms
        self._since_ms, self._counted, self._batches = clock_ms, 0, 0
        if per_sec < MOST_PER_SEC / 4:
            self._proposed = max(1, self._divisor // 2)
        while per_sec > MOST_PER_SEC and self._proposed < _MOST_DIVISOR:
            self._proposed *= 2
            per_sec /= 2
        return True
