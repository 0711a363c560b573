"""How much a micro-batch admits: what the last ones managed, in the time that one shall take.

At low load a micro-batch takes what is there, and is small and quick. At high load it grows until it takes
the wanted time, where its fixed cost hardly counts; with a slow bolt it shrinks until it does.

Where the fixed cost alone is more than half of the wanted time (a busy machine, a short interval), to shrink
would buy nothing: a micro-batch of one message takes as long. Then it takes up to twice its fixed cost, so
that messages get their share of the time. What is fixed shows where two micro-batches differ much in size.

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
_APART: Final = 2
"""One of two micro-batches must have this many times the other's messages to compute the fixed cost."""
_ALIKE: Final = 0.1
"""They are of one size if they differ by no more than this."""
_FADES: Final = 0.98
"""What was found is believed less with each micro-batch: a machine is busy for a while, a JVM fresh."""


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
        self._fixed_secs: float | None = None
        self._other: tuple[int, float] | None = None
        self.allowance = FIRST

    def ran(self, messages: int, secs: float) -> None:
        """Record a micro-batch: its messages, and the seconds from its admission to the next one's."""
        if not messages:
            return
        self._look(messages, secs)
        fixed = min(self._fixed_secs or 0.0, secs)
        wanted = max(self._interval_secs, 2 * fixed)
        factor = min(_FASTEST, max(_SLOWEST, (wanted - fixed) / max(secs - fixed, 1e-3)))
        if secs > wanted:
            if self._fixed_secs is None:
                factor = min(factor, 1 / _APART)  # and it will show
            self.allowance = min(self.allowance, max(1, round(messages * factor)))
        else:  # one that was not full says nothing of a full one but that it would be no smaller
            self.allowance = max(self.allowance, round(messages * factor))

    def _look(self, messages: int, secs: float) -> None:
        """What of the time is fixed, by this micro-batch and the last one of another size."""
        before, took = self._other or (messages, secs)
        if max(messages, before) >= _APART * min(messages, before):
            fixed = secs - messages * (secs - took) / (messages - before)
            self._fixed_secs = max(0.0, min(fixed, secs, took))
            self._other = messages, secs
            return
        if self._fixed_secs is not None:
            self._fixed_secs *= _FADES
        if abs(messages - before) <= _ALIKE * before:
            self._other = before, secs
