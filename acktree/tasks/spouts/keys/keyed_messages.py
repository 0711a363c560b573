"""The messages of a spout task that came with a key: which go on, which wait, which are ACKED already.

A message that does not go on is kept where it is safe until it does, or is acked: its queue delivers it again
after a crash, so its values are in memory; those of a spout with ``redelivers = False`` are parked in the
inbox, in one group with what is handed over and with the position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from acktree.core.tracking.attempts import number_of
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.chunks.stored_ids import ids_from_bytes
from acktree.tasks.spouts.keys.key_table import Fate, Keys, keys_of
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.retries import NO_CHUNK, Attempt, RedrivenLetter, Retries
from acktree.tasks.spouts.runs import Bools, MessageRun

_UNSEEN: Final = -1


class KeyedMessages:
    """Applies the rules of ``keys.py`` to what one spout task emits, before it is handed over."""

    def __init__(self, keys: Keys, chunks: OpenChunks, retries: Retries, *, redelivers: bool) -> None:
        """No message waits.

        Args:
            keys: The keys of all spout tasks.
            chunks: The open messages of the task.
            retries: Where messages wait for their keys.
            redelivers: Whether the spout's queue brings open messages back.
        """
        self._keys, self._chunks, self._retries, self._redelivers = keys, chunks, retries, redelivers
        self._seen = self._keys.changes
        self._to_park: list[MessageRun] = []
        # Stream, id and chunk of messages to be acked at once.
        self._repeated: list[tuple[str, object, int]] = []
        self._acked_in: set[int] = set()

    @property
    def has_repeated(self) -> bool:
        """Whether messages may be acked by the next step. Any thread may ask."""
        must_look = self._seen != self._keys.changes and self._retries.waiting_for_keys > 0
        return must_look or bool(self._repeated)

    def admitted(self, runs: Iterable[MessageRun], now_ms: int) -> list[MessageRun]:
        """The messages that go on now. Others wait for the verdict on their key, or will be acked."""
        admitted: list[MessageRun] = []
        for run in runs:
            keys = keys_of(run.message_ids) if run.is_tracked else []
            fates = self._keys.claim(keys) if keys else []
            if all(fate is Fate.RUNS for fate in fates):
                admitted.append(run)
                continue
            parked: dict[bytes, list[int]] = {}
            for row, fate in enumerate(fates):
                if fate is not Fate.RUNS and not self._redelivers:
                    parked.setdefault(keys[row], []).append(row)
                elif fate is Fate.ACKED:
                    self._repeated.append((run.stream, run.message_ids[row], NO_CHUNK))
                elif fate is Fate.WAITS:
                    self._retries.wait_for_key(_waiting(run, row, now_ms))
            # One for each key: its messages are acked together, so what is there after a crash is not acked.
            self._to_park += [run.those(_mask(rows, len(run))) for rows in parked.values()]
            does_run = [row for row, fate in enumerate(fates) if fate is Fate.RUNS]
            if does_run:
                admitted.append(run.those(_mask(does_run, len(run))))
        return admitted

    def take_to_park(self) -> list[MessageRun]:
        """What is to be parked for :meth:`wait_in`, a run for each key."""
        taken, self._to_park = self._to_park, []
        return taken

    def wait_in(self, number: int, chunk: Chunk) -> None:
        """Let the messages of a parked chunk wait, but for those that an earlier run sent before it died."""
        chunks, retries = self._chunks, self._retries
        chunks.keep(number, chunk.stream)
        ids = ids_from_bytes(chunk.message_ids)
        attempts = [1] * len(chunk) if chunk.attempts is None else number_of(chunk.attempts).tolist()
        for row, sequence in enumerate(chunk.sequences.tolist()):
            if sequence not in retries.earlier.tried_again:
                attempt = Attempt(
                    ids[row], number, row, sequence, attempt=attempts[row] - 1,
                    first_emitted_ms=chunk.emitted_ms, stream=chunk.stream,
                )  # fmt: skip
                retries.wait_for_key(attempt)
        chunks.release_unneeded({number})
        self._seen = _UNSEEN  # its key may be decided already

    def look_again(self, now_ms: int) -> dict[str, list[object]]:
        """Let the messages go on whose keys are free now.

        Returns:
            The ids of those whose keys were ACKED, by stream.
        """
        if self._seen != self._keys.changes:
            self._seen = self._keys.changes
            waiting = self._retries.take_waiting_for_keys()
            fates = self._keys.claim(keys_of(attempt.message_id for attempt in waiting))
            for attempt, fate in zip(waiting, fates, strict=True):
                if fate is Fate.RUNS:
                    self._retries.add(now_ms, attempt)
                elif fate is Fate.ACKED:
                    self._repeated.append((attempt.stream, attempt.message_id, attempt.chunk))
                else:
                    self._retries.wait_for_key(attempt)
        return self._take_repeated()

    def _take_repeated(self) -> dict[str, list[object]]:
        repeated, self._repeated = self._repeated, []
        by_stream: dict[str, list[object]] = {}
        for stream, message_id, _ in repeated:
            by_stream.setdefault(stream, []).append(id_of(message_id))
        self._acked_in.update(chunk for *_, chunk in repeated)
        return by_stream

    def release_acked(self) -> None:
        """Release the parked chunks of what :meth:`look_again` returned: it was acked."""
        chunks, self._acked_in = self._acked_in, set()
        self._chunks.release_unneeded(chunks)

    def lose(self, is_lost: Callable[[object], bool], gone: Sequence[tuple[int, object]]) -> None:
        """Forget messages that the queue brings back; call before the retries forget them.

        Args:
            is_lost: Whether a message id is among theirs.
            gone: Sequence and id of those that were open.
        """
        self._repeated = [repeated for repeated in self._repeated if not is_lost(repeated[1])]
        if self._keys.is_used:
            sequences = np.array([sequence for sequence, _ in gone], dtype=np.int64)
            roots = self._chunks.roots_of(sequences)
            self._keys.lose(roots, [message_id for _, message_id in gone])
            between = self._retries.between_attempts()
            self._keys.give_up(attempt.message_id for attempt in between if is_lost(attempt.message_id))


def _waiting(run: MessageRun, row: int, now_ms: int) -> Attempt:
    """A message as an attempt that is to come, with its values in memory: its queue delivers it again."""
    attempt = 1 if run.attempts is None else int(number_of(run.attempts[row : row + 1])[0])
    target = None if run.tasks is None else int(run.tasks[row])
    letter = RedrivenLetter(NO_CHUNK, run.stream, run.values.slice(row, 1), target)
    return Attempt.of_letter(letter, run.message_ids[row], attempt - 1, now_ms)


def _mask(rows: Sequence[int], count: int) -> Bools:
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows] = True
    return mask
