"""The table of the tuples that a task holds between micro-batches: by name, with what each still owes.

A record of the table says what a tuple is, and its edges, ordinal and fate. What a tuple's name is, and why
it has one: see ``memory.py``.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from acktree.core.data.tuples import Tuple
from acktree.core.durable import dumps_by_value, loads
from acktree.core.ids import Int64s
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.state.store import StateStore
from acktree.core.tracking.lineages import lineage_from_bytes
from acktree.errors import MisuseError
from acktree.tasks.bolts.oldest_held import MOST_ROOTS, HeldOpen, OldestHeld
from acktree.tasks.bolts.rows.frame_rows import OPEN, InboundRows, account_of

_NEXT_ID: Final = ""
"""The table's own entry: the next name to give. It cannot clash: tuples are named by integers."""
MOST_SEARCHED: Final = 256
"""While at most this number of names was given, the smallest is searched for; afterwards it is stored."""
_OLDEST: Final = "oldest"
"""Where it is noted, beside the table: no name of it is smaller. An earlier release does not read it."""
_CAME_MS: Final = 6
"""The place of "came at" among the numbers of a record."""
_ACCOUNT: Final = struct.Struct("<BB6xqqqqqqq")
"""Of a held tuple: version, fate, task id, ordinal, XOR of the edges below it, named by, came at (ms), and
how many bytes of names and of lineage follow."""
_VERSION: Final = 1
"""Of the layout of a held tuple's record."""


@dataclass
class _Held:
    """One tuple between micro-batches: what is saved of a row of :class:`InboundRows`."""

    component: str
    stream: str
    task_id: int
    fields: tuple[str, ...]
    values: bytes
    lineage: bytes
    fate: int
    ordinal: int
    ack_value: int
    named_by: int
    came_ms: int = -1

    @classmethod
    def of(cls, rows: InboundRows, row: int, named_by: int) -> _Held:
        return cls(
            rows.component, rows.stream, task_id=rows.task_of(row), fields=rows.fields,
            values=dumps_by_value(rows.cells_of(row)),
            lineage=rows.lineage.take(np.array([row])).sparse().to_bytes(), fate=rows.fate[row],
            ordinal=rows.ordinal, ack_value=int(rows.ack_values[row]), named_by=named_by,
            came_ms=rows.came_ms,
        )  # fmt: skip

    def rows(self) -> InboundRows:
        """The tuple as a frame of one row, with its account as it was."""
        lineage = lineage_from_bytes(self.lineage)
        columns = [(value,) for value in loads(self.values)]
        rows = InboundRows(
            self.component, self.stream, task_ids=self.task_id, fields=self.fields, lineage=lineage,
            columns=columns,
        )  # fmt: skip
        rows.fate[0] = self.fate
        rows.ordinal = self.ordinal
        rows.ack_values[0] = self.ack_value
        rows.came_ms = self.came_ms
        return rows

    def to_bytes(self) -> bytes:
        """The record in the table of held tuples; the first byte is the version of the layout.

        One after the other: numbers (:data:`_ACCOUNT`); names, as JSON; lineage; values, by ``durable.py``.
        """
        named = _named(self.component, self.stream, self.fields)
        account = _ACCOUNT.pack(
            _VERSION, self.fate, self.task_id, self.ordinal, self.ack_value, self.named_by, self.came_ms,
            len(named), len(self.lineage),
        )  # fmt: skip
        return b"".join((account, named, self.lineage, self.values))

    @classmethod
    def from_bytes(cls, record: bytes) -> _Held:
        """Read what :meth:`to_bytes` wrote."""
        _, fate, task_id, ordinal, ack_value, named_by, came_ms, *lengths = _ACCOUNT.unpack_from(record)
        lineage_at = _ACCOUNT.size + lengths[0]
        values_at = lineage_at + lengths[1]
        component, stream, fields = _names_of(record[_ACCOUNT.size : lineage_at])
        return cls(
            component, stream, task_id, fields, values=record[values_at:],
            lineage=record[lineage_at:values_at], fate=fate, ordinal=ordinal, ack_value=ack_value,
            named_by=named_by, came_ms=came_ms,
        )  # fmt: skip


@lru_cache(maxsize=256)
def _named(component: str, stream: str, fields: tuple[str, ...]) -> bytes:
    return json.dumps((component, stream, fields)).encode()


@lru_cache(maxsize=256)
def _names_of(named: bytes) -> tuple[str, str, tuple[str, ...]]:
    component, stream, fields = json.loads(named)
    return component, stream, tuple(fields)


