"""Runs a topology by epochs: cuts them from the inbox, lets the sink judge them, and commits them.

It writes the logs that Spark writes for micro-batches, in Spark's format: ``offsets/N`` before epoch N is
committed, ``commits/N`` when the sink has written it. So recovery is the same for both, and a checkpoint can
be used by micro-batches and by epochs in turn.

Rules of this file
------------------
1. At most one epoch is logged and not committed, as with micro-batches. The offsets of an epoch that is cut
   while another one is under way are logged when that one is committed. Nothing durable depends on it before.
2. An epoch that was logged and not committed when the driver ended runs again with its entries and clock.
3. A query that fails starts again. If it fails :data:`MOST_STARTS` times over one epoch, the run ends.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Final, NamedTuple
from uuid import uuid4

from acktree.checkpoint import full_disk
from acktree.checkpoint.folder import Checkpoint
from acktree.core.data.frames import WireRow
from acktree.driver.query import Query
from acktree.errors import AcktreeError
from acktree.logs import logger
from acktree.spark.query.results import Results, payloads_in_rows
from acktree.spark.query.source import InboxReader
from acktree.spark.realtime.connections import ConnectionLostError
from acktree.spark.realtime.query import ResidentQuery

__all__ = ["Drive"]

log = logger("acktree")

MOST_STARTS: Final = 25
"""How often the query fails over one epoch: a few deaths find a tuple that kills its process."""
_EPOCH_SECS: Final = 0.1
"""The wanted duration of a large epoch; see checkpoint/pace.py."""
_WAIT_SECS: Final = 1.0
"""How long the inbox is waited for at a time."""
_HELD_SECS: Final = 0.05
"""How long it rests at a time while the run stops."""
_KEPT: Final = 10
"""How many entries of each log are kept, as Spark keeps them."""


class _Cut(NamedTuple):
    """An epoch that is under way: its number in Spark's logs, its last inbox entry, and its clock."""

    number: int
    end: int
    clock_ms: int


class _Reader(InboxReader):
    """The inbox, read by the driver itself. Rows carry their messages."""

    def __init__(self, checkpoint: Checkpoint, partitions: int) -> None:
        options = {"inbox": str(checkpoint.inbox), "partitions": str(partitions), "carries": "true"}
        super().__init__({**options, "interval_secs": str(_EPOCH_SECS)})

    def end_after(self, start: int, secs: float) -> int:
        """The last entry of the next epoch; ``start`` if none comes within ``secs``."""
        self._patience_secs = secs
        return self.latestOffset({"chunk": start}, None)["chunk"]

    @property
    def is_held(self) -> bool:
        """Whether no further epoch is to be cut: the run stops."""
        return self._is_held()

    def rows(self, start: int, cut: _Cut) -> list[WireRow]:
        """The rows of an epoch."""
        parts = self.partitions({"chunk": start}, {"chunk": cut.end})
        return [row._replace(clock_ms=cut.clock_ms) for part in parts for row in part.rows]


