"""Roots per second: sentences fully acked (tracked) or fully counted (untracked), over steady state.

    python -m benchmarks word_count --bolts arrow
    python -m benchmarks word_count --bolts basic --spout tuple --untracked --secs 60
    python -m benchmarks word_count --master 'local-cluster[2,1,1024]'    # executors in JVMs of their own

One line of JSON. A sentence is done when its spout gets the verdict; untracked or exactly once, when a
micro-batch has counted its words. The first micro-batches, and those that end within ``--warm-up`` seconds of
the first, are left out: a fresh JVM compiles. The rate is taken from the end of one micro-batch to the end of
another.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from acktree import Topology, submit
from acktree.spark.worker.isolation import UNGUARDED
from benchmarks import machine
from benchmarks.meter import Meter
from benchmarks.report import Report, add_keep_argument, print_line, quantiles_ms, throughput
from benchmarks.sessions import HERE, Place, session_on
from benchmarks.tabs import read_by
from benchmarks.work import BOLTS, CHILDREN, MEMORIES, PROTECTIONS, SPOUTS, WORDS, Variant

if TYPE_CHECKING:
    from acktree.config import Config
    from acktree.driver.handle import SubmittedTopology

Counted = Callable[["SubmittedTopology"], int]
"""How many messages a topology has done since it began."""

_POLL_SECS: Final = 0.01
_COUNTED_SECS: Final = 0.1
"""How often the driver's counts are asked for, which takes it some milliseconds each time."""
_LEAST_BATCHES: Final = 3
_SILENCE_SECS: Final = 0.03
_RUNTIME_FOLDERS: Final = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME")


def add_variant_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which word count."""
    default = Variant()
    parser.add_argument("--bolts", choices=[*BOLTS, CHILDREN], default=default.bolts)
    parser.add_argument(
        "--spout", choices=list(SPOUTS), default=default.spout, help="emits batches or tuples"
    )
    parser.add_argument("--memory", choices=MEMORIES, default=default.memory, help="what count remembers in")
    parser.add_argument("--untracked", action="store_true", help="no ackers, no message ids")
    parser.add_argument("--cores", type=int, default=default.cores, help="how many cores it is pinned to")
    parser.add_argument("--batch-rows", type=int, default=default.batch_rows, help="sentences in one emit")
    parser.add_argument(
        "--protection", choices=PROTECTIONS, default=default.protection, help="marks, watchdog, breaker"
    )
    parser.add_argument("--words", type=int, default=default.words, help="different words")
    parser.add_argument("--sentence-bytes", type=int, help="the length of a sentence; else some 47")
    parser.add_argument("--trace-rate", type=float, default=default.trace_rate, help="share that is traced")
    parser.add_argument("--tabs", type=int, default=default.tabs, help="tabs that show the page meanwhile")
    parser.add_argument("--exactly-once", action="store_true", help="the count is, behind a gate")
    parser.add_argument("--real-time", action="store_true", help="by epochs")
    parser.add_argument("--no-door", action="store_true", help="control=False: nobody may ask the driver")
    parser.add_argument("--inbox", type=int, default=default.inbox_max_messages, help="inbox_max_messages")
    parser.add_argument(
        "--interval", type=float, default=default.interval_secs, help="batch_interval_secs, in seconds"
    )


def add_time_arguments(parser: argparse.ArgumentParser) -> None:
    """How long a run takes; the same for everything that is measured over time."""
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds left out")
    parser.add_argument("--secs", type=float, default=30.0, help="seconds measured")


def variant_of(args: argparse.Namespace) -> Variant:
    """Which word count the arguments name; pins this process to its cores, and takes its guards away."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # the JVM and workers inherit it
    if args.protection == "none":
        os.environ[UNGUARDED] = "1"  # and this
    return Variant(
        args.bolts, args.spout, args.memory, not args.untracked, args.cores, args.batch_rows, args.inbox,
        protection=args.protection, words=args.words, trace_rate=args.trace_rate, tabs=args.tabs,
        sentence_bytes=args.sentence_bytes, interval_secs=args.interval, has_door=not args.no_door,
        exactly_once=args.exactly_once, real_time=args.real_time,
    )  # fmt: skip


@contextmanager
def _runtime_folder_of_its_own() -> Iterator[None]:
    """In the block, a page shows the topologies of this process alone, and none that ran here before."""
    before = {name: os.environ.get(name) for name in _RUNTIME_FOLDERS}
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as folder:
        os.environ.update(dict.fromkeys(_RUNTIME_FOLDERS, folder))
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextmanager
def in_a_fresh_checkpoint(
    topology: Topology, config: Config, place: Place = HERE
) -> Iterator[SubmittedTopology]:
    """The topology on Spark, warm; its checkpoint is deleted afterwards, unless the place names it."""
    with (
        tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as folder,
        _runtime_folder_of_its_own(),
        submit(
            topology, checkpoint=place.checkpoint or folder, config=config, spark=place.session
        ) as running,
    ):
        yield running


