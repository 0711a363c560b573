"""The data sent between levels: frames of tuples, and the one row schema of the whole query.

A :class:`Frame` is a batch of tuples of one stream for the tasks of one subscriber in one partition. On the
wire it is one :class:`WireRow`: the JVM moves two binary values and never sees a tuple. All other data
between levels (deltas for the acker, ticks, statistics) is sent as rows of the same schema, with another
:class:`Kind`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from acktree.core.data.batches import joined, with_short_dictionaries
from acktree.core.data.values import batch_from_bytes, batch_to_bytes
from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer, int32s, pack, unpack
from acktree.core.runs import starts_of_runs
from acktree.core.tracking.lineage import Lineage
from acktree.core.tracking.lineages import concat_lineages, lineage_of_parts
from acktree.errors import MisuseError

SMALL: Final = 1 << 13
SMALL_BYTES: Final = 1 << 20
"""Frames with at most this many tuples and bytes are joined."""
FULL: Final = 1 << 16
FULL_BYTES: Final = 1 << 24
"""The most tuples and bytes of a joined frame."""
SINK_LEVEL: Final = 1 << 20
"""The ``level`` of rows for the driver: higher than any level of a topology."""


class Kind(IntEnum):
    """The kind of a wire row."""

    CHUNK = 0
    """A reference to a slice of an inbox chunk, which the source level reads."""
    FRAME = 1
    """Tuples for a bolt."""
    BROADCAST = 2
    """What the driver tells all partitions of a level, such as ticks; and itself, in every micro-batch."""
    DELTAS = 3
    """Deltas for the acker, or for a combining task."""
    COMBINED = 24
    """Deltas that a combining task added up, for the acker."""
    STATISTICS = 6
    """Counters of one level and partition, for the driver."""
    EMITTED = 10
    """All tuples that a component emitted on a stream, for the driver; sent with ``debug`` only."""
    ROWS = 8
    """Rows of a DataFrame, from which the source level makes messages."""
    PAYLOADS = 9
    """Values of rows of a DataFrame, by root; the acker keeps them while the rows are open."""
    IDS = 11
    """Message ids of rows of a DataFrame, by root; the acker keeps them while the rows are open."""
    KEYS = 27
    """Digests of the keys of rows of a DataFrame, with their roots, for the driver."""
    STAGED = 26
    """Tuples in front of a gate, with their roots, for the driver."""
    FORGOTTEN = 12
    """Roots of tuples that a bolt neither acked, failed nor keeps; for the driver."""
    METRICS = 20
    """What metrics of users grew by in one task, for the driver."""
    EVENTS = 22
    """Emitted tuples for the event log, for the driver."""
    TRACE = 23
    """What happened to the tuples of traced messages in one level and partition, for the driver."""
    MEMORY = 25
    """The files that hold what a level remembers in a partition, for the driver."""
    ERROR = 7
    """An error that user code raised or reported, for the driver."""


class WireRow(NamedTuple):
    """One row between two operators.

    Attributes:
        partition: The target partition in the level that consumes it.
        level: The level that consumes it; all other levels pass it on unchanged.
        kind: A :class:`Kind`.
        source: The task that sent it; frames are processed in the order (``source``, ``sequence``).
        sequence: Its number among the rows of that source in this micro-batch.
        clock_ms: The micro-batch's clock.
        head: Metadata; the format depends on the kind.
        body: The data.
    """

    partition: int
    level: int
    kind: int
    source: int
    sequence: int
    clock_ms: int
    head: bytes = b""
    body: bytes = b""


@dataclass(frozen=True, eq=False)
class Frame:
    """Tuples of one stream for one subscriber in one partition.

    Attributes:
        component: The component that emitted them.
        stream: The stream.
        subscriber: The bolt that receives them.
        source_tasks: The task that emitted each, shape (n,), or one task for all.
        sequence: The order among the frames of the first of those tasks in this micro-batch.
        tasks: The subscriber's task for each tuple, shape (n,), or one task for all.
        values: One column per field, n rows.
        lineage: Their roots and edges, n rows.
    """

    component: str
    stream: str
    subscriber: str
    source_tasks: Int32s | int
    sequence: int
    tasks: Int32s | int
    values: pa.RecordBatch
    lineage: Lineage

    def __len__(self) -> int:
        return len(self.lineage)

    @property
    def source(self) -> int:
        """The task that emitted the first tuple; frames are ordered by (``source``, ``sequence``)."""
        return self.source_tasks if isinstance(self.source_tasks, int) else int(self.source_tasks[0])

    def head(self) -> bytes:
        """Everything except the values; :meth:`from_wire` reads it."""
        named = _names(self.component, self.stream, self.subscriber)
        return pack(named, *_packed(self.source_tasks), *_packed(self.tasks), *self.lineage.parts())

    def body(self) -> bytes:
        """The values, as an Arrow IPC stream."""
        return batch_to_bytes(with_short_dictionaries(self.values))

    @classmethod
    def from_wire(cls, row: WireRow) -> Frame:
        """Read a row of kind FRAME; arrays are views of the row's bytes."""
        named, one_source, sources, one_task, tasks, *lineage = unpack(row.head)
        component, stream, subscriber = _names_in(bytes(named))
        return cls(
            component, stream, subscriber, source_tasks=_unpacked(one_source, sources),
            sequence=row.sequence, tasks=_unpacked(one_task, tasks), values=batch_from_bytes(row.body),
            lineage=lineage_of_parts(lineage),
        )  # fmt: skip

    def by_task(self) -> Iterator[tuple[int, Frame]]:
        """Divide the frame by target task; tasks ascending, tuples in order."""
        if isinstance(self.tasks, int):
            yield self.tasks, self
            return
        for task, rows in _grouped(self.tasks):
            yield task, replace(self.rows(rows), tasks=task)

    def rows(self, row_numbers: Int64s) -> Frame:
        """Some of the tuples, in this order."""
        tasks = self.tasks if isinstance(self.tasks, int) else self.tasks[row_numbers]
        sources = self.source_tasks if isinstance(self.source_tasks, int) else self.source_tasks[row_numbers]
        values, lineage = self.values.take(pa.array(row_numbers)), self.lineage.take(row_numbers)
        return replace(self, source_tasks=sources, tasks=tasks, values=values, lineage=lineage)


