"""Decides at the hand-over which attempts of a spout task are traced, and marks them.

Whether a message is traced is a mark of its attempt (``core/tracking/attempts.py``): each level, a second run
and the next run read it there. The bounds hold here alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from acktree.core.ids import Int32s, Int64s
from acktree.core.spouts.pending import MessageIds
from acktree.core.tracking.attempts import CHOSEN, NAMED, number_of
from acktree.core.tracking.sampling import Bools, is_sampled
from acktree.tasks.spouts.watched_ids import WatchedNames


class TraceMarks:
    """The marks of one spout task.

    Messages that an operator watches are marked, and above a rate of 0 those that the spout names. Of the
    others attempts after the first are marked within a bound, and a sample of all within another one. At a
    rate of 1 all are marked.
    """

    def __init__(
        self,
        rate: Callable[[], float],
        most_per_sec: float | None,
        most_later_per_sec: float | None,
        watched: Callable[[], WatchedNames | None],
    ) -> None:
        """Nothing is marked yet.

        Args:
            rate: Returns the share of messages that is traced.
            most_per_sec: How many are marked of a sample in a second, above 0; None: all.
            most_later_per_sec: How many attempts after the first are marked in a second, above 0; None: all.
            watched: Returns the messages that operators watch; None for none.
        """
        self._rate, self._watched = rate, watched
        self._sampled, self._later = (
            None if most is None else _TokenBucket(most) for most in (most_per_sec, most_later_per_sec)
        )

    def put_on(
        self, attempts: Int32s | None, message_ids: MessageIds, names: Int64s, now_ms: int
    ) -> Int32s | None:
        """The attempts of tracked messages with their marks, shape (n,); None when all are 1.

        Args:
            attempts: The attempt of each, shape (n,); None when all are unmarked first ones.
            message_ids: The id of each.
            names: A number for each, by which a sample is drawn, shape (n,).
            now_ms: The time.
        """
        chosen = np.zeros(len(names), np.bool_)
        watched, rate = self._watched(), self._rate()
        if watched is not None:
            chosen |= watched.among(message_ids)
        if rate >= 1:
            chosen[:] = True
        elif rate > 0:
            if attempts is not None:
                chosen |= (attempts & NAMED) != 0
                _choose(chosen, number_of(attempts) > 1, self._later, now_ms)
            _choose(chosen, is_sampled(names, rate), self._sampled, now_ms)
        if not chosen.any():
            return attempts
        marked = np.ones(len(names), np.int32) if attempts is None else attempts.copy()
        marked[chosen] |= CHOSEN
        return marked


class _TokenBucket:
    """Tokens that are added all the time, up to what one second adds, and room for one."""

    def __init__(self, per_sec: float) -> None:
        """Start full. ``per_sec``: how many tokens a second adds, above 0."""
        self._per_sec, self._left, self._since_ms = per_sec, max(1.0, per_sec), 0

    def take(self, wanted: int, now_ms: int) -> int:
        """Take whole tokens, as many as wanted and there are; returns how many."""
        passed_ms = max(0, now_ms - self._since_ms)  # a clock may be set back
        self._since_ms = now_ms
        self._left = min(max(1.0, self._per_sec), self._left + self._per_sec * passed_ms / 1000)
        taken = min(wanted, int(self._left))
        self._left -= taken
        return taken


def _choose(chosen: Bools, candidates: Bools, tokens: _TokenBucket | None, now_ms: int) -> None:
    """Add to those that are chosen, in their order, as far as there are tokens."""
    rows = np.flatnonzero(candidates & ~chosen)
    chosen[rows if tokens is None else rows[: tokens.take(len(rows), now_ms)]] = True
