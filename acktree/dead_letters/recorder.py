"""Stores messages that are given up as dead letters, durably, up to the limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from acktree.config import Config
from acktree.core.tracking.origins import Origins
from acktree.dead_letters.conversion import letter_of
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.limit import LetterLimit
from acktree.dead_letters.store import DeadLetters
from acktree.errors import DeadLetterLimitError
from acktree.tasks.spouts.retries import GivenUpRecord, redriven_ids
from acktree.texts import printable
from acktree.topology.model import Topology

_REASON_CHARS: Final = 200


class DeadLetterRecorder:
    """Records what the spout tasks of one run give up. Any thread may call any method."""

    def __init__(
        self,
        letters: DeadLetters,
        topology: Topology,
        config: Config,
        on_limit: Callable[[], None] = lambda: None,
        origins_of: Callable[[str, object], Origins] | None = None,
    ) -> None:
        """Start with an empty count: letters of earlier runs do not count against the limit.

        Args:
            letters: The store.
            topology: The topology whose messages are recorded.
            config: Holds the limit.
            on_limit: Called once, when the limit is reached.
            origins_of: The origins of a message of a gate, by the gate and the id; None without gates.
        """
        self._on_limit, self._origins_of = on_limit, origins_of
        self._letters, self._topology, self._config = letters, topology, config
        self._lock = Lock()
        self._limits: dict[str, LetterLimit] = {}
        self._reached: DeadLetterLimitError | None = None
        # Roots whose put failed in this run. The store may hold them anyway; they then count as new letters.
        self._in_doubt: set[int] = set()

    @property
    def limit_reached(self) -> DeadLetterLimitError | None:
        """The error with which the topology must stop; None while the limit is not reached."""
        return self._reached

    def acked(self, spout: str, count: int, now_ms: int) -> None:
        """Count acked messages of a spout, for the limit's ratio."""
        with self._lock:
            limit = self._limit_of(spout)
            if limit is not None:
                limit.acked(count, now_ms)

    def record(self, records: Sequence[GivenUpRecord]) -> None:
        """Store the messages that one spout task gave up, all or none; durable when this returns.

        Two kinds of messages do not count against the limit: redriven letters that failed again, and messages
        whose letter is already stored, because the driver died before it journalled the spout's ``fail``.

        Raises:
            DeadLetterLimitError: The limit is reached, now or before; this call stored none of them. Roots in
                its ``recorded`` have a letter from an earlier call, and must not be tried again.
            AcktreeError: The store refused them, or cannot be read.
        """
        if not records:
            return
        # Only the limit depends on which messages have a letter already.
        is_limited = self._config.dead_letter_limit_count is not None
        recorded = self.letters_among([record.root for record in records]) if is_limited else frozenset()
        fresh = self._fresh(records, recorded)
        limit, admitted = self._admit(fresh, records[-1].component, recorded)
        try:
            self._letters.put(map(self._letter_of, records))
        except BaseException:
            if limit is not None and admitted is not None:
                with self._lock:
                    limit.withdraw(len(fresh), admitted)
                    self._in_doubt.update(record.root for record in fresh)
            raise
        with self._lock:
            self._in_doubt.difference_update(record.root for record in records)

    def _letter_of(self, record: GivenUpRecord) -> DeadLetter:
        of_gate = self._origins_of
        origins = () if of_gate is None else of_gate(record.component, record.attempt.message_id)
        return letter_of(record, self._topology, origins=origins)

    def letters_among(self, roots: Sequence[int]) -> frozenset[int]:
        """The roots among these that have a dead letter of this topology."""
        return frozenset(self._letters.known_roots(self._topology.name, roots))

    def mark_settled(self, letter_ids: Sequence[int], now_ms: int) -> None:
        """Mark redriven letters as settled: their messages have a final verdict."""
        self._letters.mark_settled(letter_ids, now_ms)

    def _fresh(self, records: Sequence[GivenUpRecord], recorded: frozenset[int]) -> list[GivenUpRecord]:
        """The records that count against the limit."""
        with self._lock:
            before = recorded - self._in_doubt
        return [
            record
            for record in records
            if record.root not in before and not redriven_ids([record.attempt.message_id])
        ]

    def _admit(
        self, fresh: Sequence[GivenUpRecord], spout: str, recorded: frozenset[int]
    ) -> tuple[LetterLimit | None, int | None]:
        is_news = False
        with self._lock:
            limit, admitted = self._limit_of(spout), None
            if limit is not None and self._reached is None and fresh:
                admitted = limit.admit(len(fresh), fresh[-1].dead_ms)
                if admitted is None:
                    self._reached, is_news = self._too_many(limit, fresh), True
            reached = self._reached
        if is_news:
            self._on_limit()
        if reached is not None:
            raise DeadLetterLimitError(*reached.args, recorded=recorded)
        return limit, admitted

    def _limit_of(self, spout: str) -> LetterLimit | None:
        count = self._config.dead_letter_limit_count
        if count is None:
            return None
        if spout not in self._limits:
            window_ms = round(self._config.dead_letter_limit_window_secs * 1000)
            self._limits[spout] = LetterLimit(count, self._config.dead_letter_limit_ratio, window_ms)
        return self._limits[spout]

    def _too_many(self, limit: LetterLimit, fresh: Sequence[GivenUpRecord]) -> DeadLetterLimitError:
        last = fresh[-1]
        failure = last.failure
        blamed = "in an unknown component" if failure.component is None else f"in {failure.component!r}"
        return DeadLetterLimitError(
            f"spout {last.component!r} gave up {limit.dead_count + len(fresh)} messages within "
            f"{limit.window_ms / 1000:g} s, while {limit.acked_count} were acked: more than "
            f"dead_letter_limit_count={limit.count} and dead_letter_limit_ratio={limit.ratio:g} allow",
            f"topology {self._topology.name!r}; the last of {len(fresh)} messages beyond the limit "
            f"failed {blamed}: {printable(failure.reason[:_REASON_CHARS])}",
            "fix the cause and submit again on the same checkpoint: messages that were not dead-lettered are "
            "tried again; if this many failures are expected, raise Config(dead_letter_limit_count=...)",
        )
