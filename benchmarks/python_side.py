"""Where the Python time of a word count's micro-batch goes: its levels run in this process, without Spark.

    python -m benchmarks python_side --bolts basic --top 25

The same frames that a micro-batch would have, through the same ``run_level`` and ``run_acker``, one partition
after the other. Times are CPU of this process, so a busy neighbour disturbs them little; ``us_per_root`` is
what the workers of all partitions spend on one sentence. What Spark and the JVM spend comes on top.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from time import process_time

from acktree.core.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.state import MemoryStore
from acktree.tasks.acker_task import Verdicts, run_acker
from acktree.tasks.chunk import Chunk
from acktree.tasks.level import run_level
from acktree.tasks.plan import Plan
from benchmarks import machine
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import BatchSpout, Meter, Variant


class MicroBatch:
    """One micro-batch's chunks, and the state of everything between two runs of it."""

    def __init__(self, variant: Variant, sentences: int) -> None:
        self.plan = Plan.of(variant.topology(Meter()), variant.config, variant.cores, run_salt=7)
        self.batches = BatchSpout(Meter(), variant.batch_rows, tracked=variant.tracked).batches
        self.tracked, self.sentences = variant.tracked, sentences
        self.stores = {
            (level, partition): MemoryStore()
            for level in range(self.plan.acker_level + 1)
            for partition in range(variant.cores)
        }
        self.sequence = self.clock_ms = 0

    def run(self, seconds: dict[str, float]) -> int:
        """Run it on the next messages; adds the CPU seconds of each level; returns how many were acked."""
        plan, partitions = self.plan, range(self.plan.partitions)
        self.clock_ms += 1000
        chunks = list(self._chunks())
        waiting = [
            WireRow(p, 0, Kind.CHUNK, chunk.task, n, self.clock_ms, self._slice(n, chunk, p), b"")
            for n, chunk in enumerate(chunks)
            for p in partitions
        ]
        waiting += [
            WireRow(plan.acker_host(acker), plan.acker_level, Kind.CLOCK, 0, 0, self.clock_ms, b"", b"")
            for acker in range(plan.ackers)
        ]
        packed = [chunk.to_bytes() for chunk in chunks]  # read again by each partition, as from the inbox

        def read(name: str) -> Chunk:
            return Chunk.from_bytes(packed[int(name)])

        for level in range(plan.acker_level + (1 if plan.ackers else 0)):
            named = "acker" if level == plan.acker_level else f"level {level}"
            out: list[WireRow] = [row for row in waiting if row.level != level]
            for partition in partitions:
                mine = [row for row in waiting if row.level == level and row.partition == partition]
                store = self.stores[level, partition]
                started = process_time()
                if level == plan.acker_level:
                    out += run_acker(plan, partition, mine, store)
                else:
                    out += run_level(plan, level, partition, mine, store, read)
                seconds[named] = seconds.get(named, 0.0) + process_time() - started
            waiting = out
        told = [row for row in waiting if row.kind == Kind.VERDICTS and row.level == SINK_LEVEL]
        return sum(len(Verdicts.from_bytes(row.body).acked) for row in told)

    def _chunks(self) -> Iterator[Chunk]:
        spout = self.plan.topology.spouts[0]
        rows = self.batches[0].num_rows
        for number in range(self.sentences // rows):
            batch = self.batches[number % len(self.batches)]
            yield Chunk(spout.id, spout.task_ids[0], "default", self.tracked, self.sequence, 0, batch)
            self.sequence += rows

    def _slice(self, number: int, chunk: Chunk, partition: int) -> bytes:
        first, end = (len(chunk) * at // self.plan.partitions for at in (partition, partition + 1))
        return json.dumps((str(number), first, end)).encode()


def measure(variant: Variant, sentences: int, rounds: int) -> dict[str, object]:
    """The median CPU time of each level for one sentence, in microseconds."""
    batch = MicroBatch(variant, sentences)
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
    return {
        "benchmark": "python_side",
        "variant": asdict(variant),
        "sentences": sentences,
        "us_per_root": round(sum(by_level.values()), 3),
        "by_level": by_level,
        "load_before": machine.load(),
        "machine": machine.facts(),
    }


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
    parser.add_argument("--sentences", type=int, default=200_000, help="messages in the micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--top", type=int, default=0, help="print so many functions of a profiled round")
    args = parser.parse_args(arguments)
    variant = variant_of(args)
    for each in _sides(variant, both=not args.untracked):
        print(json.dumps(measure(each, args.sentences, args.rounds)), flush=True)
        if args.top:
            batch = MicroBatch(each, args.sentences)
            batch.run({})
            profile(partial(batch.run, {}), args.top)


def _sides(variant: Variant, *, both: bool) -> Iterable[Variant]:
    return [variant, replace(variant, tracked=False)] if both else [variant]
