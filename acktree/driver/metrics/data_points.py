"""The numbers of a topology as data points, by Storm's names. Pure.

Counts are of the run so far, so that one that is dropped is made good by the next. A latency is the average
since the last report, and left out where nothing happened.

Source: the names of Storm 2: ``__emit-count-<stream>`` and its kin. Of Storm's ``__skipped-...-ms``, that of
back-pressure is the time in which the inbox was full; an outage and a pause have no name in Storm, and are
left out. Storm's numbers of queues are left out: there are no queues between tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from acktree.core.stats.counters import NO_STREAM, NOT_ASKED, SAMPLES, SUMS, Counters, Latency
from acktree.core.stats.user_metrics import Key, UserMetric
from acktree.metrics_consumer import DataPoint

_COUNTS: Final = {
    "emitted": "__emit-count",
    "transferred": "__transfer-count",
    "executed": "__execute-count",
    "acked": "__ack-count",
    "failed": "__fail-count",
    "timed_out": "__timeout-count",
}
_SKIPPED: Final = {
    f"{NOT_ASKED}pending_full": "__skipped-max-spout-ms",
    f"{NOT_ASKED}inactive": "__skipped-inactive-ms",
    f"{NOT_ASKED}inbox_full": "__skipped-backpressure-ms",
}
"""For how long a spout was not asked for messages, by why."""
_LATENCIES: Final[Mapping[Latency, str]] = {
    "execute_ms": "__execute-latency",
    "process_ms": "__process-latency",
    "complete_ms": "__complete-latency",
}
_PERCENTILES: Final = (50, 75, 95, 99)

Task = tuple[str, int]


def data_points(
    now: Counters,
    before: Counters,
    metrics: Mapping[Key, UserMetric],
    secs: float,
    at_once: Mapping[str, int] = MappingProxyType({}),
) -> dict[Task, list[DataPoint]]:
    """The data points of each task, as (component, task id).

    Args:
        now: All counts.
        before: Those of the last report.
        metrics: The metrics of users.
        secs: The time since the last report.
        at_once: By bolt how many tuples of a task are executed at once; 1 where it is not named.
    """
    points: defaultdict[Task, list[DataPoint]] = defaultdict(list)
    for (component, task, stream, what), n in sorted(_with_storms_fails(now).items()):
        if what == "errors":
            points[component, task].append(DataPoint("__reported-error-count", n))
        elif what in _SKIPPED:
            points[component, task].append(DataPoint(_SKIPPED[what], n // 1000))
        elif what in _COUNTS:
            points[component, task].append(DataPoint(f"{_COUNTS[what]}-{stream}", n, _dimensions(stream)))
    for latency, name in _LATENCIES.items():
        for (component, task, stream), (total_us, samples) in _grown(now, before, latency).items():
            point = DataPoint(f"{name}-{stream}", total_us / samples / 1000, _dimensions(stream))
            points[component, task].append(point)
    for (component, task), busy_us in _busy(now, before).items():
        load = busy_us / 1e6 / at_once.get(component, 1)
        points[component, task].append(DataPoint("__capacity", load / secs if secs > 0 else 0.0))
    for (component, task, name), metric in metrics.items():
        points[component, task] += _of_user(name, metric)
    return dict(points)


def _with_storms_fails(counters: Counters) -> Counters:
    """The counts, with the timeouts of a spout among its fails."""
    added = Counters.of(counters.items())
    for (component, task, stream, what), n in counters.items():
        if what == "timed_out":
            added.add(component, task, stream, "failed", n)
    return added


def _dimensions(stream: str) -> dict[str, str]:
    source, colon, name = stream.rpartition(":")
    return {"stream": name, "source": source} if colon else {"stream": name}


def _grown(now: Counters, before: Counters, latency: Latency) -> dict[tuple[str, int, str], tuple[int, int]]:
    """Sum in microseconds and samples since the last report, of each task and stream with samples."""
    sums, samples = SUMS[latency], SAMPLES[latency]
    return {
        (component, task, stream): (
            now.get((component, task, stream, sums), 0) - before.get((component, task, stream, sums), 0),
            n - before.get((component, task, stream, samples), 0),
        )
        for (component, task, stream, what), n in sorted(now.items())
        if what == samples and n > before.get((component, task, stream, samples), 0)
    }


def _busy(now: Counters, before: Counters) -> dict[Task, int]:
    """Microseconds in ``execute`` since the last report, of each task of a bolt that ever executed."""
    busy: defaultdict[Task, int] = defaultdict(int)
    for (component, task, stream, what), n in sorted(now.items()):
        if what == SUMS["execute_ms"] and stream != NO_STREAM:
            busy[component, task] += n - before.get((component, task, stream, what), 0)
    return busy


def _of_user(name: str, metric: UserMetric) -> Iterator[DataPoint]:
    if metric.kind == "gauge":
        if metric.value is not None:
            yield DataPoint(name, metric.value)
        return
    if metric.kind == "counter":
        yield DataPoint(name, metric.count)
        return
    yield DataPoint(f"{name}.count", metric.count)
    for minutes, rate in zip((1, 5, 15), metric.rates, strict=False):  # of a meter alone
        yield DataPoint(f"{name}.m{minutes}_rate", rate)
    if metric.mean is not None:
        yield DataPoint(f"{name}.sum", metric.sum)
        yield DataPoint(f"{name}.mean", metric.mean)
        for percent in _PERCENTILES:
            yield DataPoint(f"{name}.{percent}percentile", metric.percentile(percent) or 0.0)
