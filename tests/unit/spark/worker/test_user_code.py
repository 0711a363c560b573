"""The execute timeout interrupts the user's code, whichever kind of bolt has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, TopologyBuilder, bolt
from acktree.spark.worker.watchdog import in_user_code
from acktree.testing import FeederSpout, LocalCluster


def note(file: Path) -> None:
    """Add a line that says whether the caller is user code: bolts are copied, so they share no list."""
    with file.open("a") as lines:
        lines.write(f"{in_user_code(sys._getframe(1))}\n")


class Basic(BasicBolt):
    outputs = []

    def __init__(self, file: Path) -> None:
        self.file = file

    def execute(self, tup, collector):
        note(self.file)


class Remembers(Basic):
    remembers = ["count"]

    def prepare(self, config, context):
        self.count = 0


class Coroutine(Basic):
    async def execute(self, tup, collector):
        note(self.file)


class Rich(Bolt):
    outputs = []

    def __init__(self, file: Path) -> None:
        self.file = file

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        note(self.file)
        self.collector.ack(tup)


class Batches(ArrowBolt):
    outputs = pa.schema([])

    def __init__(self, file: Path) -> None:
        self.file = file

    def execute_batch(self, batch, collector):
        note(self.file)


def yields(file: Path) -> Any:
    @bolt(outputs=["n"])
    def execute(tup):
        note(file)
        yield [1]

    return execute


def returns(file: Path) -> Any:
    @bolt(outputs=["n"])
    def execute(tup):
        note(file)
        return [[1]]

    return execute


def awaits(file: Path) -> Any:
    @bolt()
    async def execute(tup):
        note(file)

    return execute


@pytest.mark.parametrize("make", [Basic, Coroutine, Rich, Batches, yields, returns, awaits])
def test_what_a_bolt_executes_is_user_code(tmp_path: Path, make) -> None:
    check(tmp_path, make)


@pytest.mark.parametrize("make", [Remembers, yields, Batches])
def test_so_is_what_one_executes_exactly_once(tmp_path: Path, make) -> None:
    check(tmp_path, make, exactly_once=True)


def check(folder: Path, make: Any, **given: Any) -> None:
    lines, builder = FeederSpout(["n"]), TopologyBuilder("user code")
    builder.set_spout("lines", lines)
    builder.set_bolt("bolt", make(folder / "noted"), **given).shuffle_grouping("lines")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        lines.feed([1], message_id=1)
        cluster.advance(secs=5)
    assert set((folder / "noted").read_text().split()) == {"True"}