class HeldTuples:
    """The table of one task's held tuples, by name."""

    def __init__(self, store: StateStore, owner: object) -> None:
        """Open the table.

        Args:
            owner: The collector that alone may ack the tuples; see :class:`InboundRows`.
        """
        self._saved: KeyValueState[object, Any] = KeyValueState()
        self._saved.bind(store, partial(pickle.dumps, protocol=5), pickle.loads)  # numbers and bytes alone
        self._store, self._owner = store, owner
        self._handles: dict[int, Tuple] = {}
        self._named_by: dict[int, int] = {}
        self._before: dict[int, tuple[int, int]] = {}
        self.dropped: list[tuple[InboundRows, int]] = []
        """Tuples of earlier micro-batches that are open, and that nothing names any more."""
        self.oldest_open: Sequence[HeldOpen] = ()
        """The oldest open tuples, a few: as of the last :meth:`note_oldest`."""

    def __len__(self) -> int:
        return len(self._saved) - (_NEXT_ID in self._saved)

    def name_of(self, tup: Tuple) -> int:
        """The name under which a tuple is saved; a new one the first time."""
        rows, row = account_of(tup)
        if rows.owner is not self._owner:
            raise MisuseError(
                f"a tuple is remembered that this task was not given in this micro-batch: {tup!r}",
                "remembered attributes",
                "keep tuples in attributes that the bolt `remembers`, and nowhere else",
            )
        name = rows.held_id.get(row)
        if name is None:
            name = int(self._saved.get(_NEXT_ID, 0))
            self._saved[_NEXT_ID] = name + 1
            self._named_by[name] = 0
            self._handles[name] = tup
            rows.held_id[row] = name
        return name

    def tuple_of(self, name: int) -> Tuple:
        """The tuple of a name; the same object each time within a micro-batch."""
        if name not in self._handles:
            held = _Held.from_bytes(self._saved[name])
            rows = held.rows()
            rows.held_id[0] = name
            rows.owner = self._owner
            self._named_by[name] = held.named_by
            self._before[name] = (held.fate, held.ordinal)
            self._handles[name] = rows.handle(0)  # last: what is interrupted here begins again
        return self._handles[name]

    def count(self, names: Int64s, step: int) -> None:
        """A blob that names these tuples was written (+1) or is no more (-1)."""
        for name in names.tolist():
            self.tuple_of(name)
            self._named_by[name] += step

    def moved(self) -> list[tuple[InboundRows, int]]:
        """The tuples held from earlier micro-batches that were acked, failed or emitted from in this one."""
        accounts = {name: account_of(self._handles[name]) for name in self._before if name in self._handles}
        return [
            (rows, row)
            for name, (rows, row) in accounts.items()
            if (rows.fate[row], rows.ordinal) != self._before[name]
        ]

    def save(self) -> None:
        """Write the tuples that were touched; forget those that nothing names."""
        for name, tup in self._handles.items():
            if self._named_by[name]:
                self._saved[name] = _Held.of(*account_of(tup), self._named_by[name]).to_bytes()
                continue
            self._saved.pop(name, None)
            rows, row = account_of(tup)
            if name in self._before and rows.fate[row] == OPEN:
                self.dropped.append((rows, row))
        self._saved.save()

    def note_oldest(self, late_ms: int | None) -> int | None:
        """The clock of the micro-batch that brought the oldest tuple; None for none, or not known.

        Called after :meth:`save`. Names are given in order, so the smallest is the oldest. It is searched for
        among the first names. Later it is noted: it only grows, so each name is looked up once.

        Args:
            late_ms: A tuple that came before this clock is late: its messages are probably timed out.
        """
        self.oldest_open = ()

        def is_late(name: int) -> bool:
            if name not in self._saved:
                return True
            came_ms = self._came_ms(name)
            return late_ms is not None and came_ms is not None and came_ms < late_ms

        oldest = OldestHeld(self._store, self._held_open, is_late)
        end = int(self._saved.get(_NEXT_ID, 0))
        if end <= MOST_SEARCHED:
            if not len(self):
                return None
            self.oldest_open = oldest.searched(self._names())
            return self._came_ms(min(self._names()))
        noted = self._store.get(_OLDEST)
        name = min(self._names(), default=end) if noted is None else int(noted)
        while name < end and name not in self._saved:
            name += 1
        if noted is None or int(noted) != name:
            self._store.put(_OLDEST, str(name).encode())
        if not len(self):
            return None
        self.oldest_open = oldest.noted(name, end, self._handles)
        return self._came_ms(name)

    def _names(self) -> Iterator[int]:
        return (name for name in self._saved if isinstance(name, int))

    def _held_open(self, name: int) -> HeldOpen | None:
        """What is held open under a name; None where nothing is, or where it belongs to no message."""
        record = self._saved.get(name)
        if record is None:
            return None
        held = _Held.from_bytes(record)
        if held.fate != OPEN:
            return None
        roots = lineage_from_bytes(held.lineage).roots_of(np.zeros(1, dtype=np.int64)).tolist()
        came_ms = held.came_ms if held.came_ms >= 0 else None
        return HeldOpen(came_ms, tuple(roots[:MOST_ROOTS])) if roots else None

    def _came_ms(self, name: int) -> int | None:
        came_ms = int(_ACCOUNT.unpack_from(self._saved[name])[_CAME_MS])
        return came_ms if came_ms >= 0 else None

    def holds(self, rows: InboundRows, row: int) -> bool:
        """Whether a remembered value names a tuple, as of the last :meth:`save`."""
        return self._named_by.get(rows.held_id.get(row, -1), 0) > 0
