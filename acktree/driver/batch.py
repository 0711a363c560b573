"""Processes the rows that a micro-batch sends to the driver, on Spark and in ``LocalCluster``.

Counters are added up, errors and (with ``Config(debug=True)``) tuples are logged, the acker makes verdicts,
and the verdicts are grouped by spout task. The host decides when to dispatch them: Spark's host after the
commit of the micro-batch.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from typing import Final, NamedTuple, Protocol

from acktree.checkpoint.logs.journal import NO_ROWS, Journal
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.values import batch_from_bytes, rows_to_show
from acktree.core.micro_batch import MicroBatch
from acktree.core.packing import int64s, unpack
from acktree.core.stats.counters import (
    ACKER,
    ACKER_ACK,
    ACKER_FAIL,
    ACKER_TASK,
    LEVEL_TIME,
    NO_STREAM,
    PHASE,
    SUMS,
    Counters,
    Key,
    spread_key,
)
from acktree.core.stats.numbers import ReportedError
from acktree.core.tracking.verdicts import Verdicts
from acktree.driver.batch_times import BatchTimes
from acktree.driver.holders import Holders
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.metrics.metrics_book import MetricsBook
from acktree.driver.metrics.total_counts import TotalCounts
from acktree.logs.loggers import logger
from acktree.tasks.acker import Acker
from acktree.tasks.payloads import Payload, RowIds, TakePayloads, no_payloads
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.verdict_batch import VerdictBatch, timed_out, verdict_batches_of

tuple_log: Final = logger("acktree.tuples")
"""Logs every emitted tuple with ``Config(debug=True)``."""

FORGOTTEN_KEPT: Final = 100_000
"""Of how many messages the bolt that forgot a tuple is known when they time out; in memory only."""
RowsByKind = Mapping[int, Sequence[WireRow]]


def rows_by_kind(rows: Iterable[WireRow]) -> RowsByKind:
    """Group the rows for the driver by kind; a missing kind has no rows."""
    sorted_rows: dict[int, list[WireRow]] = defaultdict(list)
    for row in rows:
        sorted_rows[row.kind].append(row)
    return sorted_rows


def source_work_ms(rows: RowsByKind) -> float | None:
    """How long the bolts of the source level took for a message, all in all; None if it had no message.

    0 if no bolt runs on that level.
    """
    statistics = [row for row in rows.get(Kind.STATISTICS, ()) if row.sequence == 0]
    if not statistics:
        return None
    counters = Counters()
    for row in statistics:
        counters.merge(Counters.from_bytes(row.body))
    executed = counters.by_component("executed")
    executed.pop(ACKER, None)  # what it is sent from here, and no bolt of the level
    messages = max(executed.values(), default=0)
    return counters.total(SUMS["execute_ms"]) / 1000 / messages if messages else 0.0


@dataclass
class Progress:
    """The progress of a run after its last micro-batch: written by the sink, read by the supervisor.

    Attributes:
        last: The last micro-batch whose sink has run, and its last inbox number; -1 before the first. One
            value, so that a reader on another thread sees both change together.
        clock_ms: The clock of that micro-batch.
        open_count: The number of open roots at the acker.
        next_deadline_ms: When the acker needs a micro-batch for a timeout; None for never.
    """

    last: tuple[int, int] = (-1, -1)
    clock_ms: int = 0
    open_count: int = 0
    next_deadline_ms: int | None = None

    @property
    def batch_id(self) -> int:
        """The last micro-batch whose sink has run; -1 before the first."""
        return self.last[0]

    def wants_a_beat(self, now_ms: int) -> bool:
        """Whether the acker's deadline has passed, or the clock was set back."""
        deadline_ms = self.next_deadline_ms  # the sink may change it meanwhile
        return deadline_ms is not None and (deadline_ms <= now_ms or now_ms < self.clock_ms)


class BatchAcker(Protocol):
    """An acker that judges whole micro-batches.

    Attributes:
        row_ids: Message ids of the rows of the last micro-batch; to be read before the next.
    """

    row_ids: RowIds

    def judge(
        self,
        batch: MicroBatch,
        deltas: Iterable[WireRow],
        payloads: TakePayloads,
        ids: TakePayloads = no_payloads,
    ) -> tuple[Verdicts, Iterable[Payload]]:
        """Judge a micro-batch.

        Args:
            batch: The micro-batch.
            deltas: Its rows of kinds DELTAS and COMBINED.
            payloads: Returns the values of rows of DataFrames, in pieces.
            ids: Returns their message ids, in pieces.

        Returns:
            Its verdicts, and the values of the rows that failed; read these before the next call.
        """


