"""Runs a topology by epochs: cuts them from the inbox, lets the sink judge them, and commits them.

It writes the logs that Spark writes for micro-batches, in Spark's format: ``offsets/N`` before epoch N is
committed, ``commits/N`` when the sink has written it. So recovery is the same for both, and a checkpoint can
be used by micro-batches and by epochs in turn.

Rules of this file
------------------
1. At most one epoch is logged and not committed, as with micro-batches. The offsets of an epoch that is cut
   while another one is under way are logged when that one is committed. Nothing durable depends on it before.
2. An epoch that was logged and not committed when the driver ended runs again with its entries and clock.
3. A query that fails starts again. If it fails :data:`MOST_STARTS` times over one epoch, or
   :data:`MOST_FIRST_STARTS` times before its readers are there for the first time, the run ends. A query that
   names a full disk, whose JVM is gone, or whose task met a CheckpointError or a ConfigError, does not start
   again: the run ends at once.
4. A batch of Spark's ends between two epochs, after :data:`BATCH_SECS` at the latest. Nothing durable depends
   on it.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pyspark import SparkContext

from acktree.checkpoint import disk_errors
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import Entry, Taken, Work
from acktree.core.data.frames import WireRow
from acktree.driver.query import Query
from acktree.errors import AcktreeError
from acktree.logs.loggers import logger
from acktree.spark.query import worker_errors
from acktree.spark.query.handle import explained, is_of_java, java_lost_by
from acktree.spark.query.results import Results, payloads_in_rows
from acktree.spark.query.sink import QuerySink
from acktree.spark.query.source import InboxReader
from acktree.spark.realtime.connections import ConnectionLostError, Moments
from acktree.spark.realtime.epochs import Place
from acktree.spark.realtime.query import ResidentQuery
from acktree.spark.session.gateway import mute_stderr
from acktree.spark.worker import scratch
from acktree.system.private_files import Disk
from acktree.tasks.chunk import Chunk
from acktree.tasks.plan import Plan

__all__ = ["Drive"]

log = logger("acktree")
epoch_log: Final = logger("acktree.epochs")
"""At level DEBUG each epoch is logged with its :class:`Times`."""

MOST_STARTS: Final = 25
"""How often the query fails over one epoch: a few deaths find a tuple that kills its process."""
MOST_FIRST_STARTS: Final = 4
"""As often as Spark tries a task of a micro-batch: what fails each time is no death by chance."""
BATCH_SECS: Final = 3600.0
"""How long a batch of Spark's lasts at most: Spark keeps account of a job and its tasks until they end."""
_EPOCH_SECS: Final = 0.25
"""The wanted duration of a large epoch, if its fixed cost is small beside that; see checkpoint/pace.py."""
_HELD_SECS: Final = 0.05
"""How long it rests at a time while the run stops."""
_KEPT: Final = 10
"""How many entries of each log are kept, as Spark keeps them."""


class _Cut(NamedTuple):
    """An epoch that is under way.

    Attributes:
        number: In Spark's logs.
        start: The inbox entry before its first.
        end: The last inbox entry.
        clock_ms: Its clock.
        begun: When it was cut, by the machine's stopwatch in nanoseconds.
    """

    number: int
    start: int
    end: int
    clock_ms: int
    begun: int


class Times(NamedTuple):
    """Where the time of an epoch went, by the machine's stopwatch in nanoseconds.

    Attributes:
        begun: It was cut.
        sent: The sources have its rows.
        levels: By level and partition what it says of itself.
        whole: All levels have reported.
        judged: The sink has written it.
        committed: It is committed.
    """

    begun: int
    sent: int
    levels: Mapping[Place, Moments]
    whole: int
    judged: int
    committed: int


