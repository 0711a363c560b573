"""A topology of one shell bolt in a ``LocalCluster``, and its children."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acktree import BasicBolt, KeyValueState, Retry, TopologyBuilder
from acktree.multilang import ShellBolt
from acktree.system.processes import is_alive
from acktree.testing import FeederSpout, LocalCluster

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "multilang"
HOSTILE = [sys.executable, "-I", "-S", str(Path(__file__).parent / "hostile.py")]


class Count(BasicBolt):
    """Counts words in its memory."""

    outputs = ["word", "count"]
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = KeyValueState()

    def execute(self, tup, collector):
        self.counts[tup["word"]] = self.counts.get(tup["word"], 0) + 1
        collector.emit([tup["word"], self.counts[tup["word"]]])


class Bench:
    """A topology of one shell bolt, fed by hand."""

    def __init__(self, cluster: LocalCluster, bolt: ShellBolt, retry: Retry | None = None) -> None:
        self.feeder, self._cluster = FeederSpout(["text"]), cluster
        builder = TopologyBuilder("bench")
        builder.set_spout("source", self.feeder, retry=retry)
        builder.set_bolt("shell", bolt).shuffle_grouping("source")
        self.running = cluster.submit(builder.create_topology())

    def feed(self, *texts: Any, secs: float = 0) -> None:
        """Feed messages named by their texts in one micro-batch."""
        for text in texts:
            self.feeder.feed([text], message_id=str(text))
        self._cluster.advance(secs)

    @property
    def failed(self) -> dict[str, Any]:
        return dict(self.feeder.failed)

    @property
    def emitted(self) -> list[Any]:
        return [value for value, *_ in self._cluster.tuples("shell")]


@contextmanager
def bench(
    folder: Path, command: list[str] = HOSTILE, *, retry: Retry | None = None, **more: Any
) -> Iterator[Bench]:
    bolt = ShellBolt(command, more.pop("outputs", ["text"]), resources=folder, **more)
    with LocalCluster() as cluster:
        yield Bench(cluster, bolt, retry)


def started(folder: Path) -> list[int]:
    """The children that have begun in a folder, in order."""
    return [int(line) for line in (folder / "started").read_text().split()]


def await_end(pid: int) -> None:
    while is_alive(pid, of_others=False):
        pass
