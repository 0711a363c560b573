"""How many lines of one kind go to the log: a few a minute. What is left out is counted."""

from __future__ import annotations

from threading import Lock
from typing import Final

_WINDOW_MS: Final = 60_000


class LineBudget:
    """A limit of lines per minute, of all components and of each. Any thread may call any method.

    >>> budget = LineBudget(most=3, most_of_one=2)
    >>> [budget.allows("split", at_ms) for at_ms in (0, 1, 2, 60_000)]
    [True, True, False, True]
    >>> budget.take_left_out(), budget.take_left_out()
    (1, 0)
    """

    def __init__(self, most: int = 8, most_of_one: int = 3) -> None:
        """Begin with a full budget.

        Args:
            most: The most lines in a minute.
            most_of_one: The most lines of one component in a minute.
        """
        self._most, self._most_of_one = most, most_of_one
        self._lock = Lock()
        self._began_ms: int | None = None
        self._said: dict[str, int] = {}
        self._left_out = 0

    def allows(self, component: str, at_ms: int) -> bool:
        """Whether a line may be written; it is counted as written, or as left out."""
        with self._lock:
            # A clock that was set back begins a new minute too; else all is left out until it has caught up.
            if self._began_ms is None or not 0 <= at_ms - self._began_ms < _WINDOW_MS:
                self._began_ms, self._said = at_ms, {}
            of_one = self._said.get(component, 0)
            if of_one >= self._most_of_one or sum(self._said.values()) >= self._most:
                self._left_out += 1
                return False
            self._said[component] = of_one + 1
            return True

    def leave_out(self, count: int) -> None:
        """Count what happened and got no line."""
        with self._lock:
            self._left_out += count

    def take_left_out(self) -> int:
        """How many were left out since the last call."""
        with self._lock:
            count, self._left_out = self._left_out, 0
            return count
