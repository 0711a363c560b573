"""What a task remembers between micro-batches: the attributes it declared, and the tuples it holds.

Rules of this file
------------------
1. A tuple in remembered state is saved as a name. What it is and what it still owes (edges, ordinal, done)
   stands once, in the table of held tuples, however many copies of the name there are.
2. The table is saved with the state, in the same commit; what cannot be saved whole changes nothing.
3. A held tuple that no remembered value names any more can never be acked: it is dropped, and times out.

Each blob carries the names of the tuples in it, so that the table can count who still names a tuple without
reading what did not change.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import struct
from collections.abc import Iterable, MutableMapping, MutableSequence, MutableSet, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import FunctionType
from typing import Any, Final

import cloudpickle
import numpy as np

from acktree.core.data.tuples import Tuple
from acktree.core.durable import class_of, dumps_by_value, loads, tag_of
from acktree.core.ids import Int64s
from acktree.core.packing import int64s, pack, unpack
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.state.store import Below, StateStore
from acktree.core.tracking.lineage import lineage_from_bytes
from acktree.errors import MisuseError
from acktree.tasks.bolts.rows import OPEN, InboundRows, account_of, open_among

__all__ = ["HeldTuples", "TaskMemory"]

_NEXT_ID: Final = ""
"""The table's own entry: the next name to give. Names are integers, so it is no tuple's."""
_NOTHING: Final = object()
_NO_NAMES: Final = np.zeros(0, dtype=np.int64)
_ACCOUNT: Final = struct.Struct("<BB6xqqqqqqq")
"""Of a held tuple: version, fate, task id, ordinal, XOR of the edges below it, named by, came at (ms), and
how many bytes of names and of lineage follow."""
_VERSION: Final = 1
"""Of the layout of a held tuple's record."""
_PLAIN: Final = frozenset({int, float, bool, str, bytes, complex, type(None)})
"""Exactly these types are pickled the same by every pickler, and hold no tuples."""


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
            rows.component,
            rows.stream,
            rows.task_of(row),
            rows.fields,
            dumps_by_value(rows.cells_of(row)),
            rows.lineage.take(np.array([row])).to_bytes(),
            rows.fate[row],
            rows.ordinal,
            int(rows.ack_values[row]),
            named_by,
            rows.came_ms,
        )

    def rows(self) -> InboundRows:
        """The tuple as a frame of one row, with its account as it was."""
        lineage = lineage_from_bytes(self.lineage)
        columns = [(value,) for value in loads(self.values)]
        rows = InboundRows(self.component, self.stream, self.task_id, self.fields, lineage, columns)
        rows.fate[0] = self.fate
        rows.ordinal = self.ordinal
        rows.ack_values[0] = self.ack_value
        rows.came_ms = self.came_ms
        return rows

    def to_bytes(self) -> bytes:
        """Its record in the table of held tuples, whose first byte is the version of the layout.

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
            component, stream, task_id, fields, record[values_at:], record[lineage_at:values_at],
            fate, ordinal, ack_value, named_by, came_ms,
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
        self._owner = owner
        self._handles: dict[int, Tuple] = {}
        self._named_by: dict[int, int] = {}
        self._before: dict[int, tuple[int, int]] = {}
        self.dropped: list[tuple[InboundRows, int]] = []
        """Tuples of earlier micro-batches that are open, and that nothing names any more."""

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

    def holds(self, rows: InboundRows, row: int) -> bool:
        """Whether a remembered value names a tuple, as of the last :meth:`save`."""
        return self._named_by.get(rows.held_id.get(row, -1), 0) > 0


class _CountingStore:
    """A corner of the task's store whose blobs name tuples; keeps the table's counts right."""

    def __init__(self, store: StateStore, held: HeldTuples) -> None:
        self._store, self._held = store, held
        self._names: dict[str, Int64s] = {}

    def get(self, name: str) -> bytes | None:
        blob = self._store.get(name)
        if blob is not None:
            self._names[name] = _names_in(blob)
        return blob

    def put(self, name: str, blob: bytes) -> None:
        names = _names_in(blob)
        self._held.count(names, +1)
        self._forget(name)
        self._names[name] = names
        self._store.put(name, blob)

    def delete(self, name: str) -> None:
        self._forget(name)
        self._store.delete(name)

    def _forget(self, name: str) -> None:
        if name in self._names:
            self._held.count(self._names.pop(name), -1)


class _Draft:
    """A store whose changes are made all at once, by :meth:`commit`, or not at all."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._changed: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        return self._changed[name] if name in self._changed else self._store.get(name)

    def put(self, name: str, blob: bytes) -> None:
        self._changed[name] = blob

    def delete(self, name: str) -> None:
        self._changed[name] = None

    def commit(self) -> None:
        for name, blob in self._changed.items():
            if blob is not None:
                self._store.put(name, blob)
            elif self._store.get(name) is not None:
                self._store.delete(name)
        self._changed.clear()


