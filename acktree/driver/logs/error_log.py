"""Errors of user code: the first few of each component and interval are kept and logged; all are counted.

Without the limit, a bolt that raises on every tuple would fill the log and hide the errors of other
components.

Source: Storm's ``ReportError``, throttled by the same two settings; Storm keeps them in ZooKeeper.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Final

from acktree.config import Config
from acktree.core.stats.numbers import ReportedError
from acktree.driver.logs.line_budget import LineBudget
from acktree.logs.loggers import logger

log = logger("acktree")

ERRORS_KEPT: Final = 100
"""How many errors are kept in all; the oldest are dropped first."""


class ErrorLog:
    """The errors of one topology. Any thread may call any method.

    Attributes:
        count: How many errors were added, kept or not.

    >>> errors = ErrorLog(Config(max_error_report_per_interval=1, error_throttle_interval_secs=10))
    >>> [errors.add(ReportedError("split", 3, "boom", at_ms)) for at_ms in (0, 5_000, 10_000)]
    [True, False, True]
    >>> errors.count, len(errors.kept)
    (3, 2)
    """

    def __init__(self, config: Config, lines: LineBudget | None = None) -> None:
        """Start without errors.

        Args:
            config: How many are kept.
            lines: How many of these are logged; None: all.
        """
        self._lines = lines
        self._most = config.max_error_report_per_interval
        self._interval_ms = config.error_throttle_interval_secs * 1000
        self._lock = Lock()
        self._kept: deque[ReportedError] = deque(maxlen=ERRORS_KEPT)
        self.count = 0
        self._intervals: dict[str, tuple[int, int]] = {}  # component -> when its interval began, and how many

    def add(self, error: ReportedError) -> bool:
        """Add an error. Returns whether it was kept."""
        with self._lock:
            self.count += 1
            began_ms, count = self._intervals.get(error.component, (error.at_ms, 0))
            # A clock that was set back begins a new interval too. Otherwise errors would be dropped until the
            # clock has caught up.
            if not 0 <= error.at_ms - began_ms < self._interval_ms:
                began_ms, count = error.at_ms, 0
            self._intervals[error.component] = began_ms, count + 1
            if count >= self._most:
                if self._lines is not None:
                    self._lines.leave_out(1)
                return False
            self._kept.append(error)
        if self._lines is None or self._lines.allows(error.component, error.at_ms):
            log.warning("component=%s task=%s error=%s", error.component, error.task_id, error.reason)
        return True

    @property
    def kept(self) -> tuple[ReportedError, ...]:
        """The kept errors, the oldest first."""
        with self._lock:
            return tuple(self._kept)
