"""What a spout task hands over: a run of messages of one stream, written once, read where it is used.

A chunk is the unit of the inbox. Its messages have consecutive sequences, so their roots are derived and not
stored. Beside the values it carries what a restart needs: the position of a spout that remembers one, and
the message ids of a spout whose messages only the inbox has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from acktree.core.data.batches import joined
from acktree.core.data.values import batch_from_bytes, batch_to_bytes
from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.errors import MisuseError

T = TypeVar("T")

CHUNK_BYTES: Final = 16 << 20
"""The usual size of a chunk in bytes; a tuple that is larger has a chunk of its own."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Messages of one stream of one spout task; n rows.

    Attributes:
        component: The spout.
        task: Its task.
        stream: The stream they are emitted on.
        is_tracked: Whether they get verdicts: emitted with a message id, and there are ackers.
        first_sequence: Sequence of the first row; the others follow.
        emitted_ms: When they were emitted, by the spout's clock.
        values: A column per field.
        attempts: Attempt of each, shape (n,); None when all are the first.
        tasks: Target of each (``emit_direct``), shape (n,); None when groupings choose.
        first_emitted_ms: When the first attempt of each was emitted, shape (n,); None when that is now.
        retry_of: Sequence of the attempt before, shape (n,); None when all are the first.
        message_ids: The message ids, pickled, if a restart needs them; else empty.
        position: What the spout remembers after emitting these, pickled; empty when it remembers nothing.
    """

    component: str
    task: int
    stream: str
    is_tracked: bool
    first_sequence: int
    emitted_ms: int
    values: pa.RecordBatch
    attempts: Int32s | None = None
    tasks: Int32s | None = None
    first_emitted_ms: Int64s | None = None
    retry_of: Int64s | None = None
    message_ids: bytes = b""
    position: bytes = b""

    def __len__(self) -> int:
        rows: int = self.values.num_rows
        return rows

    @property
    def sequences(self) -> Int64s:
        """Sequence of each row, shape (n,)."""
        return np.arange(self.first_sequence, self.first_sequence + len(self))

    @property
    def is_only_here(self) -> bool:
        """Whether a restart finds what it needs of these messages, or of their spout, here alone."""
        return bool(self.message_ids or self.position)

    def slice(self, first: int, end: int) -> Chunk:
        """Rows first to end - 1, without what only a restart needs."""

        def cut(array: Int32s | None) -> Int32s | None:
            return None if array is None else array[first:end]

        sequence, rows = self.first_sequence + first, self.values.slice(first, end - first)
        return Chunk(
            self.component, self.task, self.stream, self.is_tracked, first_sequence=sequence,
            emitted_ms=self.emitted_ms, values=rows, attempts=cut(self.attempts), tasks=cut(self.tasks),
        )  # fmt: skip

    def position_alone(self) -> Chunk:
        """A chunk that has the position of its spout, and no messages."""
        return replace(
            self, is_tracked=False, values=self.values.slice(0, 0), attempts=None, tasks=None,
            first_emitted_ms=None, retry_of=None, message_ids=b"",
        )  # fmt: skip

    def is_followed_by(self, other: Chunk) -> bool:
        """Whether the two may be worked on as one: consecutive messages of one stream and form."""
        return (
            (self.task, self.stream, self.is_tracked, self.first_sequence + len(self))
            == (other.task, other.stream, other.is_tracked, other.first_sequence)
            and self.tasks is None is other.tasks
            and self.values.schema.equals(other.values.schema, check_metadata=True)
        )

    def to_bytes(self) -> bytes:
        """For the inbox; :meth:`from_bytes` reads it."""
        head = (self.component, self.task, self.stream, self.is_tracked, self.first_sequence, self.emitted_ms)
        arrays = (self.attempts, self.tasks, self.first_emitted_ms, self.retry_of)
        return pack(
            json.dumps(head).encode(),
            *(b"" if array is None else array for array in arrays),
            self.message_ids, self.position, batch_to_bytes(self.values),
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Chunk:
        """Read what :meth:`to_bytes` wrote; values and arrays are views of the blob."""
        head, attempts, tasks, first_ms, retry_of, message_ids, position, values = unpack(blob)
        component, task, stream, is_tracked, first_sequence, emitted_ms = json.loads(bytes(head))
        return cls(
            component, task, stream, is_tracked, first_sequence, emitted_ms=emitted_ms,
            values=batch_from_bytes(values), attempts=int32s(attempts) if len(attempts) else None,
            tasks=int32s(tasks) if len(tasks) else None,
            first_emitted_ms=int64s(first_ms) if len(first_ms) else None,
            retry_of=int64s(retry_of) if len(retry_of) else None, message_ids=bytes(message_ids),
            position=bytes(position),
        )  # fmt: skip


def chunks_together(chunks: Iterable[Chunk], most: int, most_bytes: int) -> Iterator[Chunk]:
    """Put neighbouring chunks together, up to ``most`` messages and ``most_bytes`` bytes each."""
    waiting: list[Chunk] = []
    size = 0
    for chunk in chunks:
        more: int = chunk.values.nbytes
        if waiting and (
            not waiting[-1].is_followed_by(chunk)
            or sum(map(len, waiting)) + len(chunk) > most
            or size + more > most_bytes
        ):
            yield from _in_few(waiting)
            waiting, size = [], 0
        waiting.append(chunk)
        size += more
    yield from _in_few(waiting)


def in_parts(
    items: Iterable[T], weight: Callable[[T], int], most: int | None = None, most_items: int | None = None
) -> Iterator[list[T]]:
    """Items, in order, in lists; an item that is heavier than a list may be has one of its own.

    Args:
        most: What a list may weigh; None for :data:`CHUNK_BYTES`.
        most_items: How many a list may have; None for any number.
    """
    part: list[T] = []
    total = 0
    for item in items:
        more = weight(item)
        if part and (total + more > (most or CHUNK_BYTES) or len(part) == most_items):
            yield part
            part, total = [], 0
        part.append(item)
        total += more
    if part:
        yield part


def _in_few(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Chunks that follow each other as one; as several if one batch cannot hold their values."""
    if len(chunks) <= 1:
        return [*chunks]
    try:
        values = joined([chunk.values for chunk in chunks])
        return [replace(chunks[0].slice(0, 0), values=values, attempts=_attempts_of(chunks))]
    except MisuseError:
        middle = len(chunks) // 2
        return [*_in_few(chunks[:middle]), *_in_few(chunks[middle:])]


def _attempts_of(chunks: Sequence[Chunk]) -> Int32s | None:
    """The attempts of the messages of several chunks; None when all are unmarked first ones."""
    if all(chunk.attempts is None for chunk in chunks):
        return None
    ones = (np.ones(len(chunk), np.int32) if chunk.attempts is None else chunk.attempts for chunk in chunks)
    return np.concatenate([*ones])
