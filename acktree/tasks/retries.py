"""Messages between two attempts, and those for which there will be none."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.ids import Int32s
from acktree.core.retry import Retry
from acktree.core.values import decode_rows, encode_rows
from acktree.core.verdicts import Failure
from acktree.errors import ProtocolError
from acktree.tasks.chunk import Chunk

NO_CHUNK: Final = -1
"""The chunk of what carries its payload itself."""


@dataclass(frozen=True)
class Redriven:
    """The message id of a dead letter that is tried again; its source is through with it and told nothing."""

    letter_id: int


@dataclass(frozen=True, eq=False)
class RedrivenLetter:
    """A dead letter on its way back: its stream, its one-row batch, what it is called, and for which task."""

    letter_id: int
    stream: str
    values: pa.RecordBatch
    target: int | None = None


@dataclass(frozen=True)
class Attempt:
    """One failed attempt: whose, and where its payload lies (a row of a chunk)."""

    message_id: object
    chunk: int
    row: int
    sequence: int
    attempt: int
    first_emitted_ms: int
    stream: str
    letter: RedrivenLetter | None = None


@dataclass(frozen=True)
class LastWill:
    """What a dead letter is made of.

    ``values`` is a batch of one row; ``target`` is the task it was emitted to directly, if it was.
    """

    component: str
    task: int
    attempt: Attempt
    failure: Failure
    root: int
    values: pa.RecordBatch
    target: int | None
    dead_ms: int


class Retries:
    """What waits for its next attempt, by when it is due; and what was given up but is not buried yet."""

    def __init__(self, policy: Retry | None) -> None:
        self.policy = policy
        self.wills: list[tuple[Attempt, Failure, int]] = []
        self._waiting: list[tuple[int, int, Attempt]] = []
        self._needed: Counter[int] = Counter()
        self._made = 0
        self._clock_ms = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self.wills)

    @property
    def has_wills(self) -> bool:
        """Whether something waits to be buried."""
        return bool(self.wills)

    def look_at_clock(self, now_ms: int) -> None:
        """Before anything is added by it: with a clock that was set back, nobody waits until it caught up."""
        if now_ms < self._clock_ms:
            back_ms = self._clock_ms - now_ms
            self._waiting = [(due_ms - back_ms, made, place) for due_ms, made, place in self._waiting]
        self._clock_ms = now_ms

    def add(self, due_ms: int, place: Attempt) -> None:
        """Let a message wait until it is due."""
        self._made += 1  # equal due times keep the order of the data, and attempts are never compared
        heapq.heappush(self._waiting, (due_ms, self._made, place))
        if place.letter is None:
            self._needed[place.chunk] += 1

    def add_redriven(self, letter: RedrivenLetter, now_ms: int) -> None:
        """A dead letter starts anew: due now, as a first attempt."""
        message_id = Redriven(letter.letter_id)
        self.add(now_ms, Attempt(message_id, NO_CHUNK, 0, -1, 0, now_ms, letter.stream, letter))

    def give_up(self, place: Attempt, failure: Failure, root: int) -> None:
        """There will be no further attempt."""
        self.wills.append((place, failure, root))
        self._needed[place.chunk] += 1

    def bury(self) -> set[int]:
        """What was given up is a dead letter now; returns the chunks it lay in."""
        chunks = {place.chunk for place, _, _ in self.wills}
        for place, _, _ in self.wills:
            self._forget(place.chunk)
        self.wills = []
        return chunks

    def take_due(self, now_ms: int) -> dict[str, list[Attempt]]:
        """Take out what is due, by stream."""
        due: dict[str, list[Attempt]] = {}
        while self._waiting and self._waiting[0][0] <= now_ms:
            place = heapq.heappop(self._waiting)[2]
            due.setdefault(place.stream, []).append(place)
            if place.letter is None:
                self._forget(place.chunk)
        return due

    def payloads_of(
        self, attempts: list[Attempt], read: Callable[[int], Chunk]
    ) -> tuple[pa.RecordBatch, Int32s | None]:
        """What these attempts of one stream carry, a row each, in order; and for which tasks, if directly."""
        chunks = {place.chunk: read(place.chunk) for place in attempts if place.letter is None}
        payloads = [payload_of(place, chunks.get(place.chunk)) for place in attempts]
        targets = [target for _, target in payloads if target is not None]
        # A stream that is read directly takes nothing else: all of them have a target, or none has.
        return concat_rows([row for row, _ in payloads]), np.array(
            targets, dtype=np.int32
        ) if targets else None

    def needs(self, chunk: int) -> bool:
        """Whether a payload in this chunk may be wanted again."""
        return self._needed[chunk] > 0

    def due_ms(self) -> int | None:
        """When the next attempt is due."""
        return self._waiting[0][0] if self._waiting else None

    def oldest_ms(self) -> int | None:
        """When the oldest message that waits was first emitted."""
        places = [place for _, _, place in self._waiting] + [place for place, _, _ in self.wills]
        return min((place.first_emitted_ms for place in places), default=None)

    def _forget(self, chunk: int) -> None:
        self._needed[chunk] -= 1
        if not self._needed[chunk]:
            del self._needed[chunk]


def payload_of(place: Attempt, chunk: Chunk | None) -> tuple[pa.RecordBatch, int | None]:
    """The row that an attempt emitted, and the task it was for if that was named."""
    if place.letter is not None:
        return place.letter.values, place.letter.target
    if chunk is None:
        raise ProtocolError(f"chunk {place.chunk} was not read", "tasks/retries.py", "please report it")
    target = None if chunk.tasks is None else int(chunk.tasks[place.row])
    return chunk.values.slice(place.row, 1), target


def concat_rows(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one stream as one; where columns differ (native, pickled) all are encoded anew."""
    if all(row.schema.equals(rows[0].schema, check_metadata=True) for row in rows):
        joined: pa.RecordBatch = pa.Table.from_batches(rows).combine_chunks().to_batches()[0]
        return joined
    fields = [name for name in rows[0].schema.names if name != "__rows"]
    return encode_rows(fields, [values for row in rows for values in decode_rows(row)])
