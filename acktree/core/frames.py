"""What travels between levels: frames of tuples, and the rows of the one schema that carries everything.

A :class:`Frame` is a batch of tuples of one stream on their way to the tasks of one subscriber in one
partition. On the wire it is one :class:`WireRow`: the JVM moves two binary values and never sees a tuple.
Everything else that crosses the ladder (messages to the acker, ticks, verdicts, statistics) is a row of the
same schema, told apart by its :class:`Kind`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from acktree.core.ids import Int32s, Int64s
from acktree.core.lineage import Lineage, lineage_from_bytes
from acktree.core.packing import int32s, pack, unpack
from acktree.core.values import batch_from_bytes, batch_to_bytes

SINK_LEVEL: Final = 1 << 20
"""The ``level`` of rows that are for the driver: above every level of every ladder."""


class Kind(IntEnum):
    """What a wire row is."""

    CHUNK = 0
    """A slice of an inbox chunk, to be read where it is used. For the source level."""
    FRAME = 1
    """Tuples for a bolt."""
    TICK = 2
    """A tick is due for the tasks of a component in a partition."""
    DELTAS = 3
    """A message to the acker."""
    CLOCK = 4
    """The micro-batch's clock, and what of the inbox it runs over, for the driver in every micro-batch."""
    STATISTICS = 6
    """Counters of one level and partition, for the driver."""
    EMITTED = 10
    """Everything that a component emitted on a stream, for whoever debugs; to the driver."""
    ROWS = 8
    """Rows of a DataFrame, to become messages. For the source level."""
    PAYLOADS = 9
    """What rows of a DataFrame held, by root: kept beside the acker while they are open."""
    ERROR = 7
    """An error that user code raised or reported, for the driver."""


class WireRow(NamedTuple):
    """One row between two operators.

    Attributes:
        partition: Where the level that consumes it must see it.
        level: The level that consumes it; every other passes it on untouched.
        kind: A :class:`Kind`.
        source: The task it comes from; with ``sequence`` the order in which user code sees frames.
        sequence: Its number among the rows of that source in this micro-batch.
        clock_ms: The micro-batch's clock.
        head: What it is about.
        body: The data.
    """

    partition: int
    level: int
    kind: int
    source: int
    sequence: int
    clock_ms: int
    head: bytes
    body: bytes


@dataclass(frozen=True, eq=False)
class Frame:
    """Tuples of one stream for one subscriber in one partition.

    Attributes:
        component: Who emitted them.
        stream: On which stream.
        subscriber: The bolt they are for.
        source_task: The task that emitted them.
        sequence: Order among the frames of that task in this micro-batch.
        tasks: The subscriber's task for each tuple, shape (n,), or one task for all.
        values: A column per field, n rows.
        lineage: Their roots and edges, n rows.
    """

    component: str
    stream: str
    subscriber: str
    source_task: int
    sequence: int
    tasks: Int32s | int
    values: pa.RecordBatch
    lineage: Lineage

    def head(self) -> bytes:
        """All but the values; :meth:`from_wire` reads it."""
        named = json.dumps((self.component, self.stream, self.subscriber)).encode()
        tasks = np.array([self.tasks], dtype=np.int32) if isinstance(self.tasks, int) else self.tasks
        single = b"1" if isinstance(self.tasks, int) else b""
        return pack(named, single, tasks, self.lineage.to_bytes())

    def body(self) -> bytes:
        """The values, as an Arrow IPC stream."""
        return batch_to_bytes(self.values)

    @classmethod
    def from_wire(cls, row: WireRow) -> Frame:
        """Read a row of kind FRAME; arrays are views of the row's bytes."""
        named, single, tasks, lineage = unpack(row.head)
        component, stream, subscriber = json.loads(bytes(named))
        task_of_row = int32s(tasks)
        return cls(
            component, stream, subscriber, row.source, row.sequence,
            int(task_of_row[0]) if len(single) else task_of_row,
            batch_from_bytes(row.body), lineage_from_bytes(lineage),
        )  # fmt: skip

    def of_task(self, task: int) -> Frame | None:
        """The tuples for one task, in order; None when there are none."""
        if isinstance(self.tasks, int):
            return self if self.tasks == task else None
        rows = np.flatnonzero(self.tasks == task)
        return replace(self.rows(rows), tasks=task) if len(rows) else None

    def rows(self, which: Int64s) -> Frame:
        """Some of the tuples, in this order."""
        tasks = self.tasks if isinstance(self.tasks, int) else self.tasks[which]
        values, lineage = self.values.take(pa.array(which)), self.lineage.take(which)
        return replace(self, tasks=tasks, values=values, lineage=lineage)
