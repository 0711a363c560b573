"""The metrics of users in the driver: what micro-batches bring, what spouts grew by, and where it is stored.

What bolts registered comes as rows of a micro-batch, once. What spouts registered is taken when somebody
reads, and with each micro-batch. The table is stored before a micro-batch is committed, by its number, so
that the next driver takes up what was committed, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from threading import Lock
from typing import Protocol

from acktree.checkpoint.table_log import FileMetricsLog
from acktree.core.data.frames import WireRow
from acktree.core.data.instruments import MOST_SERIES, Increment
from acktree.core.stats.numbers import ReportedError
from acktree.core.stats.user_metrics import Key, MetricTable, UserMetric, increments_from_bytes
from acktree.driver.error_log import ErrorLog

__all__ = ["MetricsBook", "MetricsLog"]

Source = Callable[[], Mapping[str, Increment]]
"""What the metrics of a spout task grew by since it was asked last."""


class MetricsLog(Protocol):
    """Stores the table durably."""

    def recover(self) -> bytes:
        """The table as of the last committed micro-batch; empty if there is none."""

    def write(self, batch_id: int, table: bytes) -> None:
        """Store the table as of a micro-batch that is not committed yet."""


class MetricsBook:
    """The metrics of one run. Any thread may call any method."""

    def __init__(
        self,
        errors: ErrorLog,
        log: MetricsLog | None = None,
        tasks: Container[tuple[str, int]] | None = None,
    ) -> None:
        """Take up what an earlier run stored. CheckpointError if it cannot be read.

        Args:
            errors: Where a metric that is one too many is reported, once.
            log: Where the table is stored; None for memory only.
            tasks: (component, task) of all tasks: metrics of others count to no limit. None: all that come.
        """
        self._errors, self._log = errors, log
        stored = b"" if log is None else log.recover()
        self._table = _table_of(stored)
        if tasks is not None:
            self._table.set_tasks(tasks)
        self._lock = Lock()
        self._sources: dict[tuple[str, int], Source] = {}
        self._has_grown = self._has_refused = False

    def watch(self, component: str, task: int, source: Source) -> None:
        """Let a spout task's metrics count."""
        self._sources[component, task] = source

    def note(self, rows: Iterable[WireRow], now_ms: int) -> None:
        """Add what a micro-batch brought."""
        for row in rows:
            self._add(list(increments_from_bytes(row.body)), now_ms)

    def keep(self, batch_id: int, now_ms: int) -> None:
        """A micro-batch is about to be committed: store what it brought."""
        if self._log is None:
            return
        self._take_spouts(now_ms)
        with self._lock:
            if not self._has_grown:
                return
            self._has_grown = False
            table = self._table.to_bytes()
        self._log.write(batch_id, table)

    def metrics(self, now_ms: int) -> dict[Key, UserMetric]:
        """The value of each metric."""
        self._take_spouts(now_ms)
        with self._lock:
            return self._table.metrics(now_ms)

    def _take_spouts(self, now_ms: int) -> None:
        for (component, task), source in list(self._sources.items()):
            grown = source()
            if grown:
                self._add([((component, task, name), each) for name, each in grown.items()], now_ms)

    def _add(self, grown: list[tuple[Key, Increment]], now_ms: int) -> None:
        with self._lock:
            refused = self._table.add(grown, now_ms)
            self._has_grown = True
            is_first = bool(refused) and not self._has_refused
            self._has_refused |= bool(refused)
        if is_first:
            component, task, name = refused[0]
            reason = (
                f"metric {name!r} is not counted: a topology has at most {MOST_SERIES} metrics, counted by "
                "task, and each has one kind. Count by a few kinds, and not by values of tuples"
            )
            self._errors.add(ReportedError(component, task, reason, now_ms))


def _table_of(stored: bytes) -> MetricTable:
    try:
        return MetricTable.from_bytes(stored) if stored else MetricTable()
    except (ValueError, TypeError) as error:
        raise FileMetricsLog.unreadable(error) from error
