"""What the engine itself does, for Prometheus: acker, micro-batches, held tuples, how latencies are spread.

Latencies are counted by powers of two, the same for all, so that histograms of several topologies add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from acktree.core.buckets import top_of
from acktree.ui.snapshot import ALL_TIME, Snapshot

_MICROS: Final = 1_000_000
_MILLIS: Final = 1_000
_MOST_DIGITS: Final = 27
"""The last bucket but one ends at 2^27 microseconds, 134 seconds."""
_MS_POWERS: Final = range(18)
"""Complete latencies are counted from 1 ms to 2^17 ms."""
_OF_MESSAGES: Final = ("emitted", "acked", "failed", "timed_out", "retried", "dead_lettered")
_COUNTS: Final = (
    ("inits", "Messages that the acker began to track."),
    ("acks", "Acks of bolts, one for each tuple and message."),
    ("fails", "Fails of bolts, one for each failure and message."),
    ("resets", "Resets of timeouts."),
    ("late", "Messages with acks or fails after their verdict, once a micro-batch."),
)


def engine_families(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    """The families; of the acker where there is one."""
    tracking = [snapshot for snapshot in snapshots if snapshot.has_acker]
    yield from _acker(tracking)
    yield from _micro_batches(snapshots)
    yield _workers_lost(snapshots)
    yield from _held(snapshots)
    yield _complete_latency(snapshots)
    yield from _bolt_latencies(snapshots)
    yield _not_asked(snapshots)
    yield from _all_time(snapshots)


def _acker(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    for what, text in _COUNTS:
        counter = CounterMetricFamily(f"acktree_acker_{what}", text, labels=["topology"])
        for snapshot in snapshots:
            count = getattr(snapshot.acker, what)
            counter.add_metric([snapshot.topology], count, created=snapshot.began_ms / _MILLIS)
        yield counter
    deadline = GaugeMetricFamily(
        "acktree_acker_next_deadline_seconds",
        "In how long the acker needs a micro-batch for a timeout; below 0 while it waits for one.",
        labels=["topology"],
    )
    for snapshot in snapshots:
        if snapshot.acker.next_deadline_ms is not None:
            left_ms = snapshot.acker.next_deadline_ms - snapshot.taken_ms
            deadline.add_metric([snapshot.topology], left_ms / _MILLIS)
    yield deadline
    settle = HistogramMetricFamily(
        "acktree_acker_settle_seconds", "How long the acker took for a micro-batch.", labels=["topology"]
    )
    for snapshot in snapshots:
        acker = snapshot.acker
        settle.add_metric([snapshot.topology], *_micros(acker.settle_spread, acker.settle_ms))
    yield settle


def _micro_batches(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    counted = CounterMetricFamily("acktree_micro_batches", "Micro-batches.", labels=["topology"])
    took = HistogramMetricFamily(
        "acktree_micro_batch_duration_seconds",
        "From the clock of a micro-batch to its results in the driver.",
        labels=["topology"],
    )
    for snapshot in snapshots:
        acker = snapshot.acker
        counted.add_metric([snapshot.topology], acker.micro_batches, created=snapshot.began_ms / _MILLIS)
        took.add_metric([snapshot.topology], *_micros(acker.batch_spread, acker.batch_ms))
    phases = CounterMetricFamily(
        "acktree_micro_batch_phase_seconds",
        "Where the time of micro-batches went. addBatch contains levels, acker and log.",
        labels=["topology", "phase"],
    )
    for snapshot in snapshots:
        for phase, secs in snapshot.stats.acker.phase_secs.items():
            phases.add_metric([snapshot.topology, phase], secs, created=snapshot.began_ms / _MILLIS)
    yield from (counted, took, phases)


def _workers_lost(snapshots: Iterable[Snapshot]) -> Metric:
    family = CounterMetricFamily(
        "acktree_worker_deaths", "Python workers that died while they ran a level.", labels=["topology"]
    )
    for snapshot in snapshots:
        created = snapshot.began_ms / _MILLIS
        family.add_metric([snapshot.topology], snapshot.stats.workers_lost, created=created)
    return family


def _held(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    labels = ["topology", "bolt", "task"]
    held = GaugeMetricFamily(
        "acktree_tuples_held", "Tuples that a task remembers over micro-batches.", labels=labels
    )
    oldest = GaugeMetricFamily(
        "acktree_tuple_oldest_held_seconds", "Age of the oldest of them.", labels=labels
    )
    for snapshot in snapshots:
        for bolt in snapshot.bolts:
            for task, numbers in snapshot.stats[bolt].tasks.items():
                place = [snapshot.topology, bolt, str(task)]
                if numbers.held is not None:
                    held.add_metric(place, numbers.held)
                if numbers.oldest_held_secs is not None:
                    oldest.add_metric(place, numbers.oldest_held_secs)
    yield from (held, oldest)


def _complete_latency(snapshots: Iterable[Snapshot]) -> Metric:
    family = HistogramMetricFamily(
        "acktree_complete_latency_seconds",
        "From a spout's emit to the verdict ACKED.",
        labels=["topology", "component"],
    )
    for snapshot in snapshots:
        for spout in snapshot.sources:
            spread: Mapping[int, int] = snapshot.stats[spout].complete_ms or {}
            tops = [(top_of(bucket), count) for bucket, count in spread.items()]
            total = sum(count for _, count in tops)
            upto = [
                (repr(2**power / _MILLIS), float(sum(n for top, n in tops if top < 2**power)))
                for power in _MS_POWERS
            ]
            average_ms = snapshot.stats[spout].total.complete_ms or 0.0
            family.add_metric(
                [snapshot.topology, spout], [*upto, ("+Inf", float(total))], average_ms * total / _MILLIS
            )
    return family


def _bolt_latencies(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    for name, text in (("execute", "Time in execute."), ("process", "From execute to the ack; sampled.")):
        family = HistogramMetricFamily(
            f"acktree_{name}_latency_seconds",
            f"{text} The tuples of a frame count with their average.",
            labels=["topology", "component"],
        )
        for snapshot in snapshots:
            for bolt in snapshot.bolts:
                numbers = snapshot.stats[bolt]
                spread, average_ms = getattr(numbers, f"{name}_spread"), getattr(numbers.total, f"{name}_ms")
                family.add_metric([snapshot.topology, bolt], *_micros(spread, average_ms))
        yield family


def _not_asked(snapshots: Iterable[Snapshot]) -> Metric:
    family = CounterMetricFamily(
        "acktree_spout_not_asked_seconds",
        "For how long the tasks of a spout were not asked for messages.",
        labels=["topology", "spout", "reason"],
    )
    for snapshot in snapshots:
        for spout in snapshot.sources:
            for reason, secs in snapshot.stats[spout].not_asked_secs.items():
                created = snapshot.began_ms / _MILLIS
                family.add_metric([snapshot.topology, spout, reason], secs, created=created)
    return family


def _all_time(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    """What goes on over restarts: the sums over all runs on the checkpoint."""
    messages = CounterMetricFamily(
        "acktree_all_time_messages",
        "Messages of spouts in all runs on the checkpoint.",
        labels=["topology", "spout", "what"],
    )
    secs = CounterMetricFamily(
        "acktree_all_time_run_seconds", "For how long drivers ran the topology.", labels=["topology"]
    )
    for snapshot in snapshots:
        whole = snapshot.windows[ALL_TIME]
        secs.add_metric([snapshot.topology], whole.secs)
        for spout in snapshot.sources:
            for what in (*_OF_MESSAGES, *(("superseded",) if spout in snapshot.gates else ())):
                count = getattr(whole.stats[spout].total, what)
                messages.add_metric([snapshot.topology, spout, what], count)
    yield from (messages, secs)


def _micros(spread: Mapping[int, int], average_ms: float | None) -> tuple[list[tuple[str, float]], float]:
    """Buckets of what is counted by binary digits of microseconds, and the sum in seconds."""
    total = sum(spread.values())
    upto = [
        (repr(2**digits / _MICROS), float(sum(n for power, n in spread.items() if power <= digits)))
        for digits in range(_MOST_DIGITS + 1)
    ]
    return [*upto, ("+Inf", float(total))], (average_ms or 0.0) * total / _MILLIS
