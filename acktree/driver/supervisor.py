"""The supervisor of a run: one thread that opens the spouts, sends ticks and beats, and ends the run.

This module alone decides when a started run is over. Users' handle asks it and waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from typing import Final

from acktree.checkpoint.inbox_files import ChunkKind
from acktree.core.stats.numbers import ReportedError
from acktree.driver.ending_dataframes import EndingFrames
from acktree.driver.query import Query
from acktree.driver.run import Run
from acktree.driver.spouts.spout_threads import SpoutThread, now_ms
from acktree.driver.ticks import Ticks
from acktree.errors import AcktreeError, CheckpointError
from acktree.logs.loggers import logger

log = logger("acktree")

_LOOK_SECS: Final = 0.05
_REST_LOOK_SECS: Final = 2.0
"""How often the JVM is asked at rest whether the query still runs. A change is noticed at once."""
_COMMIT_LOOK_SECS: Final = 0.002
"""How often the commit log is read after the sink has returned: Spark commits some 5 ms later."""
_STOP_SECS: Final = 60.0
"""Longest wait for the running micro-batch, and then for the spouts, when a run stops."""
_SAID_AFTER_SECS: Final = 1.0
"""The wait for the spouts is said after this time: a usual call returns earlier."""
_BLOCKED_SECS: Final = 10.0
_BLOCKED_WAIT_SECS: Final = 5.0
"""Once a call of a spout has not returned for so long, the spout is waited for at most so long."""
_HURRIED_SPOUT_SECS: Final = 2.0
"""Longest wait for the spouts after a second signal."""


class Supervisor:
    """Supervises a topology from its first micro-batch to its end, on a thread of its own.

    Attributes:
        stopped_by: The error that ended the run; None for none. Final once ``run.ended`` is set.
    """

    def __init__(self, run: Run, query: Query, close_log: Callable[[], None] = lambda: None) -> None:
        """Make the supervisor of a run whose query was started; :meth:`begin` starts the thread.

        Args:
            close_log: Closes the commit log.
        """
        self._close_log = close_log
        self.run = run
        self.stopped_by: BaseException | None = None
        self._query = query
        self._must_hurry = Event()
        self._committed = -1
        self._noting = Lock()
        self._was_told = False
        self._frames = EndingFrames(run)
        self._thread = Thread(target=self._supervise, name=f"acktree {run.name}", daemon=True)

    def begin(self) -> None:
        """Start the thread. It waits for the first micro-batch and then opens the spouts."""
        self.run.checkpoint.files.begin(self.run.change.set)
        self._thread.start()

    def close(self) -> None:
        """Close a run that does not begin: its topology ended in an earlier run on this checkpoint."""
        self._close()
        self.run.ended.set()

    def hurry(self) -> None:
        """End the run without waiting for the running micro-batch. Returns without waiting."""
        self._must_hurry.set()
        self.run.order_kill(0.0)

    def note_commit(self) -> None:
        """Once the last micro-batch is committed, dispatch its verdicts and release its inbox entries.

        Not earlier: a crash before the commit runs the micro-batch again, and its verdicts may differ. Not as
        late as the next micro-batch: if its entries fill the inbox, there is no next micro-batch.
        """
        with self._noting:
            batch_id, end = self.run.results.progress.last
            if batch_id <= self._committed or not self.run.checkpoint.is_committed(batch_id):
                return
            self.run.checkpoint.sync(batch_id)
            self._committed = batch_id
            self.run.keys.publish(batch_id)
            if self.run.gates is not None:
                self.run.gates.publish(batch_id)
            self.run.threads.dispatch(batch_id)
            self.run.inbox.committed(end)
            self.run.threads.wake()

    def committed(self) -> None:
        """In real time, on the thread that commits: :meth:`note_commit` at once, and the rest soon."""
        self.note_commit()
        self._was_told = True
        self.run.change.set()

    def _supervise(self) -> None:
        """The thread's target."""
        try:
            self._warm_up()
            if not self._is_over():
                self.run.log.is_warm()
                for thread in self.run.threads.by_task.values():
                    thread.start()
            ticks = Ticks(self.run.plan, now_ms())
            while not self._is_over():
                self._pause(self._pause_secs(ticks))
                self.note_commit()
                if self.run.journal is not None:
                    self.run.journal.note_delivered()
                self._send_due(ticks)
                self._frames.look(self._query)
                self._log_progress()
                self._look_at_blocked()
        except BaseException as error:  # noqa: BLE001  # await_termination raises it
            self.stopped_by = self.stopped_by or error
        finally:
            self._stop()

    def _pause(self, secs: float) -> None:
        """Wait until something changed, at most ``secs`` seconds.

        Where commits are told, their verdicts are on their way, and what is left to do here can wait for a
        moment. To wake this thread for each would take longer than the look itself.
        """
        if self._was_told:
            self._was_told = False
            self._must_hurry.wait(min(secs, _LOOK_SECS))
        else:
            self.run.change.wait(secs)
        self.run.change.clear()

    def _pause_secs(self, ticks: Ticks) -> float:
        progress = self.run.results.progress
        if self._committed < progress.batch_id:
            return _COMMIT_LOOK_SECS
        # While an entry waits in the inbox, its micro-batch will also serve the deadline: no beat is needed.
        deadline_ms = progress.next_deadline_ms if self.run.inbox.is_drained else None
        due = [at for at in (ticks.next_ms(), deadline_ms) if at is not None]
        rest_secs = self._frames.longest_pause_secs or _REST_LOOK_SECS
        kill_secs = self.run.kill.left_secs()
        if kill_secs is not None:  # it is looked whether messages are open
            rest_secs = min(_LOOK_SECS, kill_secs)
        dues = (thread.beside_due_secs for thread in self.run.threads.by_task.values())
        waits = [max(_COMMIT_LOOK_SECS, secs) for secs in dues if secs is not None]
        return min([rest_secs, *waits, *(max(0.0, (at - now_ms()) / 1000) for at in due)])

    def _warm_up(self) -> None:
        """Wait for the first micro-batch: it compiles for seconds, and messages should not wait for that."""
        while self.run.results.progress.batch_id < 0 and not self._is_over():
            self._pause(_LOOK_SECS)

    def _log_progress(self) -> None:
        if not self.run.log.is_due:
            return
        try:
            batch_secs = self._query.last_batch_secs()
        except Exception:  # noqa: BLE001  # Spark is asked, and may be stopping
            batch_secs = None
        self.run.log.progress(self.run.account(), self.run.results.progress.batch_id, batch_secs)

    def _look_at_blocked(self) -> None:
        """Hand over for spouts whose ``next_tuple`` does not return, and report these and blocked hooks."""
        for thread in self.run.threads.by_task.values():
            thread.flush_beside()
            call, component, task = thread.blocked, thread.task.component.id, thread.task.task
            if call is not None and self.run.log.blocked(component, task, call, now_ms()):
                self.run.errors.add(ReportedError(component, task, f"{call.reason}; {call.fix}", now_ms()))

    def _send_due(self, ticks: Ticks) -> None:
        inbox, progress = self.run.inbox, self.run.results.progress
        due = ticks.due(now_ms())
        if due:
            inbox.append_control(ChunkKind.TICK, {str(level): bolts for level, bolts in due.items()})
        if progress.wants_a_beat(now_ms()) and inbox.is_drained:
            progress.next_deadline_ms = None  # the next micro-batch sets the next deadline
            inbox.append_control(ChunkKind.BEAT, {})

    def _is_over(self) -> bool:
        reason = self._reason_to_stop()
        if reason is not None:
            self.run.set_active(active=False)  # messages emitted from now on would not be processed
            self.stopped_by = reason
            return True
        if not self._query.is_active:
            self.stopped_by = self._query.failure() or AcktreeError(
                "the streaming query was stopped from outside",
                f"topology {self.run.name!r}",
                "stop a topology with running.kill(); submit it again on the same checkpoint to go on",
            )
            return True
        return self._must_hurry.is_set() or self._has_ended() or self.run.kill.is_due(self._is_at_rest)

    def _is_at_rest(self) -> bool:
        """Whether a kill has nothing to wait for; before the first micro-batch no spout was asked."""
        return self.run.results.progress.batch_id < 0 or self.run.is_idle

    def _reason_to_stop(self) -> AcktreeError | None:
        """The first error that ends the run, apart from a failure of the query; None for none."""
        run = self.run
        lost = run.checkpoint.files.lost
        if lost is not None:
            self._must_hurry.set()  # no micro-batch can be committed
        broken = [thread.broken for thread in run.threads.by_task.values()]
        limit = run.recorder.limit_reached if run.recorder else None
        return next((reason for reason in (lost, *broken, limit) if reason is not None), None)

    def _has_ended(self) -> bool:
        """Whether every spout has ended and every message has a verdict. If so, marks the checkpoint."""
        run = self.run
        threads = run.threads.by_task.values()
        if not threads or not run.threads.redriving.acquire(blocking=False):
            return False
        try:
            users = (thread for thread in threads if thread.task.component.gated is None)
            if not all(thread.has_ended for thread in users) or not run.is_idle:
                return False
            if any(thread.broken for thread in threads):  # it rests, and its messages are open
                return False
            run.checkpoint.mark_ended()
        finally:
            run.threads.redriving.release()
        log.info("topology=%s ended: every spout ended, every message has its verdict", run.name)
        return True

    def _stop(self) -> None:
        """Stop between two micro-batches, then close the spouts; a step that fails does not skip the rest."""
        self.run.kill.close()
        if self.stopped_by is not None:
            self.stopped_by = self._explained(self.stopped_by)
            log.error("topology=%s stopped_by=%s", self.run.name, self.stopped_by)
        try:
            with ExitStack() as steps:  # runs the last step first
                steps.callback(self._close)
                steps.callback(lambda: self.run.log.ends(self.run.account()))
                steps.callback(self.run.tell_ended)
                steps.callback(self._stop_threads)
                steps.callback(self.note_commit)
                steps.callback(self._stop_query)
        except BaseException as error:  # await_termination raises it
            self.stopped_by = self.stopped_by or error
            log.exception("topology=%s could not be stopped in order", self.run.name)
        finally:
            self.run.ended.set()

    def _explained(self, error: BaseException) -> BaseException:
        """The error with what to do; as it is if that cannot be told, as where the disk does not answer."""
        try:
            return self._query.explained(error)
        except Exception:
            log.exception("topology=%s what stopped it could not be explained", self.run.name)
            return error

    def _stop_threads(self) -> None:
        threads = self.run.threads.by_task
        self.run.threads.stop()
        most_secs = _HURRIED_SPOUT_SECS if self._must_hurry.is_set() else _STOP_SECS
        deadline = time.monotonic() + most_secs
        told_at = min(deadline, time.monotonic() + _SAID_AFTER_SECS)
        busy = [task for task, thread in threads.items() if not thread.join(_left(told_at))]
        if busy:
            log.warning(
                "topology=%s tasks=%s: a call of the spout has not returned; waiting up to %s s",
                self.run.name, busy, most_secs,
            )  # fmt: skip
        for thread in threads.values():
            if not _joined(thread, deadline, time.monotonic() + _BLOCKED_WAIT_SECS):
                self._report_left(thread, most_secs)
        if self.run.journal is not None:
            self.run.journal.note_delivered()
        self.run.checkpoint.write_dropped()

    def _report_left(self, thread: SpoutThread, waited_secs: float) -> None:
        component, task, call = thread.task.component.id, thread.task.task, thread.blocked_call
        why = f"a call of the spout did not return within {waited_secs:g} s"
        if call is not None:
            name, secs = call
            since = datetime.fromtimestamp(now_ms() / 1000 - secs, UTC)
            why = f"{name} of the spout has not returned since {since:%Y-%m-%d %H:%M:%S} UTC"
        log.error(
            "topology=%s spout=%s task=%s %s; its thread is left running without close(), and nothing it "
            "emits from now on is accepted",
            self.run.name, component, task, why,
        )  # fmt: skip
        self.run.errors.add(ReportedError(component, task, f"{why}; it was not closed", now_ms()))

    def _close(self) -> None:
        with ExitStack() as steps:
            steps.callback(self.run.stop_session)
            steps.callback(self.run.leave_door)
            steps.callback(self.run.checkpoint.close)
            steps.callback(self.run.checkpoint.drop_scratch_folder)
            steps.callback(self.run.inbox.close)
            steps.callback(self.run.traces.close)
            steps.callback(self.run.events.close)
            steps.callback(self.run.close_door, self.stopped_by)
            if self.run.consumers is not None:
                steps.callback(self.run.consumers.close)
            steps.callback(self._write_last_counts)

    def _write_last_counts(self) -> None:
        """Store what was counted since the last micro-batch."""
        try:
            self._close_log()
        except (OSError, CheckpointError) as error:
            log.warning(
                "topology=%s the counts of its last moments are not stored, and `:all-time` lacks them: %s",
                self.run.name, error,
            )  # fmt: skip

    def _stop_query(self) -> None:
        """Wait for the commit of the running micro-batch, unless in a hurry, then stop the query."""
        self.run.inbox.hold()
        deadline = time.monotonic() + _STOP_SECS
        while self._query.is_active and not self._query.is_between_batches and time.monotonic() < deadline:
            if self._must_hurry.wait(_LOOK_SECS / 5):
                break
        self._query.stop(at_once=self._must_hurry.is_set())


def _joined(thread: SpoutThread, deadline: float, blocked_deadline: float) -> bool:
    """Wait for a spout's thread; to the second deadline where a call of it has not returned for long."""
    while not thread.join(min(_LOOK_SECS, _left(deadline))):
        call = thread.blocked_call
        is_blocked = call is not None and call[1] >= _BLOCKED_SECS
        if not _left(blocked_deadline if is_blocked else deadline):
            return False
    return True


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
