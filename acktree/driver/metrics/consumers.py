"""The threads of metrics consumers: one that reads the numbers once an interval, and one for each consumer.

Rules of this file
------------------
1. Nothing waits for a consumer: its queue is bounded, and what does not fit is dropped and counted.
2. What a consumer raises is reported, and it is called again; ``prepare`` at the next interval.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Final

from acktree.config import Config
from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import ReportedError
from acktree.core.stats.user_metrics import Key, UserMetric
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.metrics.data_points import Task, data_points
from acktree.errors import HookError
from acktree.logs.loggers import logger
from acktree.metrics_consumer import DataPoint, MetricsConsumer, TaskInfo
from acktree.texts import error_text

log = logger("acktree")

_MOST_WAITING: Final = 100
"""How many intervals wait for one consumer at most. Storm has the same limit."""
_CLOSE_SECS: Final = 5.0
"""The longest wait for all consumers when a topology stops."""
_AGAIN_SECS: Final = 60.0
"""What one consumer raises, and that it is too slow, is said at most once in this time."""

_Report = Sequence[tuple[TaskInfo, list[DataPoint]]]


@dataclass(frozen=True)
class Source:
    """What numbers are read from.

    Attributes:
        counters: Gives all counts.
        metrics: Gives the metrics of users.
        at_once: By bolt how many tuples of a task are executed at once; 1 where it is not named.
    """

    counters: Callable[[], Counters]
    metrics: Callable[[], Mapping[Key, UserMetric]]
    at_once: Mapping[str, int] = field(default_factory=dict)


class Consumers:
    """The metrics consumers of one run."""

    def __init__(self, config: Config, topology: str, errors: ErrorLog) -> None:
        """Make the threads; they run from :meth:`begin`.

        Args:
            config: The settings, with the consumers.
            topology: The topology's name.
            errors: Where what a consumer raises is reported.
        """
        self._interval_secs = config.metrics_interval_secs
        config_of_consumers = replace(config.without_secrets(), metrics_consumers=())
        self._feeds = [
            _Feed(consumer, config_of_consumers, topology, errors) for consumer in config.metrics_consumers
        ]
        self._thread = Thread(target=self._read, name=f"metrics {topology}", daemon=True)
        self._is_closing = Event()
        self._host = socket.gethostname()
        self._source: Source | None = None
        self._before, self._read_at = Counters(), 0.0

    @property
    def dropped(self) -> int:
        """How many intervals were dropped because a consumer was too slow."""
        return sum(feed.dropped for feed in self._feeds)

    def begin(self, source: Source) -> None:
        """Begin to read. Nothing runs where there is no consumer."""
        if not self._feeds:
            return
        self._source, self._read_at = source, time.monotonic()
        for feed in self._feeds:
            feed.thread.start()
        self._thread.start()

    def close(self) -> None:
        """Give the last numbers, and let the consumers go; one that does not return is left behind."""
        if self._source is None:
            return
        self._is_closing.set()
        deadline = time.monotonic() + _CLOSE_SECS
        self._thread.join(_CLOSE_SECS)
        for feed in self._feeds:
            feed.stop(max(0.0, deadline - time.monotonic()))

    def _read(self) -> None:
        """The thread's target."""
        is_over = False
        while not is_over:
            is_over = self._is_closing.wait(self._interval_secs)
            try:
                report = self._report()
            except Exception:
                log.exception("the numbers for metrics consumers could not be read")
                continue
            for feed in self._feeds:
                feed.offer(report)

    def _report(self) -> _Report:
        assert self._source is not None, "begin() has set it"
        now, before, began = self._source.counters(), self._before, self._read_at
        self._before, self._read_at = now, time.monotonic()
        points: dict[Task, list[DataPoint]] = data_points(
            now, before, self._source.metrics(), self._read_at - began, self._source.at_once
        )
        at, interval = int(time.time()), round(self._interval_secs)
        return [
            (
                TaskInfo(
                    self._host, 0, component_id=component, task_id=task, timestamp=at, interval_secs=interval
                ),
                points_of_task,
            )
            for (component, task), points_of_task in points.items()
        ]


class _Feed:
    """One consumer with its queue and thread."""

    def __init__(self, consumer: MetricsConsumer, config: Config, topology: str, errors: ErrorLog) -> None:
        self._errors = errors
        self._consumer, self._config, self._topology = consumer, config, topology
        self._waiting: Queue[_Report] = Queue(_MOST_WAITING)
        self._is_over = Event()
        self._said: dict[str, float] = {}
        self.dropped = 0
        kind = type(consumer).__name__
        self.thread = Thread(target=self._run, name=f"{kind} {topology}", daemon=True)

    def offer(self, report: _Report) -> None:
        """Hand over the numbers of an interval; drops them where the consumer is too far behind."""
        try:
            self._waiting.put_nowait(report)
        except Full:
            self.dropped += 1
            self._say("dropped", HookError(
                f"metrics consumer {type(self._consumer).__name__} is {_MOST_WAITING} intervals behind: "
                f"{self.dropped} were dropped so far",
                f"topology {self._topology!r}",
                "let handle_data_points() return sooner, or set a longer metrics_interval_secs",
            ))  # fmt: skip

    def stop(self, secs: float) -> None:
        """Let it take what waits, and end; returns after ``secs`` at the latest."""
        self._is_over.set()
        self.thread.join(secs)

    def _run(self) -> None:
        """The thread's target."""
        is_prepared = self._prepare()
        while not (self._is_over.is_set() and self._waiting.empty()):
            try:
                report = self._waiting.get(timeout=0.1)
            except Empty:
                continue
            is_prepared = is_prepared or self._prepare()
            for task_info, points in report if is_prepared else ():
                self._handle(task_info, points)
        if is_prepared:
            self._call("cleanup", self._consumer.cleanup)

    def _prepare(self) -> bool:
        return self._call("prepare", lambda: self._consumer.prepare(self._config, self._topology))

    def _handle(self, task_info: TaskInfo, points: list[DataPoint]) -> None:
        self._call("handle_data_points", lambda: self._consumer.handle_data_points(task_info, points))

    def _call(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # user code, sys.exit() too; signals go elsewhere
            reported = HookError(
                f"metrics consumer {type(self._consumer).__name__} raised in {name}(): {error_text(error)}",
                f"topology {self._topology!r}",
                "correct what the exception says; nothing else is affected",
            )
            reported.__cause__ = error
            self._say(name, reported)
            return False
        return True

    def _say(self, call: str, error: HookError) -> None:
        now = time.monotonic()
        if now - self._said.get(call, -_AGAIN_SECS) >= _AGAIN_SECS:
            self._said[call] = now
            component = f"__metrics_{type(self._consumer).__name__}"
            self._errors.add(ReportedError(component, None, str(error), time.time_ns() // 1_000_000))
