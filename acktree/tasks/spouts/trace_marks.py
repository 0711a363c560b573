"""Marks the attempts of a spout task that are traced whatever their roots are.

That a message has failed before, or that an operator watches it, cannot be known from its root. So it is a
mark of the attempt (``core/tracking/attempts.py``): each level, a second run and the next run read it there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from acktree.core.ids import Int32s
from acktree.core.spouts.pending import MessageIds
from acktree.core.tracking.attempts import CHOSEN, is_marked, number_of
from acktree.tasks.spouts.token_bucket import TokenBucket
from acktree.tasks.spouts.watched_ids import WatchedNames

__all__ = ["TraceMarks"]


class TraceMarks:
    """The marks of one spout task: of attempts after the first within a bound, and of watched messages."""

    def __init__(
        self,
        rate: Callable[[], float],
        most_per_sec: float | None,
        watched: Callable[[], WatchedNames | None],
    ) -> None:
        """Nothing is marked yet.

        Args:
            rate: Returns the share of messages that is traced.
            most_per_sec: How many attempts after the first are marked in a second, above 0; None: all.
            watched: Returns the messages that operators watch; None for none.
        """
        self._rate, self._watched = rate, watched
        self._tokens = None if most_per_sec is None else TokenBucket(most_per_sec)

    def put_on(self, attempts: Int32s | None, message_ids: MessageIds, now_ms: int) -> Int32s | None:
        """The attempts of tracked messages with their marks, shape (n,).

        Args:
            attempts: The attempt of each, shape (n,); None when all are unmarked first ones.
            message_ids: The id of each.
            now_ms: The time.
        """
        names = self._watched()
        if attempts is None and names is None:
            return None
        marked = np.ones(len(message_ids), np.int32) if attempts is None else attempts.copy()
        if names is not None:
            marked[names.among(message_ids)] |= CHOSEN
        if attempts is not None:
            self._mark_later_ones(marked, now_ms)
        return marked if attempts is not None or (marked != 1).any() else None

    def _mark_later_ones(self, marked: Int32s, now_ms: int) -> None:
        """Mark attempts after the first as far as the bound allows. At a rate of 1 all are traced anyway."""
        rate = self._rate()
        if not 0 < rate < 1:
            return
        rows = np.flatnonzero((number_of(marked) > 1) & ~is_marked(marked, rate))
        if self._tokens is not None:
            rows = rows[: self._tokens.take(len(rows), now_ms)]
        marked[rows] |= CHOSEN
