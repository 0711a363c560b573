"""What travels through a resident query: wire rows, packed into one row of Spark's for each epoch and target.

Spark hands on a row when the next one arrives, so each marker is followed by an empty row, which is dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

import pyarrow as pa

from acktree.core.data.frames import WireRow
from acktree.core.packing import Buffer, pack, unpack
from acktree.tasks.chunk import in_parts

__all__ = [
    "FRAME_DDL",
    "FRAME_SCHEMA",
    "Frame",
    "FrameKind",
    "frame_batch",
    "frames_in",
    "frames_of",
    "packed",
    "unpacked",
]

FRAME_DDL: Final = "target int, sender int, kind int, epoch long, body binary"
"""The schema of the whole query, as Spark writes it; the source has it too."""
FRAME_SCHEMA: Final = pa.schema(
    [
        ("target", pa.int32()),
        ("sender", pa.int32()),
        ("kind", pa.int32()),
        ("epoch", pa.int64()),
        ("body", pa.binary()),
    ]
)
_PART_BYTES: Final = 4 << 20
"""The usual size of a row. Spark's shuffle warns of large rows, and refuses some."""
_ROW: Final = struct.Struct("<iiiiqq")


class FrameKind(IntEnum):
    """What a row is."""

    PART = 0
    """Some wire rows of an epoch; more follow."""
    MARKER = 1
    """The last wire rows of an epoch from this sender."""
    PUSH = 2
    """Nothing: it makes Spark hand on the row before it."""


class Frame(NamedTuple):
    """A row of the query.

    Attributes:
        target: The partition that receives it.
        sender: The partition that sent it; the driver's is 0.
        kind: A :class:`FrameKind`.
        epoch: The number of the epoch.
        body: Packed wire rows.
    """

    target: int
    sender: int
    kind: int
    epoch: int
    body: Buffer


def frames_of(sender: int, epoch: int, rows: Iterable[WireRow], targets: Collection[int]) -> Iterator[Frame]:
    """All that a sender sends of an epoch: to each target its rows, a marker and a push."""
    by_target: dict[int, list[WireRow]] = {target: [] for target in targets}
    for row in rows:
        by_target[row.partition].append(row)
    for target, its_rows in by_target.items():
        *parts, last = [*in_parts(its_rows, _size, _PART_BYTES, len(its_rows) or 1)] or [[]]
        for part in parts:
            yield Frame(target, sender, FrameKind.PART, epoch, packed(part))
        yield Frame(target, sender, FrameKind.MARKER, epoch, packed(last))
        yield Frame(target, sender, FrameKind.PUSH, epoch, b"")


def _size(row: WireRow) -> int:
    return len(row.head) + len(row.body)


def packed(rows: Iterable[WireRow]) -> bytes:
    """Wire rows as bytes; :func:`unpacked` reads them."""
    parts: list[Buffer] = []
    for row in rows:
        parts += (_ROW.pack(*row[:6]), row.head, row.body)
    return pack(*parts)


def unpacked(blob: Buffer) -> list[WireRow]:
    """What :func:`packed` packed. Bodies are views of the blob."""
    parts: list[Any] = [*unpack(blob)]  # a body is read like bytes, and not copied
    return [
        WireRow._make((*_ROW.unpack(numbers), bytes(head), body))
        for numbers, head, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


def frame_batch(frames: Iterable[Frame]) -> pa.RecordBatch:
    """Rows as Spark takes them from a level."""
    columns = zip(*frames, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, FRAME_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=FRAME_SCHEMA)


def frames_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Frame]:
    """The rows that Spark gives to a level, without pushes. Bodies are views of the batches."""
    for batch in batches:
        target, sender, kind, epoch, bodies = batch.columns
        for at, which in enumerate(kind.to_pylist()):
            if which != FrameKind.PUSH:
                numbers = target[at].as_py(), sender[at].as_py(), which, epoch[at].as_py()
                yield Frame(*numbers, memoryview(bodies[at].as_buffer()))
