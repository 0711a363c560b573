"""The samples of ``/metrics`` by a snapshot of one spout, ``source``, and one bolt, ``double``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acktree.core.tracking.verdicts import FailureCause
from acktree.ui.snapshot import Snapshot

EMITTED = ("emitted", "transferred")
READ = ("executed", "acked", "failed")
MESSAGES = ("acked", "failed", "timed_out", "retried", "dead_lettered")
Sample = tuple[str, float, dict[str, str]]
Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def wanted(snapshot: Snapshot) -> Found:
    """Each sample, by name and labels, but for buckets, times and free space."""
    parts = (_streams, _spout, _latencies, _bolt, _micro_batches, _gauges, _losses, _all_time)
    return {
        (f"acktree_{name}", frozenset({"topology": snapshot.topology, **labels}.items())): float(value)
        for part in parts
        for name, value, labels in part(snapshot)
    }


def _streams(snapshot: Snapshot) -> Iterator[Sample]:
    for component, stats in snapshot.stats.components.items():
        yield "errors_total", stats.total.errors, {"component": component}
        for stream, numbers in stats.streams.items():
            source, colon, own = stream.rpartition(":")
            labels = {"component": component, "stream": own, "source": source}
            for what in READ if colon else EMITTED:
                yield f"tuples_{what}_total", getattr(numbers, what), labels
            for what in MESSAGES if component == "source" else ():
                where = {"spout": component, "stream": stream}
                if what == "failed":
                    yield from _failed(numbers.failed, stats.failed_by.get(stream, {}), where)
                else:
                    yield f"messages_{what}_total", getattr(numbers, what), where


def _failed(failed: int, by_cause: Mapping[str, int], where: dict[str, str]) -> Iterator[Sample]:
    known = sum(by_cause.values())
    causes = {str(cause): 0 for cause in FailureCause if cause != "TIMEOUT"} | dict(by_cause)
    for cause, n in causes.items():
        yield "messages_failed_total", n, {**where, "cause": cause}
    if failed > known:
        yield "messages_failed_total", failed - known, {**where, "cause": ""}


def _spout(snapshot: Snapshot) -> Iterator[Sample]:
    source, spout = snapshot.stats["source"], {"spout": "source"}
    yield "messages_open", source.open, spout
    yield "messages_awaiting_retry", source.awaiting_retry, spout
    yield "message_oldest_open_seconds", source.oldest_open_secs, spout
    yield "spout_outage_seconds", 0, spout
    for reason, secs in source.not_asked_secs.items():
        yield "spout_not_asked_seconds_total", secs, {**spout, "reason": reason}


def _latencies(snapshot: Snapshot) -> Iterator[Sample]:
    source, double, acker = snapshot.stats["source"], snapshot.stats["double"], snapshot.stats.acker
    for name, spread, mean_ms, labels in (
        ("complete_latency", source.complete_ms, source.total.complete_ms, {"component": "source"}),
        ("execute_latency", double.execute_spread, double.total.execute_ms, {"component": "double"}),
        ("process_latency", double.process_spread, double.total.process_ms, {"component": "double"}),
        ("micro_batch_duration", acker.batch_spread, acker.batch_ms, {}),
        ("acker_settle", acker.settle_spread, acker.settle_ms, {}),
    ):
        count = sum(spread.values())
        yield f"{name}_seconds_count", count, labels
        yield f"{name}_seconds_sum", mean_ms * count / 1000, labels


def _bolt(snapshot: Snapshot) -> Iterator[Sample]:
    for task, numbers in snapshot.stats["double"].tasks.items():
        labels: dict[str, Any] = {"bolt": "double", "task": str(task)}
        if numbers.held is not None:
            yield "tuples_held", numbers.held, labels
            yield "tuple_oldest_held_seconds", numbers.oldest_held_secs, labels
        for name, metric in numbers.metrics.items():
            yield f"user_{name}_total", metric.count, {"component": "double", "task": str(task)}
    capacity = snapshot.capacity(snapshot.windows["600"], "double")
    yield "bolt_capacity_ratio", capacity, {"component": "double"}


def _micro_batches(snapshot: Snapshot) -> Iterator[Sample]:
    acker = snapshot.stats.acker
    yield "micro_batches_total", acker.micro_batches, {}
    for phase, secs in acker.phase_secs.items():
        yield "micro_batch_phase_seconds_total", secs, {"phase": phase}
    left_ms = snapshot.acker.next_deadline_ms - snapshot.taken_ms
    yield "acker_next_deadline_seconds", left_ms / 1000, {}
    for what in ("inits", "acks", "fails", "resets", "late"):
        yield f"acker_{what}_total", getattr(acker, what), {}


def _gauges(snapshot: Snapshot) -> Iterator[Sample]:
    yield "inbox_messages", snapshot.inbox.messages, {}
    yield "inbox_bytes", snapshot.inbox.bytes, {}
    yield "inbox_limit_bytes", snapshot.inbox.limit_bytes, {}
    yield "acker_open_roots", snapshot.acker.open_roots, {}
    for what in ("kept", "open", "waiting"):
        yield f"keys_{what}", getattr(snapshot.keys, what), {}
    for state in ("waiting", "redriven", "settled"):
        yield "dead_letters", getattr(snapshot.dead_letters, state), {"state": state}
    for status in ("STARTING", "ACTIVE", "INACTIVE", "KILLED"):
        yield "topology_status", snapshot.status == status, {"status": status}


def _all_time(snapshot: Snapshot) -> Iterator[Sample]:
    whole = snapshot.windows[":all-time"]
    yield "all_time_run_seconds_total", whole.secs, {}
    for what in ("emitted", *MESSAGES):
        count = getattr(whole.stats["source"].total, what)
        yield "all_time_messages_total", count, {"spout": "source", "what": what}


def _losses(snapshot: Snapshot) -> Iterator[Sample]:
    traces = snapshot.stats.traces
    yield "metrics_consumer_dropped_total", snapshot.metrics_dropped, {}
    yield "worker_deaths_total", snapshot.stats.workers_lost, {}
    yield "trace_messages_total", traces.messages, {}
    yield "trace_exported_total", traces.exported, {}
    for name, counts in (("trace", traces.dropped), ("event_log", traces.events_dropped)):
        for why, count in counts.items():
            yield f"{name}_dropped_total", count, {"why": why}
