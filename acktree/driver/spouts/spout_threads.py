"""Spout threads: each spout task runs in a thread of the user's process.

A spout runs in the driver because a queue expects an ack on the connection that delivered the message. All
callbacks of a task run on its thread. The thread calls ``next_tuple`` while there is room, hands messages
over in chunks, and takes verdict batches in between. When the spout is idle, the thread waits for verdicts or
until the next call is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread, current_thread
from typing import Final

from acktree.config import Config
from acktree.core.ids import Int64s
from acktree.core.spouts.pending import MessageIds
from acktree.core.stats.counters import Counters
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.numbers import Lag, Outage, SpoutNumbers, added_lags, outages_together
from acktree.dead_letters.letter import DeadLetter
from acktree.driver.spouts.spout_waits import idle_secs, not_asked_secs
from acktree.errors import AcktreeError, CheckpointError, ConfigError, ConnectorError, SpoutError
from acktree.logs.log_lines import stand
from acktree.tasks.spouts.chunks.open_listing import OpenMessage
from acktree.tasks.spouts.opening import opening_error
from acktree.tasks.spouts.retries import RedrivenLetter
from acktree.tasks.spouts.task import NotAsked, SpoutTask
from acktree.tasks.spouts.verdict_batch import Redrive, VerdictBatch

RUN_MESSAGES: Final = 8192
"""Buffered messages are handed over when there are this many."""
LINGER_SECS: Final = 0.02
"""The longest time that messages stay buffered while the spout emits or a micro-batch runs, where a hand-over
is quick. At a URL one takes longer: then fewer and larger ones hand over more."""
_LONGEST_LINGER_SECS: Final = 0.5
"""... however long the hand-over before took."""
BLOCKED_SECS: Final = 2.0
"""A call of ``next_tuple`` that lasts longer is worth a warning: verdicts of its task wait behind it."""
BLOCKED_HOOK_SECS: Final = 10.0
"""The same of another hook, which may have to connect anew."""
_BESIDE_SECS: Final = 0.5
"""After this time in one ``next_tuple`` what was emitted before is handed over by another thread. A call that
lasts for longer than messages linger, and returns, hands over itself."""


def now_ms() -> int:
    """The driver's clock in milliseconds since 1970. Used for times shown to people and for retry pauses."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Numbers:
    """A spout task's numbers at one moment.

    Attributes:
        open_count: Messages without a final verdict.
        oldest_ms: When the oldest of them was first emitted; None when none is open.
        lag: How many messages wait at the source, in front of a gate now; None when the spout does not say.
    """

    counters: Counters
    open_count: int
    oldest_ms: int | None
    lag: Lag | None = None
    complete_ms: Histogram = field(default_factory=Histogram)


