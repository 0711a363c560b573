"""The handle of a running topology: watch it, pause it, stop it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from acktree.core.statistics import Stats
from acktree.dead_letters.burial import Burial
from acktree.dead_letters.store import DeadLetters
from acktree.errors import AcktreeError, MisuseError
from acktree.logs import logger
from acktree.spark import full_disk, signals
from acktree.spark.checkpoint import Checkpoint
from acktree.spark.gateway import hush
from acktree.spark.inbox import FileInbox
from acktree.spark.inbox_files import ChunkKind
from acktree.spark.journal import Journal
from acktree.spark.polite_stop import heeding_signals, stop_politely
from acktree.spark.sink import Sink
from acktree.spark.spouts import Threads, now_ms
from acktree.tasks.dataframe_task import DataFrameTask
from acktree.tasks.error_log import ErrorLog
from acktree.tasks.plan import Plan
from acktree.tasks.ticks import Ticks
from acktree.topology.describe import Description

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logger("acktree")

_LOOK_SECS: Final = 0.05
_COMMIT_LOOK_SECS: Final = 0.002
"""Spark commits some 5 ms after the sink has returned; so often is looked whether it has."""
_STOP_SECS: Final = 60.0
HURRY_SECS: Final = 10.0
"""So long a process that was asked twice to stop waits for Spark at most."""
_HURRIED_SPOUT_SECS: Final = 2.0


class RunningTopology:
    """A submitted topology. Made by ``submit``; usable as a context manager, which kills it on leaving.

    All methods may be called from any thread of the driver.
    """

    def __init__(
        self,
        plan: Plan,
        checkpoint: Checkpoint,
        inbox: FileInbox,
        sink: Sink,
        threads: Threads,
        dead_letters: DeadLetters,
        errors: ErrorLog,
        stop_session: Callable[[], None],
        journal: Journal | None = None,
        burial: Burial | None = None,
    ) -> None:
        """Take over what ``submit`` put together; :meth:`begin` starts it."""
        self.plan = plan
        self.dead_letters = dead_letters
        self._checkpoint, self._inbox, self._sink, self._journal = checkpoint, inbox, sink, journal
        self._mailboxes, self._threads = threads, threads.by_task
        self._errors, self._stop_session, self._burial = errors, stop_session, burial
        self._query: StreamingQuery | None = None
        self._stopped_by: BaseException | None = None
        self._ended = Event()
        self._kill_requested, self._must_hurry = Event(), Event()
        self._block = ExitStack()
        self._in_block = False
        self._change = Event()
        self._committed = -1
        self._keeper = Thread(target=self._keep, name=f"acktree {plan.topology.name}", daemon=True)

    def begin(self, query: StreamingQuery) -> None:
        """Run: the query is there, its first micro-batch warms it up, then the spouts open."""
        self._query = query
        self._checkpoint.files.begin(self.changed)
        self._keeper.start()

    def begin_ended(self) -> None:
        """Be over from the start: an earlier run on this checkpoint came to its end."""
        self._close()
        self._ended.set()

    def changed(self) -> None:
        """Something happened that the keeper may want to act on. Never blocks for long."""
        self._change.set()

    @property
    def name(self) -> str:
        """The topology's name."""
        return self.plan.topology.name

    @property
    def checkpoint(self) -> Path | str:
        """The folder of its checkpoint, or its URL: submitted on it again, it goes on."""
        return self._checkpoint.place

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""
        return not self._ended.is_set()

    @property
    def is_warm(self) -> bool:
        """Whether the first micro-batch has run, which takes seconds, and the spouts are being opened."""
        return self._sink.ended.batch_id >= 0

    def describe(self) -> Description:
        """What runs where."""
        return self.plan.topology.describe(self.plan.partitions)

    def stats(self) -> Stats:
        """The numbers of this run so far: Storm UI's, per component, stream and task."""
        counters = self._sink.counters()
        for thread in self._threads.values():
            counters.merge(thread.numbers().counters)
        spouts = {
            spout.id: self._mailboxes.open_messages(spout.task_ids, self._rows_open)
            for spout in self.plan.topology.spouts
        }
        names = self.plan.topology.components
        return Stats.of(counters, components=names, spouts=spouts, errors=self._errors.kept)

    def activate(self) -> None:
        """Let the spouts emit again."""
        for thread in self._threads.values():
            thread.set_active(True)

    def deactivate(self) -> None:
        """Stop asking the spouts for messages; what is open goes on, and verdicts arrive."""
        for thread in self._threads.values():
            thread.set_active(False)

    def rebalance(self, *_: object, **__: object) -> None:
        """Refused while running: memory is moved on a checkpoint that nobody runs.

        Raises:
            MisuseError: Always, with the offline way.
        """
        raise MisuseError(
            "a running topology cannot be rebalanced: what its tasks remember would have to move under them",
            f"topology {self.name!r}",
            f"kill it, and `python -m acktree rebalance {self.checkpoint}`; then submit it again",
        )

    def await_termination(self, timeout_secs: float | None = None) -> bool:
        """Wait until the topology has ended or was stopped.

        Returns:
            True when it ended, False when ``timeout_secs`` passed first.

        Raises:
            SpoutError: A spout could not be opened.
            DeadLetterLimitError: More messages were given up than ``Config`` allows.
            CheckpointError: A disk is full, or the checkpoint's URL fails; submit again once that is mended.
            AcktreeError, StreamingQueryException: Whatever else stopped it.
        """
        with heeding_signals(self, stops=not self._in_block):
            if not self._wait(self._ended.is_set, timeout_secs):
                return False
        if self._stopped_by is not None:
            raise self._stopped_by
        return True

    def await_idle(self, timeout_secs: float) -> bool:
        """Wait until no message is open, and all that was emitted has run through a committed micro-batch.

        Returns:
            True when idle, False when the time passed first. Raises what stopped it, if that happens.
        """
        with heeding_signals(self, stops=not self._in_block):
            if not self._wait(lambda: self._ended.is_set() or self._is_idle(), timeout_secs):
                return False
        if self._stopped_by is not None:
            raise self._stopped_by
        return True

    def kill(self, wait_secs: float | None = None) -> None:
        """Deactivate, wait for open messages, stop between two micro-batches.

        Args:
            wait_secs: How long to wait for open messages; None: the message timeout. What is open afterwards
                is brought back by the spouts' queues, or by the same checkpoint.

        Returns when it has stopped. Called by a spout, on its own thread, it returns at once: the topology
        cannot stop before that thread has. A Ctrl-C or SIGTERM meanwhile lets it stop at once.
        """
        if any(thread.is_current for thread in self._threads.values()):
            self._kill_requested.set()
            self.changed()
            return
        if self._ended.is_set():
            return
        self.deactivate()
        patience = self.plan.config.message_timeout_secs if wait_secs is None else wait_secs
        try:
            if patience > 0 and self.is_warm:  # before that no spout was asked
                self._wait(lambda: self._ended.is_set() or self._is_idle(), patience)
            self._kill_requested.set()
            self.changed()
            self._wait(self._ended.is_set, None)
        except signals.StoppedBySignal:
            self._must_hurry.set()
            self._kill_requested.set()
            self.changed()
            with suppress(signals.StoppedBySignal):  # one more changes nothing
                self._wait(self._ended.is_set, HURRY_SECS)
            raise

    def __enter__(self) -> Self:
        """Until the block is left, Ctrl-C and SIGTERM stop it politely and a second one at once."""
        self._block.enter_context(signals.heeded())
        self._in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._block:
            if isinstance(raised, signals.StoppedBySignal):
                stop_politely(self, raised)
            else:
                self.kill(wait_secs=0)

    def _wait(self, done: Callable[[], bool], timeout_secs: float | None) -> bool:
        """Whether it was done in time. StoppedBySignal when a signal came first, in the main thread."""
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        with signals.noted() as came:
            while not done():
                left = _LOOK_SECS if deadline is None else min(_LOOK_SECS, deadline - time.monotonic())
                if left <= 0 or came():
                    return False
                self._ended.wait(left)
        return True

    def _is_idle(self) -> bool:
        return (
            all(thread.is_at_rest for thread in self._threads.values())
            and self._inbox.is_drained
            and self._checkpoint.is_committed(self._sink.ended.batch_id)
            and not self._rows_open()
        )

    def _rows_open(self) -> int:
        """How many rows of DataFrames are open: what the ackers have beside what the spout tasks know of."""
        if not any(isinstance(thread.task, DataFrameTask) for thread in self._threads.values()):
            return 0
        known = sum(thread.numbers().open_count for thread in self._threads.values())
        return max(0, self._sink.ended.open_count - known)

    def _keep(self) -> None:
        """The keeper's thread: beats and ticks when they are due, and the end."""
        try:
            self._warm_up()
            if not self._is_over():
                for thread in self._threads.values():
                    thread.start()
            ticks = Ticks(self.plan, now_ms())
            while not self._is_over():
                self._pause(self._patience_secs(ticks))
                self._note_commit()
                if self._journal is not None:
                    self._journal.note_told()
                self._send_due(ticks)
        except BaseException as error:  # noqa: BLE001  # told by await_termination
            self._stopped_by = self._stopped_by or error
        finally:
            self._stop()

    def _pause(self, secs: float) -> None:
        """Until something changed, at most so long; what changed meanwhile is not slept over."""
        self._change.wait(secs)
        self._change.clear()

    def _patience_secs(self, ticks: Ticks) -> float:
        if self._committed < self._sink.ended.batch_id:
            return _COMMIT_LOOK_SECS
        # While something waits for its micro-batch, the deadline waits for that one too: no beat is needed.
        deadline_ms = self._sink.ended.next_deadline_ms if self._inbox.is_drained else None
        due = [at for at in (ticks.next_ms(), deadline_ms) if at is not None]
        return min([_LOOK_SECS * 10, *(max(0.0, (at - now_ms()) / 1000) for at in due)])

    def _note_commit(self) -> None:
        """Once the last micro-batch is committed: tell what it decided, and let go of what it ran over.

        Not before: it would run again after a crash, and may decide otherwise. Nor only when the next one
        comes: with the inbox full of what this one ran over, none would.
        """
        batch_id, end = self._sink.ended.last
        if batch_id <= self._committed or not self._checkpoint.is_committed(batch_id):
            return
        self._committed = batch_id
        self._mailboxes.tell(batch_id)
        self._inbox.committed(end)
        self._mailboxes.wake()

    def _warm_up(self) -> None:
        """Wait for the first micro-batch: it compiles for seconds, and no message shall wait for that."""
        while self._sink.ended.batch_id < 0 and not self._is_over():
            self._pause(_LOOK_SECS)

    def _send_due(self, ticks: Ticks) -> None:
        due = ticks.due(now_ms())
        if due:
            orders = {str(level): bolts for level, bolts in due.items()}
            self._inbox.append_control(ChunkKind.TICK, orders)
        if self._sink.ended.wants_a_beat(now_ms()) and self._inbox.is_drained:
            self._sink.ended.next_deadline_ms = None  # the next micro-batch says when the next one is
            self._inbox.append_control(ChunkKind.BEAT, {})

    def _is_over(self) -> bool:
        query = self._query
        assert query is not None, "begin() gave one"
        reasons: list[AcktreeError | None] = [self._checkpoint.files.lost]
        if reasons[0]:
            self._must_hurry.set()  # no commit can come any more
        reasons += [thread.broken for thread in self._threads.values()]
        reasons += [self._burial.limit_reached] if self._burial else []
        for reason in filter(None, reasons):
            self.deactivate()  # stopping takes a while, and what is emitted meanwhile would only wait
            self._stopped_by = reason
            return True
        if not query.isActive:
            self._stopped_by = query.exception() or AcktreeError(
                "the streaming query was stopped from outside",
                f"topology {self.name!r}",
                "stop a topology with running.kill(); submit it again on the same checkpoint to go on",
            )
            return True
        if self._kill_requested.is_set():
            return True
        if self._threads and all(thread.has_ended for thread in self._threads.values()) and self._is_idle():
            self._checkpoint.mark_ended()
            log.info("topology=%s ended: every spout ended, every message has its verdict", self.name)
            return True
        return False

    def _stop(self) -> None:
        """Stop between two micro-batches, then close the spouts; each step whatever became of the others."""
        if self._stopped_by is not None:
            full = full_disk.told(self._stopped_by, *self._checkpoint.places)
            self._stopped_by = self._checkpoint.files.told(full)
            log.error("topology=%s stopped_by=%s", self.name, self._stopped_by)
        try:
            with ExitStack() as steps:  # the last one first
                steps.callback(self._close)
                steps.callback(self._stop_threads)
                steps.callback(self._note_commit)
                steps.callback(self._stop_query)
        except BaseException as error:  # told by await_termination
            self._stopped_by = self._stopped_by or error
            log.exception("topology=%s could not be stopped in order", self.name)
        finally:
            self._ended.set()

    def _stop_threads(self) -> None:
        for thread in self._threads.values():
            thread.stop()
        patience = _HURRIED_SPOUT_SECS if self._must_hurry.is_set() else _STOP_SECS
        deadline = time.monotonic() + patience
        for task, thread in self._threads.items():
            if not thread.join(max(0.0, deadline - time.monotonic())):
                log.error(
                    "topology=%s task=%s spout did not come back within %s s, and is left behind: nothing it "
                    "emits from now on is taken",
                    self.name, task, patience,
                )  # fmt: skip
        if self._journal is not None:
            self._journal.note_told()

    def _close(self) -> None:
        with ExitStack() as steps:
            steps.callback(self._stop_session)
            steps.callback(self._checkpoint.close)
            steps.callback(self._checkpoint.drop_scratch_folder)
            steps.callback(self._inbox.close)

    def _stop_query(self) -> None:
        """Let the running micro-batch come to its commit, unless in a hurry, then stop the query."""
        query = self._query
        assert query is not None, "begin() gave one"
        self._inbox.hold()
        deadline = time.monotonic() + _STOP_SECS
        while query.isActive and not self._is_between_batches(query) and time.monotonic() < deadline:
            if self._must_hurry.wait(_LOOK_SECS / 5):
                hush()
                break
        query.stop()

    def _is_between_batches(self, query: StreamingQuery) -> bool:
        status = query.status
        return not status["isTriggerActive"] or status["message"].startswith(("Waiting", "Getting offsets"))
