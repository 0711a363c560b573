"""The open messages of one spout task: how many, how old, and which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np

from acktree.core.spouts.pending import MessageIds
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.collector import SpoutCollector
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.retries import Redriven, Retries


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A message without a final verdict, for display.

    Attributes:
        root: Of its last attempt; None while it waits for the next.
        attempt: The last one that was begun, from 1.
        state: Whether its tuples are processed, or it waits for its next attempt.
    """

    spout: str
    task_id: int
    message_id: object
    root: int | None
    attempt: int
    first_emitted_ms: int
    state: Literal["open", "retry"]


class OpenListing:
    """Lists the open messages of one spout task.

    A message without a final verdict is in one of three places: it is processed (``pending``), waits for its
    next attempt (``retries``), or was emitted and not handed over yet (``collector``).
    """

    def __init__(
        self, spout: str, task: int, *, chunks: OpenChunks, retries: Retries, collector: SpoutCollector
    ) -> None:
        """List what these hold for a task of a spout."""
        self._spout, self._task = spout, task
        self._pending, self._retries, self._collector = chunks.pending, retries, collector
        self._roots_of = chunks.roots_of

    @property
    def count(self) -> int:
        """How many messages have no final verdict."""
        return self._pending.open_count + len(self._retries) + self._collector.tracked_count

    def oldest_ms(self) -> int | None:
        """When the oldest one that was handed over was first emitted; None when there is none."""
        moments = [self._pending.oldest_ms(), self._retries.oldest_ms()]
        return min((moment for moment in moments if moment is not None), default=None)

    def ids(self, moment_ms: int, now_ms: int) -> Iterator[MessageIds]:
        """The ids of those that were first emitted at a moment or before it, in parts.

        Messages that were not handed over yet have no time: they count as emitted at ``now_ms``. Redriven
        letters are not among those that are returned.
        """
        for ids in self._pending.emitted_by(moment_ms):
            yield ids if isinstance(ids, np.ndarray) else _not_redriven(ids)
        young = self._collector.waiting_ids() if moment_ms >= now_ms else ()
        yield _not_redriven(chain(self._retries.emitted_by(moment_ms), young))

    def oldest(self, most: int) -> list[OpenMessage]:
        """The oldest ones that were handed over, at most ``most``. Any thread may call it.

        Raises:
            RuntimeError, ValueError, IndexError: The task's own thread changed what was read: call it again.
        """
        in_task = partial(OpenMessage, self._spout, self._task)
        listed = [
            in_task(message_id, self._root_of(sequence), attempt, first_ms, state="open")
            for first_ms, sequence, message_id, attempt in self._pending.oldest(most)
        ]
        for failed in self._retries.oldest(most):
            # The attempt of a message that waits for a dependency does not count, but was begun.
            attempt = failed.attempt + bool(failed.dependency)
            listed.append(in_task(failed.message_id, None, attempt, failed.first_emitted_ms, state="retry"))
        return sorted(listed, key=lambda message: message.first_emitted_ms)[:most]

    def _root_of(self, sequence: int) -> int:
        return int(self._roots_of(np.array([sequence]))[0])


def _not_redriven(message_ids: Iterable[object]) -> list[object]:
    return [id_of(message_id) for message_id in message_ids if not isinstance(message_id, Redriven)]
