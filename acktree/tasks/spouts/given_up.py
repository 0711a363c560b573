"""Makes dead letters of the messages that one spout task gives up, and marks redriven ones as settled.

A dead letter is stored before the spout's ``fail`` is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from acktree.core.stats.numbers import Outage
from acktree.core.tracking.verdicts import Failure
from acktree.errors import DeadLetterLimitError
from acktree.tasks.spouts.hand_over import HandOver
from acktree.tasks.spouts.labels import id_of
from acktree.tasks.spouts.parts import SpoutParts
from acktree.tasks.spouts.retries import Attempt, Redriven, RedrivenLetter, redriven_ids
from acktree.tasks.spouts.upkeep import outage_of

__all__ = ["GivenUp"]


class GivenUp:
    """The messages of one spout task that get no further attempt."""

    def __init__(self, parts: SpoutParts, hand_over: HandOver) -> None:
        """Nothing was given up yet."""
        self._parts, self._retries, self._hand_over = parts, parts.retries, hand_over
        self._redriven: set[int] = set()
        self._outage: Outage | None = None

    @property
    def outage(self) -> Outage | None:
        """Why what was given up cannot be stored; None where it can. Any thread may ask."""
        return self._outage if self._retries.has_records else None

    def note_redriven(self, letters: Iterable[RedrivenLetter]) -> None:
        """Dead letters are to be sent again by the next step. May be called from any thread."""
        self._redriven.update(letter.letter_id for letter in letters)

    def has_open_letter(self, letter_id: int) -> bool:
        """Whether a dead letter was sent again and has no verdict yet. May be asked from any thread."""
        return letter_id in self._redriven or letter_id in self._parts.recovery.letters

    def record(self, now_ms: int) -> None:
        """Make dead letters of what was given up, then deliver the failures. Tried again after a pause."""
        parts = self._parts
        letters = self._retries.take_records(parts.component.id, parts.task, now_ms, parts.host.inbox.read)
        if parts.spout.own_dead_letters:  # except messages that are letters of ours already
            letters = [each for each in letters if isinstance(each.attempt.message_id, Redriven)]
        try:
            if letters:
                parts.host.record(letters)
        except DeadLetterLimitError as reached:
            # The topology stops. Its next run tries these again, except those that are recorded.
            self._retries.requeue(now_ms, reached.recorded)
            letters = []  # none of these was stored
        except Exception as error:  # noqa: BLE001  # a full disk: the verdict waits, and it is reported
            parts.reporter.error(error)
            self._outage = outage_of(error, now_ms, self.outage)
            self._retries.record_later(now_ms)
            return
        self._works(now_ms)
        for letter in letters:
            parts.reporter.count(letter.attempt.stream, "dead_lettered", 1)
        given_up = self._retries.records
        chunks = self._retries.record()
        message_ids = [attempt.message_id for attempt, _, _ in given_up]
        self.mark_settled(message_ids, now_ms)
        parts.host.keys.give_up(message_ids)
        failures = [
            (id_of(p.message_id), f) for p, f, _ in given_up if not isinstance(p.message_id, Redriven)
        ]
        if failures:
            parts.hooks.fail(failures)
        parts.chunks.release_unneeded(chunks)

    def _works(self, now_ms: int) -> None:
        outage, self._outage = self.outage, None
        if outage is not None:
            self._parts.host.note_recovered(self._parts.component.id, self._parts.task, outage, now_ms)

    def mark_settled(self, message_ids: Iterable[object], now_ms: int) -> None:
        """Mark the dead letters of redriven messages that have a final verdict."""
        letters = redriven_ids(message_ids)
        if letters:
            self._redriven.difference_update(letters)
            self._parts.recovery.letters.difference_update(letters)
            try:
                self._parts.host.mark_settled(letters, now_ms)
            except Exception as error:  # noqa: BLE001  # the store's
                self._parts.reporter.error(error)

    def spend(self, now_ms: int, attempt: Attempt, failure: Failure) -> None:
        """Give up a message whose attempts ended, one after the other, with their driver or connection."""
        sequence = np.array([self._hand_over.sequences(1)], dtype=np.int64)
        self._parts.reporter.count(attempt.stream, "emitted", 1)
        self._parts.reporter.count_failed(attempt.stream, failure, 1, is_own=True)
        attempt = replace(attempt, first_emitted_ms=now_ms)
        self._retries.give_up(attempt, failure, int(self._parts.recovery.roots_of(sequence)[0]))
