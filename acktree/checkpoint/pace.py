"""How many messages a micro-batch admits, from the durations of the last ones and the wanted duration.

At low load a micro-batch takes the messages that are there, and is small and quick. At high load it grows
until it takes the wanted time, so that its fixed cost hardly counts. With a slow bolt it shrinks until it
takes the wanted time.

Where the fixed cost alone is more than half of the wanted time (a busy machine, a short interval), smaller
micro-batches would not be faster: one of a single message takes as long. Then a micro-batch takes up to twice
its fixed cost, so that half of the time is spent on messages. The fixed cost is computed from two
micro-batches of very different size. An entry of the inbox is admitted whole: where one entry after the other
takes too long alone, two are tried now and then, or their fixed cost would never be seen.

Source: ours; the control of Spark's old ``PIDRateEstimator``, with a ratio in place of three gains.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 8192
"""What the first micro-batch admits, before anything was measured."""
_FASTEST: Final = 2.0
"""The largest factor between the allowances of two successive micro-batches."""
_SLOWEST: Final = 0.25
"""The smallest such factor: a single pause of the machine must not count for much."""
_APART: Final = 2
"""One of two micro-batches must have this many times the other's messages to compute the fixed cost."""
_ALIKE: Final = 0.1
"""Two micro-batches have the same size if they differ by no more than this."""
_MOST_ENTRIES: Final = 64
"""Two entries are tried after the second slow micro-batch of one, then after twice as many each time."""
_FADES: Final = 0.98
"""The fixed cost is multiplied by this at each micro-batch: a busy machine or a cold JVM is temporary."""


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
            interval_secs: The wanted duration of a micro-batch under load.
        """
        self._interval_secs = interval_secs
        self._fixed_secs: float | None = None
        self._other: tuple[int, float] | None = None
        self._entries, self._try_after = 0, 2  # slow micro-batches of one entry
        self.allowance = FIRST

    def ran(self, messages: int, secs: float, *, is_one_entry: bool = False) -> None:
        """Record a micro-batch: its messages, and the seconds from its admission to the next one's.

        Args:
            is_one_entry: Whether they were one entry of the inbox, so that no fewer could be admitted.
        """
        if not messages:
            return
        self._look(messages, secs)
        fixed = min(self._fixed_secs or 0.0, secs)
        wanted = max(self._interval_secs, 2 * fixed)
        factor = min(_FASTEST, max(_SLOWEST, (wanted - fixed) / max(secs - fixed, 1e-3)))
        if secs > wanted and is_one_entry and messages > self.allowance and self._may_try_two():
            self.allowance = 2 * messages
        elif secs > wanted:
            if self._fixed_secs is None:
                factor = min(factor, 1 / _APART)  # then the fixed cost can be computed
            self.allowance = min(self.allowance, max(1, round(messages * factor)))
        else:  # it may not have been full: a full one can be at least as large
            self.allowance = max(self.allowance, round(messages * factor))

    def _may_try_two(self) -> bool:
        self._entries += 1
        if self._entries < self._try_after:
            return False
        self._entries, self._try_after = 0, min(2 * self._try_after, _MOST_ENTRIES)
        return True

    def _look(self, messages: int, secs: float) -> None:
        """Compute the fixed cost from this micro-batch and the last one of another size."""
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
