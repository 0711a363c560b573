"""Where the ladder ends: verdicts come home to the driver, once a micro-batch.

Called by Spark at least once for each micro-batch, again after a crash between its return and the commit. So
whatever it tells is told idempotently: verdicts find their message closed, counters are of this run.

No spout hears of a verdict here. The micro-batch is not committed yet, and should the driver die now it runs
again, where a bolt may fail that did not fail before: an ack told too early would be an ack of nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from acktree.core.counters import Counters
from acktree.core.frames import Kind, WireRow
from acktree.core.statistics import ReportedError
from acktree.core.values import batch_from_bytes, decode_rows
from acktree.spark import scratch
from acktree.spark.acker import DurableAcker, TakePayloads
from acktree.spark.inbox import FileInbox
from acktree.spark.journal import Journal
from acktree.spark.results import Results, results_of
from acktree.tasks.mail import Mail, mail_of, timed_out
from acktree.tasks.outputs import Payload
from acktree.tasks.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


tuple_log = logging.getLogger("acktree.tuples")
"""With ``Config(debug=True)``: every tuple that any component emits."""


@dataclass
class Ended:
    """What the last micro-batch said; read by the keeper.

    Attributes:
        last: The last micro-batch whose sink has run, and the last number of the inbox that it ran over; -1
            before the first. One value, for whoever reads it meanwhile.
        clock_ms: The clock of that micro-batch.
        open_count: Roots open at the acker.
        next_deadline_ms: When the acker wants a micro-batch; None for never.
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
        """Whether the acker is to be asked now: at its deadline, and at once if the clock was set back."""
        deadline_ms = self.next_deadline_ms  # the sink may change it meanwhile
        return deadline_ms is not None and (deadline_ms <= now_ms or now_ms < self.clock_ms)


@dataclass
class Sink:
    """The function given to ``foreachBatch``.

    Attributes:
        acker: None when nothing is tracked.
        scratch: Where large rows are, if driver and workers share a machine.
        folders: Folders of files that begin with a micro-batch's id, and go with the next one.
        deliver: Keeps mail for the spout tasks, by task, until the micro-batch is committed.
        ended: What the last micro-batch said.
        on_batch: Called when a micro-batch has run, and will be committed next.
        first_batch: What Spark's first micro-batch counts as.
    """

    plan: Plan
    acker: DurableAcker | None
    inbox: FileInbox
    journal: Journal | None
    scratch: str | None
    folders: Sequence[Path]
    deliver: Callable[[int, Mapping[int, Mail]], None]
    report: Callable[[ReportedError], object]
    on_batch: Callable[[], None] = field(default_factory=lambda: _nothing)
    first_batch: int = 0
    ended: Ended = field(default_factory=Ended)
    _counters: Counters = field(default_factory=Counters)
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, frame: DataFrame, spark_batch_id: int) -> None:
        """Take what one micro-batch decided."""
        batch_id = self.first_batch + spark_batch_id
        with results_of(frame, self.scratch, has_payloads=self.plan.has_payloads) as results:
            end = self._take(batch_id, results)
        self.inbox.consumed(end)
        if self.journal is not None:
            self.journal.forget_before(self.inbox.oldest_kept)
        for used in self.folders:
            scratch.forget_before(used, spark_batch_id)
        self.ended.last = (batch_id, end)
        self.on_batch()

    def _take(self, batch_id: int, results: Results) -> int:
        """Take what was collected; returns the last number of the inbox that the micro-batch ran over."""
        told: dict[int, list[WireRow]] = defaultdict(list)
        for row in results.rows:
            told[row.kind].append(row)
        self._look_at(told)
        # Where a DataFrame alone brought rows, nothing of the inbox was run over and no end is told.
        orders = [json.loads(row.head) for row in told[Kind.CLOCK] if row.head]
        end = max((self.ended.last[1], self.inbox.admitted, *(int(order["end"]) for order in orders)))
        if self.acker is not None and told[Kind.CLOCK]:
            is_first = any(order["is_first"] for order in orders)
            self._settle(self.acker, batch_id, end, told, results.payloads, is_first=is_first)
        else:
            self.deliver(batch_id, {})
        return end

    def _settle(
        self,
        acker: DurableAcker,
        batch_id: int,
        end: int,
        told: Mapping[int, Sequence[WireRow]],
        payloads: TakePayloads,
        *,
        is_first: bool,
    ) -> None:
        clock_ms = told[Kind.CLOCK][0].clock_ms
        verdicts, failed = acker.settle(batch_id, told[Kind.DELTAS], payloads, clock_ms, is_first=is_first)
        stored: Iterable[Payload] = ()
        if self.journal is not None and verdicts:
            stored = self.journal.write(batch_id, end, verdicts, failed)
        self.ended.open_count, self.ended.clock_ms = verdicts.open_count, clock_ms
        self.ended.next_deadline_ms = verdicts.next_deadline_ms
        late = timed_out(self.plan.timeout_ms)
        self.deliver(batch_id, mail_of(verdicts, self.plan.run_salt, late, stored))

    def _look_at(self, told: Mapping[int, Sequence[WireRow]]) -> None:
        """What is for people: counts, errors, and with ``debug`` every tuple."""
        with self._lock:
            for row in told.get(Kind.STATISTICS, ()):
                self._counters.merge(Counters.from_bytes(row.body))
        for row in told.get(Kind.ERROR, ()):
            self._report_all(row.head.decode(), json.loads(bytes(row.body)))
        for row in told.get(Kind.EMITTED, ()):
            component, stream = json.loads(row.head)
            for values in decode_rows(batch_from_bytes(row.body)):
                tuple_log.info("component=%s stream=%s values=%r", component, stream, values)

    def counters(self) -> Counters:
        """A copy of what was counted in this run."""
        copied = Counters()
        with self._lock:
            copied.merge(self._counters)
        return copied

    def _report_all(self, component: str, errors: list[Mapping[str, object]]) -> None:
        at_ms = time.time_ns() // 1_000_000
        for error in errors:
            traceback = error["traceback"]
            self.report(
                ReportedError(
                    component,
                    int(str(error["task"])),
                    str(error["reason"]),
                    at_ms,
                    None if traceback is None else str(traceback),
                )
            )


def _nothing() -> None:
    """Nobody listens yet."""
