"""How near a micro-batch of per-tuple bolts comes to what the user's own code costs.

    python -m benchmarks.floor --bolts basic

The floor is the same ``execute`` of the same bolts, called in a bare loop over lists: a tuple is a dict,
an emit is ``list.extend``. All that a micro-batch costs on top (decode, encode, route, track, ack) is
ours. Both run in turn on the same sentences; CPU of this process, in microseconds for each sentence.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from time import process_time
from typing import Any

from benchmarks import machine
from benchmarks.python_side import MicroBatch
from benchmarks.work import BOLTS, Variant


class Emitted:
    """A collector that keeps nothing but the values of a stream of one field."""

    __slots__ = ("emit", "words")

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.emit = self.words.extend


class BareLoop:
    """Split and count, and nothing else."""

    def __init__(self, bolts: str, batches: Sequence[Sequence[str]]) -> None:
        split, count = BOLTS[bolts]
        self.batches, counting = batches, count("dict")
        counting.prepare(None, None)  # type: ignore[arg-type]  # this one asks neither
        self.split: Any = split.execute  # type: ignore[union-attr]  # a bolt that is called for each tuple
        self.count: Any = counting.execute  # type: ignore[union-attr]

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


def measure(bolts: str, sentences: int, rounds: int) -> dict[str, object]:
    """The median of both, and of the ratio of neighbours."""
    variant = Variant(bolts=bolts, memory="dict")
    batch = MicroBatch(variant, sentences)
    lists = [
        batch.batches[n % len(batch.batches)][0].to_pylist() for n in range(sentences // variant.batch_rows)
    ]
    bare = BareLoop(bolts, lists)
    batch.run({})
    bare.run()
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        seconds: dict[str, float] = {}
        batch.run(seconds)
        pairs.append((bare.run(), sum(seconds.values())))

    def each(found: Sequence[float]) -> float:
        return round(statistics.median(found) / sentences * 1e6, 3)

    return {
        "benchmark": "floor",
        "bolts": bolts,
        "sentences": sentences,
        "floor_us": each([floor for floor, _ in pairs]),
        "us_per_root": each([all_of_it for _, all_of_it in pairs]),
        "ratio": round(statistics.median(all_of_it / floor for floor, all_of_it in pairs), 2),
        "load_before": machine.load(),
        "machine": machine.facts(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.floor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bolts", choices=("basic", "generator"), default="basic")
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args(arguments)
    print(json.dumps(measure(args.bolts, args.sentences, args.rounds)))


if __name__ == "__main__":
    main()
