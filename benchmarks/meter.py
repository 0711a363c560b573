"""When messages finish, and how long they take, without work in the spout for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final, Protocol

import numpy as np

_EACH: Final = 1000
"""Of messages that are acked at once, the latency of every 1,000th is noted."""


class Positioned(Protocol):
    """A spout whose message ids are positions.

    Attributes:
        position: The id of the next message.
    """

    position: int


class Meter:
    """When messages finished, and how long some took. Shared by the spout's task and its reader.

    A message's id is its position in what the spout emits. So the time at which it was emitted follows from
    the positions that :meth:`look` notes, and the spout does nothing for it.

    Attributes:
        events: When messages finished, and how many.
    """

    def __init__(self) -> None:
        self.events: list[tuple[float, int]] = []
        self._spout: Positioned | None = None
        self._looks: list[tuple[float, int]] = []
        self._acked: list[tuple[float, Sequence[Any]]] = []

    def follow(self, spout: Positioned) -> None:
        """Note from now on what this spout has emitted."""
        self._spout = spout

    def look(self) -> None:
        """Note how much is emitted now; called every few milliseconds, on another thread than the spout's."""
        if self._spout is not None:
            self._looks.append((perf_counter(), self._spout.position))

    def add(self, count: int) -> None:
        """Note messages that finished now."""
        self.events.append((perf_counter(), count))

    def add_acked(self, message_ids: Sequence[Any]) -> None:
        """Note messages that were acked now, and remember which a few of them are."""
        self.add(len(message_ids))
        self._acked.append((self.events[-1][0], message_ids[::_EACH]))

    def waits_ms(self, since: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How long messages took from the spout's emit to its ack: some of those of each event since one.

        None where no spout is followed.
        """
        if not self._acked[since:] or not self._looks:
            return np.empty(0)
        times, positions = (np.array(column, dtype=np.float64) for column in zip(*self._looks, strict=True))
        waits = [
            (at - np.interp(np.array(ids, dtype=np.float64), positions, times)) * 1000
            for at, ids in self._acked[since:]
        ]
        return np.concatenate(waits)

    def __deepcopy__(self, memo: Mapping[int, object]) -> Meter:
        """The spout's task works on a copy of the spout, and on this very meter."""
        return self
