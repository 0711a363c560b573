"""Where the Python time of a word count's micro-batch goes: its levels run in this process, without Spark.

    python -m benchmarks python_side --bolts basic --top 25

The same frames that a micro-batch would have, through the same ``run_level`` and acker, one partition
after the other. Times are CPU of this process, so a busy neighbour disturbs them little; ``us_per_root`` is
what the workers of all partitions spend on one sentence. What Spark and the JVM spend comes on top.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np

from acktree import Topology
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.slices import Slice, divided
from acktree.core.ids import Int32s
from acktree.core.state.store import MemoryStore, StateStore
from acktree.spark.worker.isolation import Isolation
from acktree.tasks.acker import Acker
from acktree.tasks.bolts.level import ReadChunk, run_level
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.tasks.chunk import Chunk
from acktree.tasks.combiner import run_combiner
from acktree.tasks.observers.usual import usual_observers
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.trace_marks import TraceMarks
from benchmarks.meter import Meter
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import BatchSpout, Variant


class MicroBatch:
    """One micro-batch's chunks, and the state of everything between two runs of it."""

    def __init__(
        self,
        variant: Variant,
        sentences: int,
        partitions: int | None = None,
        marks: Path | None = None,
        topology: Topology | None = None,
    ) -> None:
        """Lay it out.

        Args:
            partitions: How many partitions; None for one a task.
            marks: Where to mark what is executed, under a watchdog, as on Spark; None for neither.
            topology: The topology; None for the variant's own.
        """
        partitions = partitions or variant.cores
        given = variant.topology(Meter()) if topology is None else topology
        self.plan = Plan.of(given, variant.config, partitions, run_salt=7)
        self.acker = Acker(self.plan)
        self.batches = BatchSpout(Meter(), variant).batches
        self.tracked, self.sentences = variant.tracked, sentences
        self.stores: dict[tuple[int, int], StateStore] = {
            (level.index, partition): MemoryStore()
            for level in self.plan.levels
            for partition in range(partitions)
        }
        self.sequence = self.clock_ms = 0
        self.slowest_combiner_secs = 0.0
        self.marks = marks

    def run(self, seconds: dict[str, float], sent: dict[str, list[WireRow]] | None = None) -> int:
        """Run it on the next messages, up to the acker.

        Args:
            seconds: The CPU seconds of each level are added here.
            sent: The rows that each level made are added here.

        Returns:
            How many messages were acked.
        """
        for_driver = self.run_levels(seconds, sent)
        if not self.plan.is_tracking:
            return 0
        deltas = [row for row in for_driver if row.kind in (Kind.DELTAS, Kind.COMBINED)]
        started = process_time()
        verdicts = self.acker.judge(deltas, self.clock_ms)
        _add(seconds, "acker", process_time() - started)
        return sum(len(sequences) for _, sequences in verdicts.done) + len(verdicts.acked.roots)

    def run_levels(
        self, seconds: dict[str, float], sent: dict[str, list[WireRow]] | None = None
    ) -> list[WireRow]:
        """Run the levels and the combining tasks on the next messages. Returns the rows for the driver."""
        plan = self.plan
        self.clock_ms += 1000
        chunks = list(self._chunks())
        read = self._reader(chunks)
        waiting: dict[tuple[int, int], list[WireRow]] = {}
        _sort_in(waiting, self._given(chunks))
        for index in range(len(plan.levels)):
            for partition in range(plan.partitions):
                mine = waiting.pop((index, partition), [])
                store = self.stores[index, partition]
                started = process_time()
                made = list(self._run_level(index, partition, mine, store, read))
                _add(seconds, f"level {index}", process_time() - started)
                _sort_in(waiting, made)
                if sent is not None:
                    sent.setdefault(f"level {index}", []).extend(made)
        self.slowest_combiner_secs = 0.0
        for combiner in range(plan.combiners):
            mine = waiting.pop((plan.combining_level, combiner), [])
            started = process_time()
            made = list(run_combiner(plan, combiner, mine))
            took = process_time() - started
            _add(seconds, "combining", took)
            self.slowest_combiner_secs = max(self.slowest_combiner_secs, took)
            _sort_in(waiting, made)
            if sent is not None:
                sent.setdefault("combining", []).extend(made)
        return [row for rows in waiting.values() for row in rows]

    def _reader(self, chunks: Sequence[Chunk]) -> ReadChunk:
        """Reads a chunk by its number: again in each partition, as from the inbox."""
        packed = [chunk.to_bytes() for chunk in chunks]
        return lambda name: Chunk.from_bytes(packed[int(name)])

    def _given(self, chunks: Sequence[Chunk]) -> Iterable[WireRow]:
        """What the source gives the levels."""
        return self._slices(chunks)

    def _run_level(
        self, index: int, partition: int, mine: Sequence[WireRow], store: StateStore, read: ReadChunk
    ) -> Iterable[WireRow]:
        if self.marks is None:
            return run_level(self.plan, index, partition, mine, store, read, usual_observers)
        # As on Spark, where a task runs for the first time.
        guards = Isolation(self.marks, 0, index, partition, 0, self.plan.config.execute_timeout_secs)

        def level(monitor: ExecutionMonitor, state: StateStore | None) -> Iterable[WireRow]:
            return run_level(self.plan, index, partition, mine, state, read, usual_observers, monitor)

        return list(guards.run(level, store))

    def _chunks(self) -> Iterator[Chunk]:
        spout = self.plan.topology.spouts[0]
        rows = self.batches[0].num_rows
        for number in range(self.sentences // rows):
            batch = self.batches[number % len(self.batches)]
            yield Chunk(
                spout.id, spout.task_ids[0], "default", self.tracked, self.sequence, 0, batch,
                self._attempts(),
            )  # fmt: skip
            self.sequence += rows

    def _attempts(self) -> Int32s | None:
        """The marks of the messages that are traced, as a spout task puts them on."""
        rows, rate = self.batches[0].num_rows, self.plan.trace_rate if self.tracked else 0.0
        marks = TraceMarks(lambda: rate, None, None, lambda: None)
        return marks.put_on(None, (), np.arange(self.sequence, self.sequence + rows), 0)

    def _slices(self, chunks: Sequence[Chunk]) -> Iterator[WireRow]:
        """All rows in order, an equal part for each partition, as the source cuts them."""
        sizes = [len(chunk) for chunk in chunks]
        for number, partition, first, end in divided(sizes, self.plan.partitions):
            yield Slice(str(number), first, end).row(partition, chunks[number].task, number, self.clock_ms)


def _sort_in(waiting: dict[tuple[int, int], list[WireRow]], rows: Iterable[WireRow]) -> None:
    """Add rows to those of their level and partition."""
    for row in rows:
        waiting.setdefault((row.level, row.partition), []).append(row)


def _add(seconds: dict[str, float], name: str, more: float) -> None:
    seconds[name] = seconds.get(name, 0.0) + more


def measure(variant: Variant, sentences: int, rounds: int) -> dict[str, Any]:
    """The median CPU time of each level for one sentence, in microseconds."""
    report, batch = Report("python_side", asdict(variant)), MicroBatch(variant, sentences)
    batch.run({})  # the first run imports, and fills the memories
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        seconds: dict[str, float] = {}
        acked = batch.run(seconds)
        assert acked == (sentences if variant.tracked else 0), f"{acked} of {sentences} acked"
        found.append(seconds)
    by_level = {
        level: round(statistics.median(seconds[level] for seconds in found) / sentences * 1e6, 3)
        for level in found[0]
    }
    return report.line(
        {"sentences": sentences, "us_per_root": round(sum(by_level.values()), 3), "by_level": by_level}
    )


def measure_guards(variant: Variant, sentences: int, rounds: int) -> dict[str, Any]:
    """What marks and watchdog add to a sentence, with them and without in turn (A B A B ...)."""
    report = Report("python_side_guards", asdict(variant))
    with TemporaryDirectory(prefix="acktree-marks-") as folder:
        sides = {
            name: MicroBatch(variant, sentences, marks=marks)
            for name, marks in {"guarded": Path(folder), "bare": None}.items()
        }
        took: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, batch in sides.items():
                seconds: dict[str, float] = {}
                batch.run(seconds)
                if number:  # the first imports, and fills the memories
                    took[name].append(sum(seconds.values()) / sentences * 1e6)
    ratios = [a / b for a, b in zip(took["guarded"], took["bare"], strict=True)]
    return report.line(
        {
            "sentences": sentences,
            "us_per_root": {name: round(statistics.median(each), 3) for name, each in took.items()},
            "ratio": round(statistics.median(ratios), 4),
            "ratio_of_least": round(min(took["guarded"]) / min(took["bare"]), 4),  # on a busy machine
            "ratios": [round(ratio, 4) for ratio in ratios],
        }
    )


def profile(run: Callable[[], object], top: int) -> None:
    """Print the functions that took most, on stderr."""
    profiler = cProfile.Profile(timer=process_time)
    profiler.runcall(run)
    pstats.Stats(profiler, stream=sys.stderr).strip_dirs().sort_stats("tottime").print_stats(top)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON for tracked and one for untracked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks python_side",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--guards", action="store_true", help="with and without them, in turn: their cost")
    parser.add_argument("--sentences", type=int, default=200_000, help="messages in the micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--top", type=int, default=0, help="how many functions of a profiled round to print")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    variant = variant_of(args)
    if args.guards:
        print_line(measure_guards(variant, args.sentences, args.rounds), keep=args.keep)
        return
    for each in _sides(variant, both=not args.untracked):
        print_line(measure(each, args.sentences, args.rounds), keep=args.keep)
        if args.top:
            batch = MicroBatch(each, args.sentences)
            batch.run({})
            profile(partial(batch.run, {}), args.top)


def _sides(variant: Variant, *, both: bool) -> Iterable[Variant]:
    return [variant, replace(variant, tracked=False)] if both else [variant]
