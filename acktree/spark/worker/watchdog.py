"""The watchdog enforces ``execute_timeout_secs``: it interrupts user code, or ends the process.

A thread reads the execution mark of a level. If the same row stays marked for longer than its timeout, the
thread sends a signal to the main thread, and repeats it until the signal arrives while user code runs. Only
then the signal's handler raises. It never raises in engine code, such as between the two writes of an emit,
or in a request to Spark's state over its socket.

The watchdog uses a thread and not an alarm, because SIGALRM and ``setitimer`` belong to user code: many
timeout libraries cancel any existing alarm. The signal is SIGURG, which few programs use and which is ignored
by default, so a late signal has no effect.

A hook (``prepare``, ``flush``, ``cleanup``) has no timeout: it may load a model for minutes. One that takes
longer than the timeout of a row is told in the log, since nothing of its partition goes on meanwhile.

Code that holds the interpreter lock stops this thread too. Then the hard kill ends the process: a timer of
``faulthandler``, which needs no interpreter. The thread restarts the timer whenever it sees progress.

To start the thread and the timer, and to end both, takes longer than a level takes for one message. So the
watchdog of a task that stays (real time) keeps them from run to run. When no run has begun between two looks,
the timer is stopped and the thread sleeps until the next one.
"""

from __future__ import annotations

import faulthandler
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from acktree.errors import ExecuteTimeoutError
from acktree.logs.loggers import logger

SIGNAL: Final = signal.SIGURG
"""Sent to the main thread when a row has exceeded its timeout."""

_CALLS_USER_CODE: Final = frozenset(
    {
        "acktree.bolt",
        "acktree.function_bolt",
        "acktree.pystorm.bolt",
        "acktree.pystorm.hosted_async",
        "acktree.tasks.bolts.kinds",
        "acktree.tasks.bolts.concurrent.steps",
        "acktree.tasks.hook_calls",
        "acktree.spark.worker.isolation",
        "acktree.spark.worker.staying",
    }
)
"""Modules of acktree that call ``execute``, parts of it or task hooks, and no other code outside acktree."""
_LOOKS_PER_TIMEOUT: Final = 4
"""How often the progress is read in one timeout."""
_RETRY_SECS: Final = 0.005
"""The time between two signals, while signals arrive in engine code."""
_HARD_KILL_FACTOR: Final = 1.5
"""The hard kill comes after this many timeouts plus one second."""

Moment = tuple[int, int]
"""A row that is being executed, and the number of its frame."""


Hook = tuple[str, str, int]
"""A bolt, its hook that is called, and the number of the call."""

_log = logger("acktree")