class Decided(NamedTuple):
    """What a micro-batch decided.

    Attributes:
        verdicts: What the acker decided; None if no message is tracked.
        by_task: Spout task -> its verdicts, to be dispatched after the commit of the micro-batch.
    """

    verdicts: Verdicts | None
    by_task: dict[int, VerdictBatch]


class MemoryAcker(BatchAcker):
    """An acker that keeps its ledger in memory only, for ``LocalCluster``."""

    def __init__(self, acker: Acker) -> None:
        self._acker = acker
        self.row_ids = RowIds()

    def judge(
        self,
        batch: MicroBatch,
        deltas: Iterable[WireRow],
        payloads: TakePayloads,  # noqa: ARG002
        ids: TakePayloads = no_payloads,  # noqa: ARG002
    ) -> tuple[Verdicts, Iterable[Payload]]:
        return self._acker.judge(deltas, batch.clock_ms, is_first=batch.is_first), ()


class BatchTraces(Protocol):
    """Receives what a micro-batch says of traced messages. Must not block."""

    def add(self, batch: MicroBatch, rows: Iterable[WireRow]) -> None:
        """Take its rows of kind TRACE."""

    def judged(self, batch: MicroBatch, batches: Mapping[int, VerdictBatch]) -> None:
        """Take its verdicts."""


class BatchEvents(Protocol):
    """Receives the emitted tuples that operators watch. Must not block."""

    def add(self, rows: Iterable[WireRow]) -> None:
        """Take a micro-batch's rows of kind EVENTS."""


