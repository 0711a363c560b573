"""What a micro-batch sends between 2, 10 and 100 tasks: rows and bytes, counted in this process.

    python -m benchmarks frames --tasks 2 10 100

The levels of the word count run as in ``python_side``, with the given number of tasks of each bolt, over the
same sentences, twice: with as many partitions as this machine would have, and with a partition for each task,
as on a cluster with that number of cores. Printed for each: the rows that each level makes, by kind (frames
to other partitions, deltas for the acker, statistics), their bytes for each sentence, and the CPU of all
tasks for each sentence. Tasks of one partition send their tuples together, so the number of frames does not
grow with the square of the number of tasks. It does grow with the square of the number of partitions, since a
fields grouping sends tuples from every partition to every other, like any shuffle. One line of JSON.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from acktree.core.data.frames import Kind, WireRow
from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import Variant


def measure(variant: Variant, tasks: Sequence[int], sentences: int) -> dict[str, Any]:
    """Count for each number of tasks, with ``variant.cores`` partitions and with one for each task."""
    report = Report("frames", asdict(variant))
    few = [count_rows(replace(variant, cores=each), sentences, variant.cores) for each in tasks]
    many = [
        count_rows(replace(variant, cores=each), sentences, each) for each in tasks if each > variant.cores
    ]
    return report.line({"sentences": sentences, "points": few + many})


def count_rows(variant: Variant, sentences: int, partitions: int) -> dict[str, Any]:
    """The rows that one micro-batch of a warm topology sends."""
    batch, sent = MicroBatch(variant, sentences, partitions), dict[str, list[WireRow]]()
    batch.run({})
    seconds: dict[str, float] = {}
    acked = batch.run(seconds, sent)
    assert acked == (sentences if variant.tracked else 0), f"{acked} of {sentences} acked"
    rows = [row for made in sent.values() for row in made]
    return {
        "tasks": variant.cores,
        "partitions": partitions,
        "frames": sum(row.kind == Kind.FRAME for row in rows),
        "rows": {level: _by_kind(made) for level, made in sent.items()},
        "bytes_per_root": round(sum(len(row.head) + len(row.body) for row in rows) / sentences, 1),
        "us_per_root": round(sum(seconds.values()) / sentences * 1e6, 3),
        "us_by_level": {level: round(spent / sentences * 1e6, 3) for level, spent in seconds.items()},
    }


def _by_kind(rows: Sequence[WireRow]) -> dict[str, int]:
    return dict(Counter(Kind(row.kind).name.lower() for row in rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, count, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks frames",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 10, 100], help="of each bolt")
    parser.add_argument("--sentences", type=int, default=200_000, help="messages in the micro-batch")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    print_line(measure(variant_of(args), args.tasks, args.sentences), keep=args.keep)