class Watchdog:
    """The watchdog of one level in one process.

    Attributes:
        timeout_secs: The current timeout of a row; None for no timeout.
    """

    def __init__(
        self,
        progress: Callable[[], Moment | None],
        hung_file: int,
        timeout_secs: float | None,
        *,
        stays: bool = False,
        hook: Callable[[], Hook | None] = lambda: None,
    ) -> None:
        """Make the watchdog; it starts in :meth:`on_watch`.

        Args:
            progress: Returns the row and frame being executed; None if nothing with a timeout is executed.
                Called from any thread.
            hung_file: The descriptor of a file. The hard kill writes a traceback to it before it ends the
                process.
            timeout_secs: The timeout until :meth:`allow` changes it.
            stays: Whether thread and timer stay when :meth:`on_watch` ends, until :meth:`close`.
            hook: Returns the hook that is called; None if none is. Called from any thread.
        """
        self._stays = stays
        self._hook = hook
        self._hook_seen: tuple[Hook | None, float, float] = None, 0.0, 0.0
        """A hook, since when it is called, and when that was told last."""
        self._telling: threading.Thread | None = None
        self._progress, self._hung_file = progress, hung_file
        self.timeout_secs, self._bolt = timeout_secs, ""
        self._seen: Moment | None = None
        self._since = 0.0
        self._due: tuple[Moment, float] | None = None
        self._is_watching = False
        self._changed = threading.Event()
        self._lock = threading.Lock()
        """Held while the thread looks, and while a run begins and ends."""
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._is_asleep = False
        self._has_begun = False
        """Whether a run has begun since the last look."""
        self._armed_secs: float | None = None
        """The timeout that the hard kill is set for; None while there is none."""

    def allow(self, secs: float | None, bolt: str = "") -> None:
        """Change the timeout of a row; None for no timeout.

        Args:
            secs: The timeout.
            bolt: The bolt that executes, for the message of the error.
        """
        self._bolt = bolt
        if secs == self.timeout_secs:
            return
        self.timeout_secs = secs
        if self._is_watching:
            self._restart_hard_kill()
            self._changed.set()

    @contextmanager
    def on_watch(self) -> Iterator[None]:
        """While this is open, interrupt rows that exceed their timeout. No-op outside a main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(SIGNAL, self._interrupt)
        try:
            self._begin()
            yield
        finally:
            try:
                with self._lock:
                    self._is_watching = False
                if not self._stays:
                    self.close()
            finally:
                signal.signal(SIGNAL, signal.SIG_DFL if before is None else before)

    def close(self) -> None:
        """End the thread, and stop the timer. No run may be on watch. A second call does nothing."""
        self._is_closing = True
        self._changed.set()
        thread, self._thread = self._thread, None
        try:
            if thread is not None and thread.ident is not None:
                thread.join()
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._armed_secs = None

    def _begin(self) -> None:
        with self._lock:
            self._seen = self._due = None
            self._is_watching = self._has_begun = True
            if self._thread is None or self._is_asleep or self._armed_secs != self.timeout_secs:
                self._restart_hard_kill()
            if self._is_asleep:
                self._is_asleep = False
                self._changed.set()
            is_first = self._thread is None
        if is_first:
            self._is_closing = False
            self._thread = threading.Thread(target=self._watch, name="acktree-watchdog", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        """The thread's target. It does not look at once: most levels have ended before its first look."""
        secs = self.timeout_secs
        pause = None if secs is None else secs / _LOOKS_PER_TIMEOUT
        self._changed.wait(pause)
        while not self._is_closing:
            self._changed.clear()
            with self._lock:
                pause = self._look() if self._is_watching else self._look_between_runs()
            self._changed.wait(pause)

    def _look_between_runs(self) -> float | None:
        """Restart the hard kill, or stop it where no run began. Returns as :meth:`_look`."""
        secs = self.timeout_secs
        if secs is None or not self._has_begun:
            faulthandler.cancel_dump_traceback_later()
            self._armed_secs, self._is_asleep = None, True
            return None
        self._has_begun = False
        self._arm(secs)
        return secs / _LOOKS_PER_TIMEOUT

    def _look(self) -> float | None:
        """Signal a row that exceeded its timeout. Returns the seconds until the next look, or None."""
        secs = self.timeout_secs
        if secs is None:
            return None
        moment, now, since = self._progress(), time.monotonic(), self._since
        self._tell_of_hook(now, secs)
        if moment is None or moment != self._seen:
            self._seen, self._since, self._due = moment, now, None
            self._restart_hard_kill()
        elif now - since >= secs:
            # The start time is part of it: after an interruption, a signal that is still pending has no
            # effect.
            self._due = moment, since
            with suppress(ProcessLookupError):
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
            return _RETRY_SECS
        return secs / _LOOKS_PER_TIMEOUT

    def _tell_of_hook(self, now: float, secs: float) -> None:
        """Log a hook that has not returned for longer than a row may take, and again after each such time.

        The log may wait for a lock that the hook holds, or for a server: not in this thread, which would end
        the process if it did not come back.
        """
        hook, (seen, since, told) = self._hook(), self._hook_seen
        if hook is None or hook != seen:
            self._hook_seen = hook, now, now
        elif now - told >= secs and not (self._telling and self._telling.is_alive()):
            self._hook_seen = hook, since, now
            self._telling = threading.Thread(target=_tell, args=(*hook[:2], now - since), daemon=True)
            with suppress(RuntimeError):  # no thread can be started now: it is told after the next such time
                self._telling.start()

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        """The signal's handler, in the main thread: raises if user code is running, and only then."""
        if self._due is None or self._due != (self._progress(), self._since) or not in_user_code(frame):
            return
        self._since = time.monotonic()  # user code may catch the error and go on, with a full timeout again
        secs = self.timeout_secs
        raise ExecuteTimeoutError(
            f"execute took longer than execute_timeout_secs={secs:g}",
            f"bolt {self._bolt!r}",
            "correct what it waits for, or allow more time: set_bolt(...).set_execute_timeout_secs(...)",
        )

    def _restart_hard_kill(self) -> None:
        """Restart the hard-kill timer; without a timeout, cancel it."""
        secs = self.timeout_secs
        if not self._is_watching:
            return
        if secs is None:
            faulthandler.cancel_dump_traceback_later()
            self._armed_secs = None
        else:
            self._arm(secs)

    def _arm(self, secs: float) -> None:
        faulthandler.dump_traceback_later(_HARD_KILL_FACTOR * secs + 1, exit=True, file=self._hung_file)
        self._armed_secs = secs


def _tell(bolt: str, hook: str, secs: float) -> None:
    _log.warning(
        "component=%s %s() has not returned for %.1f s: its partition waits, and nothing interrupts it",
        bolt, hook, secs,
    )  # fmt: skip


def in_user_code(frame: FrameType | None) -> bool:
    """Whether the innermost frame is user code, or library code called by user code.

    A library called by the engine (pickle, Spark's client of the state store) counts as engine code.
    """
    if frame is not None and _is_ours(frame):
        return False
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _CALLS_USER_CODE


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and (name == "acktree" or name.startswith("acktree."))
