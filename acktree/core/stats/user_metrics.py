"""The metrics of users, added up over micro-batches.

Rules of this file
------------------
1. A table is changed by increments alone: what each micro-batch brought, once. So it is exact where Spark
   runs a task again, and can be stored and taken up by the next driver.
2. There are at most :data:`MOST_SERIES`; what is one more is refused by name, and what is there goes on.
3. A rate is of the events of a meter, weighted by ``exp(-age / minutes)``; it needs no ticks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from acktree.core.data.instruments import MOST_SERIES, Increment, MetricKind
from acktree.core.stats.histograms import Histogram

Key = tuple[str, int, str]
"""(component, task id, name)."""
RATE_MINUTES: Final = (1, 5, 15)
_LEAST_AGE_SECS: Final = 5.0
"""A meter that is younger counts as that old: else its first event would be a large rate."""


@dataclass(frozen=True, slots=True)
class UserMetric:
    """The value of a metric that a component registered.

    Attributes:
        kind: counter, gauge, meter, timer or histogram.
        count: The value of a counter; how many values a meter, timer or histogram was given.
        value: The last value of a gauge; for a component the sum of those of its tasks. None if never set.
        sum: The sum of a histogram's values, of a timer's durations in milliseconds.
        rates: Of a meter the events in a second, over the last 1, 5 and 15 minutes; else empty.
        spread: Of a histogram how its values are spread, of a timer in microseconds; else None.
    """

    kind: MetricKind
    count: int = 0
    value: float | None = None
    sum: float = 0
    rates: tuple[float, ...] = ()
    spread: Histogram | None = None

    @property
    def mean(self) -> float | None:
        """The average of a histogram's values, of a timer's durations in milliseconds; None without any."""
        return self.sum / self.count if self.spread is not None and self.count else None

    def percentile(self, percent: float) -> float | None:
        """The value that this share of values does not exceed, at most 3 % too large; of a timer in ms."""
        value = None if self.spread is None else self.spread.percentile(percent)
        return value / 1000 if value is not None and self.kind == "timer" else value


def summed(metrics: Iterable[UserMetric]) -> UserMetric:
    """Metrics of one name and kind in several tasks, as one of their component."""
    several = list(metrics)
    values = [metric.value for metric in several if metric.value is not None]
    spread = None
    if several[0].spread is not None:
        spread = Histogram()
        for metric in several:
            spread.merge(metric.spread or {})
    return UserMetric(
        several[0].kind, sum(metric.count for metric in several), value=sum(values) if values else None,
        sum=sum(metric.sum for metric in several),
        rates=tuple(map(sum, zip(*(metric.rates for metric in several if metric.rates), strict=True))),
        spread=spread,
    )  # fmt: skip


@dataclass(slots=True)
class _Series:
    """What is kept of one metric of one task; ``weights`` are of a meter, as they were at ``at_ms``."""

    grown: Increment
    since_ms: int
    at_ms: int
    weights: list[float] = field(default_factory=lambda: [0.0] * len(RATE_MINUTES))


class MetricTable:
    """All metrics of a topology.

    >>> table = MetricTable()
    >>> table.add([(("split", 3, "lines"), Increment("counter", count=5))], now_ms=0)
    []
    >>> table.metrics(now_ms=0)["split", 3, "lines"].count
    5
    """

    def __init__(self) -> None:
        """Start without metrics."""
        self._series: dict[Key, _Series] = {}
        self._of_removed = 0

    def __len__(self) -> int:
        return len(self._series)

    def add(self, increments: Iterable[tuple[Key, Increment]], now_ms: int) -> list[Key]:
        """Add what grew. Returns those that are refused: there are too many, or their kind is another."""
        refused: list[Key] = []
        for key, more in increments:
            series = self._series.get(key)
            if series is None and len(self._series) - self._of_removed < MOST_SERIES:
                series = self._series[key] = _Series(Increment(more.kind), now_ms, now_ms)
            if series is None or series.grown.kind != more.kind:
                refused.append(key)
            else:
                _grow(series, more, now_ms)
        return refused

    def set_tasks(self, tasks: Container[tuple[str, int]]) -> None:
        """Say which (component, task) there are: metrics of others are kept and shown, and count to no limit.

        Of others as many as the limit are kept, those that grew last.
        """
        others = sorted((series.at_ms, key) for key, series in self._series.items() if key[:2] not in tasks)
        for _, key in others[: max(0, len(others) - MOST_SERIES)]:
            del self._series[key]
        self._of_removed = min(len(others), MOST_SERIES)

    def metrics(self, now_ms: int) -> dict[Key, UserMetric]:
        """The value of each at a moment."""
        return {key: _value(series, now_ms) for key, series in sorted(self._series.items())}

    def to_bytes(self) -> bytes:
        """Encode, for :meth:`from_bytes`."""
        rows = [
            [*key, *_packed(series.grown), series.since_ms, series.at_ms, series.weights]
            for key, series in sorted(self._series.items())
        ]
        return json.dumps(rows, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, packed: bytes) -> MetricTable:
        """The inverse of :meth:`to_bytes`."""
        table = cls()
        for component, task, name, *grown, since_ms, at_ms, weights in json.loads(packed):
            table._series[component, task, name] = _Series(_unpacked(grown), since_ms, at_ms, weights)
        return table


def increments_to_bytes(component: str, task: int, grown: Mapping[str, Increment]) -> bytes:
    """What the metrics of one task grew by, as JSON."""
    rows = [[component, task, name, *_packed(increment)] for name, increment in sorted(grown.items())]
    return json.dumps(rows, separators=(",", ":")).encode()


def increments_from_bytes(packed: bytes | memoryview) -> Iterator[tuple[Key, Increment]]:
    """The inverse of :func:`increments_to_bytes`."""
    for component, task, name, *grown in json.loads(bytes(packed)):
        yield (component, task, name), _unpacked(grown)


def _packed(grown: Increment) -> list[object]:
    value = grown.value
    said = value if value is None or math.isfinite(value) else str(value)  # JSON has no infinity
    return [grown.kind, grown.count, grown.sum, said, sorted(grown.buckets.items())]


def _unpacked(packed: list[object]) -> Increment:
    kind, count, total, value, buckets = packed
    return Increment(kind, count, total, None if value is None else float(value), dict(buckets))  # type: ignore[arg-type, call-overload]  # as packed


def _grow(series: _Series, more: Increment, now_ms: int) -> None:
    grown = series.grown
    grown.count += more.count
    grown.sum += more.sum
    if more.value is not None:
        grown.value = more.value
    for bucket, count in more.buckets.items():
        grown.buckets[bucket] = grown.buckets.get(bucket, 0) + count
    if more.kind == "meter":
        series.weights = [
            weight + more.count / (60 * minutes)
            for weight, minutes in zip(_decayed(series, now_ms), RATE_MINUTES, strict=True)
        ]
    series.at_ms = max(series.at_ms, now_ms)


def _decayed(series: _Series, now_ms: int) -> list[float]:
    secs = max(0, now_ms - series.at_ms) / 1000
    return [
        weight * math.exp(-secs / (60 * minutes))
        for weight, minutes in zip(series.weights, RATE_MINUTES, strict=True)
    ]


def _value(series: _Series, now_ms: int) -> UserMetric:
    grown = series.grown
    metric = UserMetric(grown.kind, grown.count, grown.value)
    if grown.kind == "meter":
        age_secs = max(_LEAST_AGE_SECS, (now_ms - series.since_ms) / 1000)
        rates = (
            weight / -math.expm1(-age_secs / (60 * minutes))
            for weight, minutes in zip(_decayed(series, now_ms), RATE_MINUTES, strict=True)
        )
        return replace(metric, rates=tuple(rates))
    if grown.kind == "timer":
        return replace(metric, sum=grown.sum / 1000, spread=Histogram(grown.buckets))
    return (
        replace(metric, sum=grown.sum, spread=Histogram(grown.buckets))
        if grown.kind == "histogram"
        else metric
    )