class TaskMemory:
    """The remembered attributes of one task: restored after ``prepare``, saved when its micro-batch ends."""

    def __init__(self, names: Sequence[str], store: StateStore, owner: object) -> None:
        """Open the memory of a task.

        Args:
            names: The attributes that the component ``remembers``.
            store: The task's own corner of the state store.
            owner: The collector that alone may ack the held tuples.
        """
        self._names = names
        self._store = _Draft(store)
        self._held = HeldTuples(Below(self._store, "held/"), owner)
        self._attributes = _CountingStore(Below(self._store, "attribute/"), self._held)
        self._blobs: dict[str, bytes] = {}
        self._states: dict[str, KeyValueState[Any, Any]] = {}

    @property
    def held_count(self) -> int:
        """How many tuples the task held when its memory was last saved."""
        return len(self._held)

    def restore(self, user_object: object) -> None:
        """Give the attributes their remembered values; where nothing is remembered they stay as prepared."""
        for name in self._names:
            blob = self._attributes.get(name)
            if blob is not None:
                self._blobs[name] = blob
            value = _first_value(user_object, name) if blob is None else self._loads(blob)
            if isinstance(value, KeyValueState):
                # Its keys lie beside the attribute; the attribute's own blob only says that it is one.
                self._bind(name, value)
            if value is not _NOTHING:
                setattr(user_object, name, value)
        self._refuse_aliases(user_object)

    def moved_tuples(self) -> list[tuple[InboundRows, int]]:
        """Held tuples of earlier micro-batches whose account changed in this one: rows, and which of them."""
        return self._held.moved()

    def forgotten(self, left: Iterable[InboundRows]) -> list[tuple[InboundRows, list[int]]]:
        """The open tuples that nothing remembered names; asked after :meth:`draft`.

        Args:
            left: Rows of this micro-batch of which some are open.
        """
        dropped = [(rows, [row]) for rows, row in self._held.dropped]
        open_rows = [
            (rows, [row for row in open_among(rows) if not self._held.holds(rows, row)]) for rows in left
        ]
        return dropped + open_rows

    def save(self, user_object: object) -> None:
        """Write what changed since :meth:`restore`: a draft and its commit."""
        self.draft(user_object)
        self.commit()

    def commit(self) -> None:
        """Hand the draft to the store. What the store raises must end the micro-batch: a part is written."""
        self._store.commit()

    def draft(self, user_object: object) -> None:
        """Find out what changed since :meth:`restore`, as bytes; the store is given nothing yet.

        Raises:
            Exception: Something remembered does not pickle.
        """
        self._refuse_aliases(user_object)
        for name in self._names:
            value = getattr(user_object, name, None)
            state = self._states.get(name)
            if state is not None and state is not value:  # something else took its place: it is forgotten
                state.clear()
                state.save()
            if isinstance(value, KeyValueState):
                if state is not value:
                    self._replace(name, value)
                value.save()
                value = KeyValueState()
            blob = self._dumps(value)
            if blob != self._blobs.get(name):
                self._attributes.put(name, blob)
        self._held.save()

    def _refuse_aliases(self, user_object: object) -> None:
        """Each attribute is saved by itself: of one object under two names two would be restored."""
        named: dict[int, str] = {}
        for name in self._names:
            value = getattr(user_object, name, None)
            if isinstance(value, KeyValueState) or not _is_changeable(value):
                continue
            other = named.setdefault(id(value), name)
            if other != name:
                raise MisuseError(
                    f"the remembered attributes {[other, name]} are one {type(value).__name__}, "
                    "and would be two later",
                    "remembers",
                    "give each attribute an object of its own, or remember one object that holds both",
                )

    def _bind(self, name: str, state: KeyValueState[Any, Any]) -> None:
        if state.is_bound:
            others = [other for other, bound in self._states.items() if bound is state]
            raise MisuseError(
                f"the remembered attributes {[*others, name]} are one KeyValueState, and would be two later",
                "remembers",
                "give each attribute a KeyValueState of its own",
            )
        state.bind(_CountingStore(Below(self._store, f"state/{name}/"), self._held), self._dumps, self._loads)
        self._states[name] = state

    def _replace(self, name: str, state: KeyValueState[Any, Any]) -> None:
        """The bolt put a new state where another one was, or none."""
        fresh = dict(state)
        self._bind(name, state)
        state.update(fresh)

    def _dumps(self, value: object) -> bytes:
        if _is_plain(value):
            return pack(_NO_NAMES, pickle.dumps(value, protocol=5))
        file = io.BytesIO()
        pickler = _Pickler(file, self._held)
        pickler.dump(value)
        return pack(np.array(sorted(pickler.names), dtype=np.int64), file.getvalue())

    def _loads(self, blob: bytes) -> Any:  # noqa: ANN401  # what the user remembers
        return _Unpickler(io.BytesIO(unpack(blob)[1]), self._held).load()


