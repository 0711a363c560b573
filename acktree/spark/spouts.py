"""Spout tasks in threads of the user's process: queue acks must go back over the connection they came from.

One thread a task, and every callback of the task on it. A thread asks the spout for messages while there is
room, hands them over in runs, and takes its mail in between; idle, it waits for mail or for its next try.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from acktree.config import Config
from acktree.errors import SpoutError
from acktree.tasks.mail import Mail
from acktree.tasks.spout_task import SpoutTask

RUN_MESSAGES: Final = 8192
"""Messages are handed over at the latest when so many wait."""
LINGER_SECS: Final = 0.02
"""And at the latest after so long, while the spout goes on emitting."""
_LONGEST_IDLE: Final = 16
"""An idle spout's wait grows to so many times its first one."""


def now_ms() -> int:
    """The driver's clock, in milliseconds since 1970: for what a person sees, and for back-off."""
    return time.time_ns() // 1_000_000


class SpoutThread:
    """The thread of one spout task."""

    def __init__(self, task: SpoutTask, config: Config, on_change: Callable[[], None]) -> None:
        """Prepare; nothing runs before :meth:`start`.

        Args:
            on_change: Called when the task came to rest, ended or broke.
        """
        self.task = task
        self.position = b""
        """What the spout remembers of an earlier run; empty for nothing."""
        self.broken: SpoutError | None = None
        self.told_through = -1
        self._config, self._on_change = config, on_change
        self._wake = Event()
        self._is_wanted = True
        self._is_stopping = False
        self._rests = False
        self._mail_through = -1
        self._thread = Thread(
            target=self._run, name=f"spout {task.component.id} task {task.task}", daemon=True
        )

    def start(self) -> None:
        """Open the spout on its own thread, and let it emit."""
        self._thread.start()

    def deliver(self, mail: Mail | None, batch_id: int) -> None:
        """Leave what a micro-batch decided; None when it decided nothing for this task."""
        if mail is not None:
            self.task.deliver(mail)
            self._mail_through = batch_id
            self._wake.set()

    def set_active(self, active: bool) -> None:  # noqa: FBT001  # it is the value, not an option
        """Wish the spout active or not; done on its own thread."""
        self._is_wanted = active
        self._wake.set()

    def wake(self) -> None:
        """Let it look again: there may be room."""
        self._wake.set()

    def stop(self) -> None:
        """Deactivate, tell what is left to tell, close; returns when that is done."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is open, and nothing waits to be handed over or told."""
        # In this order: the thread says that it works before it takes its mail.
        return self.broken is not None or (not self.task.has_mail and self._rests)

    @property
    def has_ended(self) -> bool:
        """Whether the spout said that there will never be more, and all it emitted has its verdict."""
        return self.task.has_ended and self.is_at_rest

    def _run(self) -> None:
        task = self.task
        try:
            if self.position:
                task.remember(self.position)
            task.open()
        except Exception as error:  # noqa: BLE001  # user code: the topology stops with it
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
            task.flush(now_ms())
            task.step(now_ms())  # inactive: takes the mail, asks for nothing
            task.close()
        except Exception as error:  # noqa: BLE001  # the inbox cannot be written: told by whoever waits
            self.broken = SpoutError(
                f"spout task {task.task} of {task.component.id!r} stopped: {type(error).__name__}: {error}",
                "handing messages over to the inbox",
                "see the exception; what was not handed over comes again after a restart",
            )
            self.broken.__cause__ = error
        self._on_change()

    def _loop(self) -> None:
        task = self.task
        first_wait = self._config.spout_wait_progressive_level3_sleep_millis / 1000
        idle_secs, buffered_since = first_wait, 0.0
        while not self._is_stopping:
            self._rests = False
            if self._is_wanted != task.is_active:
                (task.activate if self._is_wanted else task.deactivate)()
            moved = task.step(now_ms())
            self.told_through = max(self.told_through, self._mail_through)
            waiting = task.buffered_count
            if waiting:
                now = time.monotonic()
                buffered_since = buffered_since or now
                if not moved or waiting >= RUN_MESSAGES or now - buffered_since > LINGER_SECS:
                    task.flush(now_ms())
                    buffered_since = 0.0
            if moved:
                idle_secs = first_wait
                continue
            if task.is_idle:
                self._rests = True
                self._on_change()
            # Asked and nothing there: try again soon. Not asked: only mail, room or a retry can change that.
            secs = idle_secs if task.may_emit() else 0.05
            due_ms = task.due_ms()
            if due_ms is not None:
                secs = min(secs, max(0.0, (due_ms - now_ms()) / 1000))
            if self._wake.wait(secs):
                self._wake.clear()
            idle_secs = min(idle_secs * 1.5, first_wait * _LONGEST_IDLE)
