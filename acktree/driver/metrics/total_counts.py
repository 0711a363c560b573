"""The counts of all runs on a checkpoint: what Storm shows as ``:all-time``.

Rules of this file
------------------
1. Counts belong to micro-batches. What bolts and emits count, and how many messages got which verdict, is
   a section of the micro-batch's commit. A micro-batch that runs again was never committed, and counts once.
2. What no micro-batch decides (complete latencies, errors of spouts, messages that never reached one, why a
   spout was not asked) is stored with the next micro-batch, and at the end of the run. If the driver is
   killed first, it is lost.
3. Counts that a newer acktree wrote stop no topology: they are reported, and kept.

The table is written whole with each micro-batch that counted something, so that it is exact wherever the
driver is killed. Its keys are encoded when they are new (:class:`CountTable`). Measured where each task
counts in each micro-batch, the median of 40 (`keep`, in ms), and the size of the file:

======  ======  =======================  ===========  =======
tasks   counts  all as JSON              as a table   bytes
======  ======  =======================  ===========  =======
8          110                     0.22         0.08  0.8 kB
80       1,072                     1.82         0.21  5.9 kB
800     10,704                    21.35         1.52   56 kB
======  ======  =======================  ===========  =======

A run's own numbers (``running.stats()``) count a verdict when it is delivered to its spout. After a crash a
verdict may be delivered again: so these numbers are not made of those.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np

from acktree.checkpoint.logs.commit_log import Commit, Outcome, Participant, Section
from acktree.core.buckets import bucket_of
from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.ids import Int64s
from acktree.core.stats.count_table import CountTable, PackedTable
from acktree.core.stats.counters import Counters
from acktree.core.stats.histograms import Histogram
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.errors import CheckpointError
from acktree.logs.loggers import logger
from acktree.tasks.spouts.verdict_batch import VerdictBatch

log = logger("acktree")

_VERSION: Final = 2
_MOST: Final = 1 << 62
"""No count is so large. Sums of two fit into 64 bits."""
_BUCKETS: Final = bucket_of(_MOST)


class Streams(Protocol):
    """Which stream messages were emitted on."""

    def counts(self, sequences: Int64s) -> Mapping[str, int]:
        """How many of these messages were emitted on each stream."""


class CountedSpout(Protocol):
    """A spout task, as far as it is counted here."""

    own: Counters
    complete_ms: Histogram

    @property
    def sent(self) -> Streams:
        """The streams of its messages."""


@dataclass(frozen=True)
class Totals:
    """The counts of all runs at one moment.

    Attributes:
        batch_id: The last micro-batch that is in them; -1 for none of this run.
        ran_ms: For how long drivers ran the topology, all in all.
        spread: Spout -> the complete latencies of its acked messages.
    """

    batch_id: int = -1
    counters: Counters = field(default_factory=Counters)
    ran_ms: int = 0
    spread: Mapping[str, Histogram] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As :meth:`from_bytes` reads it."""
        return _to_bytes(CountTable(self.counters).packed(), self.ran_ms, self.spread)

    @classmethod
    def from_bytes(cls, packed: bytes) -> Totals:
        """The inverse of :meth:`to_bytes`.

        Raises:
            ValueError: It is damaged.
            CheckpointError: Another acktree wrote it.
        """
        try:
            return cls._from_bytes(packed)
        except CheckpointError:
            raise
        except Exception as error:  # a damaged file may hold anything
            raise ValueError(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _from_bytes(cls, packed: bytes) -> Totals:
        reader = zlib.decompressobj()
        table: dict[str, Any] = json.loads(reader.decompress(packed))
        if table["version"] != _VERSION:
            raise CheckpointError(
                f"the counts of all runs have version {table['version']}, and this acktree reads {_VERSION}",
                "the commit log of the checkpoint",
                "use the acktree that wrote them",
            )
        counters = _table_in(reader.unused_data, table)
        spread = {str(name): _histogram(buckets) for name, buckets in table["spread"].items()}
        ran_ms = int(table["ran_ms"])
        if not 0 <= max(ran_ms, *counters.values(), 0) < _MOST:
            raise ValueError("a number is too large")
        return cls(-1, counters, ran_ms, spread)


def _histogram(pairs: Iterable[tuple[int, int]]) -> Histogram:
    counts = {int(bucket): int(n) for bucket, n in pairs}
    if not all(0 <= bucket < _BUCKETS and 0 <= n < _MOST for bucket, n in counts.items()):
        raise ValueError("a histogram has a bucket or a count that there is not")
    return Histogram(counts)


class TotalCounts(Participant):
    """The counts of all runs, as of the last micro-batch. Any thread may read them; the sink adds.

    Attributes:
        begun: What earlier runs left.
    """

    name = "counts"

    def __init__(self, topology: str = "") -> None:
        """Begin at 0, until :meth:`recover`.

        Args:
            topology: Its name, for the log.
        """
        self._topology = topology
        self._is_stored = True
        self.begun = Totals()
        self._began = time.monotonic()
        self._lock = Lock()
        self._batch_id = -1
        self._table = CountTable(self.begun.counters)
        self._now = Counters()  # of the micro-batch that runs
        self._spouts: dict[int, tuple[str, CountedSpout]] = {}

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        for _, section in sections:
            try:
                self.begun = Totals.from_bytes(bytes(section.content))
            except (CheckpointError, ValueError) as error:
                self._is_stored = False  # not overwritten: a newer acktree may go on with it
                log.warning(
                    "topology=%s `:all-time` begins at 0 and is not stored: %s", self._topology, error
                )
        self._table = CountTable(self.begun.counters)

    def watch(self, component: str, task: int, spout: CountedSpout) -> None:
        """Count the verdicts of a spout task's messages, and what it counts itself."""
        self._spouts[task] = component, spout

    # ---- the sink ---------------------------------------------------------------------------------------

    def note(self, counters: Counters) -> None:
        """Add what the tasks of a micro-batch counted."""
        self._now.merge(counters)

    def note_verdicts(self, batches: Mapping[int, VerdictBatch]) -> None:
        """Count the verdicts of a micro-batch by spout task. Those of tasks that are gone are left out."""
        for task, batch in batches.items():
            if task not in self._spouts:
                continue
            component, spout = self._spouts[task]
            self._now.add(component, task, DEFAULT_STREAM, "acked", batch.acked_rows)
            for stream, n in spout.sent.counts(batch.acked).items():
                self._now.add(component, task, stream, "acked", n)
            failed: dict[FailureCause | None, list[Int64s]] = {}
            for sequences, failure in batch.failed:  # there may be as many as messages
                failed.setdefault(_cause(failure), []).append(sequences)
            for cause, groups in failed.items():
                for stream, n in spout.sent.counts(np.concatenate(groups)).items():
                    self._now.add_failed(component, task, stream, cause, n)
            for roots, failure in batch.failed_rows:
                self._now.add_failed(component, task, DEFAULT_STREAM, _cause(failure), len(roots))

    def write(self, commit: Commit, outcome: Outcome) -> Section | None:  # noqa: ARG002  # it was noted
        has_grown = bool(self._now)
        with self._lock:
            self._table.add(self._now)
            self._batch_id = commit.number
        self._now = Counters()
        return self._section() if has_grown and self._is_stored else None

    def closing_section(self) -> Section | None:
        """What was counted since the last micro-batch, too."""
        return self._section() if self._is_stored else None

    def _section(self) -> Section:
        own, spread = self._spouts_now()
        with self._lock:
            table = self._table.packed([own])
        return Section(_to_bytes(table, self.ran_ms, spread), is_whole=True)

    # ---- readers ----------------------------------------------------------------------------------------

    @property
    def ran_ms(self) -> int:
        """For how long drivers ran the topology, all in all."""
        return self.begun.ran_ms + round((time.monotonic() - self._began) * 1000)

    def now(self) -> Totals:
        """A copy of the counts, with what spouts counted themselves up to now."""
        own, spread = self._spouts_now()
        with self._lock:
            counters, batch_id = self._table.counters(), self._batch_id
        counters.merge(own)
        return Totals(batch_id, counters, self.ran_ms, spread)

    def _spouts_now(self) -> tuple[Counters, dict[str, Histogram]]:
        """What spouts of this run counted themselves, and the complete latencies of all runs."""
        counters, spread = (
            Counters(),
            {name: Histogram(histogram) for name, histogram in self.begun.spread.items()},
        )
        for component, spout in self._spouts.values():
            own, complete_ms = _read(spout)
            counters.merge(own)
            if complete_ms:
                spread.setdefault(component, Histogram()).merge(complete_ms)
        return counters, spread


def _to_bytes(table: PackedTable, ran_ms: int, spread: Mapping[str, Histogram]) -> bytes:
    """What is stored: a part that every release reads, and the table. Each part has zlib's checksum."""
    parts = [*table.keys, table.counts]
    head = {
        "version": _VERSION,
        "ran_ms": ran_ms,
        "spread": {name: list(histogram.items()) for name, histogram in spread.items()},
        "bytes": [len(part) for part in parts],
    }
    return b"".join((zlib.compress(json.dumps(head, separators=(",", ":")).encode(), 1), *parts))


def _table_in(packed: bytes, head: Mapping[str, Any]) -> Counters:
    ends = [0, *accumulate(head["bytes"])]
    *keys, counts = (packed[begin:end] for begin, end in pairwise(ends))
    return CountTable.unpacked(PackedTable(keys, counts))


def _cause(failure: Failure) -> FailureCause | None:
    """The cause for which messages failed; None where they timed out."""
    return None if failure.kind is FailureKind.TIMED_OUT else failure.cause


def _read(spout: CountedSpout) -> tuple[Counters, Histogram]:
    """What a spout task counted itself; its thread may change the tables meanwhile."""
    while True:
        own = Counters()
        try:
            own.merge(spout.own)
            return own, Histogram(spout.complete_ms)
        except RuntimeError:
            time.sleep(0)  # a table changed while it was read: read again
