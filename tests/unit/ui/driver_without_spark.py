"""A driver's own parts on a checkpoint, with their threads and without Spark.

Nothing reads its inbox, until a test calls :meth:`Started.run_inbox`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np

from acktree import BasicBolt, Config, Retry, Spout, TopologyBuilder
from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.logs.commit_log import Commit, Outcome
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.instruments import Increment
from acktree.core.micro_batch import MicroBatch
from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import ReportedError
from acktree.core.stats.user_metrics import increments_to_bytes
from acktree.core.tracking.verdicts import Failure
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import DeadLetters
from acktree.driver.assembly import recovered_log
from acktree.driver.batch import BatchResults, MemoryAcker, rows_by_kind
from acktree.driver.handle import SubmittedTopology
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.run_log import RunLog
from acktree.driver.metrics.total_counts import TotalCounts
from acktree.driver.query import Query
from acktree.driver.run import Run
from acktree.driver.spouts.spout_host import DriverHost
from acktree.driver.spouts.spout_threads import SpoutThread, Threads
from acktree.driver.supervisor import Supervisor
from acktree.driver.ticks import Ticks
from acktree.tasks.acker import Acker
from acktree.tasks.payloads import no_payloads
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing.local_levels import LocalLevels
from acktree.topology import Topology
from acktree.traces.recorder import TraceRecorder
from acktree.traces.store import TraceStore
from acktree.traces.traces import FILE
from acktree.ui.door import Door
from acktree.ui.places import SNAPSHOT


class Numbers(Spout):
    outputs = ["n"]
    redelivers = True

    def open(self, config, context, collector):
        self.collector, self.left = collector, list(range(100))

    def next_tuple(self):
        if self.left:
            number = self.left.pop(0)
            self.collector.emit([number], message_id=f"<b>{number}\x1b[31m")


class Double(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        collector.emit([2 * tup["n"]])


class NothingPasses:
    """Gates through which nothing passes, and in front of which seven tuples wait."""

    def after(self, gate, start):
        return ()

    def handed_over(self, gate, end):
        pass

    settled = handed_over

    def waiting(self, gate, start):
        return 7


class IdleQuery(Query):
    """A query that runs until it is stopped."""

    is_active = True
    is_between_batches = True

    def failure(self):
        return None

    def explained(self, error):
        return error

    def stop(self, *, at_once):
        self.is_active = False


def topology(name: str = "numbers") -> Topology:
    builder = TopologyBuilder(name)
    builder.set_spout("source", Numbers(), retry=Retry(max_attempts=2))
    builder.set_bolt("double", Double(), parallelism=2).shuffle_grouping("source")
    return builder.create_topology()


def wide(name: str, levels: int, parallel: int) -> Topology:
    """A topology of many bolts, each of which reads three of the level before."""
    builder = TopologyBuilder(name)
    builder.set_spout("source", Numbers())
    for level in range(levels):
        for at in range(parallel):
            bolt = builder.set_bolt(f"bolt-{level}-{at}", Double())
            sources = {f"bolt-{level - 1}-{(at + step) % parallel}" for step in range(3)}
            for source in sources if level else {"source"}:
                bolt.shuffle_grouping(source)
    return builder.create_topology()


class Started:
    """A topology that runs as far as it can without Spark."""

    def __init__(
        self,
        folder: Path,
        name: str = "numbers",
        config: Config | None = None,
        given: Topology | None = None,
        files: Files = FOLDER,
    ) -> None:
        config = config or Config(max_spout_pending=10)
        self.held = Checkpoint(folder, files)
        numbered = self.held.begin_run(given or topology(name), config, 2)
        plan = Plan.of(numbered, config.without_secrets(), 2, self.held.run_salt)
        inbox = FileInbox(self.held.inbox, -1, config.inbox_max_messages, config.inbox_max_bytes)
        errors, threads, change = ErrorLog(config), Threads(), Event()
        self.sent: list[object] = []
        self.spark_phases: tuple[int, Mapping[str, int]] = (-1, {})
        self.letters = DeadLetters(self.held.dead_letters, self.sent.extend, create=True)
        recorder = DeadLetterRecorder(self.letters, numbered, config, on_limit=change.set)
        self.door = Door(files.disk if files.is_seen else None, "1.2.3")
        traces = TraceRecorder(TraceStore(self.held.folder / FILE), 1.0, self.held.run_salt)
        totals = TotalCounts(name)
        results = BatchResults(plan, MemoryAcker(Acker(plan)), errors, totals=totals, traces=traces)
        self._levels, self._end = LocalLevels(plan, Ticks(plan, 0)), -1
        self.run = Run(
            plan=plan, checkpoint=self.held, inbox=inbox, results=results,
            threads=threads, dead_letters=self.letters, errors=errors, change=change, ended=Event(),
            stop_session=lambda: None, recorder=recorder,
            close_door=self.door.close, leave_door=self.door.leave,
            described=numbered.describe(2), log=RunLog(name), keys=KeyLog(plan), traces=traces,
        )  # fmt: skip
        host = DriverHost(self.run, recorder)
        vars(host)["report"] = self._report
        for spout in numbered.spouts:
            for task_id in spout.task_ids:
                bare = plan.topology.components[spout.id]
                if spout.gated is not None:
                    spout.user_object.connect(NothingPasses())
                task = SpoutTask(spout.user_object, bare, task_id, plan, host, self.held.first_sequence)
                results.totals.watch(spout.id, task_id, task)
                threads.by_task[task_id] = SpoutThread(task, config, change.set, inbox.is_running)
        self.commits = recovered_log(self.held, self.run, None)
        self.held.note_run(self.commits.sweep)
        self.supervisor = Supervisor(self.run, IdleQuery(), self.commits.close)
        self.handle = SubmittedTopology(self.run, self.supervisor)

    def _report(self, component: str, task: int, failure: Failure) -> None:
        self.run.errors.add(ReportedError(component, task, failure.reason, 0, failure.traceback))

    def begin(self) -> None:
        self.run.results.progress.last = (0, 0)
        times = self.run.results.times
        self.door.open(self.handle, self.run, lambda: times.with_parts(*self.spark_phases))
        self.supervisor.begin()

    def fill(self) -> None:
        """Wait until as many messages are open as may be."""
        end = time.monotonic() + 120
        tasks = [thread.task for thread in self.run.threads.by_task.values()]
        most = self.run.plan.config.max_spout_pending
        # What is being handed over is neither in the collector nor in the inbox for a moment.
        while self.handle.stats()["source"].open != most or any(task.buffered_count for task in tasks):
            assert time.monotonic() < end
            time.sleep(0.005)

    def run_inbox(self) -> None:
        """As a micro-batch of Spark's that is committed, over all that was handed over since the last one."""
        run, results = self.run, self.run.results
        batch_id, now_ms = self.held.last_committed() + 1, time.time_ns() // 1_000_000
        first, self._end = self._end + 1, run.inbox.last_number
        chunks = [(number, run.inbox.read(number)) for number in range(first, self._end + 1)]
        rows = rows_by_kind(self._levels.run(chunks, now_ms, batch_id))
        results.note(rows, now_ms)
        batch = MicroBatch(batch_id, now_ms, is_first=batch_id == 0)
        decided = results.judge(batch, rows, no_payloads)
        self.commits.write(Commit(batch_id, now_ms, self._end), Outcome(rows, decided.verdicts))
        results.progress.last = (batch_id, self._end)
        self._commit(batch_id)
        for task_id, verdicts in decided.by_task.items():
            run.threads.by_task[task_id].dispatch(verdicts, batch_id)

    def _commit(self, batch_id: int) -> None:
        log = self.held.spark / "commits"
        log.mkdir(exist_ok=True)
        (log / str(batch_id)).touch()

    def count(self, counters: Counters) -> None:
        """As a micro-batch that has run brings it."""
        row = WireRow(0, 0, Kind.STATISTICS, 0, 0, 0, b"", counters.to_bytes())
        self.run.results.note({Kind.STATISTICS: [row]}, 0)
        self.keep_counts()

    def keep_counts(self) -> None:
        """Let what was counted be in the counts of all runs, as of the last micro-batch."""
        self.run.results.totals.write(Commit(self.run.results.progress.batch_id, 0, 0), Outcome({}))

    def commit(self, counters: Counters, acked: int = 0) -> None:
        """As a micro-batch of Spark's that is committed: with verdicts of the spout's first messages."""
        results, (task_id,) = self.run.results, self.run.threads.by_task
        batch_id = self.held.last_committed() + 1
        row = WireRow(0, 0, Kind.STATISTICS, 0, 0, 0, b"", counters.to_bytes())
        results.note({Kind.STATISTICS: [row]}, 0)
        verdicts = VerdictBatch(acked=np.arange(acked) + self.held.first_sequence)
        results.totals.note_verdicts({task_id: verdicts})
        self.commits.write(Commit(batch_id, 0, 0), Outcome({}))
        results.progress.last = (batch_id, 0)
        self._commit(batch_id)
        self.run.threads.by_task[task_id].dispatch(verdicts, batch_id)

    def measure(self, component: str, task: int, grown: Mapping[str, Increment]) -> None:
        """As a micro-batch brings what metrics of users grew by."""
        row = WireRow(0, 0, Kind.METRICS, 0, 0, 0, b"", increments_to_bytes(component, task, grown))
        self.run.results.note({Kind.METRICS: [row]}, 0)


@contextmanager
def started(
    folder: Path,
    name: str = "numbers",
    config: Config | None = None,
    given: Topology | None = None,
    files: Files = FOLDER,
) -> Iterator[Started]:
    """Run it, or a topology that is given, for the length of the block, then kill it."""
    topology = Started(folder, name, config, given, files)
    topology.begin()
    try:
        yield topology
    finally:
        topology.handle.kill(wait_secs=0)


def first_kept(folder: Path) -> Path:
    """The file of the snapshot of a topology that has just begun, once it is there."""
    file, deadline = folder / SNAPSHOT, time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline, "no snapshot is kept"
        time.sleep(0.01)
    return file
