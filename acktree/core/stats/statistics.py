"""Statistics: the numbers of Storm's UI as one value.

Rules of this file
------------------
1. A view is computed from counters and never added to them: averages cannot be added.
2. A view does not change. Make a new one for newer numbers.
3. A count without events is 0; a latency without samples is None, and blank in a table.

Source: the tables of Storm's UI, without their windows and executors: a component is shown in total, by
stream and by task, since the start of the topology.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from acktree.core.stats.counters import NO_STREAM, SAMPLES, SUMS, WHATS, Counters, Latency
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.user_metrics import UserMetric, summed

__all__ = [
    "ComponentStats",
    "Counters",
    "Numbers",
    "ReportedError",
    "SpoutNumbers",
    "Stats",
    "TaskStats",
    "TraceNumbers",
]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a component, task or stream. A latency is an average in milliseconds, or None."""

    emitted: int = 0
    transferred: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    errors: int = 0
    """Exceptions and calls of ``collector.report_error``; the last few are kept for display."""
    execute_ms: float | None = None
    """Time inside ``execute``, per tuple."""
    process_ms: float | None = None
    """From the start of ``execute`` to the ack of that tuple; sampled for a ``Bolt``, which acks explicitly.
    For a tuple held over micro-batches it is the time between their clocks."""
    complete_ms: float | None = None
    """From a spout's emit to the verdict ACKED."""

    def __repr__(self) -> str:
        return f"Numbers({_nonzero(self)})"


@dataclass(frozen=True, slots=True)
class TaskStats:
    """One task: in total, and by stream (a bolt's inputs are written ``component:stream``)."""

    total: Numbers
    streams: Mapping[str, Numbers]
    metrics: Mapping[str, UserMetric] = field(default_factory=dict, kw_only=True)
    """The metrics that its code registered, by name; of a component those of its tasks together."""

    def __repr__(self) -> str:
        return f"TaskStats({_nonzero(self.total)})"


@dataclass(frozen=True, slots=True)
class ComponentStats(TaskStats):
    """One component: in total, by stream, and by task."""

    tasks: Mapping[int, TaskStats]
    open: int | None = None
    """The open messages of a spout, including those that wait for a retry; None for a bolt."""
    oldest_open_secs: float | None = None
    """The age of the oldest open message; None if there is none."""
    lag: int | None = None
    """How many messages wait at the source, if the spout reports it (``Spout.lag``); seconds old."""
    complete_ms: Histogram | None = None
    """How the complete latencies of a spout's acked messages are spread, in milliseconds; None for a bolt."""

    def __repr__(self) -> str:
        is_open = "" if self.open is None else f"open={self.open}, "
        return f"ComponentStats({is_open}{len(self.tasks)} tasks, {_nonzero(self.total)})"[:100]


@dataclass(frozen=True, slots=True)
class SpoutNumbers:
    """The open messages of all tasks of a spout."""

    count: int
    oldest_secs: float | None = None
    lag: int | None = None
    complete_ms: Histogram | None = None


