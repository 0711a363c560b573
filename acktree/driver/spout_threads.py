"""Spout tasks in threads of the user's process: queue acks must go back over the connection they came from.

One thread a task, and every callback of the task on it. A thread asks the spout for messages while there is
room, hands them over in runs, and takes its mail in between; idle, it waits for mail or for its next try.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread, current_thread
from typing import Final

from acktree.config import Config
from acktree.core.stats.counters import Counters
from acktree.core.stats.statistics import SpoutNumbers
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import AcktreeError, CheckpointError, ConnectorError, SpoutError
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch

RUN_MESSAGES: Final = 8192
"""Messages are handed over at the latest when so many wait."""
LINGER_SECS: Final = 0.02
"""And at the latest after so long, while the spout goes on emitting or a micro-batch runs."""
_REST_CALLS: Final = 250
"""After so many waits of one length the next are twice as long."""
_MOST_DOUBLINGS: Final = 5
"""Until they were doubled so often."""
_SHORTEST_WAIT_SECS: Final = 1e-6
"""Asks the machine for the shortest wait it has; some 50 microseconds, usually."""
_NOT_ASKED_SECS: Final = 0.05
"""A spout that may not emit looks so often by itself; mail and room wake it before."""


def now_ms() -> int:
    """The driver's clock, in milliseconds since 1970: for what a person sees, and for back-off."""
    return time.time_ns() // 1_000_000