class _Reader(InboxReader):
    """The inbox of this process. Rows carry the messages of small chunks, and name the file of large ones."""

    def __init__(
        self, inbox: FileInbox, folder: Path, partitions: int, *, longest_secs: float, disk: Disk
    ) -> None:
        options = {"inbox": str(folder), "partitions": str(partitions), "carries": "true"}
        options |= {"interval_secs": str(_EPOCH_SECS), "longest_secs": str(longest_secs)}
        super().__init__(options, disk)
        self._inbox = inbox

    def end_after(self, start: int) -> int:
        """The last entry of the next epoch; ``start`` if there is none."""
        news = self._news(start)
        if not news:
            return start
        self._inbox.take(Taken(news[-1].number, self._pace.allowance))
        return news[-1].number

    def messages(self, start: int, end: int) -> int:
        """How many messages an epoch has that is not committed."""
        return sum(entry.rows for entry in self._between(start, end))

    def ran(self, messages: int, secs: float) -> None:
        """Note how long an epoch kept the ones after it waiting."""
        self._pace.ran(messages, secs)

    def rows(self, cut: _Cut) -> list[WireRow]:
        """The rows of an epoch."""
        parts = self.partitions({"chunk": cut.start}, {"chunk": cut.end})
        return [row._replace(clock_ms=cut.clock_ms) for part in parts for row in part.rows]

    def _following(self, start: int) -> list[Entry]:
        return self._inbox.following(start)

    def _is_held(self) -> bool:
        return self._inbox.is_held

    def _between(self, start: int, end: int) -> list[Entry]:
        return self._inbox.following(start)[: end - start]

    def _orders(self, entry: Entry) -> dict[str, Any]:
        return dict(json.loads(bytes(self._inbox.content(entry))))

    def _chunk(self, entry: Entry) -> Chunk:
        return Chunk.from_bytes(self._inbox.content(entry))

    def _carries_messages(self, entry: Entry) -> bool:
        return len(self._inbox.content(entry)) < scratch.LARGE

    def _whole(self, entry: Entry) -> bytes | None:
        return bytes(self._inbox.content(entry))

    def _watch(self, end: int) -> Entry | None:
        return self._inbox.newest_watch(end)

    def _work(self) -> Work | None:
        return self._inbox.work