@dataclass(frozen=True, slots=True)
class TraceNumbers:
    """What became of the traces and logged events of a run.

    Attributes:
        messages: Traced messages that were recorded.
        exported: Traces that an OpenTelemetry collector has taken.
        dropped: Why -> how often something of a trace was lost. "queue_full" and "store_failed" count what
            was given in one piece: the messages of a chunk, the verdicts or facts of a micro-batch. "bounds"
            counts tuples beyond the bounds, which are counted by component, and messages beyond them.
            "not_exported" counts traces that the collector has not taken.
        events_dropped: The same of the event log: "queue_full" (or its logger raised) and "bounds".
    """

    messages: int = 0
    exported: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    events_dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedError:
    """An error that a component raised, or reported with ``collector.report_error``."""

    component: str
    task_id: int | None
    reason: str
    at_ms: int
    traceback: str | None = None

    def __repr__(self) -> str:
        return f"ReportedError({self.component!r:.30}, task_id={self.task_id}, {self.reason!r:.40})"


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a running topology at one time.

    >>> counters = Counters()
    >>> counters.add("orders", 1, "default", "emitted", 1200)
    >>> stats = Stats.of(counters, spouts={"orders": SpoutNumbers(200, 1.5)})
    >>> stats["orders"].total.emitted, stats["orders"].open
    (1200, 200)
    """

    components: Mapping[str, ComponentStats]
    """By component id, ascending."""
    errors: tuple[ReportedError, ...] = ()
    warming_up_secs: float | None = None
    """For how long the topology has been warming up: no spout is open yet. None once it is warm."""
    open_at_start: int = 0
    """The messages that were open when this run began: emitted by earlier runs, counted here by verdict."""
    traces: TraceNumbers = field(default_factory=TraceNumbers)
    """Of all components together."""

    @staticmethod
    def of(
        counters: Counters,
        *,
        components: Iterable[str] = (),
        spouts: Mapping[str, SpoutNumbers] = MappingProxyType({}),
        errors: Iterable[ReportedError] = (),
        warming_up_secs: float | None = None,
        open_at_start: int = 0,
        metrics: Mapping[tuple[str, int, str], UserMetric] = MappingProxyType({}),
        traces: TraceNumbers | None = None,
    ) -> Stats:
        """Compute the statistics from counters.

        Args:
            counters: The counters; copied, so the view does not change.
            components: Components to show even without counts.
            spouts: The open messages of each spout.
            errors: The last errors, in the order of display.
            warming_up_secs: For how long the topology has been warming up; None when it is warm.
            open_at_start: The messages that earlier runs left open.
            metrics: The metrics of users, by (component, task, name).
            traces: What became of traces and events; None for nothing.
        """
        tallies_of: dict[str, dict[int, dict[str, _Tally]]] = {name: {} for name in (*components, *spouts)}
        for (component, task, stream, what), n in sorted(counters.items()):
            tallies_of.setdefault(component, {}).setdefault(task, {}).setdefault(stream, {})[what] = n
        metrics_of: dict[str, dict[int, dict[str, UserMetric]]] = {}
        for (component, task, name), metric in metrics.items():
            tallies_of.setdefault(component, {}).setdefault(task, {})
            metrics_of.setdefault(component, {}).setdefault(task, {})[name] = metric
        seen = {
            name: _component(tallies_of[name], spouts.get(name), metrics_of.get(name, {}))
            for name in sorted(tallies_of)
        }
        return Stats(
            MappingProxyType(seen), tuple(errors), warming_up_secs, open_at_start, traces or TraceNumbers()
        )

    def __getitem__(self, component: str) -> ComponentStats:
        return self.components[component]

    def __repr__(self) -> str:
        return f"Stats({summary(self)})"

    def _repr_html_(self) -> str:
        """For notebooks: the tables."""
        from acktree.core.stats.table import html_of  # noqa: PLC0415  # it draws what is defined here

        return html_of(self)

    def table(self) -> str:
        """The numbers as text, at most 100 columns: see :mod:`acktree.core.stats.table`."""
        from acktree.core.stats.table import table_of  # noqa: PLC0415  # it draws what is defined here

        return table_of(self)


def summary(stats: Stats) -> str:
    """The numbers of all spouts in one line."""
    spouts = [component for component in stats.components.values() if component.open is not None]
    acked, failed, timed_out = (
        sum(getattr(spout.total, what) for spout in spouts) for what in ("acked", "failed", "timed_out")
    )
    numbers = (
        f"acked={acked}, failed={failed}, timed_out={timed_out}, open={sum(s.open or 0 for s in spouts)}"
    )
    warming = "" if stats.warming_up_secs is None else f", warming up for {stats.warming_up_secs:.0f} s"
    return f"{len(stats.components)} components, {numbers}{warming}"


def _nonzero(numbers: Numbers) -> str:
    """What happened, as keywords: at most 80 characters."""
    named = ((what, getattr(numbers, what)) for what in WHATS)
    counts = [f"{what}={count}" for what, count in named if count]
    while len(", ".join(counts)) > 80:  # noqa: PLR2004  # a line
        counts.pop()
    return ", ".join(counts)


_Tally = dict[str, int]


def _component(
    tasks: Mapping[int, Mapping[str, _Tally]],
    spout: SpoutNumbers | None,
    metrics: Mapping[int, Mapping[str, UserMetric]],
) -> ComponentStats:
    by_task = {task: _task(streams, metrics.get(task, {})) for task, streams in tasks.items()}
    by_name: dict[str, list[UserMetric]] = {}
    for of_task in metrics.values():
        for name, metric in of_task.items():
            by_name.setdefault(name, []).append(metric)
    by_stream: dict[str, list[_Tally]] = {}
    for streams in tasks.values():
        for stream, tally in streams.items():
            by_stream.setdefault(stream, []).append(tally)
    return ComponentStats(
        total=_numbers(tally for tallies in by_stream.values() for tally in tallies),
        streams=_streams({stream: _numbers(by_stream[stream]) for stream in sorted(by_stream)}),
        tasks=MappingProxyType(by_task),
        open=spout.count if spout else None,
        oldest_open_secs=spout.oldest_secs if spout else None,
        lag=spout.lag if spout else None,
        complete_ms=spout.complete_ms if spout else None,
        metrics={name: summed(several) for name, several in sorted(by_name.items())},
    )


def _task(streams: Mapping[str, _Tally], metrics: Mapping[str, UserMetric]) -> TaskStats:
    by_stream = {stream: _numbers([tally]) for stream, tally in streams.items()}
    return TaskStats(_numbers(streams.values()), _streams(by_stream), metrics=metrics)


def _streams(numbers: dict[str, Numbers]) -> Mapping[str, Numbers]:
    numbers.pop(NO_STREAM, None)  # shown only in the total
    return MappingProxyType(numbers)


def _numbers(tallies: Iterable[_Tally]) -> Numbers:
    total: defaultdict[str, int] = defaultdict(int)
    for tally in tallies:
        for what, n in tally.items():
            total[what] += n
    return Numbers(
        **{what: total[what] for what in WHATS},
        execute_ms=_average_ms(total, "execute_ms"),
        process_ms=_average_ms(total, "process_ms"),
        complete_ms=_average_ms(total, "complete_ms"),
    )


def _average_ms(total: Mapping[str, int], latency: Latency) -> float | None:
    samples = total[SAMPLES[latency]]
    return total[SUMS[latency]] / samples / 1000 if samples else None
