"""How far the records of one partition are done.

Rules of this file
------------------
1. The frontier is the offset below which every record that was emitted is done. It never passes an open one.
2. Offsets may have gaps: compaction, aborted transactions and control records leave them. Offsets between two
   records that were emitted one after the other are a gap, so no rule needs consecutive offsets.
3. The metadata of a commit holds the done offsets above the frontier. The next reader of the partition does
   not emit them again. Where not all fit, it emits some records twice, and loses none.

Source: Storm's ``OffsetManager``; the metadata is ours, as in Confluent's parallel consumer.
"""

from __future__ import annotations

import base64
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.connectors.message_names import Names

Int64s = npt.NDArray[np.int64]

MOST_METADATA: Final = 4000
"""Characters of a commit's metadata; servers take 4,096 by default."""
_MARK: Final = "acktree-1 "
_NONE: Final[Int64s] = np.zeros(0, dtype=np.int64)


class RecordRun:
    """Consecutive messages of one partition: ids ``first_id``, ``first_id + 1``, ...

    Attributes:
        partition: Their partition.
        first_id: The message id of the first.
        offsets: Ascending, shape (n,).
        is_done: Whether each is acked or given up, shape (n,).
        left: How many are not done.
        batch: The records, for another attempt; None when all are done, or another member has the partition.
        names: What they are called; None: nothing.
    """

    __slots__ = ("batch", "first_id", "is_done", "left", "names", "offsets", "partition")

    def __init__(
        self,
        partition: Partition,
        first_id: int,
        offsets: Int64s,
        batch: pa.RecordBatch,
        names: Sequence[Names] | None = None,
    ) -> None:
        self.partition, self.first_id, self.offsets, self.names = partition, first_id, offsets, names
        self.is_done = np.zeros(len(offsets), dtype=np.bool_)
        self.left = len(offsets)
        self.batch: pa.RecordBatch | None = batch

    @property
    def open_ids(self) -> Int64s:
        """The ids of the messages that are not done."""
        return self.first_id + np.flatnonzero(~self.is_done)


