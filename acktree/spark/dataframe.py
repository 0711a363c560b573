"""A streaming DataFrame as a spout: its rows enter the ladder as blobs, and never pass through the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext

from acktree.core.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.values import batch_to_bytes
from acktree.spark.wire import batch_of
from acktree.tasks.plan import Plan

_BATCHES_PER_PARTITION = 1 << 24
_PLACES_PER_SPOUT = 1 << 47


def rows_as_wire(
    plan: Plan, component: str, *, is_tracked: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that ``mapInArrow`` runs over a user's DataFrame.

    A batch of rows becomes one wire row for the source level. Where it stands (micro-batch, partition, place
    in it) goes into the roots of its rows, so a second run names them as the first did. The clock is told
    too: in a micro-batch that only a DataFrame has rows for, the inbox says nothing.

    Args:
        is_tracked: Whether the rows are messages: the spout was given a ``message_id`` column.
    """
    (task,) = plan.topology.components[component].task_ids
    partitions = plan.partitions
    clock = WireRow(0, SINK_LEVEL, int(Kind.CLOCK), 0, 0, 0, b"", b"")

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "mapInArrow runs in a Spark task"
        partition = context.partitionId()
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        yield batch_of([clock])
        for number, batch in enumerate(batches):
            place = partition * _BATCHES_PER_PARTITION + number
            head = json.dumps((component, batch_id, task * _PLACES_PER_SPOUT + place, is_tracked)).encode()
            host = partition % partitions
            yield batch_of([WireRow(host, 0, int(Kind.ROWS), task, place, 0, head, batch_to_bytes(batch))])

    return run
