"""Python twins of the classes of Storm that its example files name."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from acktree import (
    BasicBolt,
    BasicOutputCollector,
    Config,
    CustomGrouping,
    KeyValueState,
    Spout,
    SpoutOutputCollector,
    TaskContext,
    Tuple,
)
from acktree.logs.loggers import logger
from acktree.multilang import ShellBolt, ShellSpout
from acktree.multilang.framing import serializer_named

__all__ = ["FluxShellBolt", "FluxShellSpout", "LogInfoBolt", "NGrouping", "TestWordCounter", "TestWordSpout"]

log = logger("acktree")

_WORDS: Final = ("nathan", "mike", "jackson", "golda", "bertels")
_PAUSE_SECS: Final = 0.1


class LogInfoBolt(BasicBolt):
    """Logs each tuple at INFO; emits nothing."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        log.info("%s: %r", tup.component, tup.values)


class TestWordSpout(Spout):
    """Emits a random word each 100 ms, untracked."""

    __test__ = False  # for pytest, which takes its name for that of tests
    outputs = ["word"]

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self._collector = collector
        self._next_at = time.monotonic()

    def next_tuple(self) -> None:
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _PAUSE_SECS
            self._collector.emit([random.choice(_WORDS)])  # noqa: S311  # an example's words, no secret


class TestWordCounter(BasicBolt):
    """Counts the first values of tuples, and emits each with its count."""

    __test__ = False
    outputs = ["word", "count"]
    remembers = ["counts"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts = KeyValueState[str, int]()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        word = str(tup[0])
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


class NGrouping(CustomGrouping):
    """Sends each tuple to the ``n`` lowest tasks."""

    def __init__(self, n: int) -> None:
        self.n = n

    def prepare(self, context: TaskContext, stream: str, target_task_ids: Sequence[int]) -> None:
        self._tasks = sorted(target_task_ids)[: self.n]

    def choose_tasks(self, task_id: int, values: Sequence[object]) -> list[int]:
        return self._tasks


class _FluxShell:
    """What both wrappers have: streams and settings that are set one by one. The working folder is resources.

    Args:
        command: The program and its arguments.
        fields: The fields of the default stream; None: it has none.
    """

    _program: Any  # of the other base

    def __init__(self, command: list[str], fields: list[str] | None = None) -> None:
        self.settings: dict[str, Any] = {}
        self.streams = {} if fields is None else {"default": [*fields]}
        resources = "resources" if Path("resources").is_dir() else None
        super().__init__(command, self.streams, resources=resources, settings=self.settings)  # type: ignore[call-arg]  # of the other base

    def set_default_stream(self, fields: list[str]) -> None:
        """Declare the default stream."""
        self.set_named_stream("default", fields)

    def set_named_stream(self, name: str, fields: list[str]) -> None:
        """Declare a stream."""
        self.streams[name] = [*fields]

    def add_component_config(self, key: str, value: object) -> None:
        """Set a setting that the child gets in ``conf``; that of the serializer counts here, too."""
        self.settings[key] = value
        if key == "topology.multilang.serializer":
            self._program = replace(self._program, serializer=serializer_named(value) or str(value))


class FluxShellBolt(_FluxShell, ShellBolt):
    """A :class:`ShellBolt` as Flux makes it."""


class FluxShellSpout(_FluxShell, ShellSpout):
    """A :class:`ShellSpout` as Flux makes it."""
