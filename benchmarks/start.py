"""From ``submit`` to the first ack of a fresh process, in seconds and in CPU.

    python -m benchmarks start --stateful 1

A word count of two lines, with the given number of stateful bolts in a row. Compare two versions of acktree
in turn, each from its own folder; the CPU of all processes is easier to compare than seconds. One line of
JSON.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acktree import BasicBolt, IterableSpout, KeyValueState, Topology, TopologyBuilder, bolt, submit
from benchmarks import machine
from benchmarks.report import Report, add_keep_argument, print_line

LINES = ("the cow jumped", "over the moon")


@bolt(outputs=["word"])
def split(tup: Any) -> Any:  # noqa: ANN401  # as users write it
    """The words of a line."""
    for word in tup["line"].split():
        yield [word]


class Count(BasicBolt):
    """Counts a word, and passes it on."""

    outputs = ("word",)
    remembers = ("counts",)

    def prepare(self, config: Any, context: Any) -> None:  # noqa: ANN401
        self.counts: KeyValueState[str, int] = KeyValueState()

    def execute(self, tup: Any, collector: Any) -> None:  # noqa: ANN401
        self.counts[tup["word"]] = self.counts.get(tup["word"], 0) + 1
        collector.emit([tup["word"]])


def topology_of(stateful: int) -> Topology:
    """The topology, with this number of stateful levels."""
    builder = TopologyBuilder("start")
    builder.set_spout("lines", IterableSpout(LINES, outputs=["line"]))
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("lines")
    above = "split"
    for number in range(stateful):
        builder.set_bolt(f"count-{number}", Count(), parallelism=2).fields_grouping(above, ["word"])
        above = f"count-{number}"
    return builder.create_topology()


def measure(stateful: int) -> dict[str, Any]:
    """Start a topology once."""
    report = Report("start", {"stateful": stateful})
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as folder:
        clock, began = machine.Clock(), time.monotonic()
        with submit(topology_of(stateful), checkpoint=Path(folder) / "checkpoint") as running:
            submitted = time.monotonic()
            while not running.stats()["lines"].total.acked:
                time.sleep(0.02)
            acked, cost = time.monotonic(), clock.cost()
    return report.line(
        {
            "submit_secs": round(submitted - began, 2),
            "first_ack_secs": round(acked - began, 2),
            "cpu_secs": round(cost.ours, 2),
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure once."""
    parser = argparse.ArgumentParser("python -m benchmarks start", description=__doc__)
    parser.add_argument("--stateful", type=int, default=1, help="how many stateful levels")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    print_line(measure(given.stateful), keep=given.keep)
