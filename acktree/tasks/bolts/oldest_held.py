"""Which messages the oldest tuples belong to that a task holds, for operators who ask where a message is.

Rules of this file
------------------
1. What is noted is bounded: :data:`MOST_TUPLES` tuples, and :data:`MOST_ROOTS` roots of each, twice.
2. Names are given in order, so the smallest is the oldest. A tuple that was acked never becomes open again,
   and its roots do not change. So each name is looked at once, and again only when its tuple was touched.
3. A task does not know verdicts. The messages of *late* tuples have probably timed out, and these would fill
   all places. So the oldest tuples that are not late are noted beside the oldest of all.
4. It is kept beside the table of held tuples. A table of an earlier release has no such note, and an earlier
   release does not read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple

from acktree.core.state.store import StateStore

MOST_TUPLES: Final = 10
"""The oldest open tuples of a task of which the messages are known, and the oldest that are not late."""
MOST_ROOTS: Final = 10
"""How many roots of one tuple: one may be anchored to any number of messages."""
_OF_ALL: Final = "oldest-open"
"""Where the oldest are noted, beside the table."""
_IN_TIME: Final = "oldest-in-time"
"""Where the oldest are noted that are not late."""
_FIRST_IN_TIME: Final = "first-in-time"
"""Where it is noted that each smaller name is late, or given to nothing."""
_MOST_PASSED: Final = 4096
"""How many names may be found late in one micro-batch; the next one goes on."""


class HeldOpen(NamedTuple):
    """An open tuple that a task holds: the clock that brought it, None if not known, and its roots."""

    came_ms: int | None
    roots: tuple[int, ...]


Look = Callable[[int], HeldOpen | None]
"""What is held open under a name; None where nothing is, or where it belongs to no message."""
IsLate = Callable[[int], bool]
"""Whether what is held under a name is late; True where nothing is."""


class OldestHeld:
    """The oldest open tuples of one task's table, by name."""

    def __init__(self, store: StateStore, look: Look, is_late: IsLate) -> None:
        """Read what is noted beside the table.

        Args:
            store: Where the table is.
            look: Reads the table.
            is_late: Reads the table too.
        """
        self._store, self._look, self._is_late = store, look, is_late

    def searched(self, names: Iterable[int]) -> Sequence[HeldOpen]:
        """Look at the names of a small table, until there is enough. Nothing is noted."""
        found: dict[int, HeldOpen] = {}
        in_time = 0
        for name in sorted(names):
            if in_time == MOST_TUPLES:
                break
            is_late = self._is_late(name)
            if (len(found) < MOST_TUPLES or not is_late) and (held := self._look(name)) is not None:
                found[name] = held
                in_time += not is_late
        return [*found.values()]

    def noted(self, first: int, end: int, touched: Container[int]) -> Sequence[HeldOpen]:
        """Look at the names of a large table that are new or may have changed, and note what is found.

        Args:
            first: The smallest name in the table.
            end: The next name to give.
            touched: The names whose tuples may have changed in this micro-batch.
        """
        found = self._from(first, end, touched, _OF_ALL)
        in_time = self._first_in_time(first, end)
        if in_time > first:  # else these are the same
            found |= self._from(in_time, end, touched, _IN_TIME)
        return [*found.values()]

    def _first_in_time(self, first: int, end: int) -> int:
        """The smallest name that is not late, as far as it is known."""
        noted = self._store.get(_FIRST_IN_TIME)
        before = first if noted is None else max(first, int(noted))
        name, most = before, min(end, before + _MOST_PASSED)
        while name < most and self._is_late(name):
            name += 1
        if name > first and (noted is None or int(noted) != name):
            self._store.put(_FIRST_IN_TIME, str(name).encode())
        return name

    def _from(self, first: int, end: int, touched: Container[int], place: str) -> dict[int, HeldOpen]:
        """The oldest from a name on, of which what was found before is noted at a place."""
        blob = self._store.get(place)
        then, known = (first, {}) if blob is None else _read(blob)
        found: dict[int, HeldOpen] = {}
        for name, held in known.items():
            if name < first:
                continue
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
            self._store.put(place, note)
        return found

    def _look_at(self, name: int, found: dict[int, HeldOpen]) -> None:
        """Add what is held open under a name."""
        if (held := self._look(name)) is not None:
            found[name] = held


def _written(then: int, found: dict[int, HeldOpen]) -> bytes:
    return json.dumps([then, [[name, *held] for name, held in found.items()]]).encode()


def _read(note: bytes) -> tuple[int, dict[int, HeldOpen]]:
    then, found = json.loads(note)
    return then, {name: HeldOpen(came_ms, tuple(roots)) for name, came_ms, roots in found}
