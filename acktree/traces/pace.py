"""How large a share of messages is traced where there are very many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MOST_PER_SEC", "SMALL", "TracePace"]

MOST_PER_SEC: Final = 250
"""A small share is lowered where more messages than this are recorded a second: each takes 0.1 ms of CPU, and
nobody looks at a thousand a second."""
SMALL: Final = 0.01
"""The largest share that is lowered. Who asks for a larger one gets it."""
LOOK_SECS: Final = 5.0
"""How long the recorded messages are counted: longer than a micro-batch takes as a rule."""
_MOST_DIVISOR: Final = 1 << 20


@dataclass
class TracePace:
    """The share of messages that is traced: what was asked for, or a half, a quarter, ... of it.

    Attributes:
        wanted: The share that was asked for.
        divisor: What it is divided by; a power of two.
    """

    wanted: float
    divisor: int = 1
    _counted: int = 0
    _since: float | None = None

    @property
    def rate(self) -> float:
        """The share of messages that is traced."""
        return self.wanted / self.divisor

    def look(self, recorded: int, now: float) -> bool:
        """Adapt the share.

        Args:
            recorded: How many messages were recorded so far.
            now: The seconds of a clock that never goes back.

        Returns:
            Whether the share changed.
        """
        if self._since is None:
            self._counted, self._since = recorded, now
        secs = now - self._since
        if self.wanted > SMALL or secs < LOOK_SECS:
            return False
        per_sec, before = (recorded - self._counted) / secs, self.divisor
        self._counted, self._since = recorded, now
        while per_sec > MOST_PER_SEC and self.divisor < _MOST_DIVISOR:
            self.divisor *= 2
            per_sec /= 2
        if self.divisor == before and before > 1 and per_sec < MOST_PER_SEC / 4:
            self.divisor //= 2
        return self.divisor != before
