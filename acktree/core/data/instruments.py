"""Metrics of the user's own: what ``context.register_counter`` and its kin return.

Rules of this file
------------------
1. An instrument holds what happened since it was registered, or since it was last taken: an increment, which
   the driver adds to what there was. So a micro-batch that runs again counts once.
2. Sums are of whole numbers, so that they are exact in any order. A timer counts microseconds.
3. Nothing here reads a clock or makes a lock: both are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from acktree.core.buckets import bucket_of
from acktree.errors import MisuseError

MetricKind = Literal["counter", "gauge", "meter", "timer", "histogram"]
MOST_SERIES: Final = 1000
"""The most metrics of a topology: one name in ten tasks is ten of them."""
_MOST_NAME: Final = 200
_MOST: Final = (1 << 63) - 1


@dataclass(slots=True)
class Increment:
    """What one metric of one task grew by.

    Attributes:
        count: By how much a counter grew; how many values a meter, timer or histogram was given.
        sum: Of a histogram the sum of its values, of a timer in microseconds.
        value: The last value of a gauge; None if it was not set.
        buckets: Of a histogram or timer the number of values by bucket: see ``core/buckets.py``.
    """

    kind: MetricKind
    count: int = 0
    sum: int = 0
    value: float | None = None
    buckets: dict[int, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return not self.count and self.value is None


class _Instrument:
    """What all of them have in common."""

    kind: MetricKind

    def __init__(self, name: str, lock: AbstractContextManager[object]) -> None:
        self.name, self._lock = name, lock
        self._grown = Increment(self.kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r:.60})"

    def _whole(self, number: object, description: str) -> int:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST:
            is_huge = isinstance(number, int) and number > _MOST
            shown = "a number above 2**63" if is_huge else f"{number!r:.60}"
            raise MisuseError(
                f"{description} of {shown}, which is no whole number from 0 to 2**63 - 1",
                f"metric {self.name!r}",
                "give a whole number; a gauge takes any number, and may fall",
            )
        return number

    def _add(self, value: int) -> None:
        bucket = bucket_of(value)
        with self._lock:
            grown = self._grown
            grown.count += 1
            grown.sum += value
            grown.buckets[bucket] = grown.buckets.get(bucket, 0) + 1

    def taken(self) -> Increment:
        """What it grew by since this was asked last. Called by the engine."""
        with self._lock:
            grown, self._grown = self._grown, Increment(self.kind)
        return grown


class CounterMetric(_Instrument):
    """A number that only grows."""

    kind: MetricKind = "counter"

    def inc(self, n: int = 1) -> None:
        """Count ``n`` more, 0 or more. MisuseError if it is no whole number."""
        whole = self._whole(n, "a count")
        with self._lock:
            self._grown.count += whole


class MeterMetric(_Instrument):
    """A number that only grows, with its rates over the last 1, 5 and 15 minutes."""

    kind: MetricKind = "meter"

    def mark(self, n: int = 1) -> None:
        """Count ``n`` more, 0 or more. MisuseError if it is no whole number."""
        whole = self._whole(n, "a mark")
        with self._lock:
            self._grown.count += whole


class GaugeMetric(_Instrument):
    """A number that is set: the last value counts."""

    kind: MetricKind = "gauge"

    def __init__(
        self, name: str, lock: AbstractContextManager[object], read: Callable[[], float] | None
    ) -> None:
        super().__init__(name, lock)
        self._read = read
        self.has_raised = False
        """Whether ``read`` raised when it was last called: it is reported once, until it succeeds."""

    def set(self, value: float) -> None:
        """Set the value. MisuseError if it is no number."""
        number: object = value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or (isinstance(number, int) and abs(number) > _MOST):
            shown = "a number above 2**63" if is_number else f"{number!r:.60}"
            raise MisuseError(
                f"a gauge was set to {shown}, which is no number of 64 bits",
                f"metric {self.name!r}",
                "give an int or a float",
            )
        with self._lock:
            self._grown.value = float(value)

    def look(self) -> None:
        """Set it to what its ``read`` returns, if any. The engine calls it. Raises what ``read`` raises."""
        if self._read is not None:
            self.set(self._read())


class HistogramMetric(_Instrument):
    """How whole numbers are spread: their number, sum and percentiles."""

    kind: MetricKind = "histogram"

    def update(self, value: int) -> None:
        """Add a value. MisuseError if it is no whole number from 0 on."""
        self._add(self._whole(value, "a value"))


class TimerMetric(_Instrument):
    """How durations are spread: their number, sum and percentiles, in milliseconds."""

    kind: MetricKind = "timer"

    def __init__(
        self, name: str, lock: AbstractContextManager[object], stopwatch: Callable[[], float]
    ) -> None:
        super().__init__(name, lock)
        self._stopwatch = stopwatch

    def update(self, ms: float) -> None:
        """Add a duration in milliseconds; it is rounded to a microsecond, and a negative one counts as 0."""
        duration: object = ms
        if (
            isinstance(duration, bool)
            or not isinstance(duration, int | float)
            or not duration <= _MOST // 1000
        ):
            raise MisuseError(
                f"a timer was given {type(ms).__name__}, or more than it holds",
                f"metric {self.name!r}",
                "give milliseconds, as an int or a float",
            )
        self._add(max(0, round(max(ms, 0) * 1000)))

    @contextmanager
    def time(self) -> Iterator[None]:
        """Add how long the block takes, also if it raises."""
        began = self._stopwatch()
        try:
            yield
        finally:
            self.update((self._stopwatch() - began) * 1000)


_Kind = TypeVar("_Kind", bound=_Instrument)


class Instruments:
    """The metrics that one task has registered, by name."""

    def __init__(
        self,
        stopwatch: Callable[[], float] = lambda: 0.0,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """Start without metrics.

        Args:
            stopwatch: Seconds, for timers.
            lock: Is held while a number changes; None where one thread alone changes them.
        """
        self._stopwatch, self._lock = stopwatch, lock or nullcontext()
        self._by_name: dict[str, _Instrument] = {}
        self._known: frozenset[str] = frozenset()

    def counter(self, name: str) -> CounterMetric:
        """The counter of this name."""
        return self._registered(name, CounterMetric, lambda: CounterMetric(name, self._lock))

    def meter(self, name: str) -> MeterMetric:
        """The meter of this name."""
        return self._registered(name, MeterMetric, lambda: MeterMetric(name, self._lock))

    def gauge(self, name: str, read: Callable[[], float] | None) -> GaugeMetric:
        """The gauge of this name."""
        return self._registered(name, GaugeMetric, lambda: GaugeMetric(name, self._lock, read))

    def histogram(self, name: str) -> HistogramMetric:
        """The histogram of this name."""
        return self._registered(name, HistogramMetric, lambda: HistogramMetric(name, self._lock))

    def timer(self, name: str) -> TimerMetric:
        """The timer of this name."""
        return self._registered(name, TimerMetric, lambda: TimerMetric(name, self._lock, self._stopwatch))

    def gauges(self) -> list[GaugeMetric]:
        """The gauges."""
        return [metric for metric in list(self._by_name.values()) if isinstance(metric, GaugeMetric)]

    def taken(self) -> dict[str, Increment]:
        """What each grew by since this was asked last; one that did not is there the first time alone."""
        grown = {name: metric.taken() for name, metric in list(self._by_name.items())}
        known, self._known = self._known, frozenset(grown)
        return {
            name: increment
            for name, increment in grown.items()
            if name not in known or not increment.is_empty
        }

    def _registered(self, name: object, kind: type[_Kind], make: Callable[[], _Kind]) -> _Kind:
        registered = self._by_name.get(name) if isinstance(name, str) else None
        if isinstance(registered, kind):
            return registered
        if registered is not None:
            what = f"metric {name!r} is a {registered.kind}, and was registered as a {kind.kind}"
            raise MisuseError(
                what, "context.register_...", "give each metric of a component a name of its own"
            )
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MOST_NAME:
            raise MisuseError(
                f"a metric is named {name!r:.60}",
                "context.register_...",
                f"give a text of 1 to {_MOST_NAME} printable characters",
            )
        if len(self._by_name) >= MOST_SERIES:
            raise MisuseError(
                f"metric {name!r} is one more than {MOST_SERIES}, the most that a topology may have",
                "context.register_...",
                "count by a few kinds, and not by values of tuples",
            )
        made = self._by_name[name] = make()
        return made
