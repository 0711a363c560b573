"""The CPU of a spout task for a message, in the driver's process, whose GIL all spout tasks share.

    python -m benchmarks spout_side --spout tuple --top 25

One task of a word count's spout, on this thread, without Spark: it emits messages, appends them in chunks,
and gets a verdict for each. The inbox keeps each chunk as bytes, as the one on disk does; nothing is written.
Times are CPU of this process, in microseconds for each message.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from functools import partial
from time import process_time
from typing import Any

import numpy as np

from acktree.core.tracking.verdicts import Failure
from acktree.driver.spouts.spout_threads import RUN_MESSAGES
from acktree.tasks.chunk import Chunk
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.retries import GivenUpRecord
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from benchmarks.meter import Meter
from benchmarks.python_side import profile
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.work import SPOUTS, Variant


class BytesInbox:
    """An inbox without a disk."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}
        self.ends: list[tuple[int, int]] = []
        """First sequence of each chunk, and the one after its last, since last taken."""
        self._next = 0

    def append(self, chunks: Sequence[Chunk], parked: Sequence[Chunk] = ()) -> int:
        """Keep chunks as bytes."""
        first = self._next
        for chunk in chunks:
            self.chunks[self._next] = chunk.to_bytes()
            self.ends.append((chunk.first_sequence, chunk.first_sequence + len(chunk)))
            self._next += 1
        return first

    def read(self, number: int) -> Chunk:
        """A chunk again."""
        return Chunk.from_bytes(self.chunks[number])

    @property
    def chunk_rows(self) -> int:
        """As many as come."""
        return 1 << 30

    def room(self, wanted: int = 1) -> int:
        """As much as is wanted."""
        return wanted

    def release(self, number: int) -> None:
        """Forget a chunk."""
        del self.chunks[number]


class _Host(SpoutHost):
    """Keeps nothing, and raises what user code raised."""

    def record(self, records: Sequence[GivenUpRecord]) -> None:
        """Nothing is kept."""

    def report(self, component: str, task: int, failure: Failure) -> None:
        raise AssertionError(f"{component}, task {task}: {failure.reason}")

    def reserve(self, first: int) -> int:
        return first + (1 << 40)


class SpoutSide:
    """A spout task with the minimum around it."""

    def __init__(self, spout: str, *, tracked: bool, batch_rows: int = 10_000) -> None:
        variant = Variant(spout=spout, tracked=tracked, batch_rows=batch_rows)
        user_object = SPOUTS[spout](Meter(), variant)
        plan = Plan.of(variant.topology_of(user_object), variant.config, variant.cores, run_salt=7)
        component = plan.topology.spouts[0]
        self.inbox, self.tracked = BytesInbox(), tracked
        self.task = SpoutTask(user_object, component, component.task_ids[0], plan, _Host(self.inbox), 0)
        self.task.open()
        self.task.activate()
        self.now_ms = 0

    def run(self, messages: int, seconds: dict[str, float]) -> None:
        """Emit, append and ack messages; adds the CPU seconds of each step."""
        task, emitted = self.task, 0
        while emitted < messages:
            self.now_ms += 1
            started = process_time()
            while task.buffered_count < RUN_MESSAGES:
                task.step(self.now_ms, enough=RUN_MESSAGES, until=math.inf)
            handed_over = process_time()
            emitted += task.buffered_count
            task.flush(self.now_ms)
            seconds["emit"] = seconds.get("emit", 0.0) + handed_over - started
            seconds["hand over"] = seconds.get("hand over", 0.0) + process_time() - handed_over
        ends = [np.arange(*ends) for ends in self.inbox.ends]
        self.inbox.ends.clear()
        started = process_time()
        task.is_active = False  # a step that delivers verdicts and calls no next_tuple
        if self.tracked:
            task.dispatch(VerdictBatch(np.concatenate(ends)))
        task.step(self.now_ms)
        task.is_active = True
        seconds["ack"] = seconds.get("ack", 0.0) + process_time() - started
        assert task.is_idle, f"{task.open_count} messages are open"


def measure(
    spout: str, messages: int, rounds: int, *, tracked: bool, batch_rows: int = 10_000
) -> dict[str, Any]:
    """The median CPU time of each part for one message, in microseconds."""
    report = Report("spout_side", {"spout": spout, "tracked": tracked})
    side = SpoutSide(spout, tracked=tracked, batch_rows=batch_rows)
    side.run(messages, {})
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        seconds: dict[str, float] = {}
        side.run(messages, seconds)
        found.append(seconds)
    by_part = {
        part: round(statistics.median(seconds[part] for seconds in found) / messages * 1e6, 3)
        for part in found[0]
    }
    return report.line(
        {"messages": messages, "us_per_message": round(sum(by_part.values()), 3), "by_part": by_part}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON for tracked and one for untracked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks spout_side",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--spout", choices=sorted(SPOUTS), default="tuple")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--top", type=int, default=0, help="print this number of functions of a profiled round"
    )
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    for tracked in (True, False):
        print_line(measure(args.spout, args.messages, args.rounds, tracked=tracked), keep=args.keep)
    if args.top:
        side = SpoutSide(args.spout, tracked=True)
        side.run(args.messages, {})
        profile(partial(side.run, args.messages, {}), args.top)
