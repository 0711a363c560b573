"""The topology of the chaos of effects that happen once, into PostgreSQL.

::

    position ─┐
    repeated ─┤
    rows     ─┤                 ┌─► count ─► totals      (exactly once: memory, and a table behind it)
    keyed    ─┼─► split ────────┤
    plain    ─┘                 └─► table                (a sink)

A tenth of the attempts fails by chance, in every bolt: what runs again fails elsewhere. Some messages are
given up in ``split``, some of their parts behind the gate.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from acktree import BasicBolt, KeyValueState, Retry, Spout, Topology, TopologyBuilder
from acktree.connectors.rabbitmq import RabbitMQSpout
from acktree.connectors.sql import SqlSink
from tests.chaos.effects import RUN

PARTS: Final = 2
SOURCES: Final = ("position", "repeated", "rows", "keyed", "plain")
"""A position spout, one whose keys come again, rows of a DataFrame, queues with and without keys."""
_BEFORE: Final = 3
"""How far behind the newest number the one is whose key comes again."""
ASK: Final = "ask"
PUT, ARMED, STOP = "put", "armed", "stop"
"""Files: how many messages there are; who dies after the database's next commit; that no more will come."""
_CHANCE: Final = 0.1
_ATTEMPTS: Final = 12
"""That all of these fail by chance happens once in 10^12 messages."""


def is_given_up(number: int) -> bool:
    """Whether ``split`` fails each attempt of a message."""
    return number % 13 == 5


def is_given_up_behind(number: int, part: int) -> bool:
    """Whether ``count`` fails each attempt of a part."""
    return number % 17 == 3 and part == 0


def _fails() -> bool:
    return random.SystemRandom().random() < _CHANCE


class Numbers(Spout):
    """A position spout: all numbers that were put."""

    outputs = ["body"]
    redelivers = False
    remembers = ["position"]

    def __init__(self, folder: Path) -> None:
        self.folder, self.position = folder, 0

    def open(self, config: Any, context: Any, collector: Any) -> None:
        self.collector, self.name = collector, context.component_id

    def next_tuple(self) -> None:
        if self.position < int((self.folder / PUT).read_text()):
            self.collector.emit([f"{self.name} {self.position}".encode()], message_id=self.position)
            self.position += 1


class Repeats(Numbers):
    """A position spout with keys: after each number an older one, which came before, with its key."""

    def next_tuple(self) -> None:
        number = self.position // 2
        if number < int((self.folder / PUT).read_text()):
            if self.position % 2:
                number = max(0, number - _BEFORE)
            body = f"{self.name} {number}".encode()
            self.collector.emit([body], message_id=self.position, key=f"key {number}")
            self.position += 1


class Asks(Spout):
    """Asks once what is remembered, in a run that is told to."""

    outputs = ["body"]

    def __init__(self, folder: Path) -> None:
        self.folder, self.has_asked = folder, False

    def open(self, config: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        if (self.folder / STOP).exists() and not self.has_asked:
            self.has_asked = True
            self.collector.emit([b"ask 0"], message_id=0)

    def ack(self, message_id: object) -> None:
        (self.folder / "asked").touch()


class Split(BasicBolt):
    """A message as its parts; raises when it has emitted them."""

    outputs = ["source", "number", "part", "run"]

    def execute(self, tup: Any, collector: Any) -> None:
        body = tup["body"]
        source, number = (body if isinstance(body, str) else bytes(body).decode()).split()
        for part in range(PARTS):
            collector.emit([source, int(number), part, int(os.environ[RUN])])
        if _fails() or is_given_up(int(number)):
            raise ValueError(f"{source} {number} fails after its parts were emitted")


class Count(BasicBolt):
    """Counts each part; raises when it has counted."""

    outputs = {"default": ["source", "number", "part", "run", "count"], "memory": ["task", "found"]}
    remembers = ["seen", "total"]

    def prepare(self, config: Any, context: Any) -> None:
        self.task = context.task_id
        self.seen: KeyValueState[str, int] = KeyValueState()
        self.total = 0

    def execute(self, tup: Any, collector: Any) -> None:
        if tup.component == ASK:
            assert self.total == sum(self.seen.values()), "two kinds of memory differ"
            collector.emit([self.task, json.dumps(dict(self.seen.items()))], stream="memory")
            return
        source, number, part, run = tup.values
        name = f"{source} {number} {part}"
        self.seen[name] = self.seen.get(name, 0) + 1
        self.total += 1
        collector.emit([source, number, part, run, self.seen[name]])
        if _fails() or is_given_up_behind(number, part):
            raise ValueError(f"{name} fails after it was counted")


class Remembered(BasicBolt):
    """Writes what a task remembers to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute(self, tup: Any, collector: Any) -> None:
        (self.folder / f"memory-{tup['task']}.json").write_text(tup["found"])


class Table(SqlSink):
    """Dies, or kills the driver, when the database has committed and nobody knows, if it is armed."""

    def __init__(self, url: str, table: str, folder: Path) -> None:
        super().__init__(url, table, mode="insert")
        self.armed = folder / ARMED

    def write(self, batch: Any, mark: bytes) -> Mapping[int, str]:
        refused = super().write(batch, mark)
        if self.armed.exists():
            whom = self.armed.read_text()
            self.armed.rename(self.armed.with_suffix(".done"))  # the one that renames it kills
            os.kill(int(whom) or os.getpid(), signal.SIGKILL)
        return refused


def exactly_topology(folder: Path, settings: Mapping[str, Any], rows: Spout | None) -> Topology:
    """The topology; ``rows`` is the ``DataFrameSpout``."""
    retry = Retry(_ATTEMPTS, backoff_secs=(0.05, 0.5))
    spouts: dict[str, Any] = {
        "position": Numbers(folder),
        "repeated": Repeats(folder),
        "keyed": RabbitMQSpout(settings["queue"], "keyed", key="message_id"),
        "plain": RabbitMQSpout(settings["queue"], "plain"),
        "rows": rows,
    }
    builder = TopologyBuilder("exactly")
    split = builder.set_bolt("split", Split(), 2)
    for source in settings["sources"]:
        builder.set_spout(source, spouts[source], retry=retry)
        split.shuffle_grouping(source)
    builder.set_spout(ASK, Asks(folder))
    count = builder.set_bolt("count", Count(), 2, exactly_once=True, retry=retry)
    count.fields_grouping("split", ["source", "number"]).all_grouping(ASK, gate=False)
    builder.set_bolt("remembered", Remembered(folder)).global_grouping("count", stream="memory")
    for table, source in (("direct", "split"), ("totals", "count")):
        sink = builder.set_sink(table, Table(settings["database"], table, folder), 2, retry=retry)
        sink.fields_grouping(source, ["number"])
    return builder.create_topology()
