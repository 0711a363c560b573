"""The times of ticks. They are kept in the driver, because a tick is an entry of the inbox."""

from __future__ import annotations

from acktree.tasks.plan import Plan


class Ticks:
    """The next tick of every bolt that has ticks. At most one per bolt is due; missed ticks are dropped.

    After the clock was set back, the next tick comes after one interval.
    """

    def __init__(self, plan: Plan, now_ms: int) -> None:
        """Start all intervals now: the first tick comes after one interval."""
        self._level_of = plan.level_of
        self._secs = plan.ticks
        self._due_ms = {name: now_ms + round(secs * 1000) for name, secs in self._secs.items()}

    def next_ms(self) -> int | None:
        """When the next tick is due; None when no bolt has ticks."""
        return min(self._due_ms.values(), default=None)

    def due(self, now_ms: int) -> dict[int, dict[str, float]]:
        """Take the ticks that are due: level -> bolt -> its interval in seconds."""
        due: dict[int, dict[str, float]] = {}
        for name, secs in self._secs.items():
            interval_ms = max(1, round(secs * 1000))
            self._due_ms[name] = min(self._due_ms[name], now_ms + interval_ms)
            if self._due_ms[name] <= now_ms:
                due.setdefault(self._level_of[name], {})[name] = secs
                missed = (now_ms - self._due_ms[name]) // interval_ms
                self._due_ms[name] += (missed + 1) * interval_ms
        return due
