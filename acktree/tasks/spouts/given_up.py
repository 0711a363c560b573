"""Makes dead letters of the messages that one spout task gives up, and marks redriven ones as settled.

A dead letter is stored before the spout's ``fail`` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from acktree.core.stats.numbers import Outage
from acktree.core.tracking.attempts import number_of
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.errors import DeadLetterLimitError
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.reporter import Reporter
from acktree.tasks.spouts.retries import (
    NO_CHUNK,
    Attempt,
    Redriven,
    RedrivenLetter,
    Retries,
    redriven_ids,
)
from acktree.tasks.spouts.runs import MessageRun
from acktree.tasks.spouts.spout_calls import Hooks
from acktree.tasks.spouts.upkeep import outage_of


class GivenUp:
    """The messages of one spout task that get no further attempt."""

    def __init__(
        self,
        host: SpoutHost,
        chunks: OpenChunks,
        retries: Retries,
        *,
        reporter: Reporter,
        hooks: Hooks,
        only_redriven: bool,
    ) -> None:
        """Nothing was given up yet.

        Args:
            host: Stores dead letters.
            chunks: What messages carry is in these until then.
            retries: Has what is given up.
            reporter: Counts, and reports errors.
            hooks: Deliver the failures.
            only_redriven: Whether only what was redriven becomes a dead letter: the queue has its own.
        """
        self._host, self._chunks, self._retries = host, chunks, retries
        self._reporter, self._hooks, self._only_redriven = reporter, hooks, only_redriven
        self._outage: Outage | None = None

    @property
    def outage(self) -> Outage | None:
        """Why what was given up cannot be stored; None where it can. Any thread may ask."""
        return self._outage if self._retries.has_records else None

    def note_redriven(self, letters: Iterable[RedrivenLetter]) -> None:
        """Dead letters are to be sent again by the next step. May be called from any thread."""
        self._retries.open_letters.update(letter.letter_id for letter in letters)

    def has_open_letter(self, letter_id: int) -> bool:
        """Whether a dead letter was sent again and has no verdict yet. May be asked from any thread."""
        return letter_id in self._retries.open_letters

    def record(self, now_ms: int) -> None:
        """Make dead letters of what was given up, then deliver the failures. Tried again after a pause."""
        reporter = self._reporter
        letters = self._retries.records_with_payloads(now_ms, self._host.inbox.read)
        if self._only_redriven:  # except messages that are letters of ours already
            letters = [letter for letter in letters if isinstance(letter.attempt.message_id, Redriven)]
        try:
            if letters:
                self._host.record(letters)
        except DeadLetterLimitError as reached:
            # The topology stops. Its next run tries these again, except those that are recorded.
            self._retries.requeue(now_ms, reached.recorded)
            letters = []  # none of these was stored
        except Exception as error:  # noqa: BLE001  # a full disk: the verdict waits, and it is reported
            reporter.error(error)
            self._outage = outage_of(error, now_ms, self.outage)
            self._retries.record_later(now_ms)
            return
        self._works(now_ms)
        for letter in letters:
            reporter.count(letter.attempt.stream, "dead_lettered", 1)
        given_up = self._retries.records
        chunks = self._retries.record()
        message_ids = [record.attempt.message_id for record in given_up]
        self.mark_settled(message_ids, now_ms)
        self._host.keys.give_up(message_ids)
        failures = [
            (id_of(message_id), record.failure)
            for message_id, record in zip(message_ids, given_up, strict=True)
            if not isinstance(message_id, Redriven)
        ]
        if failures:
            self._hooks.fail(failures)
        self._chunks.release_unneeded(chunks)

    def _works(self, now_ms: int) -> None:
        outage, self._outage = self.outage, None
        if outage is not None:
            self._reporter.note_recovered(outage, now_ms)

    def mark_settled(self, message_ids: Iterable[object], now_ms: int) -> None:
        """Mark the dead letters of redriven messages that have a final verdict."""
        letters = redriven_ids(message_ids)
        if letters:
            self._retries.open_letters.difference_update(letters)
            try:
                self._host.mark_settled(letters, now_ms)
            except Exception as error:  # noqa: BLE001  # the store's
                self._reporter.error(error)

    def spend(self, sequence: int, attempt: Attempt, failure: Failure, now_ms: int) -> None:
        """Give up a message whose attempts ended, one after the other, with their driver or connection.

        Args:
            sequence: A new one, for its root.
            attempt: The last attempt.
            failure: Why it is given up.
            now_ms: The time.
        """
        self._reporter.count(attempt.stream, "emitted", 1)
        self._reporter.count_failed(attempt.stream, failure, 1, is_own=True)
        [root] = self._chunks.roots_of(np.array([sequence], dtype=np.int64)).tolist()
        self._retries.give_up(replace(attempt, first_emitted_ms=now_ms), failure, root)


def without_spent(
    runs: Iterable[MessageRun], max_attempts: int, give_up: Callable[[Attempt, Failure], None]
) -> list[MessageRun]:
    """The runs without the messages that their queue has delivered more often than a ``Retry`` allows.

    Each earlier delivery ended without a verdict, with its driver or its connection: a message that kills its
    driver each time looks like this. Another consumer's deliveries count too, where the queue counts them. It
    is given up before it runs once more.

    Args:
        give_up: Called with each of these, as the attempt that is over.
    """
    admitted: list[MessageRun] = []
    for run in runs:
        if run.attempts is None or not run.is_tracked:
            admitted.append(run)
            continue
        attempts = number_of(run.attempts)
        is_spent = attempts > max_attempts
        for row in np.flatnonzero(is_spent).tolist():
            delivery = int(attempts[row])
            give_up(_last_attempt(run, row, delivery - 1), _spent(delivery, max_attempts))
        if not is_spent.all():
            admitted.append(run.those(~is_spent) if is_spent.any() else run)
    return admitted


def _last_attempt(run: MessageRun, row: int, attempt: int) -> Attempt:
    message_id = run.message_ids[row]
    message_id = message_id.item() if isinstance(message_id, np.generic) else message_id
    target = None if run.tasks is None else int(run.tasks[row])
    letter = RedrivenLetter(NO_CHUNK, run.stream, run.values.slice(row, 1), target)
    return Attempt.of_letter(letter, message_id, attempt, 0)


def _spent(attempt: int, max_attempts: int) -> Failure:
    return Failure(
        reason=f"delivery {attempt} of a message that may have {max_attempts} attempts: the earlier ones "
        "ended without a verdict, with their driver or their connection, or at another consumer",
        kind=FailureKind.FAILED, cause=FailureCause.GAVE_UP, component=None, exception=None,
        exception_types=(), traceback=None, attempt=attempt - 1, final=True,
    )  # fmt: skip
