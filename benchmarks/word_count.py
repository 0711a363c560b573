"""Roots per second: sentences fully acked (tracked) or fully counted (untracked), over steady state.

    python -m benchmarks word_count --bolts arrow
    python -m benchmarks word_count --bolts basic --spout tuple --untracked --secs 60

One line of JSON. A sentence is done when its spout is told so; untracked, when a micro-batch has counted its
words. The first micro-batches, and those that end within ``--warm-up`` seconds of the first, are left out: a
fresh JVM compiles. The rate is taken from the end of one micro-batch to the end of another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from acktree import Topology, submit
from benchmarks import machine
from benchmarks.work import BOLTS, MEMORIES, SPOUTS, WORDS, Meter, Variant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree.config import Config
    from acktree.spark.running import RunningTopology

_POLL_SECS: Final = 0.01
_LEAST_BATCHES: Final = 3
_SILENCE_SECS: Final = 0.03


def add_variant_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which word count."""
    default = Variant()
    parser.add_argument("--bolts", choices=list(BOLTS), default=default.bolts)
    parser.add_argument(
        "--spout", choices=list(SPOUTS), default=default.spout, help="emits batches or tuples"
    )
    parser.add_argument("--memory", choices=MEMORIES, default=default.memory, help="what count remembers in")
    parser.add_argument("--untracked", action="store_true", help="no ackers, no message ids")
    parser.add_argument("--cores", type=int, default=default.cores, help="pins the run to so many")
    parser.add_argument("--batch-rows", type=int, default=default.batch_rows, help="sentences in one emit")
    parser.add_argument("--inbox", type=int, default=default.inbox_max_messages, help="inbox_max_messages")


def variant_of(args: argparse.Namespace) -> Variant:
    """Which word count the arguments name; pins this process to its cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # the JVM and workers inherit it
    return Variant(
        args.bolts, args.spout, args.memory, not args.untracked, args.cores, args.batch_rows, args.inbox
    )


@contextmanager
def in_a_fresh_checkpoint(
    topology: Topology, config: Config, session: SparkSession | None = None
) -> Iterator[RunningTopology]:
    """The topology on Spark, warm; its checkpoint is deleted afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as folder,
        submit(topology, checkpoint=folder, config=config, spark=session) as running,
    ):
        yield running


def measure(
    variant: Variant, warm_up_secs: float, secs: float, session: SparkSession | None = None
) -> dict[str, Any]:
    """Run one word count and say how fast it was.

    Args:
        session: A session to run in; None makes one, as ``submit`` does.

    Returns:
        ``roots_per_sec``; how many ``roots`` in how many ``secs`` and ``micro_batches``;
        ``cpu_us_per_root`` of all our processes, and of each kind; ``others_cores``: what others took
        meanwhile; ``batch_ms``: the median of each phase of a micro-batch, as Spark tells them.
    """
    meter, load_before = Meter(), machine.load()
    with in_a_fresh_checkpoint(variant.topology(meter), variant.config, session) as running:
        _watch(running, variant, meter, 0.0, 0)
        _watch(running, variant, meter, warm_up_secs, len(meter.events))
        clock, before, started = machine.Clock(), len(meter.events), time.perf_counter()
        _watch(running, variant, meter, secs, before)
        cost, watched_secs, phases = clock.cost(), time.perf_counter() - started, phases_ms(running.name)
    ends = batch_ends(meter.events[before:])
    roots, took = sum(count for _, count in ends[1:]), ends[-1][0] - ends[0][0]
    done = roots / took * watched_secs
    return {
        "benchmark": "word_count",
        "variant": asdict(variant),
        "roots_per_sec": round(roots / took),
        "roots": roots,
        "secs": round(took, 2),
        "micro_batches": len(ends) - 1,
        "cpu_us_per_root": round(cost.ours / done * 1e6, 2),
        "cpu_us_by_process": cost.us_per(done),
        "others_cores": round(cost.others, 2),
        "batch_ms": phases,
        "load_before": load_before,
        "load_after": machine.load(),
        "machine": machine.facts(),
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
    }


def batch_ends(events: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Put what was told together micro-batch by micro-batch: (when its last message was told, how many).

    A micro-batch tells its verdicts in a row; then there is silence for longer than :data:`_SILENCE_SECS`,
    since not even an empty one takes less. The last may be cut, and is left out.
    """
    ends: list[tuple[float, int]] = []
    count = 0
    for (at, more), (following, _) in pairwise(events):
        count += more
        if following - at > _SILENCE_SECS:
            ends.append((at, count))
            count = 0
    return ends


def phases_ms(query_name: str) -> dict[str, float]:
    """The median duration of each phase of the latest micro-batches that had data, in ms."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # so that --help does not wait for it

    session = SparkSession.getActiveSession()
    assert session is not None, "a topology runs in it"
    query = next(query for query in session.streams.active if query.name == query_name)
    told = [
        progress["durationMs"] for progress in query.recentProgress if "addBatch" in progress["durationMs"]
    ]
    names = sorted({name for durations in told for name in durations})
    return {name: statistics.median(durations.get(name, 0) for durations in told[-50:]) for name in names}


def _watch(running: RunningTopology, variant: Variant, meter: Meter, secs: float, since: int) -> None:
    """Let time pass, and at least three micro-batches after the event ``since``.

    Untracked, nobody tells the spout: then the meter is read off what was counted.
    """
    end = time.perf_counter() + secs
    while time.perf_counter() < end or len(batch_ends(meter.events[since:])) < _LEAST_BATCHES:
        if running.await_termination(timeout_secs=_POLL_SECS):
            raise RuntimeError("the topology ended by itself")
        if not variant.tracked:
            done = running.stats()["count"].total.executed // WORDS - sum(count for _, count in meter.events)
            if done:
                meter.add(done)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks word_count",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds left out")
    parser.add_argument("--secs", type=float, default=30.0, help="seconds measured")
    args = parser.parse_args(arguments)
    print(json.dumps(measure(variant_of(args), args.warm_up, args.secs)), flush=True)
