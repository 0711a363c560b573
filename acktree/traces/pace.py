"""How large a share of messages is traced where very many are emitted."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["MOST_PER_SEC", "SMALL", "TracePace"]

MOST_PER_SEC: Final = 100
"""While more messages than this are traced a second, a small share is lowered: the store has the last 100,000
messages, and those should be of the last quarter of an hour at least."""
SMALL: Final = 0.01
"""The largest share that is lowered. Who asks for more gets it."""
_LOOK_MS: Final = 2000
_RAISE_MS: Final = 20_000
"""For how long messages are counted before the share is lowered, and before it is raised."""
_LEAD_SECS: Final = 3
"""Another share holds for messages that will be emitted in this time or later: the levels know it by then."""
_MOST_DIVISOR: Final = 1 << 20


class TracePace:
    """The divisor of the share of messages that is traced: a power of two.

    One thread computes it, and another takes it. A proposal stands until it is taken or refused.

    Args:
        wanted: The share that was asked for.
    """

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted
        self.divisor = 1
        self.proposed: tuple[int, int] | None = None
        """The next divisor, and after how many further messages of a task it may hold."""
        self._counted = 0
        self._since_ms: int | None = None

    def taken(self) -> None:
        """The levels were told what is proposed."""
        if self.proposed is not None:
            self.divisor = self.proposed[0]
        self._anew()

    def refused(self) -> None:
        """The levels could not be told; the messages are counted anew."""
        self._anew()

    def _anew(self) -> None:
        self._since_ms = None
        self.proposed = None  # last: then messages are counted again

    def emitted(self, count: int) -> None:
        """So many traced messages were emitted, without those that are traced at any share."""
        self._counted += count

    def look(self, clock_ms: int) -> None:
        """A micro-batch is over: propose another divisor if the messages were counted for long enough."""
        if self.wanted > SMALL or self.proposed is not None:
            return
        since_ms = self._since_ms
        if since_ms is None or clock_ms < since_ms:
            self._since_ms, self._counted = clock_ms, 0
            return
        took_ms = clock_ms - since_ms
        if took_ms < _LOOK_MS:
            return
        per_sec = 1000 * self._counted / took_ms
        divisor = self.divisor
        while per_sec * self.divisor > MOST_PER_SEC * divisor and divisor < _MOST_DIVISOR:
            divisor *= 2
        if per_sec < MOST_PER_SEC / 4:
            if divisor == 1 or took_ms < _RAISE_MS:
                return
            divisor //= 2
        self._since_ms, self._counted = clock_ms, 0
        if divisor != self.divisor:
            messages_per_sec = per_sec * self.divisor / self.wanted
            self.proposed = divisor, math.ceil(_LEAD_SECS * messages_per_sec)
