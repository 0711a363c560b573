"""What a task remembers between micro-batches: the attributes it declared, and the tuples it holds.

Rules of this file
------------------
1. A tuple in remembered state is saved as a name. What it is and what it still owes (edges, ordinal, done)
   is stored once, in the table of held tuples, however many copies of the name there are.
2. The table is saved with the state, in the same commit; what cannot be saved whole changes nothing.
3. A held tuple that no remembered value names any more can never be acked: it is dropped, and times out.

Each blob carries the names of the tuples in it, so that the table can count who still names a tuple without
reading what did not change.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from types import FunctionType, MappingProxyType
from typing import Any, Final

import numpy as np

from acktree.core.data.tuples import Tuple
from acktree.core.durable import ByValuePickler, Unpickler, id_of
from acktree.core.ids import Int64s
from acktree.core.packing import int64s, pack, unpack
from acktree.core.programs import Reference
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.state.store import Below, StateStore
from acktree.core.state.stored_state import StoredState
from acktree.errors import MisuseError
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.held_tuples import HeldTuples
from acktree.tasks.bolts.oldest_held import HeldOpen
from acktree.tasks.bolts.rows.frame_rows import InboundRows, open_among
from acktree.texts import bounded, error_text

_NOTHING: Final = object()
_NO_NAMES: Final = np.zeros(0, dtype=np.int64)
_PLAIN: Final = frozenset({int, float, bool, str, bytes, complex, type(None)})
"""Exactly these types are pickled the same by every pickler, and hold no tuples."""
_MOST_SHOWN: Final = 300
"""Characters of an error that are repeated in ours."""


class _CountingStore:
    """A part of the task's store whose blobs name tuples; keeps the table's counts right."""

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

    def __init__(
        self,
        names: Sequence[str],
        store: StateStore,
        owner: object,
        *,
        late_ms: int | None = None,
        now_ms: int | None = None,
        kept: Mapping[str, StoredState[Any, Any]] = MappingProxyType({}),
    ) -> None:
        """Open the memory of a task.

        Args:
            names: The attributes that the component ``remembers``.
            store: The task's own part of the state store.
            owner: The collector that alone may ack the held tuples.
            late_ms: A held tuple that came before this clock is late: its messages are probably timed out.
            now_ms: The clock of the micro-batch, by which keys expire; None: no key expires.
            kept: By attribute what has stayed: see :attr:`staying`.
        """
        self._kept = kept
        self._names, self._late_ms, self._now_ms = names, late_ms, now_ms
        self._store = _Draft(store)
        self._held = HeldTuples(Below(self._store, "held/"), owner)
        self._attributes = _CountingStore(Below(self._store, "attribute/"), self._held)
        self._blobs: dict[str, bytes] = {}
        self.oldest_held_ms: int | None = None
        """The clock that brought the oldest tuple held, as last saved; None for none, or not known."""
        self._states: dict[str, StoredState[Any, Any]] = {}

    @property
    def oldest_open(self) -> Sequence[HeldOpen]:
        """The oldest open tuples held, a few, as last saved; empty where they are not known."""
        return self._held.oldest_open

    @property
    def held_count(self) -> int:
        """How many tuples the task held when its memory was last saved."""
        return len(self._held)

    @property
    def staying(self) -> dict[str, StoredState[Any, Any]]:
        """By attribute the states that may be used on by the next memory of this task, after :meth:`commit`.

        That memory's store must have what was committed here, and nothing else.
        """
        return {name: state for name, state in self._states.items() if state.may_stay}

    def restore(self, user_object: object) -> None:
        """Give the attributes their remembered values; where nothing is remembered they stay as prepared."""
        for name in self._names:
            blob = self._attributes.get(name)
            if blob is not None:
                self._blobs[name] = blob
            prepared = getattr(user_object, name, None)
            if blob is not None and name in self._kept and self._kept[name] is prepared:
                state = self._states[name] = self._kept[name]
                state.go_on(self._store_of(name, state), self._dumps, self._loads)
                continue
            value = _first_value(user_object, name) if blob is None else self._loads(blob)
            if isinstance(value, KeyValueState) and isinstance(prepared, KeyValueState):
                value.ttl_secs = prepared.ttl_secs  # the program may have changed it since the last run
            if isinstance(value, StoredState):
                # Its keys are stored beside the attribute; the attribute's own blob only says that it is one.
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
            MisuseError: An attribute does not pickle, or two are one object.
            Exception: A value in a state does not pickle.
        """
        self._refuse_aliases(user_object)
        for name in self._names:
            value = getattr(user_object, name, None)
            state = self._states.get(name)
            if state is not None and state is not value:  # something else took its place: it is forgotten
                state.clear()
                state.save()
                Below(self._store, f"state/{name}/").delete("meta")  # another kind of state may come there
            if isinstance(value, StoredState):
                if state is not value:
                    self._replace(name, value)
                value.save()
                value = value.emptied()
            blob = self._saved(name, value)
            if blob != self._blobs.get(name):
                self._attributes.put(name, blob)
        self._held.save()
        try:
            self.oldest_held_ms = self._held.note_oldest(self._late_ms)
        except Exception:  # noqa: BLE001  # it is for operators alone, and fails no tuple
            self.oldest_held_ms = None

    def _saved(self, name: str, value: object) -> bytes:
        try:
            return self._dumps(value)
        except BaseException as error:
            pass_on(error)
            raise MisuseError(
                f"what is remembered as {name!r} cannot be saved: {bounded(error_text(error), _MOST_SHOWN)}",
                "remembers",
                "remember plain data; make connections, locks and files in prepare()",
            ) from error

    def _refuse_aliases(self, user_object: object) -> None:
        """Each attribute is saved by itself: of one object under two names two would be restored."""
        named: dict[int, str] = {}
        for name in self._names:
            value = getattr(user_object, name, None)
            if isinstance(value, StoredState) or not _is_changeable(value):
                continue
            other = named.setdefault(id(value), name)
            if other != name:
                raise MisuseError(
                    f"the remembered attributes {[other, name]} are one {type(value).__name__}, "
                    "and would be two later",
                    "remembers",
                    "give each attribute an object of its own, or remember one object that holds both",
                )

    def _bind(self, name: str, state: StoredState[Any, Any]) -> None:
        if state.is_bound:
            kind = type(state).__name__
            others = [other for other, bound in self._states.items() if bound is state]
            raise MisuseError(
                f"the remembered attributes {[*others, name]} are one {kind}, and would be two later",
                "remembers",
                f"give each attribute a {kind} of its own",
            )
        state.bind(self._store_of(name, state), self._dumps, self._loads, self._now_ms)
        self._states[name] = state

    def _store_of(self, name: str, state: StoredState[Any, Any]) -> StateStore:
        store = Below(self._store, f"state/{name}/")
        if isinstance(state, KeyValueState):  # its values may be held tuples
            return _CountingStore(store, self._held)
        return store

    def _replace(self, name: str, state: StoredState[Any, Any]) -> None:
        """The bolt put a new state where another one was, or none."""
        fresh = copy.copy(state)
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
    """Whether it is a dict of plain values, as counts are, of which no pickler need ask: is this a tuple?

    Or such a dict in a tuple with plain values, as a bucket of a state whose keys expire.
    """
    if type(value) is tuple and value:
        return _is_plain(value[0]) and _PLAIN.issuperset(map(type, value[1:]))
    return type(value) is dict and _PLAIN.issuperset(map(type, (*value, *value.values())))


class _Pickler(ByValuePickler):
    """Pickles state; tuples become names, which are integers. Ids of classes are texts and tuples."""

    def __init__(self, file: io.BytesIO, held: HeldTuples) -> None:
        super().__init__(file, protocol=5)
        self._held = held
        self.names: set[int] = set()

    def persistent_id(self, value: object) -> int | str | Reference | None:
        if type(value) in _PLAIN:
            return None
        if isinstance(value, Tuple):
            name = self._held.name_of(value)
            self.names.add(name)
            return name
        return id_of(value)


class _Unpickler(Unpickler):
    def __init__(self, file: io.BytesIO, held: HeldTuples) -> None:
        super().__init__(file)
        self._held = held

    def persistent_load(self, name: int | str | Reference) -> Any:  # noqa: ANN401  # what the user remembers
        return self._held.tuple_of(name) if isinstance(name, int) else super().persistent_load(name)


def _names_in(blob: bytes) -> Int64s:
    return int64s(unpack(blob)[0]) if _holds_names(blob) else _NO_NAMES


def _holds_names(blob: bytes) -> bool:
    return not blob.startswith(b"{")  # a KeyValueState's own count is JSON, everything else is packed
