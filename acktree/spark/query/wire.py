"""Wire rows as Spark carries them: one schema for every operator of the ladder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from acktree.core.data.frames import WireRow

WIRE_DDL: Final = (
    "partition int, level int, kind int, source int, sequence long, clock_ms long, head binary, body binary"
)
"""The schema, as Spark writes it; the fields of :class:`WireRow`."""

WIRE_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("level", pa.int32()),
        ("kind", pa.int32()),
        ("source", pa.int32()),
        ("sequence", pa.int64()),
        ("clock_ms", pa.int64()),
        ("head", pa.binary()),
        ("body", pa.binary()),
    ]
)


def rows_of(batch: pa.RecordBatch) -> Iterator[WireRow]:
    """The rows of a batch; bodies are views of it."""
    columns = [batch.column(name).to_pylist() for name in WIRE_SCHEMA.names[:-1]]
    bodies = batch.column("body")
    for index, values in enumerate(zip(*columns, strict=True)):
        partition, level, kind, source, sequence, clock_ms, head = values
        body: Any = memoryview(bodies[index].as_buffer())  # read like bytes, and not copied
        yield WireRow(
            partition, level, kind, source=source, sequence=sequence, clock_ms=clock_ms, head=head, body=body
        )


def batch_of(rows: Iterable[WireRow]) -> pa.RecordBatch:
    """Rows as one batch."""
    columns: Sequence[Sequence[object]] = list(zip(*rows, strict=True)) or [()] * len(WIRE_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, WIRE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA)
