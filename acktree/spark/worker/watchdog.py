"""The execute timeout: user code that takes too long is interrupted, or loses its process.

A thread watches the progress of a level: which row is being executed, as the mark says. A row that stays
for longer than its timeout is due, and the thread sends the main thread a signal, again and again until the
signal arrives at a moment when user code runs. Only then its handler raises. Inside the engine (between the
two writes of an emit, in a question to Spark's state over its socket) it never does.

It is a thread and not an alarm, because SIGALRM and ``setitimer`` are the user's: many libraries for timeouts
switch whatever alarm there is off. The signal is SIGURG, which hardly anything uses and which is ignored by
default, so that a late one does no harm.

Code that holds the interpreter stops this thread too. For that there is the hard kill, a timer of
``faulthandler`` which needs no interpreter: the thread restarts it whenever it sees progress.
"""

from __future__ import annotations

import faulthandler
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, TextIO

from acktree.errors import ExecuteTimeoutError

SIGNAL: Final = signal.SIGURG
"""Sent to the main thread when a row is due."""

_CALLS_USER_CODE: Final = frozenset(
    {"acktree.bolt", "acktree.tasks.bolts.kinds", "acktree.spark.worker.isolation"}
)
"""Modules of ours that call ``execute``, or what it is made of, and no other code that is not ours."""
_TICKS: Final = 4
"""The progress is read so often in one timeout."""
_RETRY_SECS: Final = 0.005
"""After so long the signal is sent again, if the last one came while the engine was running."""
_PATIENCE: Final = 1.5
"""Code that cannot be interrupted loses its process after so many times the timeout, and a second."""

Moment = tuple[int, int]
"""A row that is being executed, and the number of its frame."""


class Watchdog:
    """Watches one level in one process.

    Attributes:
        timeout_secs: How long a row may take at the moment; None: as long as it likes.
    """

    def __init__(
        self, progress: Callable[[], Moment | None], hung_file: TextIO, timeout_secs: float | None
    ) -> None:
        """Watch nothing yet.

        Args:
            progress: What is being executed; None for nothing that is timed. Called from any thread.
            hung_file: Where the hard kill writes before it ends the process.
            timeout_secs: Until :meth:`allow` says otherwise.
        """
        self._progress, self._hung_file = progress, hung_file
        self.timeout_secs, self._bolt = timeout_secs, ""
        self._seen: Moment | None = None
        self._since = 0.0
        self._due: tuple[Moment, float] | None = None
        self._is_watching = False
        self._changed = threading.Event()

    def allow(self, secs: float | None, bolt: str = "") -> None:
        """From now on a row may take so long. None: as long as it likes.

        Args:
            bolt: Who is executing, for the message of the error.
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
        """While this is open: interrupt what takes too long. Does nothing outside of a main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        thread = threading.Thread(target=self._watch, name="acktree-watchdog", daemon=True)
        before = signal.signal(SIGNAL, self._interrupt)
        try:
            self._is_watching = True
            self._restart_hard_kill()
            thread.start()
            yield
        finally:
            self._is_watching = False
            self._changed.set()
            try:
                if thread.ident is not None:
                    thread.join()
            finally:
                faulthandler.cancel_dump_traceback_later()
                signal.signal(SIGNAL, signal.SIG_DFL if before is None else before)

    def _watch(self) -> None:
        """The thread."""
        while self._is_watching:
            self._changed.wait(self._look())
            self._changed.clear()

    def _look(self) -> float | None:
        """Read the progress and interrupt what is due; how long to wait until the next time."""
        secs = self.timeout_secs
        if secs is None:
            return None
        moment, now, since = self._progress(), time.monotonic(), self._since
        if moment is None or moment != self._seen:
            self._seen, self._since, self._due = moment, now, None
            self._restart_hard_kill()
        elif now - since >= secs:
            # With the time it began: once it was interrupted, a signal that is still on its way says nothing.
            self._due = moment, since
            with suppress(ProcessLookupError):
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
            return _RETRY_SECS
        return secs / _TICKS

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        """The signal's handler, in the main thread: raises in user code, and only there."""
        if self._due is None or self._due != (self._progress(), self._since) or not in_user_code(frame):
            return
        self._since = time.monotonic()  # it may be caught, and go on: then it has the whole timeout again
        secs = self.timeout_secs
        raise ExecuteTimeoutError(
            f"execute took longer than execute_timeout_secs={secs:g}",
            f"bolt {self._bolt!r}",
            "mend what it waits for, or give it longer: set_bolt(...).set_execute_timeout_secs(...)",
        )

    def _restart_hard_kill(self) -> None:
        """Code that holds the interpreter has the whole patience again; none is needed without a timeout."""
        secs = self.timeout_secs
        if not self._is_watching:
            return
        if secs is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(_PATIENCE * secs + 1, exit=True, file=self._hung_file)


def in_user_code(frame: FrameType | None) -> bool:
    """Whether this frame, the innermost one, is user code, called by the engine.

    What a library does for the engine is engine code (pickle, Spark's client of the state store), and what a
    library does for a user's function is user code.
    """
    if frame is not None and _is_ours(frame):
        return False
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _CALLS_USER_CODE


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and (name == "acktree" or name.startswith("acktree."))
