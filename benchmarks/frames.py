"""What a micro-batch sends between 2, 10 and 100 tasks: rows and bytes, counted in this process.

    python -m benchmarks frames --tasks 2 10 100

The levels of the word count run as in ``python_side``, with so many tasks of each bolt and as many
partitions, over the same sentences. Told for each number of tasks: the rows that each level makes by kind
(frames to other tasks, messages to the acker, statistics), how many one task makes, their bytes for a
sentence, and the CPU of all tasks for a sentence. Between all pairs of tasks there is a frame while each has
words for each other: that is what fields grouping asks for. Nothing else may grow with tasks squared. One
line of JSON.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from acktree.core.frames import Kind, WireRow
from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, tell
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import Variant


def measure(variant: Variant, tasks: Sequence[int], sentences: int) -> dict[str, Any]:
    """Count for each number of tasks."""
    report = Report("frames", asdict(variant))
    points = [count_rows(replace(variant, cores=each), sentences) for each in tasks]
    return report.line({"sentences": sentences, "points": points})


def count_rows(variant: Variant, sentences: int) -> dict[str, Any]:
    """What one micro-batch of a warm topology sends."""
    batch, sent = MicroBatch(variant, sentences), dict[str, list[WireRow]]()
    batch.run({})
    seconds: dict[str, float] = {}
    acked = batch.run(seconds, sent)
    assert acked == (sentences if variant.tracked else 0), f"{acked} of {sentences} acked"
    rows = [row for made in sent.values() for row in made]
    return {
        "tasks": variant.cores,
        "rows": {level: _by_kind(made) for level, made in sent.items()},
        "rows_per_task": round(len(rows) / variant.cores, 1),
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
    tell(measure(variant_of(args), args.tasks, args.sentences), keep=args.keep)
