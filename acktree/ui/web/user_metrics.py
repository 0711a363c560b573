"""The metrics of users for Prometheus: ``acktree_user_<name>``, one sample for each task.

Durations are in seconds, as Prometheus has them. A character that its names may not have becomes ``_``. Two
metrics whose names become equal, and whose kinds differ, are told apart by their kind at the end of the name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from acktree.core.buckets import top_of
from acktree.core.data.instruments import MetricKind
from acktree.core.stats.user_metrics import UserMetric
from acktree.ui.snapshot import Snapshot

_LABELS: Final = ["topology", "component", "task"]
_POWERS: Final = tuple(1 << power for power in range(28))
_MICROS: Final = 1_000_000

_Sample = tuple[Snapshot, str, int, UserMetric]


def user_families(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    """A family for each name and kind."""
    by_name: defaultdict[str, dict[MetricKind, dict[tuple[str, str, int], _Sample]]] = defaultdict(dict)
    for snapshot in snapshots:
        for component, stats in snapshot.stats.components.items():
            for task, numbers in stats.tasks.items():
                for name, metric in numbers.metrics.items():
                    of_kind = by_name[_plain(name)].setdefault(metric.kind, {})
                    place = (snapshot.topology, component, task)
                    of_kind.setdefault(place, (snapshot, component, task, metric))
    for name, kinds in sorted(by_name.items()):
        for kind, samples in sorted(kinds.items()):
            full = f"acktree_user_{name}" if len(kinds) == 1 else f"acktree_user_{name}_{kind}"
            yield from _families(full, kind, list(samples.values()))


def _plain(name: str) -> str:
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return plain.removesuffix("_total") or "_"


def _families(name: str, kind: MetricKind, samples: list[_Sample]) -> Iterator[Metric]:
    text = f"A {kind} of the topology's own."
    if kind == "gauge":
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        for snapshot, component, task, metric in samples:
            if metric.value is not None:
                gauge.add_metric([snapshot.topology, component, str(task)], metric.value)
        yield gauge
    elif kind in {"counter", "meter"}:
        counter = CounterMetricFamily(name, text, labels=_LABELS)
        for snapshot, component, task, metric in samples:
            counter.add_metric([snapshot.topology, component, str(task)], metric.count)
        yield counter
    else:
        scale = _MICROS if kind == "timer" else 1
        full = f"{name.removesuffix('_seconds')}_seconds" if kind == "timer" else name
        histogram = HistogramMetricFamily(full, text, labels=_LABELS)
        for snapshot, component, task, metric in samples:
            total = metric.sum / 1000 if kind == "timer" else metric.sum
            labels = [snapshot.topology, component, str(task)]
            histogram.add_metric(labels, _buckets(metric, scale), sum_value=total)
        yield histogram


def _buckets(metric: UserMetric, scale: int) -> list[tuple[str, float]]:
    """The number of values up to each power of two; and in all."""
    spread: Mapping[int, int] = metric.spread or {}
    tops = [(top_of(bucket), count) for bucket, count in spread.items()]
    upto = [(repr(power / scale), float(sum(n for top, n in tops if top <= power))) for power in _POWERS]
    return [*upto, ("+Inf", float(metric.count))]
