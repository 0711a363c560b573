"""Messages that wait for their next attempt, and those that were given up."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from acktree.core.data.batches import alone, joined
from acktree.core.data.values import decode_rows, encode_rows
from acktree.core.ids import Int32s
from acktree.core.spouts.pending import Closed
from acktree.core.spouts.retry import Retry, RetryAt
from acktree.core.tracking.attempts import NAMED
from acktree.core.tracking.origins import Origins
from acktree.core.tracking.verdicts import Failure
from acktree.errors import MisuseError, ProtocolError
from acktree.tasks.chunk import Chunk, in_parts
from acktree.tasks.spouts.dependencies import Dependencies, dependency_of
from acktree.tasks.spouts.keys.key_table import Keys
from acktree.tasks.spouts.keys.labels import HasLabel

NO_CHUNK: Final = -1
"""The chunk of what carries its payload itself."""
_LATE_MS: Final = 1_000
_RECORD_PAUSE_MS: Final = 100
"""After the first time that dead letters could not be stored; twice as long after each further one."""
_LONGEST_RECORD_PAUSE_MS: Final = 5_000


@dataclass(frozen=True)
class Redriven(HasLabel):
    """The message id of a dead letter that is tried again; its source gets no verdict."""

    letter_id: int
    label: str = field(default="", repr=False, compare=False)
    origins: tuple[tuple[str, str, str | None], ...] = field(default=(), repr=False, compare=False)

    def __reduce__(self) -> tuple[type[Redriven], tuple[object, ...]]:
        """What the inbox keeps of it: no attribute's name, and no class of an origin."""
        origins = tuple(map(tuple, self.origins))
        parts = (self.letter_id, self.label, origins)
        return Redriven, parts if origins else parts[:2] if self.label else parts[:1]


@dataclass(frozen=True, eq=False)
class RedrivenLetter:
    """A dead letter on its way back: its stream, its one-row batch, for which task, its label and origins."""

    letter_id: int
    stream: str
    values: pa.RecordBatch
    target: int | None = None
    label: str = ""
    origins: Origins = ()


@dataclass(frozen=True)
class Attempt:
    """A failed attempt of a message, and where its payload lies (a row of a chunk).

    ``dependency`` is what it waits for, if that is away; ``waited_ms``: for how long it waited so before.
    """

    message_id: object
    chunk: int
    row: int
    sequence: int
    attempt: int
    first_emitted_ms: int
    stream: str
    letter: RedrivenLetter | None = None
    dependency: str = ""
    waited_ms: int = 0

    @classmethod
    def of_letter(
        cls, letter: RedrivenLetter, message_id: object, attempt: int, first_emitted_ms: int
    ) -> Attempt:
        """An attempt whose payload is in memory, in no chunk."""
        return cls(
            message_id, NO_CHUNK, row=0, sequence=-1, attempt=attempt, first_emitted_ms=first_emitted_ms,
            stream=letter.stream, letter=letter,
        )  # fmt: skip


@dataclass(frozen=True)
class GivenUpRecord:
    """A message that was given up: what a dead letter is made of.

    The last three are set when it is recorded. Until then its payload stays in the inbox.

    Attributes:
        values: A batch of one row.
        target: The task that it was emitted to directly, if it was.
        dead_ms: When it was recorded.
    """

    component: str
    task: int
    attempt: Attempt
    failure: Failure
    root: int
    values: pa.RecordBatch | None = None
    target: int | None = None
    dead_ms: int = 0


class _Carried(NamedTuple):
    """What one attempt carries: see :class:`Payloads`."""

    attempt: Attempt
    row: pa.RecordBatch
    target: int | None
    mark: int


@dataclass(frozen=True, eq=False)
class Payloads:
    """What attempts of one stream carry; n rows.

    Attributes:
        attempts: The attempts that are over.
        values: A column per field.
        targets: For which task each is, if the stream is read directly; else None.
        marks: ``NAMED`` for each message that its spout wants traced, else 0.
    """

    attempts: Sequence[Attempt]
    values: pa.RecordBatch
    targets: Int32s | None
    marks: Int32s

    @property
    def message_ids(self) -> list[object]:
        """The message id of each."""
        return [attempt.message_id for attempt in self.attempts]


