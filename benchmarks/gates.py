"""The CPU of a word count that counts exactly once, beside the same at least once, without Spark.

    python -m benchmarks gates --bolts basic --spout tuple --rounds 5
    python -m benchmarks gates --top 40

A ``LocalCluster`` runs both in this process, in turn: spouts, levels, acker, gates and verdicts, without a
disk. ``ratio`` is the CPU of the one that counts at least once over that of the other, the median of pairs.
Nothing is traced unless ``--trace-rate`` says so: behind a gate each word is a message, and there is no
``max_traces_per_sec`` in a ``LocalCluster``. ``--top`` profiles one that counts exactly once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from time import process_time
from typing import Any, Final

from acktree import EndOfStream
from acktree.testing import LocalCluster
from benchmarks.meter import Meter
from benchmarks.python_side import profile
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import WORDS, BatchSpout, TupleSpout, Variant


class _Batches(BatchSpout):
    """Ends after a number of sentences."""

    most = 0

    def next_tuple(self) -> None:
        if self.position >= self.most:
            raise EndOfStream
        super().next_tuple()


class _Tuples(TupleSpout):
    """The same, tuple by tuple."""

    most = 0

    def next_tuple(self) -> None:
        if self.position >= self.most:
            raise EndOfStream
        super().next_tuple()


_ENDING: Final[Mapping[str, type[_Batches | _Tuples]]] = {"batch": _Batches, "tuple": _Tuples}


def cpu_secs(variant: Variant, sentences: int, top: int = 0) -> float:
    """Count the words of this number of sentences; returns the CPU seconds.

    Args:
        top: How many functions of a profile to print.
    """
    meter = Meter()
    spout = _ENDING[variant.spout](meter, variant)
    spout.most = sentences
    with LocalCluster() as cluster:
        running = cluster.submit(variant.topology_of(spout), config=variant.config)
        started = process_time()
        if top:
            profile(cluster.advance, top)
        else:
            cluster.advance()
        took = process_time() - started
        acked, counted = (
            sum(count for _, count in meter.events),
            running.stats()["count"].total.executed,
        )
    assert (acked, counted) == (sentences, WORDS * sentences), f"{acked} acked, {counted} words"
    return took


def measure(variant: Variant, sentences: int, rounds: int) -> dict[str, Any]:
    """Both in turn."""
    report = Report("gates", asdict(variant))
    kinds = [replace(variant, exactly_once=is_once) for is_once in (False, True)]
    found: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for at in (0, 1) if number % 2 else (1, 0):
            took = cpu_secs(kinds[at], sentences) / sentences * 1e6
            if number:  # the first run imports
                found[at].append(took)
    ratios = [least / once for least, once in zip(*found, strict=True)]
    least, once = (round(median(each), 3) for each in found)
    return report.line(
        {
            "sentences": sentences,
            "us_per_root": {"at_least_once": least, "exactly_once": once},
            "ratio": round(median(ratios), 3),
            "ratios": [round(each, 3) for each in ratios],
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.set_defaults(trace_rate=0.0)
    parser.add_argument("--sentences", type=int, default=100_000, help="messages, at most 140,000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--top", type=int, default=0, help="how many functions to print, and no more")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    variant = variant_of(args)
    if args.top:
        cpu_secs(replace(variant, exactly_once=True), args.sentences)
        cpu_secs(replace(variant, exactly_once=True), args.sentences, args.top)
        return
    print_line(measure(variant, args.sentences, args.rounds), keep=args.keep)
