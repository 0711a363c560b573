"""What travels through a resident query: wire rows, packed into one row of Spark's for each epoch and target.

Spark hands on a batch of rows when it is full and the next row arrives. So our Java classes put empty rows
behind each epoch, which are dropped here.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
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
_NO_ROWS: Final = pack()
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
    """Nothing: it makes Spark hand on the rows before it. Only Java makes such rows."""


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
    """All that a sender sends of an epoch: to each target its rows, the last of them as a marker."""
    by_target: dict[int, list[WireRow]] = {target: [] for target in targets}
    for row in rows:
        by_target[row.partition].append(row)
    for target, its_rows in by_target.items():
        if not its_rows:
            yield Frame(target, sender, FrameKind.MARKER, epoch, _NO_ROWS)
            continue
        *parts, last = in_parts(its_rows, _size, _PART_BYTES, len(its_rows))
        for part in parts:
            yield Frame(target, sender, FrameKind.PART, epoch, packed(part))
        yield Frame(target, sender, FrameKind.MARKER, epoch, packed(last))


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
    *places, epochs, bodies = zip(*frames, strict=True)
    arrays = [*map(_places, places), pa.array(epochs, pa.int64()), pa.array(bodies, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=FRAME_SCHEMA)


@lru_cache(maxsize=256)
def _places(numbers: tuple[int, ...]) -> pa.Array:
    """Targets, senders or kinds: a level's are the same in most epochs."""
    return pa.array(numbers, pa.int32())


def frames_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Frame]:
    """The rows that Spark gives to a level, without pushes. Bodies are views of the batches."""
    for batch in batches:
        *numbers, bodies = batch.columns
        columns = (column.to_pylist() for column in numbers)
        for at, (target, sender, kind, epoch) in enumerate(zip(*columns, strict=True)):
            if kind != FrameKind.PUSH:
                yield Frame(target, sender, kind, epoch, memoryview(bodies[at].as_buffer()))
