"""Isolation: finds the messages that kill or block their worker, and leaves them out. All other messages run.

A level marks the row that it executes in a small mapped file, which outlives the process. When Spark runs the
task again, the marked row is suspected, and the level runs in a forked child process. If the child dies, the
parent reads its mark, counts the death, and forks again. A row that two processes died over is left out and
its message fails with the cause. A row that was marked by accident is executed again and does not die a
second time.

In a child, rows are named by message, so a row that was left out does not shift the names of the others. Rows
that are executed in one call (those of an ``ArrowBolt``), or that died while their children were encoded, are
cut in halves until one row is alone. A MemoryError in the engine counts as a death.

The counts are stored by micro-batch id, so a re-run after a crash of the driver leaves out the same rows. A
row that is executed for longer than ``execute_timeout_secs`` is interrupted. If it cannot be interrupted, its
process is ended and the row is suspected.

A worker that was lost is counted by the next attempt of its Spark task, and reported with the results of the
level. It was lost if the attempt before has neither ended nor raised an exception: its process or its
executor died, or Spark gave it up, as where the disk of a shuffle is full. The count is stored with the
suspects, so that a second run of the micro-batch reports the same. Processes that the driver took with it do
not count. Where executors do not see the checkpoint, an attempt on another executor knows of the one before
it alone.

Storm replays such a message until the topology is stopped.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Final

from acktree.core.data.context import forget_inherited
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.state.store import StateStore
from acktree.core.stats.counters import NO_STREAM, SYSTEM, SYSTEM_TASK, WORKERS_LOST, Counters
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import BoltError, ProtocolError
from acktree.spark.worker.marks import HOOK, MARK, NO_RUN, MarkingMonitor, Suspects, marked_of, run_of
from acktree.spark.worker.state_channel import Channel
from acktree.spark.worker.stopped import ChildWatch, stopped_in_words
from acktree.system.forks import close_in_children, end_with
from acktree.system.private_files import write_private
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.texts import error_text

UNGUARDED: Final = "ACKTREE_UNGUARDED"
"""Environment variable of workers that switches marks and watchdog off, to measure what they cost."""

IN_VAIN: Final = 100
"""The level gives up after this many deaths in a row that leave no row out. Usually 20 deaths find a row."""

Writes = list[tuple[str, bytes | None]]
"""Names of blobs and their new values (None: deleted), in order."""


class _Overlay(StateStore):
    """The state store of a child process: the parent reads for it, and writes when the child has finished.

    The child must not use Spark's socket, which it shares with its parent. Answers on the socket carry no id:
    the answer to a question of a dead child would be read as the answer to the next question.
    """

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self.channel = Channel()
        self.writes: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        if name in self.writes:
            return self.writes[name]
        with self.channel.question():
            self._parent.send(name)
            blob: bytes | None = self._parent.recv()
        return blob

    def put(self, name: str, blob: bytes) -> None:
        self.writes[name] = blob

    def delete(self, name: str) -> None:
        self.writes[name] = None


_Result = tuple[Exception | None, list[WireRow], Writes]
"""The result of a child: the exception that it raised, its rows and its writes."""

Run = Callable[[ExecutionMonitor, StateStore | None], Iterable[WireRow]]
"""Runs a level with a monitor and a state store."""


@dataclass(frozen=True)
class Isolation:
    """How one level of one partition is run in one micro-batch.

    Attributes:
        folder: The folder of marks and suspects. Every attempt of the Spark task must be able to read it.
        batch_id: The micro-batch.
        level: The level.
        partition: The partition.
        attempt: The attempt of the Spark task, from 0.
        timeout_secs: ``execute_timeout_secs``.
        run_number: A number of the topology's run; not 0.
        new_from: The first micro-batch that no earlier run can have begun; None where the driver does not see
            the folder.
    """

    folder: Path
    batch_id: int
    level: int
    partition: int
    attempt: int
    timeout_secs: float | None
    run_number: int = 1
    new_from: int | None = None

    def resumed(self) -> Isolation:
        """Where Spark tries no task again: the second attempt, if a process of this run died in the first."""
        return replace(self, attempt=1) if self._has_lost_a_worker() else self

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Note an exception for the next attempt, so that it counts no lost worker."""
        try:
            yield
        except BaseException:
            with suppress(OSError):  # no room: the next attempt counts one too many
                write_private(self._file("raised"), f"{self.run_number} {self.attempt}".encode())
            raise

    def lost_rows(self) -> Iterator[WireRow]:
        """The row with how many workers were lost over this level, after :meth:`run`; none for 0."""
        lost = Suspects.read(self._file("suspects")).lost
        if lost:
            counted = Counters.of([((SYSTEM, SYSTEM_TASK, NO_STREAM, WORKERS_LOST), lost)])
            yield WireRow(
                0, SINK_LEVEL, Kind.STATISTICS, source=self.partition, sequence=self.level, clock_ms=0,
                body=counted.to_bytes(),
            )  # fmt: skip

    def _has_lost_a_worker(self) -> bool:
        """Whether the attempt before neither ended nor raised an exception."""
        if not self.attempt:  # the first, or the first after Spark ran the whole stage again
            mark = self._file("mark")
            run = run_of(mark.read_bytes()) if mark.exists() else NO_RUN
            return run == self.run_number
        raised = self._file("raised")
        before = f"{self.run_number} {self.attempt - 1}"
        return not (raised.exists() and raised.read_text() == before)

    def run(self, level: Run, store: StateStore | None = None) -> Iterable[WireRow]:
        """Run the level: in this process, or in child processes after a worker died over this micro-batch.

        Raises:
            BoltError: A hook ended its process, or no row can be found that kills the processes.
            ProtocolError: A child died without a mark.
        """
        if UNGUARDED in os.environ:
            unguarded = ExecutionMonitor()
            unguarded.may_have_run = True  # nothing is known
            return level(unguarded, store)
        may_have_run = self._may_have_run()
        suspects = Suspects.read(self._file("suspects"))
        if self._has_lost_a_worker():
            suspects.note_lost()
        if not self.attempt and not suspects:
            return self._here(level, store, suspects, may_have_run=may_have_run)
        self._read_mark(suspects, "its worker was lost")
        in_vain = 0
        while in_vain < IN_VAIN:
            found = len(suspects.left_out)
            result = self._in_a_child(level, store, suspects)
            if result is not None:
                rows, writes = result
                _write(store, writes)
                return rows
            in_vain = in_vain + 1 if len(suspects.left_out) == found else 0
        raise BoltError(
            f"{IN_VAIN} processes died in a row, and almost never twice over the same tuple",
            self._where(),
            "a bolt anchors its tuples to other messages in each run, and the bolt after it dies: "
            "correct the bolt that dies, or let the first bolt join the same messages in each run",
        )

    def _may_have_run(self) -> bool:
        """Whether another process may have executed the level in this micro-batch; before a mark is made.

        An attempt makes its mark before it executes anything, and the mark stays until the micro-batch is
        over. Spark begins to count attempts anew when it runs a stage again.
        """
        is_new = self.new_from is not None and self.batch_id >= self.new_from
        return not is_new or bool(self.attempt) or self._file("mark").exists()

    def _here(
        self,
        level: Run,
        store: StateStore | None,
        suspects: Suspects,
        *,
        in_child: bool = False,
        may_have_run: bool = True,
    ) -> Iterator[WireRow]:
        monitor = MarkingMonitor(
            self._file("mark"), suspects, self.timeout_secs, in_child=in_child, run=self.run_number,
            may_have_run=may_have_run, is_seen=self.new_from is not None,
        )  # fmt: skip
        try:
            with monitor.on_watch():
                yield from list(level(monitor, store))
        finally:
            monitor.close()

    def _in_a_child(
        self, level: Run, store: StateStore | None, suspects: Suspects
    ) -> tuple[list[WireRow], Writes] | None:
        """Run the level in a child. Returns its rows and writes; None if it died and a row is suspected."""
        own_end, childs_end = Pipe()
        parent = os.getpid()
        faulthandler.cancel_dump_traceback_later()  # its thread is not in the child, which would wait for it
        child = os.fork()
        if child == 0:  # the child must never return into the worker's own code
            end_with(parent)  # Spark runs the task again at once, and this level must not run beside it
            own_end.close()
            close_in_children(childs_end.fileno())  # a process that a bolt forks would hide its end
            self._be_the_child(level, suspects, childs_end, has_state=store is not None)
        childs_end.close()
        with own_end:
            watch = ChildWatch(child, own_end.fileno())
            try:
                result = _serve_state(own_end, store)
            except BaseException:  # of the store: nobody answers the child any more
                os.kill(child, signal.SIGKILL)
                raise
            finally:
                _, status = os.waitpid(child, 0)
                watch.end()
        if result is not None and os.waitstatus_to_exitcode(status) == 0:
            raised, rows, writes = result
            if isinstance(raised, MemoryError) and self._read_mark(suspects, "its worker ran out of memory"):
                return None
            if raised is not None:
                raise raised
            return rows, writes
        suspects.note_lost()
        hook = self._marked_hook()
        how = stopped_in_words() if watch.was_stopped else _words(status)
        if self._read_mark(suspects, how):
            return None
        if hook is not None:
            raise BoltError(
                f"bolt {hook[0]!r} ended its process in {hook[1]}(): {how}",
                self._where(),
                "Spark tries a few more times, then the topology stops; correct the hook and submit it again",
            )
        raise ProtocolError(
            f"a child that ran level {self.level} died without an execution mark ({how})",
            self._where(),
            "Spark runs the task again; if this happens again, please report it",
        )

    def _be_the_child(self, level: Run, suspects: Suspects, parent: Connection, *, has_state: bool) -> None:
        try:
            overlay = _Overlay(parent) if has_state else None
            rows: list[WireRow] = []
            raised: Exception | None = None
            try:
                forget_inherited()
                rows = [_plain(row) for row in self._here(level, overlay, suspects, in_child=True)]
            except Exception as error:  # noqa: BLE001  # the parent raises it
                raised = _sendable(error)
            writes = [] if overlay is None else list(overlay.writes.items())
            if overlay is not None:
                overlay.channel.refuse_if_lost()
            parent.send((raised, rows, writes))
            os._exit(0)
        finally:
            os._exit(70)

    def _read_mark(self, suspects: Suspects, how: str) -> bool:
        """Count a death against the rows in the mark of a dead process; False if no row is marked."""
        file = self._file("mark")
        if not file.exists():
            return False
        blob = file.read_bytes()
        file.unlink()
        marked = marked_of(blob)
        if marked is None:
            return False
        row, names = marked
        is_hung = self._file("hung").stat().st_size > 0
        cause = FailureCause.HUNG if is_hung else FailureCause.KILLED_WORKER
        suspects.blame(names.part(row, row + 1) if row >= 0 else names, cause, how)
        return True

    def _marked_hook(self) -> tuple[str, str] | None:
        """The bolt and the hook that a dead process was in; None if it was in no hook."""
        file = self._file("mark")
        blob = (file.read_bytes() if file.exists() else b"") or bytes(MARK.size)
        row, _, length, *_ = MARK.unpack_from(blob)
        if row != HOOK:
            return None
        bolt, hook = json.loads(blob[MARK.size : MARK.size + length])
        return bolt, hook

    def _where(self) -> str:
        return f"level {self.level}, micro-batch {self.batch_id}, partition {self.partition}"

    def _file(self, what: str) -> Path:
        return self.folder / f"{self.batch_id}.{self.level}.{self.partition}.{what}"


