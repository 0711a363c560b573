"""A model of a cluster: the code of all partitions, of the combining tasks and of the driver, in one process.

    python -m benchmarks cluster --partitions 10 100
    python -m benchmarks cluster --partitions 1000 --sources batch --rounds 1

A word count runs as it would on a cluster with that many partitions and tasks: the levels of all partitions
one after the other, then the combining tasks, then what the sink does in the driver, from the Arrow batches
that Spark collects to the verdicts by spout task, each on the rows that the cluster would send. Its messages
come from a spout that emits batches, or are rows of a DataFrame. Reported for each number of partitions:

* for the driver: CPU of the acker, of the sink and of the spout's thread a message, bytes a message, and the
  peak of the memory that the sink takes;
* for the executors: CPU of all levels and of all combining tasks a message, the slowest combining task, the
  peak of its memory, and the bytes a message that go to combining tasks;
* `tracked_over_untracked`: the CPU of executors and driver without ids and ackers, divided by that with them;
* the ceilings: how many messages a second the driver's Python would manage, and that many cores of executors.

Spark, the network and the disks of executors are not included. Medians of the rounds; one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree import DataFrameSpout
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.checkpoint.logs.journal import Journal
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.micro_batch import MicroBatch as Moment
from acktree.core.tracking.verdicts import Verdicts
from acktree.driver.batch import BatchAcker, BatchResults, rows_by_kind
from acktree.driver.logs.error_log import ErrorLog
from acktree.spark.query.wire import batch_of, rows_of
from acktree.tasks.chunk import Chunk
from acktree.tasks.combiner import run_combiner
from acktree.tasks.payloads import Payload, TakePayloads, no_payloads
from acktree.tasks.plan import Plan
from benchmarks.python_side import MicroBatch
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.spout_side import SpoutSide
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import Variant

SOURCES: Final = ("batch", "rows")
"""A spout that emits batches; a DataFrame whose rows are messages."""


class _Frame:
    """What a ``DataFrameSpout`` looks at of a DataFrame."""

    columns, isStreaming = ["sentence", "id"], True  # noqa: N815  # Spark's


class RowsMicroBatch(MicroBatch):
    """The same sentences as rows of a DataFrame."""

    def __init__(self, variant: Variant, sentences: int) -> None:
        super().__init__(variant, sentences, topology=variant.topology_of(DataFrameSpout(_Frame(), "id")))

    def _given(self, chunks: Sequence[Chunk]) -> Iterable[WireRow]:
        spout = self.plan.topology.spouts[0]
        for row in self._slices(chunks):
            number, first, end = json.loads(row.head)
            values = chunks[int(number)].values.slice(first, end - first)
            ids = pa.array(chunks[int(number)].first_sequence + np.arange(first, end))
            rows = pa.record_batch({"sentence": values["sentence"], "id": ids})
            place = row.partition << 24 | row.sequence  # as spark/query/dataframe.py numbers pieces
            head = json.dumps((spout.id, self.clock_ms, place, self.tracked)).encode()
            yield row._replace(kind=Kind.ROWS, sequence=place, head=head, body=batch_to_bytes(rows))


@dataclass
class TimedAcker(BatchAcker):
    """An acker, and the CPU seconds of its last micro-batch."""

    acker: DurableAcker
    secs: float = 0.0

    def __post_init__(self) -> None:
        self.row_ids = self.acker.row_ids

    def judge(
        self,
        batch: Moment,
        deltas: Iterable[WireRow],
        payloads: TakePayloads,
        ids: TakePayloads = no_payloads,
    ) -> tuple[Verdicts, Iterable[Payload]]:
        started = process_time()
        judged = self.acker.judge(batch, deltas, payloads, ids)
        self.secs = process_time() - started
        return judged


class Driver:
    """What the sink does with a micro-batch, without Spark."""

    def __init__(self, plan: Plan, folder: Path, *, redelivers: bool) -> None:
        acker = DurableAcker(plan, folder)
        self.acker = TimedAcker(acker)
        journal = None if redelivers else Journal(folder / "verdicts", lambda: -1, lambda: 0)
        self.log = CommitLog(folder, [acker] if journal is None else [acker, journal])
        self.log.recover(-1)
        self.results = BatchResults(plan, self.acker, ErrorLog(plan.config), journal)
        self.batch_id = -1

    def take(self, collected: Sequence[pa.RecordBatch], clock_ms: int) -> int:
        """Take the rows of a micro-batch as Spark hands them over. Returns how many messages were acked."""
        self.batch_id += 1
        rows = rows_by_kind(row for batch in collected for row in rows_of(batch))
        self.results.note(rows, clock_ms)
        decided = self.results.judge(Moment(self.batch_id, clock_ms), rows, no_payloads)
        self.log.write(Commit(self.batch_id, clock_ms, self.batch_id), Outcome(rows, decided.verdicts))
        return sum(len(batch.acked) + batch.acked_rows for batch in decided.by_task.values())


def measure(
    variant: Variant,
    partitions: Sequence[int],
    sentences: int,
    rounds: int,
    sources: Sequence[str] = SOURCES,
) -> dict[str, Any]:
    """Measure each number of partitions and source of messages.

    Args:
        sentences: The messages in a micro-batch.
        sources: Some of :data:`SOURCES`.
    """
    report = Report("cluster", asdict(variant) | {"sentences": sentences, "rounds": rounds})
    spout_us = {tracked: _spout_us(variant, rounds, tracked=tracked) for tracked in (True, False)}
    without = dict.fromkeys(spout_us, 0.0)
    return report.line(
        {
            "points": [
                _point(variant, source, each, sentences, rounds, spout_us if source == "batch" else without)
                for each in partitions
                for source in sources
            ]
        }
    )


def _spout_us(variant: Variant, rounds: int, *, tracked: bool) -> float:
    """CPU of a thread of a spout that emits batches, a message."""
    side, found = SpoutSide("batch", tracked=tracked, batch_rows=variant.batch_rows), []
    for _ in range(rounds + 1):
        seconds: dict[str, float] = {}
        side.run(200_000, seconds)
        found.append(sum(seconds.values()) / 200_000 * 1e6)
    return statistics.median(found[1:])  # the first imports


class Side:
    """A topology of the model, tracked or not, with its driver."""

    def __init__(self, variant: Variant, source: str, sentences: int, folder: Path) -> None:
        made = RowsMicroBatch if source == "rows" else MicroBatch
        self.batch = made(variant, sentences)
        folder.mkdir()
        self.driver = Driver(self.batch.plan, folder, redelivers=source != "rows")

    def take(self) -> dict[str, float]:
        return _take(self.batch, self.driver)


def _point(
    variant: Variant,
    source: str,
    partitions: int,
    sentences: int,
    rounds: int,
    spout_us: dict[bool, float],
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as folder:
        tracked, untracked = (
            Side(
                replace(variant, cores=partitions, tracked=is_tracked),
                source,
                sentences,
                Path(folder, str(is_tracked)),
            )
            for is_tracked in (True, False)
        )
        if rounds > 1:  # the first run imports modules and fills the memory
            tracked.take()
            untracked.take()
        found, ratios = [], []
        for _ in range(rounds):
            found.append(tracked.take())
            ratios.append(
                (_cpu_us(untracked.take(), sentences) + spout_us[False])
                / (_cpu_us(found[-1], sentences) + spout_us[True])
            )
        peaks = _peaks(tracked.batch, tracked.driver)
    batch, last = tracked.batch, found[-1]
    us = {
        name: statistics.median(each[name] for each in found) / sentences * 1e6
        for name in ("acker", "sink", "levels", "combining")
    }
    driver_us, executors_us = us["sink"] + spout_us[True], us["levels"] + us["combining"]
    return {
        "source": source,
        "partitions": partitions,
        "combiners": batch.plan.combiners,
        "acker_us": round(us["acker"], 3),
        "sink_us": round(us["sink"], 3),
        "spout_us": round(spout_us[True], 3),
        "bytes_to_driver": round(last["bytes"] / sentences, 2),
        "of_which_for_the_acker": round(last["acker_bytes"] / sentences, 2),
        "driver_peak_mb": round(peaks[0] / 1e6, 1),
        "executors_us": round(executors_us, 3),
        "combining_us": round(us["combining"], 3),
        "slowest_combiner_ms": round(statistics.median(each["slowest"] for each in found) * 1e3, 1),
        "combiner_peak_mb": round(peaks[1] / 1e6, 1),
        "bytes_to_combiners": round(last["combined_bytes"] / sentences, 1),
        "frames": last["frames"],
        "tracked_over_untracked": round(statistics.median(ratios), 3),
        "driver_per_sec": round(1e6 / driver_us),
        "executors_per_sec": round(partitions * 1e6 / executors_us),
        "ceiling_per_sec": round(min(1e6 / driver_us, partitions * 1e6 / executors_us)),
    }


def _cpu_us(taken: dict[str, float], sentences: int) -> float:
    """CPU of executors and sink a message."""
    return sum(taken[name] for name in ("levels", "combining", "sink")) / sentences * 1e6


def _take(batch: MicroBatch, driver: Driver) -> dict[str, float]:
    """One micro-batch, from the levels to the verdicts: CPU seconds, and bytes."""
    seconds: dict[str, float] = {}
    sent: dict[str, list[WireRow]] = {}
    rows = batch.run_levels(seconds, sent)
    made = [row for each in sent.values() for row in each]
    frames = sum(row.kind == Kind.FRAME for row in made)
    to_combiners = [row for row in made if row.level == batch.plan.combining_level]
    del made, sent
    collected = list(_collected(rows))
    gc.collect()
    started = process_time()
    acked = driver.take(collected, batch.clock_ms)
    sink = process_time() - started
    expected = batch.sentences if batch.tracked else 0
    assert acked == expected, f"{acked} of {expected} acked"
    combining = seconds.pop("combining", 0.0)
    of_acker = [row for row in rows if row.kind in (Kind.DELTAS, Kind.COMBINED)]
    return {
        "acker": driver.acker.secs,
        "sink": sink,
        "levels": sum(seconds.values()),
        "combining": combining,
        "slowest": batch.slowest_combiner_secs,
        "bytes": _bytes_of(rows),
        "acker_bytes": _bytes_of(of_acker),
        "combined_bytes": _bytes_of(to_combiners),
        "frames": frames,
    }


def _peaks(batch: MicroBatch, driver: Driver) -> tuple[int, int]:
    """The most memory that the sink, and that one combining task, took for one more micro-batch, in bytes."""
    sent: dict[str, list[WireRow]] = {}
    rows = batch.run_levels({}, sent)
    made = [row for each in sent.values() for row in each if row.level == batch.plan.combining_level]
    del sent
    collected = list(_collected(rows))
    mine: dict[int, list[WireRow]] = {}
    for row in made:
        mine.setdefault(row.partition, []).append(row)
    tracemalloc.start()
    try:
        driver.take(collected, batch.clock_ms)
        sink = tracemalloc.get_traced_memory()[1]
        largest = 0
        for combiner, given in mine.items():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            list(run_combiner(batch.plan, combiner, given))
            largest = max(largest, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return sink, largest


def _collected(rows: Iterable[WireRow]) -> Iterator[pa.RecordBatch]:
    """Rows for the driver as ``toArrow`` returns them."""
    given = [row._replace(kind=int(row.kind), body=bytes(row.body)) for row in rows]
    assert all(row.level == SINK_LEVEL for row in given), "a row was left on the way"
    for first in range(0, len(given), 64):
        yield batch_of(given[first : first + 64])


def _bytes_of(rows: Iterable[WireRow]) -> int:
    return sum(len(row.head) + len(row.body) for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 10, 24, 100])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--sentences", type=int, default=400_000, help="messages of a micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    variant = variant_of(args)
    print_line(measure(variant, args.partitions, args.sentences, args.rounds, args.sources), keep=args.keep)
