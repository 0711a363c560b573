"""How near the path of a tuple comes to what the user's own code costs: per-tuple bolts, and a spout's emit.

    python -m benchmarks floor --bolts basic
    python -m benchmarks floor --spout tuple

The floor is what the interpreter alone takes: the same ``execute`` or ``next_tuple`` of the same objects,
called in a bare loop over lists. A tuple is a dict, an emit is ``list.extend``, and nothing is tracked. All
that acktree costs on top (checks, encode, decode, route, track, ack) is ours. Both run in turn on the same
sentences; CPU of this process, in microseconds for each sentence.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, Final

from benchmarks.meter import Meter
from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.spout_side import SpoutSide
from benchmarks.work import BOLTS, SPOUTS, Variant, rebuilt

PER_TUPLE: Final = ("basic", "generator", "hand")
"""The bolts of :data:`~benchmarks.work.BOLTS` that are called for each tuple."""


class Emitted:
    """The least that a collector of a bolt can do for a stream of one field."""

    __slots__ = ("emit", "words")

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.emit = self.words.extend


class EmittedByHand:
    """The same for a bolt that names anchors and acks."""

    __slots__ = ("words",)

    def __init__(self) -> None:
        self.words: list[Any] = []

    def emit(self, values: Sequence[Any], anchors: object) -> None:
        """Keep the values."""
        self.words.extend(values)

    def ack(self, tup: object) -> None:
        """Nothing is tracked."""


class EmittedMessages:
    """The least that a collector of a spout can do: it keeps values and message ids."""

    __slots__ = ("ids", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.ids: list[Any] = []

    def emit(self, values: Sequence[Any], message_id: object) -> None:
        """Keep a message."""
        self.values.extend(values)
        self.ids.append(message_id)


class BareBolts:
    """Split and count, and nothing else."""

    def __init__(self, bolts: str, batches: Sequence[Sequence[str]]) -> None:
        split, counting, _ = BOLTS[bolts]
        self.batches, self.is_by_hand = batches, bolts == "hand"
        self.split: Any = rebuilt(split)
        self.count: Any = rebuilt(counting("dict"))
        if not self.is_by_hand:
            self.count.prepare(None, None)  # this one asks neither

    def run(self) -> float:
        """Split and count all batches once; returns the CPU seconds."""
        return self._by_hand() if self.is_by_hand else self._basic()

    def _basic(self) -> float:
        split, count, nothing = self.split.execute, self.count.execute, Emitted()
        started = process_time()
        for batch in self.batches:
            emitted = Emitted()
            for sentence in batch:
                split({"sentence": sentence}, emitted)
            for word in emitted.words:
                count({"word": word}, nothing)
        return process_time() - started

    def _by_hand(self) -> float:
        split, count = self.split.execute, self.count.execute
        self.count.prepare(None, None, EmittedByHand())
        started = process_time()
        for batch in self.batches:
            emitted = EmittedByHand()
            self.split.prepare(None, None, emitted)
            for sentence in batch:
                split({"sentence": sentence})
            for word in emitted.words:
                count({"word": word})
        return process_time() - started


class BareSpout:
    """A spout that is asked again and again, and gets the verdicts of what it emitted."""

    def __init__(self, spout: str, batch_rows: int, messages: int) -> None:
        self.spout: Any = rebuilt(SPOUTS[spout](Meter(), Variant(batch_rows=batch_rows)))
        self.batch_rows, self.messages = batch_rows, messages
        self.spout.open(None, None, EmittedMessages())

    def run(self) -> float:
        """Ask for all messages once; returns the CPU seconds."""
        next_tuple = self.spout.next_tuple
        started = process_time()
        for _ in range(self.messages // self.batch_rows):
            self.spout.collector = emitted = EmittedMessages()
            for _ in range(self.batch_rows):
                next_tuple()
            self.spout.ack_batch(emitted.ids)
        return process_time() - started


def of_bolts(bolts: str, sentences: int, rounds: int, batch_rows: int = 10_000) -> dict[str, Any]:
    """The word count's bolts, as a micro-batch of them and bare."""
    variant = Variant(bolts=bolts, memory="dict", batch_rows=batch_rows)
    batch = MicroBatch(variant, sentences)
    columns = [batch.batches[n % len(batch.batches)].column(0) for n in range(sentences // batch_rows)]
    bare = BareBolts(bolts, [column.to_pylist() for column in columns])
    return _compared({"bolts": bolts, "memory": "dict"}, batch.run, bare.run, sentences, rounds)


def of_spout(spout: str, messages: int, rounds: int, batch_rows: int = 10_000) -> dict[str, Any]:
    """A spout task, and its spout alone."""
    side, bare = SpoutSide(spout, tracked=True, batch_rows=batch_rows), BareSpout(spout, batch_rows, messages)

    def run(seconds: dict[str, float]) -> None:
        side.run(messages, seconds)

    return _compared({"spout": spout}, run, bare.run, messages, rounds)


def _compared(
    variant: dict[str, object],
    whole: Callable[[dict[str, float]], object],
    bare: Callable[[], float],
    sentences: int,
    rounds: int,
) -> dict[str, Any]:
    """The median of both, and of the ratio of neighbours."""
    report = Report("floor", variant)
    whole({})
    bare()
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        seconds: dict[str, float] = {}
        whole(seconds)
        pairs.append((bare(), sum(seconds.values())))

    def median_us(found: Sequence[float]) -> float:
        return round(statistics.median(found) / sentences * 1e6, 3)

    return report.line(
        {
            "sentences": sentences,
            "floor_us_per_root": median_us([floor for floor, _ in pairs]),
            "us_per_root": median_us([total for _, total in pairs]),
            "ours_us_per_root": median_us([total - floor for floor, total in pairs]),
            "ratio": round(statistics.median(total / floor for floor, total in pairs), 2),
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks floor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bolts", choices=PER_TUPLE, default="basic")
    parser.add_argument("--spout", choices=["tuple"], help="the spout, and not the bolts")
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    if args.spout:
        line = of_spout(args.spout, args.sentences, args.rounds)
    else:
        line = of_bolts(args.bolts, args.sentences, args.rounds)
    print_line(line, keep=args.keep)
