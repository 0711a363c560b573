"""Keys of messages that are kept: memory and disk a key, and what they add to a micro-batch, as they grow.

::

    python -m benchmarks kept_keys --keys 0 100000 1000000

The driver's part of a micro-batch runs in this process, on a checkpoint of its own, without Spark: messages
claim their keys, are handed over and ACKED, and the commit log is written. First as many keys are kept as
given. Then micro-batches with ``--fresh`` new keys each are timed, the next with as many keys that are kept
already; times are CPU of this process, so a busy neighbour disturbs them little. Last, the topology grows
older than ``key_retention_secs``. What is kept 300 micro-batches later, with a new key each, is ``left``.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from acktree import Config
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.core.data.frames import SINK_LEVEL, Kind
from acktree.core.tracking.verdicts import Judged, Verdicts
from acktree.tasks.broadcast import Broadcast
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.keys.labels import Labelled
from benchmarks.meter import Meter
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.work import Variant

KEYS: Final = (0, 100_000, 1_000_000)
_FILLED_BY: Final = 10_000
_NONE: Final = np.zeros(0, dtype=np.int64)
_NOBODY: Final = Judged(_NONE, _NONE.astype(np.int32))
_STEP_MS: Final = 1000
_MS: Final = 1000.0


class Driver:
    """The keys of one checkpoint, and the micro-batches that add to them."""

    def __init__(self, folder: Path, retention_secs: float) -> None:
        config = Config(key_retention_secs=retention_secs)
        self._plan = Plan.of(Variant(bolts="basic").topology(Meter()), config, 1, run_salt=7)
        self._folder, self._chance = folder, random.Random(7)  # noqa: S311  # not a secret
        self._number, self._clock_ms, self._next = -1, 0, 0
        self.keys = KeyLog(self._plan)
        self._log = CommitLog(folder, [self.keys])
        self._log.recover(-1)

    def digests(self, count: int) -> list[bytes]:
        """Keys that nobody has had."""
        return [self._chance.randbytes(16) for _ in range(count)]

    def run(self, digests: Sequence[bytes], more_ms: int = _STEP_MS) -> float:
        """Messages with these keys come, run and are ACKED in a micro-batch; returns its CPU seconds."""
        messages = [Labelled(at, "", digest) for at, digest in enumerate(digests)]
        roots = np.arange(self._next, self._next + len(digests))
        self._next += len(digests)
        started = time.process_time()
        fates = self.keys.keys.claim(digests)
        runs = np.array([fate.name == "RUNS" for fate in fates], dtype=np.bool_)
        ran = roots[runs]
        self.keys.keys.sent(
            ran, [each for each, runs_now in zip(messages, runs.tolist(), strict=True) if runs_now]
        )
        self._number, self._clock_ms = self._number + 1, self._clock_ms + more_ms
        broadcast = Broadcast(end=0, is_first=self._number == 0).row(0, SINK_LEVEL)
        acked = Judged(ran, ran.astype(np.int32))
        verdicts = Verdicts([], acked, _NOBODY, _NONE, _NONE, _NOBODY, (), 0, None)
        self._log.write(
            Commit(self._number, self._clock_ms, -1), Outcome({Kind.BROADCAST: [broadcast]}, verdicts)
        )
        self.keys.publish(self._number)
        return time.process_time() - started

    def restarted_secs(self) -> float:
        """The CPU seconds in which another driver reads the keys."""
        started = time.process_time()
        log = CommitLog(self._folder, [KeyLog(self._plan)])
        log.recover(self._number)
        log.close()
        return time.process_time() - started

    def disk_bytes(self) -> int:
        """The size of all files of the checkpoint."""
        return sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())

    def array_bytes(self) -> int:
        """The size of the arrays of keys."""
        return sum(part.digests.nbytes for part in self.keys.keys.parts())


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(keys: int, fresh: int, batches: int, retention_secs: float) -> dict[str, Any]:
    """Measure what it costs to keep a number of keys."""
    report = Report("kept_keys", {"keys": keys, "fresh": fresh, "retention_secs": retention_secs})
    with TemporaryDirectory(prefix="acktree-benchmark-") as folder:
        driver = Driver(Path(folder), retention_secs)
        driver.run(driver.digests(1))
        resident, some = _resident_bytes(), [b""]
        for first in range(0, keys, _FILLED_BY):
            some = driver.digests(min(_FILLED_BY, keys - first))
            driver.run(some)
        kept = len(driver.keys.keys)
        memory, disk = driver.array_bytes(), driver.disk_bytes()
        found: dict[str, Any] = {"kept": kept}
        if keys:
            found |= {
                "array_bytes_a_key": round(memory / kept, 1),
                "resident_bytes_a_key": round((_resident_bytes() - resident) / kept, 1),
                "disk_bytes_a_key": round(disk / kept, 1),
                "restart_cpu_ms": round(driver.restarted_secs() * _MS, 1),
            }
        took = [driver.run(driver.digests(fresh)) * _MS for _ in range(batches)]
        found |= {"new_cpu_ms": round(median(took), 2), "longest_cpu_ms": round(max(took), 2)}
        if keys:
            again = [driver.run((some * fresh)[:fresh]) * _MS for _ in range(batches)]
            found["again_cpu_ms"] = round(median(again), 2)
        driver.run(driver.digests(1), more_ms=round(retention_secs * 2000))
        for _ in range(300):  # the log holds a section with all keys again, at the latest
            driver.run(driver.digests(1))
        left = {
            "kept": len(driver.keys.keys),
            "array_bytes": driver.array_bytes(),
            "disk_bytes": driver.disk_bytes(),
        }
        return report.line({**found, "left": left})


def main(arguments: Sequence[str]) -> None:
    """Print a line of JSON for each number of keys."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks kept_keys", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--fresh", type=int, default=1000, help="messages of a micro-batch that is timed")
    parser.add_argument("--batches", type=int, default=50, help="micro-batches that are timed")
    parser.add_argument("--retention", type=float, default=86_400.0, help="key_retention_secs")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    for keys in given.keys:
        print_line(measure(keys, given.fresh, given.batches, given.retention), keep=given.keep)
