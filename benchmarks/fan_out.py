"""The cost of a tuple in trees of 1 to 10,000 children: it should not depend on the size.

    python -m benchmarks fan_out --bolts arrow
    python -m benchmarks fan_out --bolts basic --children 1 100 10000

Every message is a number. ``fan`` emits the given number of anchored children; ``take`` gets them by fields
grouping and emits nothing. Printed for each number of children: messages acked and tuples a second, and the
CPU of all processes for each tuple; ``cpu_us_per_tuple_ratio`` is that of the largest tree over the smallest
value. A micro-batch has about the same number of tuples for all trees. One line of JSON.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from acktree import ArrowBolt, BasicBolt, Spout, Topology, TopologyBuilder
from acktree.bolt import ArrowOutputCollector, BasicOutputCollector
from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.data.tuples import Tuple
from acktree.spout import SpoutOutputCollector
from benchmarks.meter import Meter
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.sessions import HERE, Place
from benchmarks.word_count import add_time_arguments, measure_topology

CHILDREN = (1, 10, 100, 1_000, 10_000)
NUMBERS = pa.schema([("number", pa.int64())])


class Numbers(Spout):
    """Emits batches of numbers; message ids are the numbers."""

    outputs = NUMBERS

    def __init__(self, meter: Meter, batch_rows: int) -> None:
        self.meter, self.rows = meter, batch_rows

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.position = collector, 0

    def next_tuple(self) -> None:
        numbers = np.arange(self.position, self.position + self.rows)
        self.collector.emit_batch(pa.record_batch([numbers], schema=NUMBERS), message_ids=numbers)
        self.position += self.rows

    def ack_batch(self, message_ids: Sequence[object]) -> None:
        self.meter.add(len(message_ids))


class BasicFan(BasicBolt):
    """Emits the given number of children for each message."""

    outputs = NUMBERS

    def __init__(self, children: int) -> None:
        self.children = children

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        first = tup["number"] * self.children
        for number in range(first, first + self.children):
            collector.emit([number])


class ArrowFan(ArrowBolt):
    """The same, over whole batches."""

    outputs = NUMBERS

    def __init__(self, children: int) -> None:
        self.children = children

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        parents = np.repeat(np.arange(batch.num_rows), self.children)
        each = np.tile(np.arange(self.children), batch.num_rows)
        numbers = batch["number"].to_numpy()[parents] * self.children + each
        collector.emit_batch(pa.record_batch([numbers], schema=NUMBERS), parents=parents)


class BasicTake(BasicBolt):
    """Takes one child in each call."""

    outputs = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Do nothing."""


class ArrowTake(ArrowBolt):
    """Takes whole batches of children."""

    outputs = []

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        """Do nothing."""


BOLTS = {"arrow": (ArrowFan, ArrowTake), "basic": (BasicFan, BasicTake)}


def topology(bolts: str, children: int, cores: int, meter: Meter, batch_rows: int) -> Topology:
    """The spout ``numbers``, then ``fan``, then ``take``."""
    fan, take = BOLTS[bolts]
    builder = TopologyBuilder("fan-out")
    builder.set_spout("numbers", Numbers(meter, batch_rows))
    builder.set_bolt("fan", fan(children), parallelism=cores).shuffle_grouping("numbers")
    builder.set_bolt("take", take(), parallelism=cores).fields_grouping("fan", ["number"])
    return builder.create_topology()


def measure(
    variant: dict[str, Any],
    children: Sequence[int],
    times: tuple[float, float],
    place: Place = HERE,
) -> dict[str, Any]:
    """Measure trees of each size, one topology after the other.

    Args:
        variant: ``bolts``, ``cores``, ``tuples_per_batch``.
        times: Seconds of warm-up and of measurement for each topology.
    """
    report, points = Report("fan_out", variant), []
    for each in children:
        meter, most = Meter(), max(1, variant["tuples_per_batch"] // (each + 1))
        tree = topology(variant["bolts"], each, variant["cores"], meter, max(1, most // 16))
        found = measure_topology(tree, Config(inbox_max_messages=most), meter, times, place)
        per_sec, cpu = found["roots"] / found["secs"], found["cpu_us_per_root"]
        points.append(
            {
                "children": each,
                "roots_per_sec": round(per_sec, 1),
                "tuples_per_sec": round(per_sec * (each + 1)),
                "cpu_us_per_tuple": round(cpu / (each + 1), 3),
                "micro_batch_ms": found["micro_batch_ms"],
                "others_cores": found["others_cores"],
            }
        )
    costs = [point["cpu_us_per_tuple"] for point in points]
    return report.line({"cpu_us_per_tuple_ratio": round(costs[-1] / min(costs), 2), "points": points})


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks fan_out",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bolts", choices=list(BOLTS), default="arrow")
    parser.add_argument("--children", type=int, nargs="+", default=list(CHILDREN), help="of each message")
    parser.add_argument("--cores", type=int, default=2, help="pins the run to this number of cores")
    parser.add_argument("--tuples-per-batch", type=int, default=500_000, help="about, in a micro-batch")
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    variant = {"bolts": args.bolts, "cores": args.cores, "tuples_per_batch": args.tuples_per_batch}
    print_line(measure(variant, sorted(args.children), (args.warm_up, args.secs)), keep=args.keep)
