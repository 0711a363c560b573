"""A thread that carries out work in order, behind a bounded queue: nobody who gives it work waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from acktree.logs.loggers import logger

log = logger("acktree")

_MOST_QUEUED: Final = 10_000
_MOST_QUEUED_BYTES: Final = 64 << 20
_CLOSE_SECS: Final = 10.0

Work = Callable[[], None]


class Writer:
    """Writes for one run. A full queue drops work; an error is logged once and stops nothing.

    Args:
        name: What is written, for the log.
        is_threaded: Whether work is done on a thread of its own; else at once.

    Attributes:
        dropped: How often work was dropped, or failed.
        failed: How often it failed.
    """

    def __init__(self, name: str, *, is_threaded: bool = True) -> None:
        self.dropped = self.failed = 0
        self._name, self._is_threaded = name, is_threaded
        self._queue: deque[tuple[Work, int]] = deque()
        self._given = self._done = 0
        self._queued_bytes = 0
        self._change = threading.Condition()
        self._is_closed = self._has_failed = False
        self._thread: threading.Thread | None = None

    def put(self, work: Work, size: int = 64) -> None:
        """Queue work that holds about ``size`` bytes."""
        if not self._is_threaded:
            self._do(work)
            return
        with self._change:
            is_full = len(self._queue) >= _MOST_QUEUED or self._queued_bytes + size > _MOST_QUEUED_BYTES
            if is_full or self._is_closed:
                self.dropped += 1
                return
            self._queue.append((work, size))
            self._given += 1
            self._queued_bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name=f"acktree {self._name}", daemon=True)
                self._thread.start()
            self._change.notify_all()

    @property
    def is_at_rest(self) -> bool:
        """Whether all work that was given is done."""
        return self._done == self._given

    def settle(self, timeout_secs: float = 10.0) -> bool:
        """Wait until all work that was given is done. False when the time is over first."""
        with self._change:
            wanted = self._given  # what is given from now on is not waited for
            return self._change.wait_for(lambda: self._done >= wanted, timeout_secs)

    def close(self) -> None:
        """Do what is queued, and end the thread."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECS)

    def _write(self) -> None:
        """The thread's target."""
        while True:
            with self._change:
                self._change.notify_all()
                self._change.wait_for(lambda: self._queue or self._is_closed)
                if not self._queue:
                    return
                work, size = self._queue.popleft()
                self._queued_bytes -= size
            self._do(work)
            self._done += 1

    def _do(self, work: Work) -> None:
        try:
            work()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a full disk, or a user's logger
            self.dropped += 1
            self.failed += 1
            if not self._has_failed:
                log.warning("%s cannot be written: %s", self._name, error)
            self._has_failed = True
