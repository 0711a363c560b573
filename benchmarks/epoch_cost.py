"""The CPU time of small epochs on the Python side: levels run in this process, without Spark.

    python -m benchmarks epoch_cost                # one sentence an epoch
    python -m benchmarks epoch_cost --top 40       # and the functions that take most

The stateful word count of ``real_time``, with the files of a checkpoint: each level in each partition is what
a resident worker runs of an epoch, with marks, isolation and memory. At a low rate an epoch has one message,
so what costs is what does not depend on messages. ``us`` is the median CPU time of a level in a partition
that had rows, ``files`` how many files of a name of their own such a run made.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time, process_time_ns
from typing import Any

from acktree import Config
from acktree.core.data.frames import Kind, WireRow
from acktree.spark.query.operators import Places
from acktree.spark.realtime.level import ResidentLevel
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.acker import Acker
from acktree.tasks.broadcast import Broadcast
from acktree.tasks.chunk import Chunk
from acktree.tasks.plan import Plan
from benchmarks.latency import SteadySpout, Waits
from benchmarks.real_time import PARTITIONS, topology_of
from benchmarks.report import Report, add_keep_argument, print_line

_WARM_UP = 100


class Levels:
    """All levels of the word count in all partitions, and the acker after them."""

    def __init__(self, folder: Path) -> None:
        """Begin without memory, in a folder that is made to look like a checkpoint."""
        spout = SteadySpout(Waits(), 1.0)
        self.sentences, self.sequence = spout.sentences, 0
        self.plan = Plan.of(topology_of(spout), Config(), PARTITIONS, run_salt=7)
        shared = SharedPlan.write(self.plan, folder / "plan")
        state, marks = folder / "state", folder / "marks"
        marks.mkdir()
        places = Places("", str(marks), None, state=str(state), state_from=0)
        self.acker = Acker(self.plan)
        self.levels = {
            (level.index, partition): ResidentLevel(shared, level.index, partition, places)
            for level in self.plan.levels
            for partition in range(PARTITIONS)
        }

    def run(self, epoch: int, count: int, spent_us: dict[tuple[int, int], list[float]]) -> None:
        """Run an epoch of ``count`` sentences; what each level took is added to ``spent_us``."""
        clock_ms = 1_000_000 + 20 * epoch
        waiting: dict[tuple[int, int], list[WireRow]] = {}
        _sort_in(waiting, self._given(count, epoch, clock_ms))
        for place, level in self.levels.items():
            mine = waiting.pop(place, [])
            began = process_time_ns()
            onward, for_driver = level._run(epoch, mine)  # noqa: SLF001
            for_driver += level._written_memory()  # noqa: SLF001
            if mine:
                spent_us.setdefault(place, []).append((process_time_ns() - began) / 1000)
            _sort_in(waiting, [*onward, *for_driver])
        deltas = [row for rows in waiting.values() for row in rows if row.kind == Kind.DELTAS]
        verdicts = self.acker.judge(deltas, clock_ms)
        acked = sum(len(sequences) for _, sequences in verdicts.done) + len(verdicts.acked.roots)
        assert acked == count, f"{acked} of {count} messages acked"

    def _given(self, count: int, epoch: int, clock_ms: int) -> Iterator[WireRow]:
        """What the driver sends of an epoch: a chunk to one partition."""
        spout = self.plan.topology.spouts[0]
        first = self.sequence % (self.sentences.num_rows - count)
        values = self.sentences.slice(first, count)
        chunk = Chunk(
            spout.id, spout.task_ids[0], "default", is_tracked=True,
            first_sequence=self.sequence, emitted_ms=0, values=values,
        )  # fmt: skip
        self.sequence += count
        head = json.dumps((f"{epoch:012d}.data.1.{count}", 0, count)).encode()
        partition = epoch % PARTITIONS
        yield WireRow(partition, 0, Kind.CHUNK, chunk.task, epoch, clock_ms, head, chunk.to_bytes())
        end = Broadcast(end=epoch, is_first=not epoch).row(0, len(self.plan.levels))
        yield end._replace(clock_ms=clock_ms)


def _sort_in(
    waiting: dict[tuple[int, int], list[WireRow]], rows: Sequence[WireRow] | Iterator[WireRow]
) -> None:
    for row in rows:
        waiting.setdefault((row.level, row.partition), []).append(row)


def measure(epochs: int, count: int, top: int) -> dict[str, Any]:
    """Run epochs; returns the median of each level, in microseconds, and with ``top`` prints a profile."""
    report = Report("epoch_cost", {"messages": count})
    with TemporaryDirectory(prefix="acktree-benchmark-") as name:
        levels = Levels(Path(name))
        for epoch in range(_WARM_UP):
            levels.run(epoch, count, {})
        spent_us: dict[tuple[int, int], list[float]] = {}
        for epoch in range(_WARM_UP, _WARM_UP + epochs):
            levels.run(epoch, count, spent_us)
        if top:
            profiler = cProfile.Profile(timer=process_time)
            for epoch in range(_WARM_UP + epochs, _WARM_UP + 2 * epochs):
                profiler.runcall(levels.run, epoch, count, {})
            pstats.Stats(profiler, stream=sys.stderr).strip_dirs().sort_stats("tottime").print_stats(top)
            pstats.Stats(profiler, stream=sys.stderr).strip_dirs().sort_stats("cumtime").print_stats(top)
    by_level = {
        f"level {level.index}": round(
            median(us for part in range(PARTITIONS) for us in spent_us.get((level.index, part), [0.0]))
        )
        for level in levels.plan.levels
    }
    return report.line({"us": by_level})


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks epoch_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--epochs", type=int, default=500, help="how many are measured (default: %(default)s)"
    )
    parser.add_argument("--messages", type=int, default=1, help="sentences an epoch (default: %(default)s)")
    parser.add_argument("--top", type=int, default=0, help="how many functions of a profile to print")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    print_line(measure(given.epochs, given.messages, given.top), keep=given.keep)


if __name__ == "__main__":
    main()