def put_together(frames: Iterable[Frame]) -> list[Frame]:
    """Join small frames of one stream for one subscriber, to reduce the work that is done once per frame.

    Without it there would be a frame for each pair of tasks. Tuples of one stream keep their order; streams
    follow each other in the order of their first frames.
    """
    streams: dict[tuple[str, str, str], list[Frame]] = {}
    for frame in filter(len, frames):
        streams.setdefault((frame.component, frame.stream, frame.subscriber), []).append(frame)
    return [frame for alike in streams.values() for frame in _joined(alike)]


def _joined(frames: list[Frame]) -> list[Frame]:
    """The frames of a stream for a subscriber in as few as possible."""
    if len(frames) == 1:  # most of them at a low rate; to ask for its bytes takes longer than to read it
        return frames
    return [frame for group in _groups(frames) for frame in _in_few(group)]


def _groups(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    group: list[Frame] = []
    rows = size = 0
    for frame in frames:
        more = frame.values.nbytes
        is_small = len(frame) <= SMALL and more <= SMALL_BYTES
        if group and not (
            is_small
            and rows + len(frame) <= FULL
            and size + more <= FULL_BYTES
            and frame.values.schema.equals(group[0].values.schema, check_metadata=True)
        ):
            yield group
            group, rows, size = [], 0, 0
        group.append(frame)
        rows += len(frame) if is_small else FULL  # a large frame is not joined
        size += more
    yield group


def _in_few(frames: Sequence[Frame]) -> list[Frame]:
    """Join frames into one, or into several if one batch cannot hold their values."""
    if len(frames) == 1:
        return [*frames]
    try:
        return [_one(frames)]
    except MisuseError:
        middle = len(frames) // 2
        return [*_in_few(frames[:middle]), *_in_few(frames[middle:])]


def _one(frames: Sequence[Frame]) -> Frame:
    values = joined([frame.values for frame in frames])
    return replace(
        frames[0],
        source_tasks=_together([frame.source_tasks for frame in frames], frames),
        tasks=_together([frame.tasks for frame in frames], frames),
        values=values,
        lineage=concat_lineages([frame.lineage for frame in frames]),
    )


def _together(tasks: Sequence[Int32s | int], frames: Sequence[Frame]) -> Int32s | int:
    """One task if all frames have the same, else the task of each tuple."""
    if all(isinstance(task, int) and task == tasks[0] for task in tasks):
        return tasks[0]
    columns = [np.broadcast_to(np.int32(task), len(frame)) for task, frame in zip(tasks, frames, strict=True)]
    return np.concatenate(columns)


@lru_cache(maxsize=1024)
def _names(component: str, stream: str, subscriber: str) -> bytes:
    return json.dumps((component, stream, subscriber)).encode()


@lru_cache(maxsize=1024)
def _names_in(named: bytes) -> tuple[str, str, str]:
    component, stream, subscriber = json.loads(named)
    return component, stream, subscriber


def _packed(tasks: Int32s | int) -> tuple[bytes, Int32s]:
    return (b"1", np.array([tasks], dtype=np.int32)) if isinstance(tasks, int) else (b"", tasks)


def _unpacked(single: Buffer, part: Buffer) -> Int32s | int:
    tasks = int32s(part)
    return int(tasks[0]) if len(single) else tasks


def _grouped(tasks: Int32s) -> Iterator[tuple[int, Int64s]]:
    """Each distinct task, ascending, and its rows."""
    order = np.argsort(tasks, kind="stable")
    starts = starts_of_runs(tasks[order])
    for first, end in pairwise(starts.tolist()):
        yield int(tasks[order[first]]), order[first:end]