def idle_secs(config: Config, idle_calls: int) -> float:
    """How long a spout task waits after so many calls in a row that brought nothing; 0: not at all.

    The last wait of ``progressive`` grows while there is nothing, to 32 times what is configured: asked a
    thousand times a second a spout that rests would cost some percent of a core.

    Source: Storm's ``WaitStrategyProgressive`` and ``WaitStrategyPark``.
    """
    if config.spout_wait_strategy == "park":
        return config.spout_wait_park_microsec / 1e6
    at_once = config.spout_wait_progressive_level1_count
    if idle_calls <= at_once:
        return 0.0
    rested = idle_calls - at_once - config.spout_wait_progressive_level2_count
    if rested <= 0:
        return _SHORTEST_WAIT_SECS
    longer = 1 << min(_MOST_DOUBLINGS, rested // _REST_CALLS)
    return longer * config.spout_wait_progressive_level3_sleep_millis / 1000


@dataclass(frozen=True)
class Numbers:
    """A spout task's numbers at one moment.

    Attributes:
        open_count: Messages without a final verdict.
        oldest_ms: When the oldest of them was first emitted; None when none is open.
        lag: How many messages wait at the source; None when the spout does not say.
    """

    counters: Counters
    open_count: int
    oldest_ms: int | None
    lag: int | None = None


class SpoutThread:
    """The thread of one spout task."""

    def __init__(
        self,
        task: SpoutTask,
        config: Config,
        on_change: Callable[[], None],
        is_query_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; nothing runs before :meth:`start`.

        Args:
            on_change: Called when the task came to rest, ended or broke.
            is_query_busy: Whether a micro-batch runs: what is emitted now need not be handed over yet.
        """
        self.task = task
        self.position = b""
        """What the spout remembers of an earlier run; empty for nothing."""
        self.broken: AcktreeError | None = None
        self.told_through = -1
        self._config, self._on_change, self._is_query_busy = config, on_change, is_query_busy
        self._wake = Event()
        self._is_wanted = True
        self._is_stopping = False
        self._rests = False
        self._verdicts_through = -1
        self._starting = Lock()
        self._thread = Thread(
            target=self._run, name=f"spout {task.component.id} task {task.task}", daemon=True
        )

    def start(self) -> None:
        """Open the spout on its own thread, and let it emit; not if it was stopped already."""
        with self._starting:
            if not self._is_stopping:
                self._thread.start()

    def dispatch(self, verdict_batch: VerdictBatch | None, batch_id: int) -> None:
        """Leave what a committed micro-batch decided; None when it decided nothing for this task."""
        if verdict_batch is not None:
            self.task.dispatch(verdict_batch)
        self._verdicts_through = batch_id  # after the mail: what is through here can be taken
        if verdict_batch is not None:
            self._wake.set()

    def set_active(self, active: bool) -> None:  # noqa: FBT001  # it is the value, not an option
        """Wish the spout active or not; done on its own thread."""
        self._is_wanted = active
        self._wake.set()

    def wake(self) -> None:
        """Let it look again: there may be room."""
        self._wake.set()

    def stop(self) -> None:
        """Ask it to deactivate, to tell what is left to tell, and to close."""
        with self._starting:
            self._is_stopping = True
        self._wake.set()

    def join(self, secs: float) -> bool:
        """Wait until that is done; False if user code kept it longer than so many seconds."""
        if self._thread.is_alive():
            self._thread.join(secs)
        return not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks."""
        return self._thread is current_thread()

    def numbers(self) -> Numbers:
        """The task's numbers: exact when it is at rest or has stopped, else of about now."""
        while True:
            counters = Counters()
            try:
                counters.merge(self.task.counters)
                return Numbers(counters, self.task.open_count, self.task.oldest_ms(), self.task.lag)
            except (RuntimeError, ValueError):
                time.sleep(0)  # its thread changed a table under our eyes: look again

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is open, and nothing waits to be handed over or told."""
        # In this order: the thread says that it works before it takes its mail.
        return self.broken is not None or (not self.task.has_verdicts and self._rests)

    @property
    def has_ended(self) -> bool:
        """Whether the spout said that there will never be more, and all it emitted has its verdict."""
        return self.task.has_ended and self.is_at_rest

    def _run(self) -> None:
        task = self.task
        try:
            if self.position:
                task.remember(self.position)
            task.open(now_ms())
        except ConnectorError as error:  # the operator's to mend, and it says how
            self.broken = error
            self._on_change()
            return
        except BaseException as error:  # noqa: BLE001  # user code, sys.exit() too: the topology stops with it
            self.broken = SpoutError(
                f"spout {task.component.id!r} could not be opened: {type(error).__name__}: {error}",
                f"task {task.task}, open()",
                "mend what the exception says and submit again; nothing was emitted",
            )
            self.broken.__cause__ = error
            self._on_change()
            return
        try:
            self._loop()
            task.deactivate()
            through = self._verdicts_through
            task.step(now_ms())  # inactive: takes the mail, asks for nothing
            task.flush(now_ms())  # what ack and fail emitted too
            self._say_told(through)
        except (CheckpointError, ConnectorError, SpoutError) as error:  # each says by itself what to mend
            self.broken = error
        except BaseException as error:  # noqa: BLE001  # told by whoever waits
            self.broken = SpoutError(
                f"spout task {task.task} of {task.component.id!r} stopped: {type(error).__name__}: {error}",
                "handing messages over to the inbox, or user code that exits",
                "see the exception; what was not handed over comes again after a restart",
            )
            self.broken.__cause__ = error
        finally:
            with suppress(BaseException):  # reported by the task; all that is left is to let go
                task.close()
            self._on_change()

    def _loop(self) -> None:
        task = self.task
        idle_calls, buffered_since, was_at_rest = 0, 0.0, False
        while not self._is_stopping:
            self._rests = False
            if self._is_wanted != task.is_active:
                (task.activate if self._is_wanted else task.deactivate)()
            through = (
                self._verdicts_through
            )  # before the step: what comes while the spout is asked waits for the next
            asked = time.monotonic()
            moved = task.step(now_ms(), enough=RUN_MESSAGES, until=asked + LINGER_SECS)
            if task.buffered_count:
                buffered_since = buffered_since or asked
                if self._is_time_to_flush(buffered_since, emits=moved):
                    task.flush(now_ms())
                    buffered_since = 0.0
            self._say_told(through)
            if moved:
                idle_calls, was_at_rest = 0, False
                continue
            if task.is_idle:
                self._rests = True
                if not was_at_rest:
                    was_at_rest = True
                    self._on_change()
            idle_calls += 1
            if self._wake.wait(self._patience_secs(idle_calls)):
                self._wake.clear()

    def _is_time_to_flush(self, buffered_since: float, *, emits: bool) -> bool:
        """Soon enough for the next micro-batch, and in as few files as that allows."""
        task = self.task
        if task.buffered_count >= RUN_MESSAGES or task.has_enough:
            return True
        if time.monotonic() - buffered_since > LINGER_SECS:
            return True
        return not emits and not (task.may_emit() and self._is_query_busy())

    def _patience_secs(self, idle_calls: int) -> float:
        # Asked and nothing there: as the strategy says. Not asked: only mail, room or a retry changes that.
        secs = idle_secs(self._config, idle_calls) if self.task.may_emit() else _NOT_ASKED_SECS
        if self.task.buffered_count:
            secs = min(secs, LINGER_SECS / 4)
        due = [due_ms for due_ms in (self.task.due_ms(), self.task.upkeep_due_ms()) if due_ms is not None]
        return min(secs, max(0.0, (min(due) - now_ms()) / 1000)) if due else secs

    def _say_told(self, through: int) -> None:
        """The mail of this micro-batch was taken: it counts as told once what followed from it is durable."""
        if self.task.is_settled:
            self.told_through = max(self.told_through, through)


class Threads:
    """The spout threads of a run, by task."""

    def __init__(self) -> None:
        """None yet."""
        self.by_task: dict[int, SpoutThread] = {}
        self._lock = Lock()
        self._held: dict[int, Mapping[int, VerdictBatch]] = {}

    def hold(self, batch_id: int, verdict_batch: Mapping[int, VerdictBatch]) -> None:
        """Keep a micro-batch's verdicts until it is committed; that it runs says so of those before it."""
        self.tell(batch_id - 1)
        with self._lock:
            self._held[batch_id] = verdict_batch

    def tell(self, committed: int) -> None:
        """Leave the verdicts of committed micro-batches at their tasks.

        A task of an earlier run has no mailbox any more.
        """
        with self._lock:
            for batch_id in sorted(held for held in self._held if held <= committed):
                verdict_batch = self._held.pop(batch_id)
                for task, thread in self.by_task.items():
                    thread.dispatch(verdict_batch.get(task), batch_id)

    def told_through(self) -> int:
        """The last micro-batch whose verdicts every task has told."""
        return min((thread.told_through for thread in self.by_task.values()), default=-1)

    def open_messages(self, tasks: Sequence[int], rows_open: Callable[[], int]) -> SpoutNumbers:
        """What some tasks have open, and the oldest of it; ``rows_open`` counts the rows of DataFrames."""
        mine = [self.by_task[task] for task in tasks if task in self.by_task]
        numbers = [thread.numbers() for thread in mine]
        ages = [each.oldest_ms for each in numbers if each.oldest_ms is not None]
        rows = rows_open() if any(thread.task.component.is_dataframe for thread in mine) else 0
        oldest_secs = (now_ms() - min(ages)) / 1000 if ages else None
        lags = [each.lag for each in numbers if each.lag is not None]
        count = sum(each.open_count for each in numbers) + rows
        return SpoutNumbers(count, oldest_secs, sum(lags) if lags else None)

    def wake_task(self, task: int) -> None:
        """Let one of them be asked again at once."""
        thread = self.by_task.get(task)
        if thread is not None:
            thread.wake()

    def has_open_letter(self, letter: DeadLetter) -> bool:
        """Whether a dead letter of this topology was sent again and has no verdict yet."""
        thread = self.by_task.get(letter.task_id)
        if thread is None or letter.id is None or letter.settled_ms is not None:
            return False
        return thread.task.has_open_letter(letter.id)

    def wake(self) -> None:
        """Let all of them look for room."""
        for thread in self.by_task.values():
            thread.wake()