class Drive(Query):
    """The epochs of one run, in a thread of its own; the supervisor sees it as the run's query."""

    def __init__(
        self,
        query: ResidentQuery,
        checkpoint: Checkpoint,
        partitions: int,
        take: Callable[[int, Results], None],
        on_commit: Callable[[], None],
    ) -> None:
        """Prepare it.

        Args:
            query: The resident query, not started.
            checkpoint: The folder.
            partitions: Of the plan.
            take: The sink: is given Spark's number of each epoch, and its results.
            on_commit: Called after each commit.
        """
        self._query, self._checkpoint = query, checkpoint
        self._take, self._on_commit = take, on_commit
        self._reader = _Reader(checkpoint, partitions)
        self._under_way: deque[_Cut] = deque()
        self._next = checkpoint.last_committed() - checkpoint.first_batch + 1
        self._end = checkpoint.committed_end()
        self._stopping = Event()
        self._is_lost = False
        self._error: BaseException | None = None
        self._epoch_secs: float | None = None
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
        return self._epoch_secs

    def has_read_all(self) -> bool:
        return True

    def last_phases(self) -> tuple[int, Mapping[str, int]]:
        """An epoch has no phases of Spark's."""
        return -1, {}

    def explained(self, error: BaseException) -> BaseException:
        return self._checkpoint.files.explained(full_disk.explained(error, *self._checkpoint.folders))

    def stop(self, *, at_once: bool) -> None:  # noqa: ARG002  # an epoch is never long
        self._stopping.set()
        if self._under_way:
            self._query.interrupt()
        self._thread.join()

    def _run(self) -> None:
        """The thread's target."""
        try:
            self._give_id()
            self._query.start()
            self._run_again_what_was_logged()
            while not self._stopping.is_set():
                if not (self._query.can_send and self._cut_next()):
                    self._commit_oldest()
        except BaseException as error:  # noqa: BLE001  # the supervisor raises it
            if not self._stopping.is_set():
                self._error = error
        finally:
            self._query.stop()
            self._on_commit()

    def _run_again_what_was_logged(self) -> None:
        """The epoch that an earlier driver logged and did not commit runs again as it was."""
        file = self._checkpoint.spark / "offsets" / str(self._next)
        if self._checkpoint.files.is_logged(file):
            _, metadata, offset, *_ = self._checkpoint.files.read_log(file).splitlines()
            clock_ms = int(json.loads(metadata)["batchTimestampMs"])
            self._send(_Cut(self._next, int(json.loads(offset)["chunk"]), clock_ms))

    def _cut_next(self) -> bool:
        """Cut an epoch and send it, if the inbox has something new. Waits only while none is under way."""
        end = self._reader.end_after(self._end, 0.0 if self._under_way else _WAIT_SECS)
        if end == self._end:
            return False
        cut = _Cut(self._next, end, time.time_ns() // 1_000_000)
        if not self._under_way:
            self._checkpoint.sync(self._checkpoint.first_batch + cut.number - 1)  # before the levels run
            self._log_offsets(cut)
        self._send(cut)
        return True

    def _send(self, cut: _Cut) -> None:
        rows = self._reader.rows(self._end, cut)
        self._under_way.append(cut)
        self._next, self._end = cut.number + 1, cut.end
        try:
            self._query.send(rows)
        except ConnectionLostError as error:
            self._note_loss(error)

    def _commit_oldest(self) -> None:
        """Wait for the oldest epoch, let the sink write it, and commit it; or look at the query."""
        if not self._under_way:
            self._look_at_query()
            return
        began = time.monotonic()
        number, rows = self._oldest()
        cut = self._under_way[0]
        self._take(cut.number, Results(rows, payloads_in_rows([]), payloads_in_rows([])))
        self._log("commits", cut.number, '{"nextBatchWatermarkMs":0}')
        self._query.committed(number)
        self._under_way.popleft()
        if self._under_way:
            self._log_offsets(self._under_way[0])
        self._epoch_secs = time.monotonic() - began
        self._on_commit()

    def _look_at_query(self) -> None:
        if self._reader.is_held:
            self._stopping.wait(_HELD_SECS)  # the run stops soon
        elif self._is_lost or self._query.is_lost:
            self._start_again()

    def _oldest(self) -> tuple[int, list[WireRow]]:
        for _ in range(MOST_STARTS):
            try:
                if self._is_lost:
                    self._start_again()
                return self._query.take()
            except ConnectionLostError as error:
                self._note_loss(error)
        raise AcktreeError(
            f"the query of real time failed {MOST_STARTS} times over one epoch",
            f"epoch {self._under_way[0].number}, checkpoint {self._checkpoint.place}",
            "see the warnings above for what ended it; without real_time, more deaths are survived",
        )

    def _note_loss(self, error: ConnectionLostError) -> None:
        if self._stopping.is_set():
            raise error
        self._is_lost = True
        log.warning("the query of real time failed and starts again: %.500s", error.__cause__ or error)

    def _start_again(self) -> None:
        self._query.start()
        self._is_lost = False

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
        files.disk.make_folder(folder)
        files.write(folder / str(number), "\n".join(("v1", *lines)).encode())
        old = folder / str(number - _KEPT)
        if files.is_logged(old):
            files.remove(old)

    def _give_id(self) -> None:
        """Spark's checkpoint has the id of its query; a new one gets one."""
        self._checkpoint.files.make_spark_folder(self._checkpoint.spark)
        file = self._checkpoint.spark / "metadata"
        if not self._checkpoint.files.is_logged(file):
            self._checkpoint.files.write(file, json.dumps({"id": str(uuid4())}).encode())
