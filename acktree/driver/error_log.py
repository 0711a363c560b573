"""Errors of user code: the first few of each component and interval kept and logged. Counters count them all.

A bolt that raises on every tuple would fill the log and drown its neighbours' errors.

Source: Storm's ``ReportError``, throttled by the same two settings; Storm keeps them in ZooKeeper.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Final

from acktree.config import Config
from acktree.core.stats.statistics import ReportedError
from acktree.logs import logger

log = logger("acktree")

ERRORS_KEPT: Final = 100
"""So many are kept in all; the oldest go first."""


class ErrorLog:
    """The errors of one topology. Any thread may call any method.

    Attributes:
        count: How many it was given, kept or not.

    >>> errors = ErrorLog(Config(max_error_report_per_interval=1, error_throttle_interval_secs=10))
    >>> [errors.add(ReportedError("split", 3, "boom", at_ms)) for at_ms in (0, 5_000, 10_000)]
    [True, False, True]
    >>> errors.count, len(errors.kept)
    (3, 2)
    """

    def __init__(self, config: Config) -> None:
        """Nothing happened yet."""
        self._most = config.max_error_report_per_interval
        self._interval_ms = config.error_throttle_interval_secs * 1000
        self._lock = Lock()
        self._kept: deque[ReportedError] = deque(maxlen=ERRORS_KEPT)
        self.count = 0
        self._intervals: dict[str, tuple[int, int]] = {}  # component -> when its interval began, and how many

    def add(self, error: ReportedError) -> bool:
        """Take an error; True if it is kept, which is when it is logged."""
        with self._lock:
            self.count += 1
            began_ms, count = self._intervals.get(error.component, (error.at_ms, 0))
            # A clock that was set back begins a new interval too: silence until it catches up helps nobody.
            if not 0 <= error.at_ms - began_ms < self._interval_ms:
                began_ms, count = error.at_ms, 0
            self._intervals[error.component] = began_ms, count + 1
            if count >= self._most:
                return False
            self._kept.append(error)
        log.warning("component=%s task=%s error=%s", error.component, error.task_id, error.reason)
        return True

    @property
    def kept(self) -> tuple[ReportedError, ...]:
        """Those that were kept, the oldest first."""
        with self._lock:
            return tuple(self._kept)