@dataclass(frozen=True)
class EarlierDecisions:
    """What an earlier run has decided of messages that are open again; empty in a first run.

    Attributes:
        tried_again: Sequence of a message -> the later chunk that holds its next attempt.
        dead_letters: The roots of messages that are dead letters, whatever the retry policy is now.
    """

    tried_again: dict[int, int] = field(default_factory=dict)
    dead_letters: set[int] = field(default_factory=set)


class Retries:
    """What waits for its next attempt, by when it is due; and what was given up but is not recorded yet.

    Attributes:
        dependencies: What messages need and cannot reach, and the messages that wait for it.
        earlier: What is not decided again.
        open_letters: The ids of redriven dead letters that have no verdict yet.
    """

    def __init__(self, policy: Retry | None, keys: Keys, component: str, task: int) -> None:
        """Nothing waits.

        Args:
            policy: When the next attempt follows; None: never, except for redriven messages.
            keys: The keys of messages; they are free when their messages are given up.
            component: The spout.
            task: The task whose messages these are.
        """
        self.policy, self._keys = policy, keys
        self._component, self._task = component, task
        self.earlier = EarlierDecisions()
        self.open_letters: set[int] = set()
        self.dependencies: Dependencies[Attempt] = Dependencies()
        self.records: list[GivenUpRecord] = []
        self._waiting: list[tuple[int, int, Attempt]] = []
        self._with_open_key: list[Attempt] = []
        self._blocked: list[tuple[int, int, Attempt]] = []  # due, but for a newer message that is open
        self._needed: Counter[int] = Counter()
        self._made = 0
        self._clock_ms = 0
        self._record_pause_ms = self._record_again_ms = 0

    def __len__(self) -> int:
        return self.awaiting_count + len(self.records)

    @property
    def awaiting_count(self) -> int:
        """How many attempts wait until they are due. Any thread may ask."""
        waiting = len(self._waiting) + len(self._blocked)
        return waiting + len(self.dependencies) + len(self._with_open_key)

    @property
    def waiting_for_keys(self) -> int:
        """How many messages wait for the verdict on another one with their key. Any thread may ask."""
        return len(self._with_open_key)

    def _awaiting(self) -> Iterator[Attempt]:
        """The attempts that wait until they are due, in no order."""
        yield from (attempt for _, _, attempt in (*self._waiting, *self._blocked))
        yield from self.dependencies
        yield from tuple(self._with_open_key)

    @property
    def has_records(self) -> bool:
        """Whether something waits to be recorded."""
        return bool(self.records)

    def look_at_clock(self, now_ms: int) -> None:
        """Called before anything is added: a clock that was set back makes no retry wait longer."""
        if now_ms < self._clock_ms:
            back_ms = self._clock_ms - now_ms
            self.unblock()
            self._waiting = [(due_ms - back_ms, made, attempt) for due_ms, made, attempt in self._waiting]
        self._clock_ms = now_ms

    def add(self, due_ms: int, attempt: Attempt) -> None:
        """Let a message wait until it is due."""
        self._made += 1  # equal due times keep the order of the data, and attempts are never compared
        heapq.heappush(self._waiting, (due_ms, self._made, attempt))
        self._need(attempt)

    def hold(self, attempt: Attempt, name: str, now_ms: int) -> None:
        """Let a message wait for what it could not reach; the attempt that is over does not count."""
        waiting = replace(attempt, attempt=attempt.attempt - 1, dependency=name)
        self.dependencies.hold(name, waiting, now_ms)
        self._need(attempt)

    def wait_for_key(self, attempt: Attempt) -> None:
        """Let a message wait for the verdict on another one with its key."""
        self._with_open_key.append(attempt)
        self._need(attempt)

    def take_waiting_for_keys(self) -> list[Attempt]:
        """Take out what waits for the verdicts on others, in the order in which it came."""
        taken, self._with_open_key = self._with_open_key, []
        for attempt in taken:
            if attempt.letter is None:
                self._forget(attempt.chunk)
        return taken

    def between_attempts(self) -> Iterator[Attempt]:
        """The attempts that are over, and are neither recorded nor tried again yet."""
        yield from (attempt for _, _, attempt in (*self._waiting, *self._blocked))
        yield from self.dependencies
        yield from self._given_up()

    def _need(self, attempt: Attempt) -> None:
        if attempt.letter is None:
            self._needed[attempt.chunk] += 1

    def add_redriven(self, letter: RedrivenLetter, now_ms: int) -> None:
        """A dead letter starts anew: due now, as a first attempt."""
        message_id = Redriven(letter.letter_id, letter.label, letter.origins)
        self.add(now_ms, Attempt.of_letter(letter, message_id, 0, now_ms))

    def decide(
        self, attempts: Iterable[Attempt], roots: Iterable[int], failure: Failure, now_ms: int
    ) -> None:
        """Let failed attempts wait for the next one or give them up, as the policy says.

        What an earlier run has tried again is left out; what is a dead letter already is given up. Without a
        policy only what was redriven is kept: its source got its verdict already. What waits for a dependency
        that is away is kept in any case, and does not age meanwhile.

        Args:
            attempts: The attempts that are over.
            roots: The root of each.
            failure: Why they failed.
            now_ms: The driver's clock.
        """
        for attempt, root in zip(attempts, roots, strict=True):
            if attempt.sequence not in self.earlier.tried_again:
                self._decide(attempt, replace(failure, attempt=attempt.attempt), root, now_ms)

    def _decide(self, attempt: Attempt, failure: Failure, root: int, now_ms: int) -> None:
        is_over = root in self.earlier.dead_letters
        waited_ms = self.dependencies.take_waited_ms(attempt.sequence)
        dependency = dependency_of(failure)
        if dependency is not None and not is_over:
            self.hold(replace(attempt, waited_ms=waited_ms), dependency, now_ms)
            return
        if self.policy is None and not isinstance(attempt.message_id, Redriven):
            self._keys.give_up([attempt.message_id])
            return
        fate = None
        if self.policy is not None and not is_over:
            fate = self.policy.decide(failure, root, attempt.first_emitted_ms + waited_ms, now_ms)
        if isinstance(fate, RetryAt):
            self.add(fate.due_ms, replace(attempt, waited_ms=waited_ms) if waited_ms else attempt)
        else:
            self.give_up(attempt, replace(failure, final=True), root)

    def give_up(self, attempt: Attempt, failure: Failure, root: int) -> None:
        """Give a message up: no further attempt follows."""
        self.records.append(GivenUpRecord(self._component, self._task, attempt, failure, root))
        self._needed[attempt.chunk] += 1

    def records_with_payloads(self, now_ms: int, read: Callable[[int], Chunk]) -> list[GivenUpRecord]:
        """What waits to be recorded, in the order of the data; each chunk is read once."""
        chunks = {number: read(number) for number in sorted(chunks_of(self._given_up()))}
        complete = []
        for record in sorted(self.records, key=lambda record: record.attempt.chunk):
            row, target = payload_of(record.attempt, chunks.get(record.attempt.chunk))
            complete.append(replace(record, values=row, target=target, dead_ms=now_ms))
        return complete

    def _given_up(self) -> Iterator[Attempt]:
        return (record.attempt for record in self.records)

    def requeue(self, now_ms: int, but: frozenset[int]) -> None:
        """What was given up is not recorded: it is due now, as a first attempt; but not these roots."""
        for record in self.records:
            if record.root not in but:
                self.add(now_ms, replace(record.attempt, attempt=0))
                self._forget(record.attempt.chunk)
        self.records = [record for record in self.records if record.root in but]

    def may_record(self, now_ms: int) -> bool:
        """Whether something waits to be recorded, and it is not too early to try that again."""
        # A clock that was set back does not make the pause longer.
        return self.has_records and not 0 < self._record_again_ms - now_ms <= self._record_pause_ms

    def record_later(self, now_ms: int) -> None:
        """Wait before the next try to record: the disk is full, or the database cannot be reached."""
        self._record_pause_ms = min(2 * self._record_pause_ms or _RECORD_PAUSE_MS, _LONGEST_RECORD_PAUSE_MS)
        self._record_again_ms = now_ms + self._record_pause_ms

    def record(self) -> set[int]:
        """What was given up is a dead letter now; returns its chunks."""
        self._record_pause_ms = self._record_again_ms = 0
        chunks = {attempt.chunk for attempt in self._given_up()}
        for attempt in self._given_up():
            self._forget(attempt.chunk)
        self.records = []
        return chunks

    def take_due(
        self, now_ms: int, is_blocked: Callable[[Attempt], bool] = lambda _: False
    ) -> dict[str, list[Attempt]]:
        """Take out what is due, by stream: of what waits for a dependency that is away only a few.

        What is blocked is passed over until :meth:`unblock`.
        """
        due: dict[str, list[Attempt]] = {}
        waited = self.dependencies.take_due(now_ms, is_blocked)
        taken = [replace(attempt, waited_ms=attempt.waited_ms + ms) for attempt, ms in waited]
        while not self.dependencies.holds and self._waiting and self._waiting[0][0] <= now_ms:
            first = due_ms, _, attempt = heapq.heappop(self._waiting)
            if is_blocked(attempt):
                self._blocked.append(first)
                continue
            if now_ms - due_ms > _LATE_MS:  # it waited while the spout was held back
                attempt = replace(attempt, waited_ms=attempt.waited_ms + now_ms - due_ms)
            taken.append(attempt)
        for attempt in taken:
            due.setdefault(attempt.stream, []).append(attempt)
            if attempt.letter is None:
                self._forget(attempt.chunk)
        return due

    def unblock(self) -> None:
        """Verdicts came: look again at what was blocked."""
        for entry in self._blocked:
            heapq.heappush(self._waiting, entry)
        self._blocked = []
        self.dependencies.unblock()

    def payloads_of(self, attempts: list[Attempt], read: Callable[[int], Chunk]) -> Iterator[Payloads]:
        """What these attempts of one stream carry, in order, in parts of about ``CHUNK_BYTES``."""
        chunks = {attempt.chunk: read(attempt.chunk) for attempt in attempts if attempt.letter is None}
        carried = (_carried(attempt, chunks.get(attempt.chunk)) for attempt in attempts)
        for part in in_parts(carried, lambda message: message.row.nbytes):
            yield from _in_few(part)

    def lose(self, is_lost: Callable[[object], bool], sequences: Sequence[int]) -> set[int]:
        """Take out the messages whose ids a function names; returns the chunks that they lay in.

        Args:
            sequences: Those of the lost messages that are open.
        """
        keyed = [attempt for attempt in self._with_open_key if is_lost(attempt.message_id)]
        for attempt in keyed:
            if attempt.letter is None:
                self._forget(attempt.chunk)
        self._with_open_key = [attempt for attempt in self._with_open_key if not is_lost(attempt.message_id)]
        gone = self.take_out(lambda attempt: is_lost(attempt.message_id), sequences)
        return chunks_of([*keyed, *gone])

    def take_out(self, is_gone: Callable[[Attempt], bool], sequences: Sequence[int] = ()) -> list[Attempt]:
        """Take out attempts of :meth:`between_attempts` that a function names; see :meth:`lose`."""
        self.unblock()
        gone = [attempt for _, _, attempt in self._waiting if is_gone(attempt)]
        gone += self.dependencies.discard(is_gone, sequences)
        given_up = [attempt for attempt in self._given_up() if is_gone(attempt)]
        self._waiting = [entry for entry in self._waiting if not is_gone(entry[2])]
        heapq.heapify(self._waiting)
        self.records = [record for record in self.records if not is_gone(record.attempt)]
        for attempt in (*(attempt for attempt in gone if attempt.letter is None), *given_up):
            self._forget(attempt.chunk)
        return gone + given_up

    def emitted_by(self, moment_ms: int) -> Iterator[object]:
        """The ids of what waits and was first emitted at a moment or before it."""
        for attempt in (*self._awaiting(), *self._given_up()):
            if attempt.first_emitted_ms <= moment_ms:
                yield attempt.message_id

    def oldest(self, most: int) -> list[Attempt]:
        """The oldest failed attempts that wait for the next one, at most ``most``."""
        return heapq.nsmallest(most, self._awaiting(), key=lambda attempt: attempt.first_emitted_ms)

    def needs(self, chunk: int) -> bool:
        """Whether a payload in this chunk may be read again."""
        return self._needed[chunk] > 0

    def due_ms(self) -> int | None:
        """When the next attempt is due, or the next try to record what was given up."""
        due = [self._waiting[0][0]] if self._waiting and not self.dependencies.holds else []
        due += [self._record_again_ms] * self.has_records
        pause_ms = self.dependencies.due_ms()
        return min(due if pause_ms is None else [*due, pause_ms], default=None)

    def oldest_ms(self) -> int | None:
        """When the oldest message that waits was first emitted."""
        attempts = [*self._awaiting(), *self._given_up()]
        return min((attempt.first_emitted_ms for attempt in attempts), default=None)

    def _forget(self, chunk: int) -> None:
        self._needed[chunk] -= 1
        if not self._needed[chunk]:
            del self._needed[chunk]


