"""Which messages the oldest tuples belong to that a task holds, for operators who ask where a message is.

Rules of this file
------------------
1. What is noted is bounded: twice :data:`MOST_TUPLES` tuples, and :data:`MOST_ROOTS` roots of each.
2. Names are given in order, so the smallest is the oldest. A tuple that was acked never becomes open again,
   and its roots do not change. So each name is looked at once, and again only when its tuple was touched.
3. A task does not know verdicts. The messages of *late* tuples are probably timed out, so late tuples have
   places of their own: they leave the places of younger tuples free.
4. It is kept beside the table of held tuples. A table of an earlier release has no such note. An earlier
   release reads it, and takes all of it for tuples that are not late.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple

from acktree.core.state.store import StateStore

__all__ = ["MOST_ROOTS", "MOST_TUPLES", "HeldOpen", "OldestHeld"]

MOST_TUPLES: Final = 10
"""The oldest open tuples of a task of which the messages are known; of late ones as many more."""
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

    def __init__(self, store: StateStore, look: Look, late_ms: int | None = None) -> None:
        """Read what is noted beside the table.

        Args:
            store: Where the table is.
            look: Reads the table.
            late_ms: A tuple that came before this clock is late; None: none is.
        """
        self._store, self._look, self._late_ms = store, look, late_ms
        self._young: dict[int, HeldOpen] = {}
        self._late: dict[int, HeldOpen] = {}

    def searched(self, names: Iterable[int]) -> Sequence[HeldOpen]:
        """Look at the names of a small table, until there is enough. Nothing is noted."""
        for name in sorted(names):
            if len(self._young) == MOST_TUPLES:
                break
            self._take(name, self._look(name))
        return [*self._found().values()]

    def noted(self, first: int, end: int, touched: Container[int]) -> Sequence[HeldOpen]:
        """Look at the names of a large table that are new or may have changed, and note what is found.

        Args:
            first: The smallest name in the table.
            end: The next name to give.
            touched: The names whose tuples may have changed in this micro-batch.
        """
        blob = self._store.get(_NOTE)
        then, known = (first, {}) if blob is None else _read(blob)
        for name, held in known.items():
            # An earlier release may have acked what is noted here, so the first one is always looked at.
            is_first = not (self._late or self._young)
            self._take(name, self._look(name) if name in touched or is_first else held)
        then = max(then, first)
        while then < end and len(self._young) < MOST_TUPLES:
            self._take(then, self._look(then))
            then += 1
        found = self._found()
        note = _written(then, found)
        if note != blob:
            self._store.put(_NOTE, note)
        return [*found.values()]

    def _take(self, name: int, held: HeldOpen | None) -> None:
        """Put what is held open under a name into its place, where there is one."""
        if held is None:
            return
        is_late = self._late_ms is not None and held.came_ms is not None and held.came_ms < self._late_ms
        places = self._late if is_late else self._young
        if len(places) < MOST_TUPLES:
            places[name] = held

    def _found(self) -> dict[int, HeldOpen]:
        """All that have a place, the oldest first."""
        return dict(sorted((self._late | self._young).items()))


def _written(then: int, found: dict[int, HeldOpen]) -> bytes:
    return json.dumps([then, [[name, *held] for name, held in found.items()]]).encode()


def _read(note: bytes) -> tuple[int, dict[int, HeldOpen]]:
    then, found = json.loads(note)
    return then, {name: HeldOpen(came_ms, tuple(roots)) for name, came_ms, roots in found}
