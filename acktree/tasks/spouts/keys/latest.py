"""Which messages of a gate in front of a sink are not to be written: a newer row with their key was.

Rules of this file
------------------
1. A sink says by which fields the latest row counts (``Sink.latest_by``). Message ids of a gate are numbers,
   in the order in which the rows passed: the higher of two with one key is the newer.
2. A message waits while a newer one with its key is open: it would be written after it.
3. A message that waits is *superseded* when a newer one with its key is ACKED. It is ACKED too, as if it had
   been written before.
4. Dead letters that are sent again are older than all messages of the gate; among them numbers count.
5. Keys are hashed while something waits, and at no other time. Two keys with one hash make a message wait in
   vain; before one is superseded the values are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.data.batches import alone
from acktree.core.data.row_hashes import hash_rows_anyhow
from acktree.core.data.values import batch_to_bytes, decode_rows
from acktree.core.ids import Int64s, UInt64s
from acktree.core.spouts.pending import Closed
from acktree.system.stopped_by import pass_on
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.retries import Attempt, Redriven, Retries, payload_of

_OLDER: Final = 1 << 62
"""Taken from the number of a dead letter that is sent again: so it is below all numbers of messages."""


class Latest:
    """Compares the messages of one spout task by their keys; of a task without such fields none.

    Attributes:
        is_used: Whether messages supersede others.
    """

    def __init__(
        self, fields: Sequence[str], chunks: OpenChunks, retries: Retries, read: Callable[[int], Chunk]
    ) -> None:
        """Nothing is hashed yet.

        Args:
            fields: The fields of a key; none: messages supersede no others.
            chunks: The open messages of the task.
            retries: Those that wait.
            read: Returns a chunk that was not released.
        """
        self.is_used = bool(fields)
        self._fields, self._chunks, self._retries, self._read = [*fields], chunks, retries, read
        self._hashes: dict[int, UInt64s] = {}  # of all rows of a chunk

    def blocks(self) -> Callable[[Attempt], bool]:
        """A function that says whether a newer message with the key of an attempt is open, as of now."""
        if not self.is_used:
            return _never
        open_keys: list[tuple[UInt64s, Int64s]] = []

        def is_blocked(attempt: Attempt) -> bool:
            if not open_keys:
                open_keys.append(self._open())
            hashes, numbers = open_keys[0]
            key = self._hash(attempt)
            at = int(np.searchsorted(hashes, key, side="right")) - 1
            return bool(at >= 0 and hashes[at] == key and numbers[at] > _number(attempt.message_id))

        return is_blocked

    def in_order(self, attempts: list[Attempt]) -> list[Attempt]:
        """Attempts by the age of their messages, the oldest first; without keys as they are."""
        return sorted(attempts, key=lambda attempt: _number(attempt.message_id)) if self.is_used else attempts

    def superseded(self, acked: Iterable[Closed]) -> list[tuple[int, list[Attempt]]]:
        """Take out what waits and is older than an ACKED message with its key.

        Returns:
            Chunks of ACKED messages, and what messages in them supersede.
        """
        if not self.is_used:
            return []
        if not len(self._retries):
            self._hashes.clear()
            return []
        waiting: dict[int, list[Attempt]] = {}
        for attempt in self._retries.between_attempts():
            waiting.setdefault(int(self._hash(attempt)), []).append(attempt)
        keys = np.fromiter(waiting, dtype=np.uint64)
        older_by_chunk = [(closed.chunk, self._older(closed, waiting, keys)) for closed in acked]
        self._hashes = {number: hashes for number, hashes in self._hashes.items() if number in self._chunks}
        return [(chunk, older) for chunk, older in older_by_chunk if older]

    def _older(self, closed: Closed, waiting: dict[int, list[Attempt]], keys: UInt64s) -> list[Attempt]:
        hashes = self._of_chunk(closed.chunk)[closed.rows]
        places = np.flatnonzero(np.isin(hashes, keys))
        superseded: dict[object, Attempt] = {}
        for place in places.tolist():
            number = _number(closed.message_ids[place])
            for attempt in waiting[int(hashes[place])]:
                if _number(attempt.message_id) < number and self._is_same(attempt, closed, place):
                    superseded[attempt.message_id] = attempt
        if superseded:
            self._retries.take_out(lambda attempt: attempt.message_id in superseded)
            for key, attempts in waiting.items():
                waiting[key] = [attempt for attempt in attempts if attempt.message_id not in superseded]
        return list(superseded.values())

    def _open(self) -> tuple[UInt64s, Int64s]:
        """The hashes of the keys of open messages, ascending, and the number of each; the newest is last."""
        several = list(self._chunks.pending.each_open())
        hashes = [self._of_chunk(closed.chunk)[closed.rows] for closed in several]
        numbers = [np.fromiter(map(_number, closed.message_list()), dtype=np.int64) for closed in several]
        if not several:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        joined, of_each = np.concatenate(hashes), np.concatenate(numbers)
        order = np.lexsort((of_each, joined))
        return joined[order], of_each[order]

    def _hash(self, attempt: Attempt) -> np.uint64:
        if attempt.letter is None:
            hashed: np.uint64 = self._of_chunk(attempt.chunk)[attempt.row]
            return hashed
        of_letter: np.uint64 = self._of_rows(attempt.letter.values)[0]
        return of_letter

    def _of_chunk(self, number: int) -> UInt64s:
        if number not in self._hashes:
            self._hashes[number] = self._of_rows(self._read(number).values)
        return self._hashes[number]

    def _of_rows(self, values: pa.RecordBatch) -> UInt64s:
        return hash_rows_anyhow(values.select(self._fields), self._fields)

    def _is_same(self, attempt: Attempt, closed: Closed, place: int) -> bool:
        chunk = None if attempt.letter is not None else self._read(attempt.chunk)
        older, _ = payload_of(attempt, chunk)
        newer = alone(self._read(closed.chunk).values, int(closed.rows[place]))
        return _are_equal(older.select(self._fields), newer.select(self._fields))


def _are_equal(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether two rows have one key: NaN equals itself, as for a fields grouping, and 1 equals 1.0."""
    if batch_to_bytes(one) == batch_to_bytes(other):
        return True
    try:
        return bool(decode_rows(one) == decode_rows(other))
    except BaseException as error:  # noqa: BLE001  # what no process can unpickle, or a `==` of the user's
        pass_on(error)
        return False


def _number(message_id: object) -> int:
    if isinstance(message_id, Redriven):
        return message_id.letter_id - _OLDER
    return int(message_id)  # type: ignore[call-overload, no-any-return]  # a gate's own: see GateSpout


def _never(attempt: Attempt) -> bool:  # noqa: ARG001
    return False
