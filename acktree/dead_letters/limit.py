"""How many dead letters are too many: a circuit breaker that is told counts and times.

Rules of this file
------------------
1. It is asked before letters are stored, and admits all of them or none. What it does not admit is never
   stored, so a limit holds however many messages one micro-batch brings.
2. Nothing here knows the time. It is told, and never goes back: a clock that is set back stands still.
3. It forgets what is older than its window, a slice at a time, so it stays small: 65 pairs of numbers.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["SLICES", "LetterLimit"]

SLICES: Final = 64
"""Counts are kept by slices of the window: it is as long as said, and up to one slice longer."""


class LetterLimit:
    """The limit of one spout.

    Letters are too many when they are more than ``count`` in a window **and** at least ``ratio`` of all
    messages that came to their end in it.

    >>> limit = LetterLimit(count=2, ratio=0.5, window_ms=60_000)
    >>> limit.acked(2, at_ms=0)
    >>> [limit.admit(n, at_ms) is not None for n, at_ms in [(2, 0), (1, 10), (1, 70_000)]]
    [True, False, True]
    """

    def __init__(self, count: int, ratio: float, window_ms: int) -> None:
        """Nothing happened yet.

        Args:
            count: So many letters in a window are never too many.
            ratio: From 0 (``count`` alone decides) to 1 (only while nothing at all is acked).
        """
        self.count, self.ratio, self.window_ms = count, ratio, window_ms
        self._slices: deque[list[int]] = deque()  # [which slice, dead, acked], ascending
        self._now = -1
        self.dead_count = 0
        """Letters admitted in the window as of the last time told."""
        self.acked_count = 0
        """Messages acked in it."""

    def acked(self, n: int, at_ms: int) -> None:
        """Note that ``n`` messages came to a good end."""
        self._slice_of(at_ms)[2] += n
        self.acked_count += n

    def admit(self, n: int, at_ms: int) -> int | None:
        """Count ``n`` more letters, unless that makes them too many.

        Returns:
            What :meth:`withdraw` asks for; None if they are too many, and then none is counted.
        """
        current = self._slice_of(at_ms)
        dead = self.dead_count + n
        if n and dead > self.count and dead >= self.ratio * (dead + self.acked_count):
            return None
        current[1] += n
        self.dead_count = dead
        return current[0]

    def withdraw(self, n: int, admitted: int) -> None:
        """Letters that were admitted could not be stored: they do not count."""
        for counts in self._slices:
            if counts[0] == admitted:
                counts[1] -= n
                self.dead_count -= n

    def _slice_of(self, at_ms: int) -> list[int]:
        """The slice of a time, once those that the window has left are forgotten."""
        self._now = max(self._now, at_ms * SLICES // self.window_ms)
        while self._slices and self._slices[0][0] < self._now - SLICES:
            _, dead, acked = self._slices.popleft()
            self.dead_count -= dead
            self.acked_count -= acked
        if not self._slices or self._slices[-1][0] < self._now:
            self._slices.append([self._now, 0, 0])
        return self._slices[-1]
