"""The numbers of components, tasks and streams, as values; ``statistics.py`` computes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from acktree.core.stats.counters import WHATS
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.user_metrics import UserMetric


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
    retried: int = 0
    """Attempts of a spout's messages after the first."""
    dead_lettered: int = 0
    """Dead letters of a spout that were stored."""
    superseded: int = 0
    """Of the acked messages of a gate those that were not written: a newer row with their key was."""
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

    Or a ``next_tuple`` that does not return. Or what a bolt or sink needs, which messages of the spout wait
    for.

    Attributes:
        reason: The last error.
        fix: What to do about it.
        since_ms: When the first of these errors came; milliseconds since 1970.
        tries: How many calls have raised since then; 0: the first has not returned.
        dependency: The name of what a bolt or sink needs; empty for a call of the spout.
    """

    reason: str
    fix: str
    since_ms: int
    tries: int
    dependency: str = ""

    def __repr__(self) -> str:
        return f"Outage({self.reason!r:.40}, since_ms={self.since_ms}, tries={self.tries})"


@dataclass(frozen=True, slots=True)
class Lag:
    """How many messages wait at the source of a spout.

    Attributes:
        total: All of them.
        by_partition: Those of each partition; empty where the spout names none.
    """

    total: int
    by_partition: Mapping[str, int] = field(default_factory=dict)


def added_lags(lags: Iterable[Lag | None]) -> tuple[int | None, Mapping[str, int]]:
    """What waits for some tasks together, and by partition; None where none of them knows.

    >>> added_lags([Lag(3, {"a": 1, "b": 2}), None, Lag(4, {"b": 4})])
    (7, {'a': 1, 'b': 6})

    What a task does not name by partition is under "", beside others that do:

    >>> added_lags([Lag(3, {"a": 3}), Lag(5)])
    (8, {'a': 3, '': 5})
    """
    known = [lag for lag in lags if lag is not None]
    if not known:
        return None, {}
    by_partition: dict[str, int] = {}
    for lag in known:
        for partition, n in lag.by_partition.items():
            by_partition[partition] = by_partition.get(partition, 0) + n
    total = sum(lag.total for lag in known)
    if by_partition and (unnamed := total - sum(by_partition.values())):
        by_partition[""] = by_partition.get("", 0) + unnamed
    return total, by_partition


@dataclass(frozen=True, slots=True)
class TaskStats:
    """One task: in total, and by stream (a bolt's inputs are written ``component:stream``)."""

    total: Numbers
    streams: Mapping[str, Numbers]
    metrics: Mapping[str, UserMetric] = field(default_factory=dict, kw_only=True)
    """The metrics that its code registered, by name; of a component those of its tasks together."""
    held: int | None = field(default=None, kw_only=True)
    """How many tuples a bolt remembers over micro-batches; None if it has not run yet, or never remembers."""
    oldest_held_secs: float | None = field(default=None, kw_only=True)
    """The time since the micro-batch that brought the oldest of them; None if there is none, or not known."""
    not_asked_secs: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """For how long a spout that has not ended was not asked for messages, by why: "inactive", "pending_full",
    "inbox_full", "outage" or "pause". Of a component those of its tasks together."""

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
    """How many messages wait at the source, if the spout reports it (``Spout.lag``); seconds old. Of a gate
    the tuples that wait in front of it now, or have passed and are not open yet."""
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    """Those of each partition of the source; empty where the spout names none."""
    complete_ms: Histogram | None = None
    """How the complete latencies of a spout's acked messages are spread, in milliseconds; None for a bolt."""
    outages: tuple[Outage, ...] = ()
    """What a spout waits for, the longest first: each dependency once, of the task that has waited for it
    longest; none while all of its calls work."""
    execute_spread: Mapping[int, int] = field(default_factory=dict)
    """How the latency of a bolt's ``execute`` is spread: binary digits of microseconds -> tuples. The tuples
    of a frame count with their average."""
    process_spread: Mapping[int, int] = field(default_factory=dict)
    """The same from ``execute`` to the ack."""
    awaiting_retry: int | None = None
    """The open messages of a spout that wait for their next attempt; None for a bolt."""
    failed_by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How many messages of a spout failed of which cause, by stream. Those that timed out are not among them;
    of runs of an earlier release the causes are not known."""

    @property
    def outage(self) -> Outage | None:
        """What a spout has waited for longest; None while all of its calls work."""
        return self.outages[0] if self.outages else None

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
    outages: tuple[Outage, ...] = ()
    awaiting_retry: int = 0
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AckerNumbers:
    """What the acker was sent and decided; of a window what it was in that time.

    A count of what it was sent is exact as Storm's is: a tuple that is anchored to two messages and acked is
    two acks. A bolt sums them by message before it sends them.

    Attributes:
        open_roots: Messages without a verdict, after the last micro-batch.
        next_deadline_ms: When it needs a micro-batch for a timeout, by the driver's clock; None for never.
        inits: Messages that it began to track.
        acks: Tuples that bolts acked, once for each message that a tuple is anchored to.
        fails: Messages of tuples that failed, once for each failure.
        resets: Messages whose age began again, once for each ``reset_timeout``.
        late: Messages with acks or fails after their verdict, or never begun; once a micro-batch.
        acked, failed, timed_out: Verdicts.
        micro_batches: Micro-batches whose results are counted.
        settle_ms: How long the acker took for a micro-batch, with the files of rows of DataFrames that it
            writes, and without the commit log; an average.
        settle_spread: How that is spread: the number of binary digits of microseconds -> micro-batches.
        batch_ms: From the clock of a micro-batch to its results in the driver; an average.
        batch_spread: How that is spread.
        received: What it was sent, by ``component:stream``.
        phase_secs: Where the time of micro-batches went, all in all. Spark's phases have Spark's names, but
            for "admission" and "commit"; they are known when the next micro-batch runs. "addBatch" contains
            those of acktree: "level_0" and so on, the time on the clock of a level's slowest partition;
            "acker", as ``settle_ms``; and "log", the writing of the commit log.
    """

    open_roots: int = 0
    next_deadline_ms: int | None = None
    inits: int = 0
    acks: int = 0
    fails: int = 0
    resets: int = 0
    late: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    micro_batches: int = 0
    settle_ms: float | None = None
    settle_spread: Mapping[int, int] = field(default_factory=dict)
    batch_ms: float | None = None
    batch_spread: Mapping[int, int] = field(default_factory=dict)
    received: Mapping[str, int] = field(default_factory=dict)
    phase_secs: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = (
            f"{what}={getattr(self, what)}" for what in ("inits", "acks", "fails", "late", "open_roots")
        )
        return f"AckerNumbers({', '.join(counts)})"


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """The keys of messages, of all spouts together.

    Attributes:
        kept: Keys that were ACKED within ``key_retention_secs``: a message that comes with one does not run.
        oldest_secs: How long ago the oldest of them was ACKED, by the clocks of micro-batches; None for none.
        open: Keys of messages without a final verdict; rows of a DataFrame are not among them.
        waiting: Messages that wait for the verdict on another one with their key.
    """

    kept: int = 0
    oldest_secs: float | None = None
    open: int = 0
    waiting: int = 0


def outages_together(outages: Iterable[Outage | None]) -> tuple[Outage, ...]:
    """The longest outage of each dependency, or of each fix of a call, in several tasks; the longest first.

    >>> database, slow = Outage("no", "", 5, 1, "database"), Outage("no", "", 7, 1, "database")
    >>> [each.since_ms for each in outages_together([slow, None, database, Outage("no", "", 6, 1, "prices")])]
    [5, 6]
    """
    by_cause: dict[str, Outage] = {}
    for outage in sorted(filter(None, outages), key=lambda outage: outage.since_ms):
        by_cause.setdefault(outage.dependency or f"fix: {outage.fix}", outage)
    return tuple(by_cause.values())


@dataclass(frozen=True, slots=True)
class TraceNumbers:
    """What became of the traces and logged events of a run.

    Attributes:
        messages: Traced messages that were recorded.
        exported: Traces that an OpenTelemetry collector has taken.
        dropped: Why -> how often something of a trace was lost. "queue_full" and "store_failed" count what
            was given in one piece: the messages of a chunk, the verdicts or facts of a micro-batch. "bounds"
            counts tuples beyond the bounds, which are counted by component, messages beyond them, which are
            recorded without their ids, and attempts after the first beyond ``max_traces_per_sec``, which are
            not recorded. "not_exported" counts traces that the collector has not taken.
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
