"""Metrics consumers: user code that is given all numbers of a topology once an interval.

Source: Storm's ``IMetricsConsumer``, ``LoggingMetricsConsumer`` and the names of its metrics. Difference:
Storm's are bolts of the topology; here each runs on a thread of its own in the driver, behind a bounded
queue.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from acktree.errors import ConfigError
from acktree.logs.loggers import logger
from acktree.system.private_files import make_private_file

__all__ = ["DataPoint", "JsonLinesMetricsConsumer", "LoggingMetricsConsumer", "MetricsConsumer", "TaskInfo"]

log = logger("acktree.metrics")


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The task that numbers are of.

    Attributes:
        host: The driver's machine.
        port: 0: a task has no port here.
        component_id: The component.
        task_id: The task.
        timestamp: When they were read; seconds since 1970.
        interval_secs: The configured interval.
    """

    host: str
    port: int
    component_id: str
    task_id: int
    timestamp: int
    interval_secs: int


@dataclass(frozen=True, slots=True)
class DataPoint:
    """One number.

    Attributes:
        name: Storm's name, such as ``__emit-count-default``; or that of a metric of the topology's own.
        value: A count is of the run so far, a latency in milliseconds the average since the last interval.
        dimensions: ``stream``, and of a bolt's input ``source``, the component that emitted it.
    """

    name: str
    value: float
    dimensions: Mapping[str, str] = field(default_factory=dict)


class MetricsConsumer:
    """Is given the numbers of each task once an interval. Override ``handle_data_points``.

    Register it by ``Config(metrics_consumers=[MyConsumer()])``. It runs on a thread of its own in the driver.
    While it is slow, up to 100 intervals wait for it; more are dropped and counted. What it raises is
    reported, and it is called again. In a ``LocalCluster`` it is not called.
    """

    def prepare(self, config: Any, topology_name: str) -> None:  # noqa: ANN401  # a Config, of a room above
        """Called first, on the thread of the others.

        If it raises, it is reported, and called again before the numbers of the next interval; nothing else
        is called until it has returned.

        Args:
            config: The :class:`Config` of the topology, without passwords.
            topology_name: Its name.
        """

    def handle_data_points(self, task_info: TaskInfo, data_points: Sequence[DataPoint]) -> None:
        """Called for each task with its numbers."""

    def cleanup(self) -> None:
        """Called when the topology has stopped, after its last numbers."""


class LoggingMetricsConsumer(MetricsConsumer):
    """Logs one line for each number, to the logger ``acktree.metrics`` at INFO."""

    def handle_data_points(self, task_info: TaskInfo, data_points: Sequence[DataPoint]) -> None:
        for point in data_points:
            log.info(
                "component=%s task=%d name=%s value=%s",
                task_info.component_id, task_info.task_id, point.name, point.value,
            )  # fmt: skip


class JsonLinesMetricsConsumer(MetricsConsumer):
    """Appends one JSON object for each number to a file that its owner alone can read.

    Args:
        path: The file; made if it is not there. Rotate it by renaming it: it is opened for each interval.

    Raises:
        ConfigError: The folder of ``path`` is not there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"there is no folder {self.path.parent}",
                "JsonLinesMetricsConsumer(path)",
                "make it, or name another file",
            )

    def handle_data_points(self, task_info: TaskInfo, data_points: Sequence[DataPoint]) -> None:
        about = asdict(task_info)
        lines = (json.dumps(about | asdict(point) | {"value": _json(point.value)}) for point in data_points)
        with self._opened() as file:
            file.write("".join(f"{line}\n" for line in lines))

    def _opened(self) -> IO[str]:
        if not self.path.exists():
            make_private_file(self.path)
        return self.path.open("a")


def _json(value: float) -> float | None:
    """A number as JSON has it: None for infinity and for what is no number."""
    return value if math.isfinite(value) else None
