"""Ctrl-C and SIGTERM: the first signal lets open messages finish, the second one stops at once.

Rules of this file
------------------
1. Handlers belong to the process. Ours are installed only while the main thread is in the ``with`` block of a
   running topology or waits for one; afterwards the old ones are restored. The program's own handlers are not
   replaced.
2. A signal interrupts user code, never engine code: in engine code it is noted, and raised at the end. An
   exception inside the code of ``threading`` can leave a lock that is never released.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from acktree.system.stopped_by import StoppedByCtrlC, StoppedBySignal


class _Handlers:
    """The signal handlers of this process, and the signals that arrived while they were deferred."""

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


_handlers: Final = _Handlers()


@contextmanager
def signals_raise() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM raise :class:`StoppedBySignal` in this block. No-op outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _handlers.blocks:
        _handlers.begin()
    _handlers.blocks += 1
    try:
        yield
    finally:
        _handlers.blocks -= 1
        if not _handlers.blocks:
            _handlers.end()


@contextmanager
def signals_wait() -> Iterator[Callable[[], bool]]:
    """Defer signals to the end of this block. Yields a function that says whether one waits.

    A block inside of another one also sees, and raises, what has arrived in the outer one before it.

    Raises:
        StoppedBySignal: For the first signal that waits, in the main thread; later ones are over with it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    if not _handlers.waits:
        _handlers.came.clear()
    _handlers.waits += 1
    try:
        yield lambda: bool(_handlers.came)
    finally:
        _handlers.waits -= 1
    if _handlers.came:
        first = _handlers.came[0]
        _handlers.came.clear()
        raise first


def _is_sparks(handler: object) -> bool:
    """Whether this is Spark's handler for Ctrl-C, which would cancel the running micro-batch."""
    return str(getattr(handler, "__module__", "")).startswith("pyspark.")
