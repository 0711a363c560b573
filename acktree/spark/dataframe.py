"""A streaming DataFrame as a spout: its rows enter the ladder as blobs, and never pass through the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext

from acktree.core.frames import Kind, WireRow
from acktree.core.values import batch_to_bytes
from acktree.spark.wire import batch_of

_BATCHES_PER_PARTITION = 1 << 20


def rows_as_wire(
    component: str, task: int, partitions: int, *, is_tracked: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that ``mapInArrow`` runs over a user's DataFrame.

    A batch of rows becomes one wire row for the source level. Where it stands (micro-batch, partition, place
    in it) goes into the roots of its rows, so a second run names them as the first did.

    Args:
        is_tracked: Whether the rows are messages: the spout was given a ``message_id`` column.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "mapInArrow runs in a Spark task"
        partition = context.partitionId()
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        for number, batch in enumerate(batches):
            place = partition * _BATCHES_PER_PARTITION + number
            head = json.dumps((component, batch_id, place, is_tracked)).encode()
            row = WireRow(
                partition % partitions, 0, int(Kind.ROWS), task, place, 0, head, batch_to_bytes(batch)
            )
            yield batch_of([row])

    return run
