"""The numbers of components, tasks and streams, as values; ``statistics.py`` computes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from acktree.core.stats.counters import WHATS
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.user_metrics import UserMetric

__all__ = [
    "ComponentStats",
    "Numbers",
    "Outage",
    "ReportedError",
    "SpoutNumbers",
    "TaskStats",
    "TraceNumbers",
    "longest_outage",
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
class Outage:
    """What a spout calls again and again, because its queue or the store of dead letters does not answer.

    Attributes:
        reason: The last error.
        fix: What to do about it.
        since_ms: When the first of these errors came; milliseconds since 1970.
        tries: How many calls have raised since then.
    """

    reason: str
    fix: str
    since_ms: int
    tries: int

    def __repr__(self) -> str:
        return f"Outage({self.reason!r:.40}, since_ms={self.since_ms}, tries={self.tries})"


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
    outage: Outage | None = None
    """What a spout waits for, of the task that has waited longest; None while all of its calls work."""

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
    outage: Outage | None = None


def longest_outage(outages: Iterable[Outage | None]) -> Outage | None:
    """The one that began first; None where there is none."""
    return min((each for each in outages if each is not None), key=lambda each: each.since_ms, default=None)


@dataclass(frozen=True, slots=True)
class TraceNumbers:
    """What became of the traces and logged events of a run.

    Attributes:
        messages: Traced messages that were recorded.
        exported: Traces that an OpenTelemetry collector has taken.
        dropped: Why -> how often something of a trace was lost. "queue_full" and "store_failed" count what
            was given in one piece: the messages of a chunk, the verdicts or facts of a micro-batch. "bounds"
            counts tuples beyond the bounds, which are counted by component, and messages beyond them, which
            are recorded without their ids. "not_exported" counts traces that the collector has not taken.
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


def _nonzero(numbers: Numbers) -> str:
    """What happened, as keywords: at most 80 characters."""
    named = ((what, getattr(numbers, what)) for what in WHATS)
    counts = [f"{what}={count}" for what, count in named if count]
    while len(", ".join(counts)) > 80:  # noqa: PLR2004  # a line
        counts.pop()
    return ", ".join(counts)