def _serve_state(child: Connection, store: StateStore | None) -> _Result | None:
    """Read state for a child until it has finished. Returns its result; None if it died."""
    while True:
        try:
            received = child.recv()
        except (EOFError, OSError):
            return None
        if not isinstance(received, str):
            result: _Result = received
            return result
        assert store is not None, "a level without state reads none"
        blob = store.get(received)
        with suppress(OSError):  # the child may have died while it waited
            child.send(blob)


def _sendable(error: Exception) -> Exception:
    """The error, or its type and text where it does not pickle and unpickle."""
    with suppress(Exception):  # user code runs in here: __reduce__, and an __init__ with other arguments
        if isinstance(ForkingPickler.loads(ForkingPickler.dumps(error)), Exception):
            return error
    return RuntimeError(error_text(error))


def _plain(row: WireRow) -> WireRow:
    return row._replace(head=bytes(row.head), body=bytes(row.body))


def _write(store: StateStore | None, writes: Writes) -> None:
    for name, blob in writes:
        assert store is not None, "a level without state writes none"
        if blob is None:
            store.delete(name)
        else:
            store.put(name, blob)


def _words(status: int) -> str:
    """How a child ended, as a text for people."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its worker exited with code {code}"
    return f"its worker was killed by {signal.Signals(-code).name}"
