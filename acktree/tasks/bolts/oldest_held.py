"""Which messages the oldest tuples belong to that a task holds, for operators who ask where a message is.

Rules of this file
------------------
1. What is noted is bounded: :data:`MOST_TUPLES` tuples, and :data:`MOST_ROOTS` roots of each.
2. Names are given in order, so the smallest is the oldest. A tuple that was acked never becomes open again,
   and its roots do not change. So each name is looked at once, and again only when its tuple was touched.
3. It is kept beside the table of held tuples. A table of an earlier release has no such note, and an earlier
   release does not read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple

from acktree.core.state.store import StateStore

__all__ = ["MOST_ROOTS", "MOST_TUPLES", "HeldOpen", "OldestHeld"]

MOST_TUPLES: Final = 10
"""The oldest open tuples of a task of which the messages are known."""
MOST_ROOTS: Final = 10
"""How many roots of one tuple: one may be anchored to any number of messages."""
_NOTE: Final = "oldest-open"
"""Where the note is, beside the table."""


class HeldOpen(NamedTuple):
    """An open tuple that a task holds: the clock that brought it, None if not known, and its roots."""

    came_ms: int | None
    roots: tuple[int, ...]


Look = Callable[[int], HeldOpen | None]
"""What is held open under a name; None where nothing is, or where it belongs to no message."""


class OldestHeld:
    """The oldest open tuples of one task's table, by name."""

    def __init__(self, store: StateStore, look: Look) -> None:
        """Read what is noted beside the table.

        Args:
            store: Where the table is.
            look: Reads the table.
        """
        self._store, self._look = store, look

    def searched(self, names: Iterable[int]) -> Sequence[HeldOpen]:
        """Look at the names of a small table, until there is enough. Nothing is noted."""
        found: dict[int, HeldOpen] = {}
        for name in sorted(names):
            if len(found) == MOST_TUPLES:
                break
            self._look_at(name, found)
        return [*found.values()]

    def noted(self, first: int, end: int, touched: Container[int]) -> Sequence[HeldOpen]:
        """Look at the names of a large table that are new or may have changed, and note what is found.

        Args:
            first: The smallest name in the table.
            end: The next name to give.
            touched: The names whose tuples may have changed in this micro-batch.
        """
        blob = self._store.get(_NOTE)
        then, known = (first, {}) if blob is None else _read(blob)
        found: dict[int, HeldOpen] = {}
        for name, held in known.items():
            # An earlier release may have acked what is noted here, so the first one is always looked at.
            if name in touched or not found:
                self._look_at(name, found)
            else:
                found[name] = held
        then = max(then, first)
        while then < end and len(found) < MOST_TUPLES:
            self._look_at(then, found)
            then += 1
        note = _written(then, found)
        if note != blob:
            self._store.put(_NOTE, note)
        return [*found.values()]

    def _look_at(self, name: int, found: dict[int, HeldOpen]) -> None:
        """Add what is held open under a name."""
        if (held := self._look(name)) is not None:
            found[name] = held


def _written(then: int, found: dict[int, HeldOpen]) -> bytes:
    return json.dumps([then, [[name, *held] for name, held in found.items()]]).encode()


def _read(note: bytes) -> tuple[int, dict[int, HeldOpen]]:
    then, found = json.loads(note)
    return then, {name: HeldOpen(came_ms, tuple(roots)) for name, came_ms, roots in found}
