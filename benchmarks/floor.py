"""The cost of a micro-batch of per-tuple bolts, as a multiple of the user's own code.

    python -m benchmarks floor --bolts basic

The floor is the same ``execute`` of the same bolts, called in a bare loop over lists: a tuple is a dict, an
emit is ``list.extend``. The rest of a micro-batch's cost (decode, encode, route, track, ack) is acktree's.
Both run in turn on the same sentences; CPU of this process, in microseconds for each sentence.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from time import process_time
from typing import Any, Final

from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, tell
from benchmarks.work import BasicCount, BasicSplit, Variant, generator_split

SPLITS: Final = {"basic": BasicSplit(), "generator": generator_split}


class Emitted:
    """A collector that keeps only the values of a stream of one field."""

    __slots__ = ("emit", "words")

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.emit = self.words.extend


class BareLoop:
    """Split and count, and nothing else."""

    def __init__(self, bolts: str, batches: Sequence[Sequence[str]]) -> None:
        counting: Any = BasicCount("dict")
        counting.prepare(None, None)  # it uses neither argument
        split: Any = SPLITS[bolts]
        self.batches, self.split, self.count = batches, split.execute, counting.execute

    def run(self) -> float:
        """Split and count all batches once; returns the CPU seconds."""
        split, count, nothing = self.split, self.count, Emitted()
        started = process_time()
        for batch in self.batches:
            emitted = Emitted()
            for sentence in batch:
                split({"sentence": sentence}, emitted)
            for word in emitted.words:
                count({"word": word}, nothing)
        return process_time() - started


def measure(bolts: str, sentences: int, rounds: int, batch_rows: int = 10_000) -> dict[str, Any]:
    """The medians of both, and of the ratios of consecutive runs."""
    variant = Variant(bolts=bolts, memory="dict", batch_rows=batch_rows)
    report, batch = Report("floor", {"bolts": bolts, "memory": "dict"}), MicroBatch(variant, sentences)
    columns = [batch.batches[n % len(batch.batches)].column(0) for n in range(sentences // batch_rows)]
    bare = BareLoop(bolts, [column.to_pylist() for column in columns])
    batch.run({})
    bare.run()
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        seconds: dict[str, float] = {}
        batch.run(seconds)
        pairs.append((bare.run(), sum(seconds.values())))

    def median_us(found: Sequence[float]) -> float:
        return round(statistics.median(found) / sentences * 1e6, 3)

    return report.line(
        {
            "sentences": sentences,
            "floor_us_per_root": median_us([floor for floor, _ in pairs]),
            "us_per_root": median_us([whole for _, whole in pairs]),
            "ratio": round(statistics.median(whole / floor for floor, whole in pairs), 2),
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks floor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bolts", choices=list(SPLITS), default="basic")
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    tell(measure(args.bolts, args.sentences, args.rounds), keep=args.keep)