def measure(variant: Variant, warm_up_secs: float, secs: float, place: Place = HERE) -> dict[str, Any]:
    """Run one word count and say how fast it was.

    Returns:
        What :func:`measure_topology` says, with the circumstances.
    """
    report, meter = Report("word_count", asdict(variant)), Meter()
    counted = sentences_counted if variant.exactly_once or not variant.tracked else None
    of_spout = Meter() if variant.exactly_once else meter  # its verdicts come before the words are counted
    found = measure_topology(
        variant.topology(of_spout), variant.config, meter, (warm_up_secs, secs), place, counted, variant.tabs
    )
    return report.line(found)


def measure_topology(
    topology: Topology,
    config: Config,
    meter: Meter,
    times: tuple[float, float],
    place: Place = HERE,
    counted: Counted | None = None,
    tabs: int = 0,
) -> dict[str, Any]:
    """Run a topology and say how fast its messages were done.

    Args:
        meter: Gets from the spout what is acked.
        times: Seconds of warm-up, and seconds measured.
        place: Where it runs.
        counted: Where no verdict is delivered: how many are done so far.
        tabs: How many tabs show the page meanwhile.

    Returns:
        ``roots_per_sec``; how many ``roots`` in how many ``secs`` and ``micro_batches``; ``p50_ms`` and so
        on, from the spout's emit to its ack, where the meter follows the spout;
        ``cpu_us_per_root`` of all our processes, and of each kind; ``others_cores``: what others took
        meanwhile; ``batch_ms``: the median of each phase of a micro-batch, as Spark reports them.
    """
    warm_up_secs, secs = times
    with in_a_fresh_checkpoint(topology, config, place) as running, read_by(tabs), _looking(meter):
        watch = partial(_watch, running, meter, counted)
        watch(0.0, 0)
        watch(warm_up_secs, len(meter.events))
        clock, before, started = machine.Clock(place.below), len(meter.events), time.perf_counter()
        watch(secs, before)
        cost, watched_secs, phases = clock.cost(), time.perf_counter() - started, phases_ms(running.name)
    ends = batch_ends(meter.events[before:])
    waits_ms = meter.waits_ms(before)
    latency = quantiles_ms(waits_ms) if len(waits_ms) else {}
    roots, took = sum(count for _, count in ends[1:]), ends[-1][0] - ends[0][0]
    done = roots / took * watched_secs  # the clock ran longer than from end to end
    return {
        **throughput(done, watched_secs, cost),
        **latency,
        "roots": roots,
        "secs": round(took, 2),
        "micro_batches": len(ends) - 1,
        "micro_batch_ms": phases.get("triggerExecution"),
        "batch_ms": phases,
    }


@contextmanager
def _looking(meter: Meter) -> Iterator[None]:
    """Let the meter look at its spout every few milliseconds."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_POLL_SECS):
            meter.look()

    thread = threading.Thread(target=look, name="meter")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def batch_ends(events: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Group acks by micro-batch: (when its last message was acked, how many).

    The verdicts of a micro-batch come in a row; then there is silence for longer than :data:`_SILENCE_SECS`,
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
    """The median duration of each phase of the latest micro-batches that had data, in ms; none by epochs."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # so that --help does not wait for it

    session = SparkSession.getActiveSession()
    assert session is not None, "a topology runs in it"
    durations_of = [
        progress["durationMs"]
        for query in session.streams.active
        if query.name == query_name
        for progress in query.recentProgress
    ]
    expected = [durations for durations in durations_of if "addBatch" in durations]
    names = sorted({name for durations in expected for name in durations})
    return {name: statistics.median(durations.get(name, 0) for durations in expected[-50:]) for name in names}


def sentences_counted(running: SubmittedTopology) -> int:
    """How many sentences have had their words counted."""
    return running.stats()["count"].total.executed // WORDS


def _watch(
    running: SubmittedTopology, meter: Meter, counted: Counted | None, secs: float, since: int
) -> None:
    """Let time pass, and at least three micro-batches after the event ``since``."""
    end, pause = time.perf_counter() + secs, _POLL_SECS if counted is None else _COUNTED_SECS
    while time.perf_counter() < end or len(batch_ends(meter.events[since:])) < _LEAST_BATCHES:
        if running.await_termination(timeout_secs=pause):
            raise RuntimeError("the topology ended by itself")
        if counted is not None and (done := counted(running) - sum(count for _, count in meter.events)):
            meter.add(done)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks word_count",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--master", help="where Spark runs, for example local-cluster[2,1,1024]")
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    variant = replace(variant_of(args), master=args.master)
    place = Place(session_on(args.master)) if args.master else HERE
    print_line(measure(variant, args.warm_up, args.secs, place), keep=args.keep)
