"""The end of the ladder, in the driver: judges each micro-batch and keeps its verdicts until the commit.

Spark calls it at least once for each micro-batch, and again after a crash between its return and the commit.
So all that it passes on is idempotent: a second verdict finds its message closed, and counters are of this
run.

No verdict is delivered to a spout here. The micro-batch is not committed yet. If the driver dies now it runs
again, and a bolt may fail that did not fail before: an ack that was delivered would have been wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.core.data.frames import Kind
from acktree.core.micro_batch import MicroBatch
from acktree.driver.batch import BatchResults, RowsByKind, rows_by_kind, source_work_ms
from acktree.spark.query.results import Results, results_of
from acktree.spark.worker import scratch
from acktree.tasks.broadcast import Broadcast
from acktree.tasks.spouts.verdict_batch import VerdictBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class QuerySink:
    """The function given to ``foreachBatch``.

    Attributes:
        results: Judges each micro-batch, and counts.
        commits: The commit log.
        scratch: The folder of large rows, if driver and workers share a machine.
        folders: Folders of files whose names begin with a micro-batch's id; the next micro-batch deletes
            them.
        dispatch: Keeps verdicts for the spout tasks, by task, until the micro-batch is committed.
        on_batch: Called when a micro-batch has run, before Spark commits it.
        sync: Called with the last committed micro-batch before anything depends on its commit: see
            ``Checkpoint.sync``.
        phases_ms: Returns where the time of an earlier micro-batch went, by Spark's number of it.
        first_batch: The number of Spark's first micro-batch in the checkpoint.
        has_gates: Whether a bolt or sink is exactly once: what it writes elsewhere has the number of the
            micro-batch, which must then run again over the same messages.
        has_payloads: Whether some spout is a DataFrame with a ``Retry`` or an ``Acknowledger``.
    """

    results: BatchResults
    inbox: FileInbox
    commits: CommitLog
    scratch: str | None
    folders: Sequence[Path]
    dispatch: Callable[[int, Mapping[int, VerdictBatch]], None]
    on_batch: Callable[[], None]
    sync: Callable[..., None]
    phases_ms: Callable[[int], Mapping[str, int]]
    first_batch: int = 0
    has_payloads: bool = False
    has_gates: bool = False

    def __call__(self, frame: DataFrame, spark_batch_id: int) -> None:
        """Take the results of one micro-batch."""
        self.begin(self.first_batch + spark_batch_id)
        with results_of(frame, self.scratch, has_payloads=self.has_payloads) as collected:
            self.take(spark_batch_id, collected)

    def begin(self, batch_id: int) -> None:
        """Sync what a micro-batch stands on, before its levels run."""
        self.sync(batch_id - 1, has_begun=self.has_gates)

    def take(self, spark_batch_id: int, collected: Results) -> None:
        """Take what was collected of a micro-batch, or of an epoch."""
        batch_id = self.first_batch + spark_batch_id
        self.sync(batch_id - 1)
        before = self.phases_ms(spark_batch_id - 1)  # this one has Spark's phases when it is committed
        self.results.note_phases({phase: ms * 1000 for phase, ms in before.items()})
        end = self._take(batch_id, collected)
        self.results.times.keep(spark_batch_id)
        self.inbox.consumed(end)
        for used in self.folders:
            scratch.forget_before(used, spark_batch_id)
        self.results.progress.last = (batch_id, end)
        self.on_batch()

    def _take(self, batch_id: int, collected: Results) -> int:
        """Judge what was collected; returns the last inbox number that the micro-batch ran over."""
        rows = rows_by_kind(collected.rows)
        self.results.note(rows, time.time_ns() // 1_000_000)
        message_ms = source_work_ms(rows)
        if message_ms is not None:
            self.inbox.note_work(message_ms)
        # Where all rows came from DataFrames, the micro-batch ran over nothing of the inbox, and the
        # broadcast has no end.
        broadcast = Broadcast.of(rows.get(Kind.BROADCAST, ()))
        last_end = self.results.progress.last[1]
        end = max(last_end, self.inbox.admitted, -1 if broadcast.end is None else broadcast.end)
        micro_batch = _micro_batch(rows, batch_id, is_first=broadcast.is_first)
        decided = self.results.judge(micro_batch, rows, collected.payloads, collected.ids)
        began_ns = time.perf_counter_ns()
        clock_ms = self.results.progress.clock_ms if micro_batch is None else micro_batch.clock_ms
        self.commits.write(Commit(batch_id, clock_ms, end), Outcome(rows, decided.verdicts))
        self.results.note_parts({"log": (time.perf_counter_ns() - began_ns) // 1000})
        self.dispatch(batch_id, decided.by_task)
        return end


def _micro_batch(rows: RowsByKind, batch_id: int, *, is_first: bool) -> MicroBatch | None:
    """The micro-batch whose clock is among these rows; None if there is none."""
    broadcasts = rows.get(Kind.BROADCAST, ())
    return MicroBatch(batch_id, broadcasts[0].clock_ms, is_first) if broadcasts else None
