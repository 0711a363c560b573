"""Recovery of a spout task's messages after a restart.

Rules of this file
------------------
1. The inbox holds the messages that were open. All of its chunks are reopened before verdicts are applied.
2. Decisions of the earlier run are not repeated, even if the retry policy has changed. Acked messages are in
   the journal, retried messages in a later chunk, given-up messages in the store of dead letters.
3. A message without such a record is emitted again, with the same attempt number.

Source: ours. Storm's spouts start without their earlier messages and rely on the queue to redeliver them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from acktree.core.spouts.pending import Closed
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.chunks.stored_ids import ids_from_bytes
from acktree.tasks.spouts.keys.key_table import Keys
from acktree.tasks.spouts.keys.latest import Latest
from acktree.tasks.spouts.retries import Retries, chunks_of, redriven_ids
from acktree.tasks.spouts.verdict_batch import Mail, VerdictBatch


class Recovery:
    """What one spout task recovers from an earlier run; empty in a first run."""

    def __init__(
        self,
        chunks: OpenChunks,
        retries: Retries,
        keys: Keys,
        latest: Latest,
        letters_among: Callable[[Sequence[int]], frozenset[int]],
        dispatch: Callable[[Mail], None],
    ) -> None:
        """Start with nothing recovered.

        Args:
            chunks: Where recovered messages are opened.
            retries: Where failed messages wait for their next attempt, and what was decided is noted.
            keys: Where recovered messages claim their keys.
            latest: Finds what newer messages supersede.
            letters_among: Returns those of the given roots that are dead letters.
            dispatch: Queues mail for the task's next step.
        """
        self._chunks, self._retries, self._keys = chunks, retries, keys
        self._latest, self._letters_among, self._dispatch = latest, letters_among, dispatch
        self._earlier = retries.earlier

    def reopen(self, number: int, chunk: Chunk) -> None:
        """Open the messages of a chunk of the inbox. Call in ascending order of the numbers."""
        message_ids = ids_from_bytes(chunk.message_ids)
        self._chunks.add(number, chunk, message_ids)
        if isinstance(message_ids, list):  # an array holds integers alone
            self._retries.open_letters.update(redriven_ids(message_ids))
            self._keys.reopened(self._chunks.roots_of(chunk.sequences), message_ids)
        if chunk.retry_of is not None:
            self._earlier.tried_again.update(dict.fromkeys(chunk.retry_of.tolist(), number))

    def must_outlive(self, number: int, chunk: Chunk) -> None:
        """Keep the later chunks that hold the next attempts of this chunk's messages.

        Call after all chunks were reopened.
        """
        tried_again = self._earlier.tried_again
        if tried_again and number in self._chunks:
            for sequence in chunk.sequences.tolist():
                if sequence in tried_again:
                    self._chunks.must_outlive(tried_again[sequence], {number})

    def apply_journalled(self, verdict_batch: VerdictBatch, now_ms: int, *, were_delivered: bool) -> None:
        """Apply verdicts that the earlier run journalled. Call after all chunks were reopened.

        Args:
            verdict_batch: The verdicts of one micro-batch for this task.
            now_ms: The driver's clock.
            were_delivered: Whether the earlier run called the spout's ``ack`` and ``fail`` for them. If not,
                the task's next step does.
        """
        roots_of = self._chunks.roots_of
        failed = [roots_of(sequences) for sequences, _ in verdict_batch.failed]
        failed += [roots for roots, _ in verdict_batch.failed_rows]
        if self._keys.is_used:
            no_roots = roots_of(verdict_batch.acked[:0])
            self._keys.settle(roots_of(verdict_batch.acked), np.concatenate([no_roots, *failed]))
        if failed:
            self._earlier.dead_letters.update(self._letters_among(np.concatenate(failed).tolist()))
        if not were_delivered:
            self._dispatch(replace(verdict_batch, is_journalled=True))
            return
        for sequences, failure in verdict_batch.failed:
            for closed in self._chunks.pending.close(sequences):
                self._decide(closed, failure, now_ms)
        acked = self._chunks.pending.close(verdict_batch.acked)
        for closed in acked:
            self._settle(closed.message_sequence())
        for newer, attempts in self._latest.superseded(acked):
            self._settle(attempt.message_id for attempt in attempts)
            self._chunks.must_outlive(newer, chunks_of(attempts) - {newer})

    def _settle(self, message_ids: Iterable[object]) -> None:
        self._retries.open_letters.difference_update(redriven_ids(message_ids))

    def _decide(self, closed: Closed, failure: Failure, now_ms: int) -> None:
        """A message that waited for a retry may be too old now, so it is decided again.

        Not one that is a dead letter: the spout's ``fail`` was already called for it.
        """
        roots = self._chunks.roots_of(closed.sequences).tolist()
        for attempt, root in zip(self._chunks.attempts_of(closed), roots, strict=True):
            if root not in self._earlier.dead_letters:
                self._retries.decide([attempt], [root], failure, now_ms)
            elif attempt.sequence not in self._earlier.tried_again:
                self._settle([attempt.message_id])
                self._keys.give_up([attempt.message_id])

    def run_again(self, lost_through: int, now_ms: int) -> None:
        """Emit open messages that the acker does not know again, with the same attempt number.

        Messages whose next attempt is in a later chunk are left out.

        Args:
            lost_through: Number of the last chunk whose open messages the acker does not know.
            now_ms: The driver's clock.
        """
        for closed in self._chunks.close_through(lost_through):
            for attempt in self._chunks.attempts_of(closed):
                if attempt.sequence not in self._earlier.tried_again:
                    self._retries.add(now_ms, replace(attempt, attempt=attempt.attempt - 1))
