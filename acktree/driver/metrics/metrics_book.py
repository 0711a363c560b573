"""The metrics of users in the driver: what micro-batches bring, what spouts grew by, and where it is stored.

What bolts registered comes as rows of a micro-batch, once. What spouts registered is taken when somebody
reads, and with each micro-batch. The whole table is a section of the commit log, so that the next driver
takes up what was committed, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from threading import Lock

from acktree.checkpoint.logs.commit_log import Commit, Outcome, Participant, Section
from acktree.core.data.frames import WireRow
from acktree.core.data.instruments import MOST_SERIES, Increment
from acktree.core.stats.numbers import ReportedError
from acktree.core.stats.user_metrics import Key, MetricTable, UserMetric, increments_from_bytes
from acktree.driver.logs.error_log import ErrorLog
from acktree.errors import CheckpointError

Source = Callable[[], Mapping[str, Increment]]
"""What the metrics of a spout task grew by since it was asked last."""


class MetricsBook(Participant):
    """The metrics of one run. Any thread may call any method but those of the participant."""

    name = "metrics"

    def __init__(self, errors: ErrorLog, tasks: Container[tuple[str, int]] | None = None) -> None:
        """Begin without metrics, until :meth:`recover`.

        Args:
            errors: Where a metric that is one too many is reported, once.
            tasks: (component, task) of all tasks: metrics of others count to no limit. None: all that come.
        """
        self._errors, self._tasks = errors, tasks
        self._now_ms = 0
        self._set_table(MetricTable())
        self._lock = Lock()
        self._sources: dict[tuple[str, int], Source] = {}
        self._has_grown = self._has_refused = False

    def watch(self, component: str, task: int, source: Source) -> None:
        """Let a spout task's metrics count."""
        self._sources[component, task] = source

    def note(self, rows: Iterable[WireRow], now_ms: int) -> None:
        """Add what a micro-batch brought."""
        self._now_ms = now_ms
        for row in rows:
            self._add(list(increments_from_bytes(row.body)), now_ms)

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        for number, section in sections:
            try:
                self._set_table(MetricTable.from_bytes(bytes(section.content)))
            except (ValueError, TypeError) as error:
                raise CheckpointError(
                    f"the metrics that an earlier run stored cannot be read: {error}",
                    f"commit {number} of the checkpoint",
                    "use the acktree that wrote them, or take the checkpoint from a copy",
                ) from error

    def write(self, commit: Commit, outcome: Outcome) -> Section | None:  # noqa: ARG002  # it was noted
        self._take_spouts(self._now_ms)
        with self._lock:
            has_grown, self._has_grown = self._has_grown, False
            return Section(self._table.to_bytes(), is_whole=True) if has_grown else None

    def _set_table(self, table: MetricTable) -> None:
        if self._tasks is not None:
            table.set_tasks(self._tasks)
        self._table = table

    def metrics(self, now_ms: int) -> dict[Key, UserMetric]:
        """The value of each metric."""
        self._take_spouts(now_ms)
        with self._lock:
            return self._table.metrics(now_ms)

    def _take_spouts(self, now_ms: int) -> None:
        for (component, task), source in list(self._sources.items()):
            grown = source()
            if grown:
                self._add([((component, task, name), increment) for name, increment in grown.items()], now_ms)

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
