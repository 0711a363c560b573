"""Messages between two attempts, and those for which there will be none."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from acktree.core.ids import Int64s
from acktree.core.retry import Retry
from acktree.core.values import decode_rows, encode_rows
from acktree.core.verdicts import Failure
from acktree.tasks.chunk import Chunk


@dataclass(frozen=True)
class Redriven:
    """The message id of a dead letter that is tried again: its source is through with it and is told nothing."""

    letter_id: int


@dataclass(frozen=True, eq=False)
class RedrivenLetter:
    """A dead letter on its way back: its stream, its one-row batch, and what it is called."""

    letter_id: int
    stream: str
    values: pa.RecordBatch


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
    """Everything a dead letter is made of."""

    component: str
    task: int
    attempt: Attempt
    failure: Failure
    root: int
    payload: bytes
    dead_ms: int


class Retries:
    """What waits for its next attempt, by when it is due; and what was given up but is not buried yet."""

    def __init__(self, policy: Retry | None) -> None:
        self.policy = policy
        self.wills: list[tuple[Attempt, Failure, int]] = []
        self._waiting: list[tuple[int, int, Attempt]] = []
        self._needed: Counter[int] = Counter()
        self._made = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self.wills)

    @property
    def has_wills(self) -> bool:
        """Whether something waits to be buried."""
        return bool(self.wills)

    def add(self, due_ms: int, place: Attempt) -> None:
        """Let a message wait until it is due."""
        self._made += 1  # equal due times keep the order of the data, and attempts are never compared
        heapq.heappush(self._waiting, (due_ms, self._made, place))
        if place.letter is None:
            self._needed[place.chunk] += 1

    def add_redriven(self, letter: RedrivenLetter, now_ms: int) -> None:
        """A dead letter starts anew: due now, as a first attempt."""
        self.add(now_ms, Attempt(Redriven(letter.letter_id), -1, 0, -1, 0, now_ms, letter.stream, letter))

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

    def values_of(self, attempts: list[Attempt], read: Callable[[int], Chunk]) -> pa.RecordBatch:
        """The payloads of these attempts, one row each, in order."""
        chunks = {place.chunk: read(place.chunk) for place in attempts if place.letter is None}
        rows = [
            chunks[place.chunk].values.slice(place.row, 1) if place.letter is None else place.letter.values
            for place in attempts
        ]
        return concat_rows(rows)

    def drop(self, sequences: Int64s) -> None:
        """These attempts were emitted again by an earlier run: they wait no more."""
        gone = set(sequences.tolist())
        for due_ms, order, place in self._waiting:
            if place.sequence in gone:
                self._forget(place.chunk)
                self._waiting.remove((due_ms, order, place))
        heapq.heapify(self._waiting)

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


def concat_rows(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one stream as one; where their columns differ (native here, pickled there) all are encoded anew."""
    if len(rows) == 1:
        return rows[0]
    if all(row.schema.equals(rows[0].schema, check_metadata=True) for row in rows):
        return pa.concat_batches(rows)
    fields = [name for name in rows[0].schema.names if name != "__rows"]
    return encode_rows(fields, [values for row in rows for values in decode_rows(row)])
