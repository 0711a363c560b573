"""The cost of tracking on a cluster: the code of all partitions and of the driver, in one process.

    python -m benchmarks cluster --partitions 2 10 24 100

A word count runs as it would on a cluster with that many partitions and tasks: the levels of all partitions
one after the other, then the acker, each on the frames and deltas that the cluster would send. Reported for
each number of partitions: CPU of the acker and of all executors a message, bytes to the driver a message, and
frames. Spark, the network and the disk are not included. Medians of the rounds; one line of JSON.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from acktree.core.data.frames import Kind, WireRow
from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import Variant


def measure(variant: Variant, partitions: Sequence[int], sentences: int, rounds: int) -> dict[str, Any]:
    """Measure each number of partitions.

    Args:
        sentences: The messages in a micro-batch.
    """
    report = Report("cluster", asdict(variant) | {"sentences": sentences, "rounds": rounds})
    return report.line({"points": [_point(variant, each, sentences, rounds) for each in partitions]})


def _point(variant: Variant, partitions: int, sentences: int, rounds: int) -> dict[str, Any]:
    batch = MicroBatch(replace(variant, cores=partitions), sentences)
    batch.run({})  # the first run imports modules and fills the memory
    acker, executors = [], []
    sent: dict[str, list[WireRow]] = {}
    for _ in range(rounds):
        sent = {}
        seconds: dict[str, float] = {}
        batch.run(seconds, sent)
        acker.append(seconds.pop("acker", 0.0))
        executors.append(sum(seconds.values()))
    made = [row for rows in sent.values() for row in rows]
    to_driver = [row for row in made if row.kind == Kind.DELTAS]
    return {
        "partitions": partitions,
        "acker_us": _us(acker, sentences),
        "bytes_to_driver": round(sum(len(row.head) + len(row.body) for row in to_driver) / sentences, 1),
        "executors_us": _us(executors, sentences),
        "frames": sum(row.kind == Kind.FRAME for row in made),
    }


def _us(seconds: Sequence[float], sentences: int) -> float:
    return round(statistics.median(seconds) / sentences * 1e6, 3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 10, 24, 100])
    parser.add_argument("--sentences", type=int, default=400_000, help="messages of a micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    print_line(measure(variant_of(args), args.partitions, args.sentences, args.rounds), keep=args.keep)