class BatchResults:
    """The results of one run's micro-batches.

    Attributes:
        progress: The progress after the last micro-batch.
        metrics: The metrics of users.
        totals: The counts of all runs.
        times: Where the time of the last micro-batches went.
        holders: The tasks that hold tuples over micro-batches.
    """

    def __init__(
        self,
        plan: Plan,
        acker: BatchAcker | None,
        errors: ErrorLog,
        journal: Journal | None = None,
        traces: BatchTraces | None = None,
        events: BatchEvents | None = None,
        totals: TotalCounts | None = None,
    ) -> None:
        """Start without results.

        Args:
            plan: The plan of the topology.
            acker: The acker; None if no message is tracked.
            errors: Where reported errors go.
            journal: None if the queues of all spouts redeliver open messages.
            traces: Where traced messages are recorded; None for nowhere.
            events: Where the event log goes; None for nowhere.
            totals: The counts of all runs; None: of this one, in memory.
        """
        self.totals = TotalCounts() if totals is None else totals
        components = plan.topology.components.values()
        tasks = {(component.id, task) for component in components for task in component.task_ids}
        self.metrics = MetricsBook(errors, tasks)
        self.times = BatchTimes()
        self._traces, self._events = traces, events
        self._plan, self._acker, self._errors, self._journal = plan, acker, errors, journal
        self._counters = Counters()
        self.holders = Holders()
        self._lock = Lock()
        self._forgotten: dict[int, str] = {}
        self.progress = Progress()

    def judge(
        self,
        batch: MicroBatch | None,
        rows: RowsByKind,
        payloads: TakePayloads,
        ids: TakePayloads = no_payloads,
    ) -> Decided:
        """Make the verdicts of a micro-batch. They are durable with its commit.

        Args:
            batch: The micro-batch; None if its rows held no clock, in which case nothing is judged.
            rows: Its rows for the driver.
            payloads: Returns the values of its rows of DataFrames.
            ids: Returns their message ids.
        """
        if batch is not None:
            self._count_for_acker(("micro_batches", 1))
        if self._acker is None or batch is None:
            return Decided(None, {})
        self._note_forgotten(rows)
        began_ns = time.perf_counter_ns()
        deltas = (*rows.get(Kind.DELTAS, ()), *rows.get(Kind.COMBINED, ()))
        verdicts, failed = self._acker.judge(batch, deltas, payloads, ids)
        row_ids = self._acker.row_ids
        stored = NO_ROWS
        if self._journal is not None:
            stored = self._journal.write_rows(batch.batch_id, failed, row_ids.judged)
        self._count_settled(verdicts, (time.perf_counter_ns() - began_ns) // 1000)
        self.progress.open_count, self.progress.clock_ms = verdicts.open_count, batch.clock_ms
        self.progress.next_deadline_ms = verdicts.next_deadline_ms
        batches = verdict_batches_of(
            verdicts, self._plan.run_salt, timed_out(self._plan.timeout_ms), stored.failed,
            ids=stored.ids, timeout_of=self._plan.timeout_of, forgotten=self._forgotten,
        )  # fmt: skip
        self.totals.note_verdicts(batches)
        for task, message_ids in row_ids.left_open:
            verdict_batch = batches.get(task, VerdictBatch())
            batches[task] = replace(verdict_batch, left_open=[*verdict_batch.left_open, message_ids])
        if self._traces is not None:
            self._traces.add(batch, rows.get(Kind.TRACE, ()))
            self._traces.judged(batch, batches)
        return Decided(verdicts, batches)

    def _note_forgotten(self, rows: RowsByKind) -> None:
        """Note which bolt left a tuple of a root without ack or fail. Only the newest roots are kept."""
        for row in rows.get(Kind.FORGOTTEN, ()):
            self._forgotten |= dict.fromkeys(int64s(unpack(row.body)[0]).tolist(), row.head.decode())
        for root in list(islice(self._forgotten, max(0, len(self._forgotten) - FORGOTTEN_KEPT))):
            del self._forgotten[root]

    def note(self, rows: RowsByKind, now_ms: int) -> None:
        """Add a micro-batch's counters, report its errors and log its tuples."""
        slowest_us: dict[str, int] = {}  # of each level the time on the clock of its slowest partition
        for row in rows.get(Kind.STATISTICS, ()):
            counters = Counters.from_bytes(row.body)
            self._count(counters)
            level, took_us = f"level_{row.sequence}", counters.total(LEVEL_TIME)
            slowest_us[level] = max(took_us, slowest_us.get(level, 0))
        self.holders.note(rows.get(Kind.STATISTICS, ()))
        self.note_parts(slowest_us)
        for row in list(rows.get(Kind.BROADCAST, ()))[:1]:
            took_us = max(0, now_ms - row.clock_ms) * 1000
            self._count_for_acker(("batch_us", took_us), (spread_key("batch", took_us, 1), 1))
        self.metrics.note(rows.get(Kind.METRICS, ()), now_ms)
        if self._events is not None:
            self._events.add(rows.get(Kind.EVENTS, ()))
        for row in rows.get(Kind.ERROR, ()):
            for error in json.loads(bytes(row.body)):
                component = row.head.decode()
                self._errors.add(
                    ReportedError(component, error["task"], error["reason"], now_ms, error["traceback"])
                )
        for row in rows.get(Kind.EMITTED, ()):
            component, stream = json.loads(row.head)
            for values in rows_to_show(batch_from_bytes(row.body)):
                tuple_log.info("component=%s stream=%s values=%r", component, stream, values)

    def note_parts(self, us: Mapping[str, int]) -> None:
        """Add the microseconds that parts of this micro-batch took, which Spark counts as one phase."""
        self.times.add(us)
        self.note_phases(us)

    def note_phases(self, us: Mapping[str, int]) -> None:
        """Add the microseconds that phases of a micro-batch took."""
        self._count_for_acker(*((f"{PHASE}{phase}", took) for phase, took in us.items()))

    def _count_settled(self, verdicts: Verdicts, took_us: int) -> None:
        """Count the verdicts of a micro-batch, and how long the acker took for them."""
        self.times.add({"acker": took_us})
        acked = sum(len(sequences) for _, sequences in verdicts.done) + len(verdicts.acked.roots)
        self._count_for_acker(("emitted", acked), stream=ACKER_ACK)
        self._count_for_acker(
            ("emitted", len(verdicts.failed.roots)), ("timed_out", len(verdicts.timed_out.roots)),
            stream=ACKER_FAIL,
        )  # fmt: skip
        self._count_for_acker(
            ("late", verdicts.late_count), ("settle_us", took_us), (spread_key("settle", took_us, 1), 1)
        )

    def _count_for_acker(self, *counts: tuple[str, int], stream: str = NO_STREAM) -> None:
        """Add to the counters of the acker."""
        keyed: list[tuple[Key, int]] = [((ACKER, ACKER_TASK, stream, what), n) for what, n in counts]
        self._count(Counters.of(keyed))

    def _count(self, counters: Counters) -> None:
        """Count for this run, and for all runs."""
        self.totals.note(counters)
        with self._lock:
            self._counters.merge(counters)

    def forgotten_by(self, root: int) -> str | None:
        """The bolt that left a tuple of a root without ack or fail; None if none is known. On any thread."""
        return self._forgotten.get(root)

    def counters(self) -> Counters:
        """A copy of the counters of this run. Any thread may call it."""
        copied = Counters()
        with self._lock:
            copied.merge(self._counters)
        return copied