class Drive(Query):
    """The epochs of one run, in a thread of its own; the supervisor sees it as the run's query."""

    def __init__(
        self,
        query: ResidentQuery,
        checkpoint: Checkpoint,
        inbox: FileInbox,
        plan: Plan,
        sink: QuerySink,
        on_commit: Callable[[], None],
    ) -> None:
        """Prepare it.

        Args:
            query: The resident query, not started.
            checkpoint: The folder.
            inbox: Its inbox, which is read here from now on.
            plan: The plan.
            sink: It is given Spark's number of each epoch, and its results.
            on_commit: Called after each commit.
        """
        self._query, self._checkpoint = query, checkpoint
        self._sink = sink
        self._gateway = SparkContext._gateway  # noqa: SLF001
        self.on_commit = on_commit
        """Called after each commit, and at the end."""
        self._inbox = inbox
        self._reader = _Reader(
            inbox, checkpoint.inbox, plan.partitions, longest_secs=plan.config.batch_interval_secs,
            disk=checkpoint.files.disk,
        )  # fmt: skip
        inbox.read_here(query.wake, lambda: query.can_send)
        self._under_way: deque[_Cut] = deque()
        self._next = checkpoint.last_committed() - checkpoint.first_batch + 1
        self._end = checkpoint.committed_end()
        self._stopping = Event()
        self._is_lost, self._losses = False, 0
        self._batch_until = 0.0
        self._error: BaseException | None = None
        self._sent: dict[int, tuple[int, int]] = {}
        """By epoch under way when it was sent, and how many messages it has."""
        self._times: tuple[int, Times] | None = None
        self._thread = Thread(target=self._run, name="acktree epochs", daemon=True)

    def begin(self) -> None:
        """Start the thread, which starts the query."""
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_between_batches(self) -> bool:
        return not self._under_way

    def failure(self) -> BaseException | None:
        return self._error

    def last_batch_secs(self) -> float | None:
        if self._times is None:
            return None
        _, times = self._times
        return (times.committed - times.begun) / 1e9

    def has_read_all(self) -> bool:
        return True

    def last_phases(self) -> tuple[int, Mapping[str, int]]:
        """The number and the phases of the last epoch, by the names that Spark has for those of its own."""
        if self._times is None:
            return -1, {}
        number, times = self._times
        ms = {
            "queryPlanning": times.sent - times.begun,
            "addBatch": times.judged - times.sent,
            "commitOffsets": times.committed - times.judged,
        }
        return number, {phase: took // 1_000_000 for phase, took in ms.items()}

    def explained(self, error: BaseException) -> BaseException:
        if (lost := java_lost_by(error, self._gateway, self._checkpoint)) is not None:
            return lost
        return self._checkpoint.files.explained(explained(error, self._checkpoint))

    def stop(self, *, at_once: bool) -> None:
        self._stopping.set()
        if at_once:
            mute_stderr()  # before the tasks of an epoch under way lose their connections
        if self._under_way:
            self._query.interrupt()
        self._query.wake()
        self._thread.join()

    def _run(self) -> None:
        """The thread's target."""
        try:
            self.start_up()
            while not self._stopping.is_set():
                self.step()
        except BaseException as error:  # noqa: BLE001  # the supervisor raises it
            if not self._stopping.is_set():
                self._error = error
        finally:
            try:
                self._query.stop()
            except Exception as error:  # noqa: BLE001  # of a JVM that is gone
                self._error = self._error or error
            self.on_commit()

    def start_up(self) -> None:
        """What the thread does first: start the query, and send again what was logged."""
        self._give_id()
        self._start_first()
        self._run_again_what_was_logged()

    def step(self) -> None:
        """What the thread does over and over: cut an epoch, or wait for one and commit it."""
        if not (self._may_cut and self._cut_next()):
            self._go_on()

    def _run_again_what_was_logged(self) -> None:
        """The epoch that an earlier driver logged and did not commit runs again as it was."""
        file = self._checkpoint.spark / "offsets" / str(self._next)
        if self._checkpoint.files.is_logged(file):
            _, metadata, offset, *_ = self._checkpoint.files.read_log(file).splitlines()
            clock_ms = int(json.loads(metadata)["batchTimestampMs"])
            self._begin(
                _Cut(self._next, self._end, int(json.loads(offset)["chunk"]), clock_ms, time.monotonic_ns())
            )

    def _cut_next(self) -> bool:
        """Cut an epoch and send it, if the inbox has something new."""
        end = self._reader.end_after(self._end)
        if end == self._end:
            return False
        cut = _Cut(self._next, self._end, end, time.time_ns() // 1_000_000, time.monotonic_ns())
        if self._under_way:
            self._send(cut)
        else:
            self._log_offsets(cut)
            self._begin(cut)
        return True

    def _begin(self, cut: _Cut) -> None:
        """Send an epoch that is logged, once what it stands on is synced."""
        self._sink.begin(self._checkpoint.first_batch + cut.number)
        self._send(cut)

    def _send(self, cut: _Cut) -> None:
        rows = self._reader.rows(cut)
        messages = self._reader.messages(cut.start, cut.end)
        self._under_way.append(cut)
        self._next, self._end = cut.number + 1, cut.end
        try:
            self._query.send(rows)
        except ConnectionLostError as error:
            self._note_loss(error)
        self._sent[cut.number] = time.monotonic_ns(), messages

    @property
    def _may_cut(self) -> bool:
        return self._query.can_send and not self._is_batch_due and not self._is_lost

    @property
    def _is_batch_due(self) -> bool:
        return time.monotonic() >= self._batch_until

    def _has_news(self) -> bool:
        """Whether there is something to do beside the epochs under way."""
        if self._stopping.is_set():
            return True
        return self._may_cut and not self._inbox.is_held and self._inbox.last_number > self._end

    def _go_on(self) -> None:
        """Wait until the oldest epoch is whole, and commit it; or until there is something else to do."""
        if self._is_lost and self._inbox.is_held and not self._under_way:
            self._stopping.wait(_HELD_SECS)  # the run stops soon
            return
        try:
            if self._is_lost:
                began = time.monotonic()
                self._start()
                log.info("the query of real time has started again in %.1f s", time.monotonic() - began)
            elif self._is_batch_due and not self._under_way:
                self._end_batch()
            secs = None if self._under_way else max(0.0, self._batch_until - time.monotonic())
            found = self._query.take(self._has_news, secs)
        except ConnectionLostError as error:
            self._note_loss(error)
            return
        if found is not None:
            self._commit(*found)

    def _commit(self, number: int, rows: list[WireRow]) -> None:
        """Let the sink write the oldest epoch, and commit it."""
        whole, cut = time.monotonic_ns(), self._under_way[0]
        self._sink.take(cut.number, Results(rows, payloads_in_rows([]), payloads_in_rows([])))
        judged = time.monotonic_ns()
        self._log("commits", cut.number, '{"nextBatchWatermarkMs":0}')
        self._query.committed(number)
        self._under_way.popleft()
        self._losses = 0
        committed = time.monotonic_ns()
        self.on_commit()  # first: spouts wait for their verdicts
        if self._under_way:
            self._log_offsets(self._under_way[0])
        before = cut.begun if self._times is None else self._times[1].committed
        sent, messages = self._sent.pop(cut.number)
        times = Times(cut.begun, sent, self._query.moments, whole, judged, committed)
        self._times = cut.number, times
        self._reader.ran(messages, (times.committed - max(before, cut.begun)) / 1e9)
        epoch_log.debug("epoch=%s times=%s", cut.number, times, extra={"times": times})

    def _start_first(self) -> None:
        """Start the query, as often as workers die before it runs."""
        self._is_lost = True
        while self._is_lost:
            try:
                self._start()
            except ConnectionLostError as error:
                if self._losses + 1 >= MOST_FIRST_STARTS:
                    self._raise_if_explained(error.__cause__ or error)
                    raise AcktreeError(
                        f"the query of real time failed {MOST_FIRST_STARTS} times while it started",
                        f"checkpoint {self._checkpoint.place}: {error.__cause__ or error!s:.500}",
                        "mend what this error names; if workers die, see their own output above",
                    ) from error
                self._note_loss(error)

    def _note_loss(self, error: ConnectionLostError) -> None:
        if self._stopping.is_set():
            raise error
        self._is_lost, self._losses = True, self._losses + 1
        reason = error.__cause__ or error
        is_of_disk_or_java = disk_errors.is_full(reason) or is_of_java(reason)
        if is_of_disk_or_java or worker_errors.is_lasting(reason) or self._losses >= MOST_STARTS:
            self._raise_if_explained(reason)
        if self._losses >= MOST_STARTS:
            under_way = [cut.number for cut in self._under_way]
            raise AcktreeError(
                f"the query of real time failed {MOST_STARTS} times over one epoch",
                f"epochs {under_way}, checkpoint {self._checkpoint.place}: {reason!s:.500}",
                "mend what this error names; if workers die, see their own output above, and without "
                "real_time more deaths are survived",
            ) from error
        log.warning("the query of real time failed and starts again: %.500s", reason)

    def _raise_if_explained(self, reason: BaseException) -> None:
        """Raise what to say of a full disk, a lost JVM or an error of acktree, if that ended the query."""
        ours = self.explained(reason)
        if ours is not reason:
            raise ours from ours.__cause__  # without what is handled here: its cause is Spark's whole text

    def _start(self) -> None:
        self._query.start()
        self._is_lost, self._batch_until = False, time.monotonic() + BATCH_SECS

    def _end_batch(self) -> None:
        """End Spark's batch; the next one begins by itself, with tasks that load their memory anew."""
        began = time.monotonic()
        self._query.end_batch()
        now = time.monotonic()
        self._batch_until = now + BATCH_SECS
        log.info("a batch of Spark's ended between two epochs, and the next began after %.1f s", now - began)

    def _log_offsets(self, cut: _Cut) -> None:
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": cut.clock_ms, "conf": {}}
        self._log(
            "offsets", cut.number, json.dumps(metadata, separators=(",", ":")), f'{{"chunk": {cut.end}}}'
        )

    def _log(self, name: str, number: int, *lines: str) -> None:
        """Write an entry of one of Spark's logs, and delete an old one."""
        folder = self._checkpoint.spark / name
        files = self._checkpoint.files
        files.check()
        files.write(folder / str(number), "\n".join(("v1", *lines)).encode())
        files.remove(folder / str(number - _KEPT))

    def _give_id(self) -> None:
        """Spark's checkpoint has the id of its query; a new one gets one."""
        self._checkpoint.files.make_spark_folder(self._checkpoint.spark)
        for log_name in ("offsets", "commits"):
            self._checkpoint.files.disk.make_folder(self._checkpoint.spark / log_name)
        file = self._checkpoint.spark / "metadata"
        if not self._checkpoint.files.is_logged(file):
            self._checkpoint.files.write(file, json.dumps({"id": str(uuid4())}).encode())
