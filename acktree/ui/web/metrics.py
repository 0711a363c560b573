"""Prometheus metrics, made of snapshots at each scrape.

Labels are names of topologies, components and streams, never a message id, a reason or an exception's text.
Counters are of the run, and begin anew with it: ``_created`` says when. A gate has the series of a spout, so
that an alert by spout holds for it, too.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from acktree.core.stats.numbers import Numbers
from acktree.core.tracking.verdicts import FailureCause
from acktree.ui.snapshot import Snapshot
from acktree.ui.web.engine_metrics import engine_families
from acktree.ui.web.sources import Seen
from acktree.ui.web.user_metrics import user_families

_STATUSES: Final = ("STARTING", "ACTIVE", "INACTIVE", "KILLED")
_MESSAGES: Final = ("acked", "timed_out", "retried", "dead_lettered")
_CAUSES: Final = tuple(str(cause) for cause in FailureCause if cause is not FailureCause.TIMEOUT)
"""They are shown before anything fails: a series that begins above 0 has no rate at first."""
_EMITTED: Final = ("emitted", "transferred")
_READ: Final = ("executed", "acked", "failed")


def exposed(all_seen: Iterable[Seen], version: str, accept: str) -> tuple[bytes, str]:
    """The metrics of running topologies, and their content type, as the scraper accepts."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshots([seen.snapshot for seen in all_seen], version))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Snapshots(Collector):
    """Gives the metrics of some snapshots."""

    def __init__(self, snapshots: list[Snapshot], version: str) -> None:
        names = Counter(snapshot.topology for snapshot in snapshots)
        self._snapshots = [
            snapshot if names[snapshot.topology] == 1 else replace(snapshot, topology=snapshot.id)
            for snapshot in snapshots  # two of one name would give one series twice
        ]
        self._version = version

    def describe(self) -> Iterable[Metric]:
        """No names ahead: nothing else is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Each metric with one sample for each topology, component or stream."""
        yield InfoMetricFamily("acktree_build", "The page's version.", value={"version": self._version})
        yield from self._topologies()
        yield from self._tuples()
        yield from self._spouts()
        yield from self._engine()
        yield from engine_families(self._snapshots)
        yield from user_families(self._snapshots)

    def _topologies(self) -> Iterator[Metric]:
        about = InfoMetricFamily("acktree_topology", "What runs.", labels=["topology"])
        status = GaugeMetricFamily(
            "acktree_topology_status", "1 for the status that it has.", labels=["topology", "status"]
        )
        for snapshot in self._snapshots:
            about.add_metric(
                [snapshot.topology], {"topology_id": snapshot.id, "checkpoint": snapshot.checkpoint}
            )
            for known_status in _STATUSES:
                status.add_metric([snapshot.topology, known_status], float(snapshot.status == known_status))
        yield about
        yield status

    def _tuples(self) -> Iterator[Metric]:
        labels = ["topology", "component", "stream", "source"]
        for what in (*_EMITTED, "executed", "acked", "failed"):
            family = CounterMetricFamily(f"acktree_tuples_{what}", f"Tuples {what}.", labels=labels)
            for snapshot, name, stream, numbers in self._streams():
                source, colon, own = stream.rpartition(":")
                is_bolt = name in snapshot.bolts
                if what in (_READ if colon else _EMITTED) and (is_bolt or what in _EMITTED):
                    created = snapshot.began_ms / 1000
                    family.add_metric(
                        [snapshot.topology, name, own, source], getattr(numbers, what), created=created
                    )
            yield family

    def _streams(self) -> Iterator[tuple[Snapshot, str, str, Numbers]]:
        for snapshot in self._snapshots:
            for name, component in snapshot.stats.components.items():
                for stream, numbers in component.streams.items():
                    yield snapshot, name, stream, numbers

    def _spouts(self) -> Iterator[Metric]:
        for what in (*_MESSAGES, "superseded"):
            family = CounterMetricFamily(
                f"acktree_messages_{what}",
                f"Messages of spouts: {what}.",
                labels=["topology", "spout", "stream"],
            )
            for snapshot, name, stream, numbers in self._streams():
                if name in (snapshot.gates if what == "superseded" else snapshot.sources):
                    family.add_metric(
                        [snapshot.topology, name, stream], getattr(numbers, what),
                        created=snapshot.began_ms / 1000,
                    )  # fmt: skip
            yield family
        yield self._failed()
        for name, text, attribute in (
            ("acktree_messages_open", "Messages without a final verdict.", "open"),
            ("acktree_messages_awaiting_retry", "Those that wait for their next attempt.", "awaiting_retry"),
            ("acktree_message_oldest_open_seconds", "Age of the oldest of them.", "oldest_open_secs"),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["topology", "spout"])
            for snapshot in self._snapshots:
                for spout in snapshot.sources:
                    value = getattr(snapshot.stats[spout], attribute)
                    if value is not None:
                        gauge.add_metric([snapshot.topology, spout], value)
            yield gauge
        yield self._lag()
        away = GaugeMetricFamily(
            "acktree_spout_outage_seconds",
            "For how long the spout's queue, the store of dead letters or what a bolt needs "
            "does not answer; 0 if it does.",
            labels=["topology", "spout"],
        )
        for snapshot in self._snapshots:
            for spout in snapshot.sources:
                outages = snapshot.outages.get(spout, ())
                secs = [(snapshot.taken_ms - outage.since_ms) / 1000 for outage in outages]
                away.add_metric([snapshot.topology, spout], max(secs, default=0.0))
        yield away

    def _lag(self) -> Metric:
        """By partition of the source; an empty one where the spout names none."""
        lag = GaugeMetricFamily(
            "acktree_spout_lag",
            "Messages that wait at the source.",
            labels=["topology", "spout", "partition"],
        )
        for snapshot in self._snapshots:
            for spout in snapshot.sources:
                numbers = snapshot.stats[spout]
                if numbers.lag is not None:
                    for partition, n in (numbers.lag_by_partition or {"": numbers.lag}).items():
                        lag.add_metric([snapshot.topology, spout, partition], n)
        return lag

    def _failed(self) -> Metric:
        """What failed, by cause; those of an earlier release, which counted no causes, have an empty one."""
        family = CounterMetricFamily(
            "acktree_messages_failed", "Messages of spouts: failed.",
            labels=["topology", "spout", "stream", "cause"],
        )  # fmt: skip
        for snapshot, name, stream, numbers in self._streams():
            if name in snapshot.sources:
                causes = {**dict.fromkeys(_CAUSES, 0), **snapshot.stats[name].failed_by.get(stream, {})}
                unknown = numbers.failed - sum(causes.values())
                for cause, n in (causes | ({"": unknown} if unknown > 0 else {})).items():
                    where = [snapshot.topology, name, stream, cause]
                    family.add_metric(where, n, created=snapshot.began_ms / 1000)
        return family

    def _traces(self) -> Iterator[Metric]:
        """What became of traces and events."""
        messages, exported = (
            CounterMetricFamily(f"acktree_trace_{what}", text, labels=["topology"])
            for what, text in (
                ("messages", "Traced messages that were recorded."),
                ("exported", "Traces that a collector has taken."),
            )
        )
        dropped, events = (
            CounterMetricFamily(f"acktree_{what}_dropped", text, labels=["topology", "why"])
            for what, text in (
                ("trace", "How often something of a trace was lost."),
                ("event_log", "How often events were lost."),
            )
        )
        for snapshot in self._snapshots:
            name, traces, created = snapshot.topology, snapshot.stats.traces, snapshot.began_ms / 1000
            messages.add_metric([name], traces.messages, created=created)
            exported.add_metric([name], traces.exported, created=created)
            for family, counts in ((dropped, traces.dropped), (events, traces.events_dropped)):
                for why, count in counts.items():
                    family.add_metric([name, why], count, created=created)
        yield from (messages, exported, dropped, events)

    def _engine(self) -> Iterator[Metric]:
        capacity = GaugeMetricFamily(
            "acktree_bolt_capacity_ratio",
            "Share of the last 10 minutes in execute, of what the busiest task may do at once.",
            labels=["topology", "component"],
        )  # fmt: skip
        errors = CounterMetricFamily("acktree_errors", "Errors.", labels=["topology", "component"])
        letters = GaugeMetricFamily("acktree_dead_letters", "Dead letters.", labels=["topology", "state"])
        for snapshot in self._snapshots:
            for bolt in snapshot.bolts:
                capacity.add_metric(
                    [snapshot.topology, bolt], snapshot.capacity(snapshot.windows["600"], bolt)
                )
            for name, component in snapshot.stats.components.items():
                errors.add_metric(
                    [snapshot.topology, name], component.total.errors, created=snapshot.began_ms / 1000
                )
            for state in ("waiting", "redriven", "settled"):
                count = getattr(snapshot.dead_letters, state)
                if count is not None:
                    letters.add_metric([snapshot.topology, state], count)
        dropped = CounterMetricFamily(
            "acktree_metrics_consumer_dropped",
            "Intervals that consumers were too slow for.",
            labels=["topology"],
        )
        for snapshot in self._snapshots:
            created = snapshot.began_ms / 1000
            dropped.add_metric([snapshot.topology], snapshot.metrics_dropped, created=created)
        yield from (capacity, errors, letters, dropped)
        yield from self._traces()
        for name, text, value in (
            ("acktree_inbox_messages", "Messages that wait for a micro-batch.", lambda s: s.inbox.messages),
            ("acktree_inbox_bytes", "Bytes of the inbox.", lambda s: s.inbox.bytes),
            ("acktree_inbox_limit_bytes", "Its limit.", lambda s: s.inbox.limit_bytes),
            ("acktree_keys_kept", "Keys of messages that were ACKED and are kept.", lambda s: s.keys.kept),
            ("acktree_keys_oldest_seconds", "Since when the oldest is kept.", lambda s: s.keys.oldest_secs),
            ("acktree_keys_open", "Keys of messages without a final verdict.", lambda s: s.keys.open),
            ("acktree_keys_waiting", "Messages that wait for an open key.", lambda s: s.keys.waiting),
            ("acktree_acker_open_roots", "Open roots of the acker.", lambda s: s.acker.open_roots),
            ("acktree_checkpoint_free_bytes", "Free space of the checkpoint's disk.", _free_bytes),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["topology"])
            for snapshot in self._snapshots:
                number = value(snapshot)
                if number is not None:
                    gauge.add_metric([snapshot.topology], number)
            yield gauge


def _free_bytes(snapshot: Snapshot) -> int | None:
    if "://" not in snapshot.checkpoint:
        with suppress(OSError):
            return shutil.disk_usage(snapshot.checkpoint).free
    return None