class Partition:
    """One partition, from its assignment until it is revoked.

    Attributes:
        position: The offset after the last record that was read.
        committed: The frontier and metadata of the last commit; None: to be committed.
    """

    def __init__(self, topic: str, number: int, start: int, done: Int64s = _NONE, mark: str = "") -> None:
        """Begin at an offset.

        Args:
            done: Offsets from the start on that are done already, ascending.
            mark: The checkpoint that commits, as :func:`is_marked` looks for it; "" where it does not matter.
        """
        self.mark = mark
        self.topic, self.number, self.position = topic, number, start
        self.committed: tuple[int, str] | None = None
        self._done_before = done
        self._runs: deque[RecordRun] = deque()
        self._emitted = 0

    def fresh(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of ascending offsets are to be emitted: not read yet, and not done already."""
        is_new: npt.NDArray[np.bool_] = offsets >= self.position
        if len(self._done_before):
            is_new &= ~np.isin(offsets, self._done_before, assume_unique=True)
        return is_new

    def add(self, run: RecordRun) -> None:
        """Add messages that were emitted."""
        self._runs.append(run)
        self._emitted += len(run.offsets)

    def read_through(self, offset: int) -> None:
        """Note that everything up to an offset was read, this one included."""
        self.position = max(self.position, offset + 1)

    @property
    def uncommitted(self) -> int:
        """How many messages were emitted that lie above the frontier."""
        self._trim()
        return self._emitted

    @property
    def frontier(self) -> int:
        """The offset to commit: that of the first record that is not done."""
        self._trim()
        if not self._runs:
            return self.position
        first = self._runs[0]
        return int(first.offsets[int(np.argmin(first.is_done))])

    def to_commit(self) -> tuple[int, str]:
        """The frontier, and the done offsets above it as metadata."""
        frontier = self.frontier
        parts = [run.offsets[run.is_done] for run in self._runs]
        self._done_before = self._done_before[self._done_before >= frontier]
        done = np.concatenate([self._done_before, *parts])
        return frontier, encode_done(frontier, np.sort(done[done > frontier]), self.mark)

    def open_ids(self) -> Iterator[int]:
        """The ids of the messages that are not done."""
        for run in self._runs:
            yield from run.open_ids.tolist()

    def runs(self) -> Iterable[RecordRun]:
        """The runs with a message above the frontier."""
        return tuple(self._runs)

    def _trim(self) -> None:
        while self._runs and not self._runs[0].left:
            self._emitted -= len(self._runs.popleft().offsets)


class OpenRuns:
    """The runs of all partitions of a task, by message id."""

    def __init__(self) -> None:
        """Nothing is open."""
        self._runs: dict[int, RecordRun] = {}  # by first id, ascending
        self.next_id = 0
        """The id that the next message gets."""

    def open(
        self,
        partition: Partition,
        offsets: Int64s,
        batch: pa.RecordBatch,
        names: Sequence[Names] | None = None,
    ) -> RecordRun:
        """Give messages their ids."""
        run = RecordRun(partition, self.next_id, offsets, batch, names)
        self.next_id += len(offsets)
        self._runs[run.first_id] = run
        partition.add(run)
        return run

    def close(self, message_ids: Sequence[Any]) -> None:
        """Note messages as done. Ids of a partition that is gone have no effect."""
        for run, indices in self.find(message_ids):
            run.is_done[indices] = True
            run.left = len(run.is_done) - int(np.count_nonzero(run.is_done))
            if not run.left:
                run.batch = None
                self._runs.pop(run.first_id, None)

    def find(self, message_ids: Sequence[Any]) -> Iterator[tuple[RecordRun, Int64s]]:
        """The runs of some messages, and the messages' indices in each."""
        if not self._runs or not len(message_ids):
            return
        ids = np.sort(np.asarray(message_ids, dtype=np.int64))
        runs = list(self._runs.values())
        firsts = np.array([run.first_id for run in runs], dtype=np.int64)
        cuts = np.searchsorted(ids, firsts)
        for run, start, end in zip(runs, cuts, [*cuts[1:], len(ids)], strict=True):
            indices = ids[start:end] - run.first_id
            indices = indices[indices < len(run.offsets)]
            if len(indices):
                yield run, indices

    def forget(self, partition: Partition) -> None:
        """Forget the messages of a partition that another member reads now."""
        for run in partition.runs():
            run.batch = None
            self._runs.pop(run.first_id, None)


def encode_done(frontier: int, done: Int64s, mark: str = "") -> str:
    """Ascending offsets above a frontier as text. Drops the highest until it has MOST_METADATA characters.

    Args:
        mark: A word that is appended, also where there are no offsets.

    >>> decode_done(7, encode_done(7, np.array([9, 12])))
    array([ 9, 12])
    """
    while len(done):
        bits = np.zeros(int(done[-1]) - frontier, dtype=np.bool_)
        bits[done - frontier - 1] = True
        text = _marked(base64.b64encode(zlib.compress(np.packbits(bits).tobytes())).decode(), mark)
        if len(text) <= MOST_METADATA:
            return text
        done = done[: len(done) // 2]
    return _marked("", mark) if mark else ""


def _marked(text: str, mark: str) -> str:
    return f"{_MARK}{text} {mark}".rstrip()


def is_marked(metadata: str | None, mark: str) -> bool:
    """Whether :func:`encode_done` wrote this metadata with this mark."""
    return bool(metadata and mark) and str(metadata).startswith(_MARK) and str(metadata).endswith(f" {mark}")


def decode_done(frontier: int, metadata: str | None) -> Int64s:
    """The offsets that :func:`encode_done` wrote; none where another program wrote the metadata."""
    if not metadata or not metadata.startswith(_MARK):
        return _NONE
    try:
        packed = zlib.decompress(base64.b64decode(metadata[len(_MARK) :].partition(" ")[0], validate=True))
    except (ValueError, zlib.error):  # no base64, or not even ASCII
        return _NONE
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8))
    return frontier + 1 + np.flatnonzero(bits).astype(np.int64)