class SpoutThread:
    """The thread of one spout task."""

    def __init__(
        self,
        task: SpoutTask,
        config: Config,
        on_change: Callable[[], None],
        is_query_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make the thread; it runs after :meth:`start`.

        Args:
            task: The spout task.
            config: The topology's config.
            on_change: Called when the task became idle, ended or broke, or has delivered verdicts that the
                journal is to note.
            is_query_busy: Whether a micro-batch is running; messages emitted meanwhile may stay buffered.
        """
        self.task = task
        self.position = b""
        """The saved state of the spout from an earlier run; empty for none."""
        self.broken: AcktreeError | None = None
        self.delivered_through = -1
        self._config, self._on_change, self._is_query_busy = config, on_change, is_query_busy
        self._wake = Event()
        self._is_wanted = True
        self._is_stopping = False
        self._round = 0  # how often the spout was to be asked
        self._rests_in = 0  # the round after which nothing was left to do; 0 while one is under way
        self._verdicts_through = -1
        self._flush_secs = 0.0  # what the last hand-over took
        self._starting = Lock()
        self._thread = Thread(
            target=self._run, name=f"spout {task.component.id} task {task.task}", daemon=True
        )

    def start(self) -> None:
        """Start the thread, which opens the spout and lets it emit. Does nothing after :meth:`stop`."""
        with self._starting:
            if not self._is_stopping:
                self._thread.start()

    def dispatch(self, verdict_batch: VerdictBatch | None, batch_id: int) -> None:
        """Queue the verdicts of a committed micro-batch; None if it has none for this task."""
        if verdict_batch is not None:
            self.task.dispatch(verdict_batch)
        self._verdicts_through = batch_id  # set last: verdicts up to this number can be taken
        if verdict_batch is not None:
            self._wake.set()

    def set_active(self, active: bool) -> None:  # noqa: FBT001  # it is the value, not an option
        """Ask for the spout to be activated or deactivated, which happens on its own thread."""
        self._is_wanted = active
        self._wake.set()

    @property
    def is_wanted(self) -> bool:
        """Whether the spout is to be active."""
        return self._is_wanted

    def wake(self) -> None:
        """Wake the thread, because there may be room for messages."""
        self._wake.set()

    def stop(self) -> None:
        """Ask the thread to deactivate the spout, to call ``ack`` and ``fail`` as queued, and to close it."""
        with self._starting:
            self._is_stopping = True
        self._wake.set()

    def join(self, secs: float) -> bool:
        """Wait until the thread has ended; False if it still runs after ``secs`` seconds."""
        if self._thread.is_alive():
            self._thread.join(secs)
        return not self._thread.is_alive()

    @property
    def blocked_call(self) -> tuple[str, float] | None:
        """Which method of the spout has not returned for long, and for how many seconds.

        ``next_tuple`` for more than :data:`BLOCKED_SECS`, a hook for more than :data:`BLOCKED_HOOK_SECS`.
        """
        asked, call = self.task.asked_at, self.task.calling.now  # the thread may change them meanwhile
        most_secs = BLOCKED_HOOK_SECS
        if asked is not None:
            call, most_secs = ("next_tuple", asked), BLOCKED_SECS
        if call is None:
            return None
        secs = time.monotonic() - call[1]
        return (call[0], secs) if secs > most_secs else None

    @property
    def blocked(self) -> Outage | None:
        """The same as an outage of what the spout calls; None while it returns."""
        call, task = self.blocked_call, self.task
        if call is None:
            return None
        name, secs = call
        if name != "next_tuple":
            return Outage(
                f"{name} of task {task.task} has not returned: all other calls of this task wait for it",
                "give what it calls a time limit",
                now_ms() - round(secs * 1000),
                0,
            )
        waits = "acks and fails of this task wait for it"
        if task.buffered_count and not task.flushes_beside:
            waits += f", and {task.buffered_count:,} emitted messages, as the spout remembers a position"
        return Outage(
            f"next_tuple of task {task.task} has not returned: {waits}",
            "return at once when there is nothing; acktree.Receiver waits on a thread",
            now_ms() - round(secs * 1000),
            0,
        )

    @property
    def beside_due_secs(self) -> float | None:
        """In which time :meth:`flush_beside` is due, 0 for now; None where nothing waits for it."""
        asked = self.task.asked_at
        if asked is None or not self.task.flushes_beside or not self.task.waiting_count:
            return None
        return max(0.0, asked + _BESIDE_SECS - time.monotonic())

    def flush_beside(self) -> None:
        """On another thread: hand over what waits, if ``next_tuple`` has not returned for a while."""
        if self.beside_due_secs == 0.0:
            self.task.flush_beside(now_ms())

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return self._thread is current_thread()

    def numbers(self) -> Numbers:
        """The task's numbers: exact when the task is idle or has stopped, otherwise approximate."""
        while True:
            counters = Counters()
            try:
                counters.merge(self.task.counters)
                complete_ms = Histogram(self.task.complete_ms)
                lag = self.task.lag_now  # first: a tuple that passes a gate meanwhile is in both, not in none
                return Numbers(counters, self.task.open_count, self.task.oldest_ms(), lag, complete_ms)
            except (RuntimeError, ValueError):
                time.sleep(0)  # the thread changed a table while it was read: read again

    def oldest_open(self, most: int) -> list[OpenMessage]:
        """The task's oldest messages without a final verdict; approximate while the task works."""
        while True:
            try:
                return self.task.oldest_open(most)
            except (RuntimeError, ValueError, IndexError):
                time.sleep(0)  # the thread changed a table while it was read: read again

    def ask_again(self) -> int:
        """Let the spout be asked at once, if it may emit. Returns the number of a round that begins later."""
        self._wake.set()
        return self._round + 1

    def rests_since(self, began: int) -> bool:
        """Whether nothing is left to do after this round or a later one; true for a broken task."""
        # In this order: the thread sets `_rests_in` to 0 before it takes verdicts from the queue.
        return self.broken is not None or (not self.task.has_verdicts and self._rests_in >= began)

    @property
    def is_at_rest(self) -> bool:
        """Whether no message is open or buffered and no verdict is queued; true for a broken task."""
        return self.rests_since(1)

    @property
    def has_ended(self) -> bool:
        """Whether the spout raised EndOfStream and all of its messages have a verdict; not if broken."""
        return self.task.has_ended and self.is_at_rest and self.broken is None

    def _run(self) -> None:
        task = self.task
        stand(task.place)
        try:
            if self.position:
                task.remember(self.position)
            task.open(now_ms())
        except ConnectorError as error:  # the operator has to act, and its fix says how
            self.broken = error
            self._on_change()
            return
        except BaseException as error:  # noqa: BLE001  # user code, sys.exit() too: the topology stops with it
            self.broken = opening_error(task.component.id, task.task, error)
            self.broken.__cause__ = error
            self._on_change()
            return
        try:
            self._loop()
            task.deactivate()
            through = self._verdicts_through
            task.step(now_ms())  # inactive: takes verdicts, does not call next_tuple
            task.flush(now_ms(), is_last=True)  # with what ack and fail emitted
            self._note_delivered(through)
        except (CheckpointError, ConfigError, ConnectorError, SpoutError) as error:  # they name the fix
            self.broken = error
        except BaseException as error:  # noqa: BLE001  # raised by the supervisor
            self.broken = SpoutError(
                f"spout task {task.task} of {task.component.id!r} stopped: {type(error).__name__}: {error}",
                "handing messages over to the inbox, or user code that exits",
                "see the exception; messages that were not handed over are emitted again after a restart",
            )
            self.broken.__cause__ = error
        finally:
            with suppress(BaseException):  # the task has reported it
                task.close()
            self._on_change()

    def _loop(self) -> None:
        task = self.task
        idle_calls, buffered_since, was_at_rest = 0, 0.0, False
        while not self._is_stopping:
            self._rests_in = 0
            self._round += 1
            if self._is_wanted != task.is_active:
                (task.activate if self._is_wanted else task.deactivate)()
            # Read before the step: verdicts that arrive during the step are taken in the next one.
            through = self._verdicts_through
            asked = time.monotonic()
            moved = task.step(now_ms(), enough=self._enough, until=asked + self._linger_secs)
            if task.buffered_count:
                buffered_since = buffered_since or asked
                if self._is_time_to_flush(buffered_since, emits=moved):
                    began = time.monotonic()
                    task.flush(now_ms())
                    self._flush_secs = time.monotonic() - began
                    buffered_since = 0.0
            self._note_delivered(through)
            if moved:
                idle_calls, was_at_rest = 0, False
                continue
            if task.is_idle:
                self._rests_in = self._round
                if not was_at_rest:
                    was_at_rest = True
                    self._on_change()
            idle_calls += 1
            why, waits_since = task.not_asked_because(), time.monotonic()
            if self._wake.wait(self._patience_secs(why, idle_calls)):
                self._wake.clear()
            if why is not None:
                task.note_not_asked(why, time.monotonic() - waits_since)

    def _is_time_to_flush(self, buffered_since: float, *, emits: bool) -> bool:
        """Whether to hand messages over now: in time for the next micro-batch, and in few files."""
        task = self.task
        if task.buffered_count >= self._enough or task.has_enough:
            return True
        if time.monotonic() - buffered_since > self._linger_secs:
            return True
        return not emits and not (task.may_emit() and self._is_query_busy())

    @property
    def _linger_secs(self) -> float:
        """How long messages stay buffered at most: as long as the last hand-over took, if that is longer."""
        return max(LINGER_SECS, min(_LONGEST_LINGER_SECS, self._flush_secs))

    @property
    def _enough(self) -> int:
        """How many buffered messages are handed over at once: as many more as they may linger longer."""
        return round(RUN_MESSAGES * self._linger_secs / LINGER_SECS)

    def _patience_secs(self, why: NotAsked | None, idle_calls: int) -> float:
        # An idle spout that may emit waits as its strategy says. One that may not emit waits for verdicts,
        # free room or a retry.
        secs = (
            idle_secs(self._config, idle_calls) if self.task.may_emit() else not_asked_secs(why, idle_calls)
        )
        if self.task.buffered_count:
            secs = min(secs, LINGER_SECS / 4)
        due = [due_ms for due_ms in (self.task.due_ms(), self.task.upkeep_due_ms()) if due_ms is not None]
        return min(secs, max(0.0, (min(due) - now_ms()) / 1000)) if due else secs

    def _note_delivered(self, through: int) -> None:
        """Note that verdicts up to a micro-batch were delivered, if their effects are durable."""
        if through > self.delivered_through and self.task.is_durable:
            self.delivered_through = through
            if not self.task.spout.redelivers:
                self._on_change()  # the journal notes it


class Threads:
    """The spout threads of a run, by task.

    Attributes:
        redriving: Held from the moment in which an order to send dead letters again is durable until they are
            queued for their tasks. Who holds it keeps the topology from coming to its end.
    """

    def __init__(self) -> None:
        """Start without threads."""
        self.by_task: dict[int, SpoutThread] = {}
        self.redriving = Lock()
        self._lock = Lock()
        self._held: dict[int, Mapping[int, VerdictBatch]] = {}
        self._are_stopping = False

    def hold(self, batch_id: int, verdict_batch: Mapping[int, VerdictBatch]) -> None:
        """Hold a micro-batch's verdicts until it is committed. The micro-batches before it are committed."""
        self.dispatch(batch_id - 1)
        with self._lock:
            self._held[batch_id] = verdict_batch

    def dispatch(self, committed: int) -> None:
        """Dispatch the verdicts of committed micro-batches to their tasks.

        Verdicts for a task that this run does not have are dropped.
        """
        with self._lock:
            for batch_id in sorted(number for number in self._held if number <= committed):
                verdict_batch = self._held.pop(batch_id)
                for task, thread in self.by_task.items():
                    thread.dispatch(verdict_batch.get(task), batch_id)

    def delivered_through(self) -> int:
        """The last micro-batch whose verdicts every task has delivered to its spout."""
        return min((thread.delivered_through for thread in self.by_task.values()), default=-1)

    def open_messages(self, tasks: Sequence[int], rows_open: Callable[[], int]) -> SpoutNumbers:
        """The number and greatest age of the open messages of tasks; ``rows_open`` counts DataFrame rows."""
        threads = [self.by_task[task] for task in tasks if task in self.by_task]
        numbers = [thread.numbers() for thread in threads]
        ages = [task_numbers.oldest_ms for task_numbers in numbers if task_numbers.oldest_ms is not None]
        rows = rows_open() if any(thread.task.component.is_dataframe for thread in threads) else 0
        oldest_secs = (now_ms() - min(ages)) / 1000 if ages else None
        count = sum(task_numbers.open_count for task_numbers in numbers) + rows
        complete_ms = Histogram()
        for task_numbers in numbers:
            complete_ms.merge(task_numbers.complete_ms)
        outages = outages_together(
            outage for thread in threads for outage in (*thread.task.outages, thread.blocked)
        )
        awaiting = sum(thread.task.awaiting_count for thread in threads)
        lag, by_partition = added_lags(task_numbers.lag for task_numbers in numbers)
        return SpoutNumbers(
            count, oldest_secs, lag, complete_ms, outages, awaiting_retry=awaiting,
            lag_by_partition=by_partition,
        )  # fmt: skip

    def ids_at(self, task: int, sequences: Int64s) -> MessageIds:
        """The ids of open messages of a task by sequences, which ascend; None for one that is not there."""
        thread = self.by_task.get(task)
        return [None] * len(sequences) if thread is None else thread.task.ids_at(sequences)

    def wake_task(self, task: int) -> None:
        """Let one of them be asked again at once."""
        thread = self.by_task.get(task)
        if thread is not None:
            thread.wake()

    def has_open_letter(self, letter: DeadLetter) -> bool:
        """Whether a dead letter was redriven in this topology and has no verdict yet."""
        thread = self.by_task.get(letter.task_id)
        if thread is None or letter.id is None or letter.settled_ms is not None:
            return False
        return thread.task.has_open_letter(letter.id)

    def redrive(self, letters: Sequence[tuple[int, RedrivenLetter]]) -> bool:
        """Queue dead letters for their tasks, as (task, letter); False, and none is, once they stop."""
        with self._lock:
            if self._are_stopping:
                return False
            for task, letter in letters:
                self.by_task[task].task.dispatch(Redrive([letter]))
        self.wake()
        return True

    def stop(self) -> None:
        """Ask all threads to stop; what was queued before is delivered."""
        with self._lock:
            self._are_stopping = True
        for thread in self.by_task.values():
            thread.stop()

    def wake(self) -> None:
        """Wake all threads, because there may be room for messages."""
        for thread in self.by_task.values():
            thread.wake()
