"""How much a micro-batch admits: what the last ones managed, in the time that one shall take.

At low load a micro-batch takes what is there, and is small and quick. At high load it grows until it takes
the wanted time, where its fixed cost hardly counts; with a slow bolt it shrinks until it does.

Source: ours; the control of Spark's old ``PIDRateEstimator``, with a ratio in place of three gains.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 8192
"""What the first micro-batch admits, of which nothing is known yet."""
_FASTEST: Final = 2.0
"""From one micro-batch to the next the allowance grows at most by this."""
_SLOWEST: Final = 0.25
"""And shrinks at most to this: one pause of the machine says little."""


class Pace:
    """The allowance of the next micro-batch, in messages; at least 1.

    >>> pace = Pace(interval_secs=2)
    >>> pace.ran(8192, 1.0)
    >>> pace.allowance
    16384
    """

    def __init__(self, interval_secs: float) -> None:
        """Begin.

        Args:
            interval_secs: How long a micro-batch shall take when there is enough to do.
        """
        self._interval_secs = interval_secs
        self.allowance = FIRST

    def ran(self, messages: int, secs: float) -> None:
        """A micro-batch of so many messages took so long, from its admission to the next one's."""
        if not messages:
            return
        factor = min(_FASTEST, max(_SLOWEST, self._interval_secs / max(secs, 1e-3)))
        fits = max(1, round(messages * factor))
        if secs > self._interval_secs:
            self.allowance = min(self.allowance, fits)
        else:  # one that was not full says nothing of a full one but that it would be no smaller
            self.allowance = max(self.allowance, fits)
