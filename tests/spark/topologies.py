"""Topologies that the Spark tests run, in an importable module: workers are to find them beside the tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from acktree import BasicBolt, Bolt, IterableSpout, KeyValueState, Topology, TopologyBuilder, bolt
from acktree.spout import Spout


class Tally(BasicBolt):
    """Counts by key, and emits every count."""

    outputs = ["key", "count"]
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = KeyValueState()

    def execute(self, tup, collector):
        key = tup["key"]
        self.counts[key] = self.counts.get(key, 0) + 1
        collector.emit([key, self.counts[key]])


class Notebook(BasicBolt):
    """Writes every tuple on a line of a file of its own: an effect, to be counted from outside."""

    outputs = []

    def __init__(self, folder: Path):
        self.folder = folder

    def prepare(self, config, context):
        self.file = self.folder / f"{context.component_id}-{context.task_id}-{os.getpid()}"

    def execute(self, tup, collector):
        with self.file.open("a") as file:
            file.write("\t".join(map(str, tup.values)) + "\n")


def notes(folder: Path, component: str) -> list[list[str]]:
    """What all tasks of a notebook wrote."""
    lines = [line for file in sorted(folder.glob(f"{component}-*")) for line in file.read_text().splitlines()]
    return [line.split("\t") for line in lines]


class PoisonedEvery(BasicBolt):
    """Raises on every n-th number."""

    outputs = ["n"]

    def __init__(self, every: int):
        self.every = every

    def execute(self, tup, collector):
        if tup["n"] % self.every == 0:
            raise ValueError(f"{tup['n']} is poison")
        collector.emit([tup["n"]])


class NotingIterableSpout(IterableSpout):
    """Notes every verdict in a file, across runs."""

    def __init__(self, items: Iterable[object], outputs: list[str], noted: Path):
        super().__init__(items, outputs)
        self.noted = noted

    def ack(self, message_id):
        with self.noted.open("a") as file:
            file.write(f"acked {message_id}\n")

    def fail(self, message_id, failure):
        with self.noted.open("a") as file:
            file.write(f"failed {message_id}\n")


class FileQueueSpout(Spout):
    """A queue in a folder: a file a message, gone when it is acked; the others are there after a restart."""

    outputs = ["n"]

    def __init__(self, folder: Path, noted: Path):
        self.folder, self.noted = folder, noted

    def open(self, config, context, collector):
        self.collector = collector
        self.ready = sorted(self.folder.iterdir(), key=lambda file: int(file.name))[::-1]

    def next_tuple(self):
        if self.ready:
            number = int(self.ready.pop().name)
            with self.noted.open("a") as file:
                file.write(f"delivered {number}\n")
            self.collector.emit([number], message_id=number)

    def ack(self, message_id):
        # Noted before it is done: a test must not miss one that was killed in between.
        with self.noted.open("a") as file:
            file.write(f"acked {message_id}\n")
        (self.folder / str(message_id)).unlink(missing_ok=True)


@bolt(outputs=["key"])
def slow_key(tup):
    """A millisecond of work; ten keys."""
    time.sleep(0.001)
    yield [f"key {tup['n'] % 10}"]


class WaitsFor(BasicBolt):
    """Works on number 7 until a file is gone."""

    outputs = ["n"]

    def __init__(self, file: Path):
        self.file = file

    def execute(self, tup, collector):
        while tup["n"] == 7 and self.file.exists():
            time.sleep(0.05)
        collector.emit([tup["n"]])


class Hoard(Bolt):
    """Holds every tuple until it has four, then joins them into one and acks them."""

    outputs = ["total"]
    remembers = ["held"]

    def prepare(self, config, context, collector):
        self.collector = collector
        self.held = []

    def execute(self, tup):
        self.held.append(tup)
        if len(self.held) == 4:
            self.collector.emit([sum(held["n"] for held in self.held)], anchors=self.held)
            for held in self.held:
                self.collector.ack(held)
            self.held = []


def held_up(spout: Spout, file: Path) -> Topology:
    """numbers -> nobody; number 7 takes until a file is gone."""
    builder = TopologyBuilder("held up")
    builder.set_spout("numbers", spout)
    builder.set_bolt("waits", WaitsFor(file)).global_grouping("numbers")
    return builder.create_topology()


def counted(spout: Spout, notebook: Path) -> Topology:
    """numbers -> ten keys -> a remembered count, and every number in a notebook."""
    builder = TopologyBuilder("counted")
    builder.set_spout("numbers", spout)
    builder.set_bolt("key", slow_key, parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("tally", Tally(), parallelism=2).fields_grouping("key", ["key"])
    builder.set_bolt("notes", Notebook(notebook), parallelism=2).fields_grouping("tally", ["key"])
    return builder.create_topology()


class BatchSink(BasicBolt):
    """Collects numbers and writes each micro-batch's in ``flush``; a batch with a negative one is refused."""

    outputs = ["count"]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, config, context):
        self.batch: list[int] = []

    def execute(self, tup, collector):
        self.batch.append(tup["n"])

    def flush(self, collector):
        if min(self.batch) < 0:
            raise ValueError("a negative number")
        with (self.folder / "written").open("a") as file:
            file.write(f"{self.batch}\n")
        collector.emit([len(self.batch)])
        self.batch = []
