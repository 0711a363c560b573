"""Ctrl-C and SIGTERM: asked once a topology ends politely, asked again at once.

Rules of this file
------------------
1. Handlers belong to the process. Ours stand only while the main thread is in the ``with`` block of a running
   topology, or waits for one; then the old ones are back. A handler of the program's own is left alone.
2. A signal interrupts the user's code, never ours: where we wait, it is noted, and raised when the wait is
   over. An exception in the middle of ``threading``'s own code can leave a lock behind that nobody opens.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

__all__ = ["StoppedByCtrlC", "StoppedBySignal", "signals_raise", "signals_wait"]


class StoppedBySignal(SystemExit):
    """A signal asked the process to end; raised in its main thread.

    Uncaught it ends the process with the code that a shell expects, 128 + the signal's number (SIGTERM: 143),
    and prints nothing.

    Attributes:
        signal: Which one it was.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class StoppedByCtrlC(StoppedBySignal, KeyboardInterrupt):
    """The same for Ctrl-C (130). ``except KeyboardInterrupt`` takes it; uncaught it prints nothing either."""


class _Heeding:
    """Who listens for signals in this process, and what came."""

    def __init__(self) -> None:
        self.blocks = self.waits = 0
        self.came: list[StoppedBySignal] = []
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler in (signal.default_int_handler, signal.SIG_DFL) or _is_sparks(handler):
                self._before[number] = signal.signal(number, self._take)

    def end(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _take(self, number: int, _: FrameType | None) -> None:
        kind = StoppedByCtrlC if number == signal.SIGINT else StoppedBySignal
        if not self.waits:
            raise kind(number)
        self.came.append(kind(number))


_heeding: Final = _Heeding()


@contextmanager
def signals_raise() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise :class:`StoppedBySignal` in this block; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _heeding.blocks:
        _heeding.begin()
    _heeding.blocks += 1
    try:
        yield
    finally:
        _heeding.blocks -= 1
        if not _heeding.blocks:
            _heeding.end()


@contextmanager
def signals_wait() -> Iterator[Callable[[], bool]]:
    """Let nothing be raised in this block, but when it is left; gives a function that says whether one came.

    Raises:
        StoppedBySignal: For the first signal that came meanwhile; only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    _heeding.waits += 1
    before = len(_heeding.came)
    try:
        yield lambda: len(_heeding.came) > before
    finally:
        _heeding.waits -= 1
    if len(_heeding.came) > before:
        raise _heeding.came[before]


def _is_sparks(handler: object) -> bool:
    """Spark's own for Ctrl-C, which cancels every job: it would break the micro-batch that is waited for."""
    return str(getattr(handler, "__module__", "")).startswith("pyspark.")
