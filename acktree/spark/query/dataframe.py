"""A streaming DataFrame as a spout: its rows enter the query as blobs of some megabytes.

With a ``Retry``, the driver reads the values of the rows that failed or stay open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import DataType, StructType

from acktree.core.data.admission import admitted
from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.errors import TopologyError
from acktree.spark.query.wire import batch_of
from acktree.tasks.broadcast import Broadcast
from acktree.tasks.plan import Plan

PIECE_BYTES: Final = 4 << 20
"""The approximate size of a blob, which holds at least one row. The JVM copies each blob several times."""

_PIECES_PER_PARTITION = 1 << 24
_POSITIONS = 1 << 47


_UNKNOWN_TYPES: Final = frozenset({"YearMonthIntervalType", "CalendarIntervalType", "VariantType"})
"""Types of Spark that pyarrow has no arrays for, or that Spark does not convert to Arrow."""


_KEY_TYPES: Final = frozenset(
    {
        "StringType",
        "VarcharType",
        "CharType",
        "BinaryType",
        "ByteType",
        "ShortType",
        "IntegerType",
        "LongType",
    }
)


_NESTED_TYPES: Final = frozenset({"ArrayType", "MapType", "StructType"})


def refuse_unknown_types(component: str, schema: StructType) -> None:
    """Check, before the query starts, that Spark can pass all columns of a DataFrame to Python.

    Raises:
        TopologyError: Names the column.
    """
    for field in schema.fields:
        unknown = sorted(_UNKNOWN_TYPES & set(_type_names(field.dataType)))
        if unknown:
            raise TopologyError(
                f"the column {field.name!r} of the DataFrame has the type {field.dataType.simpleString()}, "
                "which Spark cannot pass to Python",
                f"spout {component!r}",
                f"cast it: df.withColumn({field.name!r}, col.cast('string')), or leave it out",
            )


def refuse_nested_ids(component: str, schema: StructType, id_columns: Sequence[str]) -> None:
    """Check, before the query starts, that the ids are hashable, as an ``Acknowledger`` needs them.

    Raises:
        TopologyError: Names the column.
    """
    for name in id_columns:
        kind = schema[name].dataType
        if set(_type_names(kind)) & _NESTED_TYPES:
            raise TopologyError(
                f"the message id {name!r} has the type {kind.simpleString()}, whose values are not hashable",
                f"spout {component!r}, which has an acknowledger",
                'name columns of plain values; of a struct its parts: df.withColumn("id", col("key.id"))',
            )


def refuse_other_keys(component: str, schema: StructType, key: str) -> None:
    """Check, before the query starts, that a column has values that may be keys.

    Raises:
        TopologyError: Names the column.
    """
    kind = schema[key].dataType
    if type(kind).__name__ not in _KEY_TYPES:
        raise TopologyError(
            f"the key {key!r} has the type {kind.simpleString()}: a key is a text, bytes or an integer",
            f"spout {component!r}",
            f"cast it: df.withColumn({key!r}, col.cast('string'))",
        )


def _type_names(kind: DataType) -> Iterator[str]:
    """The names of a type and of all types within it."""
    yield type(kind).__name__
    parts = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    parts += [field.dataType for field in getattr(kind, "fields", ())]
    for part in parts:
        if isinstance(part, DataType):
            yield from _type_names(part)


def rows_as_wire(
    plan: Plan, component: str, *, is_tracked: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that ``mapInArrow`` runs over a user's DataFrame.

    A batch of rows becomes wire rows for the source level, one for each piece. The position of a piece
    (micro-batch, partition, index) is part of the roots of its rows, so a second run makes the same roots. A
    broadcast to the driver is sent too: in a micro-batch with rows of a DataFrame only, the inbox sends none.

    Args:
        plan: The plan of the topology.
        component: The spout.
        is_tracked: Whether the rows are tracked messages: the spout has a ``message_id`` column.

    The columns come in the order of the spout's fields, under any names.
    """
    fields = list(plan.topology.components[component].streams[DEFAULT_STREAM].fields)
    (task,) = plan.topology.components[component].task_ids
    partitions = plan.partitions
    broadcast = Broadcast().row(0, SINK_LEVEL)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "mapInArrow runs in a Spark task"
        partition = context.partitionId()
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        yield batch_of([broadcast])
        where = f"spout {component!r}, a column of its DataFrame"
        pieces = (
            piece for batch in batches for piece in _pieces_of(admitted(batch.rename_columns(fields), where))
        )
        for number, piece in enumerate(pieces):
            position = partition * _PIECES_PER_PARTITION + number
            head = json.dumps((component, batch_id, task * _POSITIONS + position, is_tracked)).encode()
            host = partition % partitions
            yield batch_of([WireRow(
                host, 0, int(Kind.ROWS), source=task, sequence=position, clock_ms=0, head=head,
                body=batch_to_bytes(piece),
            )])  # fmt: skip

    return run


def _pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of equal row counts and about :data:`PIECE_BYTES` bytes."""
    pieces = max(1, min(batch.num_rows, -(-batch.nbytes // PIECE_BYTES)))
    cuts = [batch.num_rows * at // pieces for at in range(pieces + 1)]
    for first, end in pairwise(cuts):
        yield batch.slice(first, end - first)