def _first_value(user_object: object, name: str) -> object:
    """What ``prepare`` or ``__init__`` set; of a class's own value a copy, which other tasks do not share."""
    value = getattr(user_object, name, _NOTHING)
    return value if value is _NOTHING or name in vars(user_object) else copy.deepcopy(value)


def _is_changeable(value: object) -> bool:
    """Whether it matters that two names mean one object: a container, or what is compared by identity."""
    if isinstance(value, MutableSequence | MutableMapping | MutableSet | np.ndarray):
        return True
    by_identity = type(value).__hash__ is object.__hash__ and type(value).__eq__ is object.__eq__
    return by_identity and hasattr(value, "__dict__") and not isinstance(value, type | FunctionType)


def _is_plain(value: object) -> bool:
    """Whether it is a dict of plain values, as counts are, of which no pickler need ask: is this a tuple?"""
    return type(value) is dict and _PLAIN.issuperset(map(type, (*value, *value.values())))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles state; tuples become names, which are integers, and classes of ours tags, which are texts."""

    def __init__(self, file: io.BytesIO, held: HeldTuples) -> None:
        super().__init__(file, protocol=5)
        self._held = held
        self.names: set[int] = set()

    def persistent_id(self, value: object) -> int | str | None:
        if type(value) in _PLAIN:
            return None
        if isinstance(value, Tuple):
            name = self._held.name_of(value)
            self.names.add(name)
            return name
        return tag_of(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, held: HeldTuples) -> None:
        super().__init__(file)
        self._held = held

    def persistent_load(self, name: int | str) -> Tuple | type:
        return class_of(name) if isinstance(name, str) else self._held.tuple_of(name)


def _names_in(blob: bytes) -> Int64s:
    return int64s(unpack(blob)[0]) if _holds_names(blob) else _NO_NAMES


def _holds_names(blob: bytes) -> bool:
    return not blob.startswith(b"{")  # a KeyValueState's own count is JSON, everything else is packed
