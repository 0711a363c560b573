"""A token bucket: bounds how often something happens in a second, on average."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """Tokens that are added all the time, up to what one second adds.

    Attributes:
        full: How many there are at most, 1 or more.
        left: How many there are.
    """

    def __init__(self, per_sec: float) -> None:
        """It is full.

        Args:
            per_sec: How many tokens a second adds, above 0.
        """
        self._per_sec = per_sec
        self.full = self.left = max(1.0, per_sec)  # room for one
        self._since_ms = 0

    def refill(self, now_ms: int) -> None:
        """Add what the time since the last call adds."""
        passed_ms = max(0, now_ms - self._since_ms)  # a clock may be set back
        self._since_ms = now_ms
        self.left = min(self.full, self.left + self._per_sec * passed_ms / 1000)

    def take(self, wanted: int, now_ms: int) -> int:
        """Take whole tokens, as many as wanted and there are; returns how many."""
        self.refill(now_ms)
        taken = min(wanted, int(self.left))
        self.left -= taken
        return taken