def attempts_in(closed: Closed, stream: str) -> Iterator[Attempt]:
    """The finished attempt of each closed message, with where its payload lies."""
    columns = (closed.rows, closed.sequences, closed.attempts, closed.first_emitted_ms)
    messages = zip(closed.message_list(), *(column.tolist() for column in columns), strict=True)
    for message_id, row, sequence, attempt, first_ms in messages:
        yield Attempt(
            message_id, closed.chunk, row, sequence, attempt, first_emitted_ms=first_ms, stream=stream
        )


def chunks_of(attempts: Iterable[Attempt]) -> set[int]:
    """The chunks that attempts lie in; a letter that was not sent again yet is in none."""
    return {attempt.chunk for attempt in attempts} - {NO_CHUNK}


def redriven_ids(message_ids: Iterable[object]) -> list[int]:
    """The dead letters among messages; a row of a DataFrame that has no id of its own is none."""
    return [
        message_id.letter_id
        for message_id in message_ids
        if isinstance(message_id, Redriven) and message_id.letter_id != NO_CHUNK
    ]


def payload_of(attempt: Attempt, chunk: Chunk | None) -> tuple[pa.RecordBatch, int | None]:
    """The row that an attempt emitted, and the task it was for if that was named."""
    if attempt.letter is not None:
        return attempt.letter.values, attempt.letter.target
    if chunk is None:
        raise ProtocolError(
            f"chunk {attempt.chunk} was not read", "tasks/spouts/retries.py", "please report it"
        )
    target = None if chunk.tasks is None else int(chunk.tasks[attempt.row])
    return alone(chunk.values, attempt.row), target


