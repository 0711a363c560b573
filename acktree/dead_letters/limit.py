"""The limit of dead letters: a circuit breaker over a sliding window of time.

Rules of this file
------------------
1. The recorder asks it before letters are stored, and it admits all of them or none. Letters that are not
   admitted are never stored, so one large micro-batch cannot exceed the limit.
2. This file reads no clock: times are arguments. A time earlier than the last one is treated as the last one.
   One that is earlier by more than a window begins the window anew: the clock was ahead, and is set right.
3. Counts older than the window are dropped, slice by slice: it holds at most 65 slices.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SLICES: Final = 64
"""The number of slices of the window. The effective window is up to one slice longer than configured."""


class LetterLimit:
    """The limit of one spout.

    The limit is reached when a window has more than ``count`` dead letters **and** they are at least
    ``ratio`` of all messages that were acked or given up in it.

    >>> limit = LetterLimit(count=2, ratio=0.5, window_ms=60_000)
    >>> limit.acked(2, at_ms=0)
    >>> [limit.admit(n, at_ms) is not None for n, at_ms in [(2, 0), (1, 10), (1, 70_000)]]
    [True, False, True]
    """

    def __init__(self, count: int, ratio: float, window_ms: int) -> None:
        """Start with an empty window.

        Args:
            count: The number of letters in a window that is always allowed.
            ratio: From 0 (only ``count`` decides) to 1 (reached only if no message was acked).
            window_ms: The length of the window.
        """
        self.count, self.ratio, self.window_ms = count, ratio, window_ms
        self._slices: deque[list[int]] = deque()  # [which slice, dead, acked], ascending
        self._now = -1
        self.dead_count = 0
        """Letters admitted in the window that ends at the last given time."""
        self.acked_count = 0
        """Messages acked in the same window."""

    def acked(self, n: int, at_ms: int) -> None:
        """Count ``n`` acked messages."""
        self._slice_of(at_ms)[2] += n
        self.acked_count += n

    def admit(self, n: int, at_ms: int) -> int | None:
        """Count ``n`` more letters, unless they exceed the limit.

        Returns:
            The slice that counted them, for :meth:`withdraw`; None if the limit is reached, and then none is
            counted.
        """
        current = self._slice_of(at_ms)
        dead = self.dead_count + n
        if n and dead > self.count and dead >= self.ratio * (dead + self.acked_count):
            return None
        current[1] += n
        self.dead_count = dead
        return current[0]

    def withdraw(self, n: int, admitted: int) -> None:
        """Uncount letters that were admitted and could not be stored."""
        for counts in self._slices:
            if counts[0] == admitted:
                counts[1] -= n
                self.dead_count -= n

    def _slice_of(self, at_ms: int) -> list[int]:
        """Drop the slices that are older than the window, and return the slice of this time."""
        at = at_ms * SLICES // self.window_ms
        if at < self._now - SLICES:
            self._slices.clear()
            self.dead_count = self.acked_count = 0
            self._now = at
        self._now = max(self._now, at)
        while self._slices and self._slices[0][0] < self._now - SLICES:
            _, dead, acked = self._slices.popleft()
            self.dead_count -= dead
            self.acked_count -= acked
        if not self._slices or self._slices[-1][0] < self._now:
            self._slices.append([self._now, 0, 0])
        return self._slices[-1]
