"""What becomes of messages that are given up: letters, durably, unless they are too many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from acktree.config import Config
from acktree.core.letter_limit import LetterLimit
from acktree.dead_letters.store import DeadLetters
from acktree.dead_letters.wills import letter_of
from acktree.errors import DeadLetterLimitError
from acktree.tasks.retries import LastWill, redriven_ids
from acktree.topology.model import Topology

__all__ = ["Burial"]

_REASON_CHARS: Final = 200


class Burial:
    """Between the spout tasks of one run and their dead letters. Any thread may call any method.

    Attributes:
        on_limit: Called once, when the limit is reached.
    """

    def __init__(self, letters: DeadLetters, topology: Topology, config: Config) -> None:
        """Nothing was given up in this run yet: an earlier run's letters do not count."""
        self.on_limit: Callable[[], None] = _nobody_listens
        self._letters, self._topology, self._config = letters, topology, config
        self._lock = Lock()
        self._limits: dict[str, LetterLimit] = {}
        self._reached: DeadLetterLimitError | None = None

    @property
    def limit_reached(self) -> DeadLetterLimitError | None:
        """Why the topology must stop; None while there is no reason."""
        return self._reached

    def acked(self, spout: str, count: int, now_ms: int) -> None:
        """Messages of a spout came to a good end."""
        with self._lock:
            limit = self._limit_of(spout)
            if limit is not None:
                limit.acked(count, now_ms)

    def bury(self, wills: Sequence[LastWill]) -> None:
        """Make letters of what one spout task gave up, all or none; durable when this returns.

        What was redriven and is dead again does not count against the limit: it was a letter before.

        Raises:
            DeadLetterLimitError: They are too many, or others were before.
            AcktreeError: The store refused them.
        """
        if not wills:
            return
        again = redriven_ids(will.attempt.message_id for will in wills)
        fresh, last = len(wills) - len(again), wills[-1]
        limit, admitted = self._admit(fresh, last)
        try:
            self._letters.put(letter_of(will, self._topology) for will in wills)
        except BaseException:
            if limit is not None and admitted is not None:
                with self._lock:
                    limit.withdraw(fresh, admitted)
            raise

    def settle(self, letter_ids: Sequence[int], now_ms: int) -> None:
        """What these letters were sent again as came to its end."""
        self._letters.mark_settled(letter_ids, now_ms)

    def _admit(self, fresh: int, last: LastWill) -> tuple[LetterLimit | None, int | None]:
        is_news = False
        with self._lock:
            limit, admitted = self._limit_of(last.component), None
            if limit is not None and self._reached is None:
                admitted = limit.admit(fresh, last.dead_ms)
                if admitted is None:
                    self._reached, is_news = self._too_many(limit, fresh, last), True
            reached = self._reached
        if is_news:
            self.on_limit()
        if reached is not None:
            raise DeadLetterLimitError(*reached.args)
        return limit, admitted

    def _limit_of(self, spout: str) -> LetterLimit | None:
        count = self._config.dead_letter_limit_count
        if count is None:
            return None
        if spout not in self._limits:
            window_ms = round(self._config.dead_letter_limit_window_secs * 1000)
            self._limits[spout] = LetterLimit(count, self._config.dead_letter_limit_ratio, window_ms)
        return self._limits[spout]

    def _too_many(self, limit: LetterLimit, fresh: int, last: LastWill) -> DeadLetterLimitError:
        failure = last.failure
        blamed = "nobody knows where" if failure.component is None else f"in {failure.component!r}"
        return DeadLetterLimitError(
            f"spout {last.component!r} gave up {limit.dead_count + fresh} messages within "
            f"{limit.window_ms / 1000:g} s, while {limit.acked_count} were acked: more than "
            f"dead_letter_limit_count={limit.count} and dead_letter_limit_ratio={limit.ratio:g} allow",
            f"topology {self._topology.name!r}; the last of {fresh} that were not dead-lettered any more "
            f"failed {blamed}: {failure.reason:.{_REASON_CHARS}}",
            "mend what fails and submit again on the same checkpoint: what was not dead-lettered comes back "
            "and is tried anew; if so many may fail, raise Config(dead_letter_limit_count=...)",
        )


def _nobody_listens() -> None:
    """Until somebody does."""
