"""How many messages a micro-batch admits, from the durations of the last ones and the wanted duration.

At low load a micro-batch takes the messages that are there, and is small and quick. At high load it grows
until it takes the wanted time, so that its fixed cost hardly counts. With a slow bolt it shrinks until it
takes the wanted time.

Where the fixed cost alone is more than half of the wanted time (a checkpoint at a URL, a busy machine, a
short interval), smaller micro-batches would not be faster: one of a single message takes as long. Then a
micro-batch takes up to twice its fixed cost, so that half of the time is spent on messages.

An epoch of real time is meant to be shorter than a micro-batch, so its fixed cost counts more. Where most
keys of a bolt's memory are touched by each epoch, they are part of that cost: a larger one would touch the
same. So it grows up to the duration of a micro-batch, as long as more than a tenth of it is fixed cost.

Durations vary for reasons of their own, on a cluster by seconds, so no two micro-batches tell the fixed cost
apart from the cost of messages. A line through the last ones does: its slope is the median of the slopes
between any two of them, each with the weight of the difference between their sizes. Where all have much the
same size, a larger one is tried now and then.

Source: ours; the control of Spark's old ``PIDRateEstimator``, with a line in place of three gains. The line
is that of Theil and Sen (P. K. Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", 1968).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

FIRST: Final = 8192
"""What the first micro-batch admits, before anything was measured."""
_FASTEST: Final = 2.0
"""The largest factor between the allowances of two successive micro-batches."""
_SLOWEST: Final = 0.25
"""The smallest such factor: a single pause of the machine must not count for much."""
_APART: Final = 2
"""The largest micro-batch looked at must have this many times the messages of the smallest for a line."""
_MOST_SEEN: Final = 16
"""The most micro-batches that are looked at."""
_LEAST_SEEN: Final = 4
"""The newer half of all is looked at, but this many: the first ones compile."""
_STRANGE: Final = 3.0
"""A micro-batch that takes this many times what was expected is a pause of the machine, or a new load."""
_MOST_ALIKE: Final = 64
"""A larger one is tried after the second of much the same size, then after twice as many each time."""
_PREFERRED: Final = 10
"""A unit of work that may be longer takes up to this many times its fixed cost."""
_TRIES: Final = 2
"""A larger one is tried this often: spouts fill the first before they know that it may be larger."""


@dataclass(frozen=True)
class _Line:
    """The expected duration of a micro-batch.

    Attributes:
        fixed: Seconds of one without messages.
        each: Seconds of a message.
    """

    fixed: float
    each: float

    def secs(self, messages: int) -> float:
        """The predicted duration, in seconds, of a micro-batch with this number of messages."""
        return self.fixed + self.each * messages


class Pace:
    """The allowance of the next micro-batch, in messages; at least 1.

    >>> pace = Pace(interval_secs=2)
    >>> pace.ran(8192, 1.0)
    >>> pace.allowance
    16384
    """

    def __init__(self, interval_secs: float, longest_secs: float = 0.0) -> None:
        """Begin.

        Args:
            interval_secs: The wanted duration of a micro-batch under load.
            longest_secs: Up to this it may be longer, if more than a tenth of it is fixed cost.
        """
        self._interval_secs, self._longest_secs = interval_secs, longest_secs
        self._last: deque[tuple[int, float]] = deque(maxlen=_MOST_SEEN)
        self._seen = 0
        self._strange: tuple[int, float] | None = None
        self._line: _Line | None = None
        self._alike, self._try_after, self._tries_left = 0, 2, 0
        self.allowance = FIRST

    def ran(self, messages: int, secs: float) -> None:
        """Record a micro-batch: its messages, and the seconds from its admission to the next one's."""
        if not messages:
            return
        if self._is_pause(messages, secs):
            self.allowance = min(self.allowance, max(1, round(messages * _SLOWEST)))
            return
        self._seen += 1
        self._last.append((messages, secs))
        while len(self._last) > max(_LEAST_SEEN, self._seen // 2):
            self._last.popleft()
        self._line = self._fitted()
        best = round(messages * self._factor(messages, secs))
        if best > messages:  # it may not have been full: a full one can be at least as large
            self.allowance = max(self.allowance, best)
        else:
            self.allowance = min(self.allowance, max(1, best))

    def _is_pause(self, messages: int, secs: float) -> bool:
        """Whether this one is strange and the one before was not. Two in a row are a new load."""
        before, self._strange = self._strange, None
        if self._line is None or secs <= _STRANGE * max(self._interval_secs, self._line.secs(messages)):
            return False
        if before is None:
            self._strange = messages, secs
            return True
        self._last.clear()
        self._last.append(before)
        return False

    def _factor(self, messages: int, secs: float) -> float:
        """How many times the messages of this micro-batch the next one admits."""
        if self._must_try_more(secs):
            return _FASTEST
        line = self._line or _Line(0.0, secs / messages)
        rather = min(self._longest_secs, _PREFERRED * line.fixed)
        wanted = max(self._interval_secs, 2 * line.fixed, rather)
        factor = (wanted - line.fixed) / max(line.each * messages, 1e-9)
        if self._line is None and secs > wanted:
            factor = min(factor, 1 / _APART)  # then there can be a line
        return min(_FASTEST, max(_SLOWEST, factor))

    def _must_try_more(self, secs: float) -> bool:
        """Whether to try a larger micro-batch, since the last ones were slow and of much the same size."""
        if self._are_apart() or secs < self._interval_secs / 2:
            self._tries_left = 0
            return False
        if self._tries_left:
            self._tries_left -= 1
            return True
        self._alike += 1
        if self._alike < self._try_after:
            return False
        self._alike, self._try_after = 0, min(2 * self._try_after, _MOST_ALIKE)
        self._tries_left = _TRIES - 1
        return True

    def _are_apart(self) -> bool:
        sizes = [messages for messages, _ in self._last]
        return max(sizes) >= _APART * min(sizes)

    def _fitted(self) -> _Line | None:
        """The line through the last micro-batches; None as long as all have had much the same size."""
        if self._are_apart():
            each = self._slope()
            return _Line(max(0.0, median(secs - each * messages for messages, secs in self._last)), each)
        if self._line is None:
            return None
        size, secs = (median(values) for values in zip(*self._last, strict=True))
        fixed = min(self._line.fixed, secs)
        return _Line(fixed, (secs - fixed) / size)

    def _slope(self) -> float:
        """Seconds of a message: the weighted median of the slopes between any two."""
        slopes = sorted(
            ((one[1] - other[1]) / (one[0] - other[0]), abs(one[0] - other[0]))
            for one, other in combinations(self._last, 2)
            if one[0] != other[0]
        )
        weight_left = sum(weight for _, weight in slopes) / 2
        for slope, weight in slopes:
            weight_left -= weight
            if weight_left <= 0:
                return max(0.0, slope)
        raise AssertionError("sizes that are apart have a slope")
