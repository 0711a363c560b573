"""What an open root costs: bytes in memory and on disk, and the acker's part of a micro-batch.

    python -m benchmarks acker --open 10000 100000 1000000 10000000

The acker runs as in the driver, with its log on disk, in this process and without Spark: no other part of a
micro-batch depends on the open messages. First it gets the given number of messages that stay open, then
micro-batches of two kinds. *Passing*: 50,000 messages open and are done in it. *Churn*: 50,000 open and stay
open, and as many of all ages, drawn at random, are done. Printed for each number of open roots: bytes for
each root, both as the acker counts them and by the growth of the process (which is inaccurate for few roots),
and the median and maximum of the rounds, in ms of CPU. One line of JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np

from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.ids import Int64s, root_ids
from acktree.core.micro_batch import MicroBatch
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.sequence_sums import Opened, SequenceSums
from acktree.tasks.plan import Plan
from benchmarks.meter import Meter
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.work import Variant

OPEN: Final = (10_000, 100_000, 1_000_000, 10_000_000)
_SALT, _TASK, _OWED = 7, 1, 5
_BATCH_MS: Final = 100
"""The micro-batches' clock: ten million roots open within the message timeout."""


class Host:
    """An acker with open roots, as the sink has it: all calls of the acker that this benchmark makes."""

    def __init__(self, folder: Path, open_count: int, at_once: int) -> None:
        """Open this number of messages at an acker in this folder, a part in each micro-batch."""
        self.folder, self.batch_id, self.next = folder, -1, 0
        variant = Variant()
        plan = Plan.of(variant.topology(Meter()), variant.config, variant.cores, _SALT)
        before = _resident_bytes()
        self.acker = DurableAcker(plan, folder)
        self.log = CommitLog(folder, [self.acker])
        self.log.recover(-1)
        while self.next < open_count:
            count = min(at_once, open_count - self.next)
            self.judge(self.opened(count, _OWED))
        self.resident_bytes = _resident_bytes() - before

    def opened(self, count: int, owed: int, done: Int64s | None = None) -> WireRow:
        """A DELTAS row: this number of messages opens with this sum, and earlier ones are done."""
        first, self.next = self.next, self.next + count
        sequences = np.zeros(0, dtype=np.int64) if done is None else done
        deltas = Deltas(
            opened=(Opened(_TASK, first, first + count),),
            sequence_sums=(SequenceSums(_TASK, first, np.full(count, owed)),),
            ack_roots=root_ids(_SALT, _TASK, sequences),
            ack_sums=np.full(len(sequences), _OWED),
        )
        return WireRow(0, SINK_LEVEL, Kind.DELTAS, 0, 0, 0, b"", deltas.to_bytes())

    def judge(self, deltas: WireRow) -> tuple[int, int, float]:
        """Run a micro-batch. Returns how many are open after it, how many were acked, and its CPU seconds."""
        self.batch_id += 1
        started = process_time()
        batch = MicroBatch(self.batch_id, self.batch_id * _BATCH_MS, is_first=self.batch_id == 0)
        verdicts, _ = self.acker.judge(batch, [deltas], lambda _: iter(()))
        self.log.write(Commit(self.batch_id, batch.clock_ms, 0), Outcome({}, verdicts))
        spent = process_time() - started
        acked = sum(len(sequences) for _, sequences in verdicts.done) + len(verdicts.acked.roots)
        return verdicts.open_count, acked, spent

    def bytes_in_memory(self) -> int:
        """The bytes of open roots in memory, as the acker counts them."""
        return self.acker._acker.ledger.nbytes  # noqa: SLF001  # no other code needs it

    def bytes_on_disk(self) -> int:
        """The bytes of all its files."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def measure(open_counts: Sequence[int], at_once: int, rounds: int) -> dict[str, Any]:
    """Measure each number of open roots.

    Args:
        at_once: Messages in a micro-batch.
    """
    report = Report("acker", {"at_once": at_once, "rounds": rounds})
    points = []
    for open_count in open_counts:
        with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
            points.append(_point(Host(Path(name), open_count, at_once), open_count, at_once, rounds))
    return report.line({"points": points})


def _point(host: Host, open_count: int, at_once: int, rounds: int) -> dict[str, Any]:
    on_disk, done_at_once = host.bytes_on_disk(), min(at_once, open_count // rounds)
    passing = [host.judge(host.opened(at_once, 0)) for _ in range(rounds)]
    assert all(found[:2] == (open_count, at_once) for found in passing), "what passed was acked, no more"
    drawn = np.random.default_rng(7).permutation(open_count)
    churn = [
        host.judge(host.opened(done_at_once, _OWED, np.sort(drawn[n * done_at_once :][:done_at_once])))
        for n in range(rounds)
    ]
    assert all(found[:2] == (open_count, done_at_once) for found in churn), "as many were acked as came"
    return {
        "open": open_count,
        "memory_bytes_per_root": round(host.bytes_in_memory() / open_count, 1),
        "resident_bytes_per_root": round(host.resident_bytes / open_count, 1),
        "disk_bytes_per_root": round(on_disk / open_count, 1),
        "churn_roots": done_at_once,
        "passing_ms": _median_ms(passing),
        "passing_worst_ms": _worst_ms(passing),
        "churn_ms": _median_ms(churn),
        "churn_worst_ms": _worst_ms(churn),
    }


def _median_ms(found: Sequence[tuple[int, int, float]]) -> float:
    return round(statistics.median(secs for _, _, secs in found) * 1000, 2)


def _worst_ms(found: Sequence[tuple[int, int, float]]) -> float:
    return round(max(secs for _, _, secs in found) * 1000, 2)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks acker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--open", type=int, nargs="+", default=list(OPEN), help="roots that are open")
    parser.add_argument("--at-once", type=int, default=50_000, help="messages in a micro-batch")
    parser.add_argument("--rounds", type=int, default=20, help="micro-batches of each kind")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    print_line(measure(args.open, args.at_once, args.rounds), keep=args.keep)
