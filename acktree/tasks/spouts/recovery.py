"""What an earlier run of a spout task left, taken up again.

Rules of this file
------------------
1. The inbox says what was open: all of its chunks are reopened, as they were, before anything else is asked.
2. What the earlier run decided stands: of what was acked the journal knows, of what was tried again a later
   chunk, of what was given up the store of dead letters, whatever the policy is now. It is not done again.
3. What nobody else remembers is run again, as the attempt that it was.

Source: ours. Storm's spouts begin anew, and leave this to the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from acktree.core import durable
from acktree.core.ids import Int64s
from acktree.core.spouts.pending import Closed
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.open_chunks import OpenChunks
from acktree.tasks.spouts.retries import Retries, redriven_ids
from acktree.tasks.spouts.verdict_batch import VerdictBatch


class Recovery:
    """What is known of an earlier run of one spout task; nothing in a first run.

    Attributes:
        letters: Dead letters that were redriven, and whose messages were reopened.
    """

    def __init__(
        self,
        chunks: OpenChunks,
        retries: Retries,
        roots_of: Callable[[Int64s], Int64s],
        letters_among: Callable[[Sequence[int]], frozenset[int]],
        dispatch: Callable[[VerdictBatch], None],
    ) -> None:
        """Take nothing up yet.

        Args:
            roots_of: The roots of some sequences of the task.
            letters_among: Those of some roots that are dead letters.
            deliver: Leaves mail for the task's next step.
        """
        self._chunks, self._retries = chunks, retries
        self.roots_of, self._letters_among, self._dispatch = roots_of, letters_among, dispatch
        # Sequences that were emitted again -> the chunk that says so.
        self._tried_again: dict[int, int] = {}
        self._roots_of_letters: frozenset[int] = frozenset()
        self.letters: set[int] = set()

    def reopen(self, number: int, chunk: Chunk) -> None:
        """Open the messages of a chunk, which only the inbox has. Ascending by number."""
        message_ids = durable.loads(chunk.message_ids)
        self._chunks.add(number, chunk, message_ids)
        if isinstance(message_ids, list):  # an array holds integers alone
            self.letters.update(redriven_ids(message_ids))
        if chunk.retry_of is not None:
            self._tried_again |= dict.fromkeys(chunk.retry_of.tolist(), number)

    def must_outlive(self, number: int, chunk: Chunk) -> None:
        """Keep what says that messages of this chunk were tried again; all chunks were reopened before."""
        if self._tried_again and number in self._chunks:
            for sequence in chunk.sequences.tolist():
                if sequence in self._tried_again:
                    self._chunks.must_outlive(self._tried_again[sequence], {number})

    def settle(self, verdict_batch: VerdictBatch, now_ms: int, *, was_told: bool) -> None:
        """Apply verdicts that the earlier run journalled; all chunks were reopened before.

        Args:
            was_told: Whether the spout heard of them then; else it does at the task's next step.
        """
        failed = [self.roots_of(sequences) for sequences, _ in verdict_batch.failed]
        failed += [roots for roots, _ in verdict_batch.failed_rows]
        if failed:
            self._roots_of_letters |= self._letters_among(np.concatenate(failed).tolist())
        if not was_told:
            self._dispatch(verdict_batch)
            return
        self._chunks.pending.close(verdict_batch.acked)
        for sequences, failure in verdict_batch.failed:
            for closed in self._chunks.pending.close(sequences):
                # What waited then may be too old now; but what was a dead letter then, its source knows of.
                self.decide(closed, failure, now_ms, but=self._roots_of_letters)

    def decide(
        self, closed: Closed, failure: Failure, now_ms: int, *, but: frozenset[int] = frozenset()
    ) -> None:
        """Let failed messages wait for their next attempt or give them up, where the earlier run did not.

        Args:
            but: Roots of which nothing is to be decided.
        """
        roots = self.roots_of(closed.sequences).tolist()
        for place, root in zip(self._chunks.attempts_of(closed), roots, strict=True):
            if not self.has_tried_again(place.sequence) and root not in but:
                mine = replace(failure, attempt=place.attempt)
                self._retries.decide(place, mine, root, now_ms, is_over=self.is_dead_letter(root))

    def run_again(self, lost_through: int, now_ms: int) -> None:
        """Emit anew, as the attempt that it was, what nobody else knows of; but not what was already.

        Args:
            lost_through: The last chunk of those whose open messages are unknown to all others.
        """
        for closed in self._chunks.close_through(lost_through):
            for place in self._chunks.attempts_of(closed):
                if not self.has_tried_again(place.sequence):
                    self._retries.add(now_ms, replace(place, attempt=place.attempt - 1))

    def has_tried_again(self, sequence: int) -> bool:
        """Whether the earlier run emitted a message again before it died."""
        return sequence in self._tried_again

    def is_dead_letter(self, root: int) -> bool:
        """Whether a message is one: whatever the policy is now, and however late it is, that is its fate."""
        return root in self._roots_of_letters