def _carried(attempt: Attempt, chunk: Chunk | None) -> _Carried:
    mark = 0
    if attempt.letter is None and chunk is not None and chunk.attempts is not None:
        mark = int(chunk.attempts[attempt.row]) & NAMED
    return _Carried(attempt, *payload_of(attempt, chunk), mark)


def _in_few(part: Sequence[_Carried]) -> list[Payloads]:
    """Attempts together; in several if one batch cannot hold what they carry."""
    try:
        return [_put_together(part)]
    except MisuseError:
        middle = len(part) // 2
        return [*_in_few(part[:middle]), *_in_few(part[middle:])]


def _put_together(part: Sequence[_Carried]) -> Payloads:
    # A stream that is read directly takes nothing else: all of them have a target, or none has.
    targets = [message.target for message in part if message.target is not None]
    return Payloads(
        [message.attempt for message in part],
        concat_rows([message.row for message in part]),
        np.array(targets, dtype=np.int32) if targets else None,
        np.array([message.mark for message in part], dtype=np.int32),
    )


def concat_rows(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one stream as one; where columns differ (native, pickled) all are encoded anew.

    Raises:
        MisuseError: One batch cannot hold them, or some value cannot be read as a Python value.
    """
    if len(rows) == 1:
        return rows[0]
    if all(row.schema.equals(rows[0].schema, check_metadata=True) for row in rows):
        return joined(rows)
    fields = [name for name in rows[0].schema.names if name != "__rows"]
    return encode_rows(fields, [values for row in rows for values in decode_rows(row)])
