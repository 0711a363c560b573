"""Numbers by key that are kept between micro-batches, in columns: for bolts with many keys.

A ``KeyValueState`` holds any values, each key and value as Python objects. Here keys are of one type and
values are numbers, and both are columns from the store to the bolt: a call takes an Arrow column and makes no
Python object for a key. ``column_table.py`` is the table below; this file is the bolt's side of it.

Rules of this file
------------------
1. Values that are set key by key stay in a dict, and go to the table together: before the next call that
   concerns many keys, and when the micro-batch is saved.
2. What a call is given is checked before anything changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from acktree.core.data.hashing import stable_hash
from acktree.core.data.values import batch_from_bytes, batch_to_bytes
from acktree.core.state.column_arguments import (
    KEYS,
    NUMBERS,
    asked_keys,
    by_name,
    encoded_key,
    number,
    numbers,
    plain_key,
    refused,
)
from acktree.core.state.column_blobs import Numbers
from acktree.core.state.column_table import ColumnTable
from acktree.core.state.store import StateStore
from acktree.core.state.stored_state import StoredState
from acktree.errors import MisuseError, ProtocolError

K = TypeVar("K", str, bytes, int)

_ONLY: Final = "value"
"""The field of a state that has one number a key."""
_GIVEN: Final[Mapping[type, str]] = {str: "string", bytes: "binary", int: "int64"}
"""What columns of keys the bolt gets."""


class ColumnState(StoredState[K, Any]):
    """A mapping of keys to numbers for ``remembers``: make it in ``prepare``. For bolts with very many keys.

    ::

        self.counts = ColumnState(str, int)                               # a number for each key
        self.carts = ColumnState(int, {"items": int, "total": float})     # several

    Keys are ``str``, ``bytes`` or ``int`` (64 bits); numbers are ``int`` (64 bits, signed) or ``float``.
    Calls for many keys take an Arrow column of n keys, or anything else with n keys in it, and n numbers, or
    one number for all. Each value of a dictionary is looked up once, if it has no more of them than rows.
    Where a key has several fields, numbers are given as a mapping from names of fields to columns (or as a
    record batch), and come back as a record batch.

    It is also a mapping of Python objects: ``state[key]`` is the number, or a dict of the fields. That costs
    some microseconds a key; key by key a ``KeyValueState`` is faster. Iteration has no defined order.

    Raises:
        MisuseError: A key or number is of another type, or does not fit into 64 bits. Nothing has changed.
    """

    def __init__(self, key: type[K], values: type[int | float] | Mapping[str, type[int | float]]) -> None:
        """Begin without keys.

        Args:
            key: The type of keys: ``str``, ``bytes`` or ``int``.
            values: ``int`` or ``float``; or the names of the fields, each with its type.
        """
        fields = dict(values) if isinstance(values, Mapping) else {_ONLY: values}
        if key not in KEYS or not fields or not NUMBERS.keys() >= set(fields.values()):
            raise MisuseError(
                f"ColumnState({key!r}, {values!r}) cannot be",
                "ColumnState",
                "keys are str, bytes or int; values int, float, or a dict of field names with one of these",
            )
        if "key" in fields:
            raise MisuseError(
                "a field of the state is named 'key', as the column of keys is",
                "ColumnState",
                "name it otherwise",
            )
        self._key: type[Any] = key
        self._given_values, self._fields = values, fields
        self._single = not isinstance(values, Mapping)
        types = {name: np.dtype(NUMBERS[kind]) for name, kind in fields.items()}
        self._table = ColumnTable(pa.type_for_alias(KEYS[key]), types)
        self._set: dict[K, tuple[int | float, ...] | None] = {}  # set key by key; None: deleted
        self._is_bound = False

    # ---- many keys ----------------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[K], default: float | None = 0) -> pa.Array | pa.RecordBatch:
        """The number of each key, as an Arrow column of length n; a record batch if there are several fields.

        Args:
            keys: n keys; may be repeated.
            default: The number for keys that are not there; None for null.
        """
        slots = self._merged().find(asked_keys(self._key, keys))
        is_missing = slots < 0
        columns = {}
        for name, kind in self._fields.items():
            numbers = self._table.values(name, np.maximum(slots, 0))
            if default is not None:
                numbers[is_missing] = number(default, kind)
            columns[name] = pa.array(numbers, mask=is_missing if default is None else None)
        return columns[_ONLY] if self._single else pa.record_batch(columns)

    def contains_many(self, keys: Iterable[K]) -> pa.BooleanArray:
        """Whether each key is there, as an Arrow column of length n."""
        return pa.array(self._merged().find(asked_keys(self._key, keys)) >= 0)

    def update_many(self, keys: Iterable[K], values: Any) -> None:  # noqa: ANN401  # numbers in any column
        """Set the number of each key; of equal keys the last one counts.

        Args:
            keys: n keys.
            values: n numbers, or one; of several fields a mapping. A field that is not named keeps its
                number, and is 0 for a new key.
        """
        asked = asked_keys(self._key, keys)
        numbers = self._columns_of(values, len(asked))
        self._merged().put(asked, numbers)

    def add_many(self, keys: Iterable[K], values: Any = 1) -> pa.Array | pa.RecordBatch:  # noqa: ANN401
        """Add to the number of each key; a key that is not there begins with 0. Equal keys add up.

        Args:
            keys: n keys.
            values: n numbers, or one; of several fields a mapping of those to add to.

        Returns:
            For each key its number after all of this, as a column of length n; a record batch of the
            fields that were added to, where there are several fields.

        Raises:
            MisuseError: A sum could leave 64 bits. Nothing was added.
        """
        asked = asked_keys(self._key, keys)
        numbers = self._columns_of(values, len(asked))
        sums = {name: pa.array(column) for name, column in self._merged().add(asked, numbers).items()}
        return sums[_ONLY] if self._single else pa.record_batch(sums)

    def remove_many(self, keys: Iterable[K]) -> None:
        """Delete keys; those that are not there are left out."""
        self._merged().remove(asked_keys(self._key, keys))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All keys and numbers as they are now, in record batches: a column ``key``, and one for each field.

        Keys that were not read yet are read bucket by bucket and not kept, so that a state of any size can be
        looked through.
        """
        for keys, columns in self._merged().batches():
            key_column = {"key": keys.cast(_GIVEN[self._key])}
            yield pa.record_batch(key_column | dict(zip(self._fields, map(pa.array, columns), strict=True)))

    def put_batch(self, batch: pa.RecordBatch) -> None:
        """Set the keys and numbers of a record batch as :meth:`batches` gives them."""
        self.update_many(batch["key"], batch[_ONLY] if self._single else batch.select([*self._fields]))

    # ---- key by key ---------------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> Any:  # noqa: ANN401
        stored = self._look_up(key)
        if stored is None:
            raise KeyError(key)
        return stored[0] if self._single else dict(zip(self._fields, stored, strict=True))

    def get(self, key: K, default: Any = None) -> Any:  # noqa: ANN401
        # Not inherited: Mapping.get raises and catches a KeyError for each missing key.
        stored = self._look_up(key)
        if stored is None:
            return default
        return stored[0] if self._single else dict(zip(self._fields, stored, strict=True))

    def __setitem__(self, key: K, value: Any) -> None:  # noqa: ANN401
        key = plain_key(self._key, key)
        if self._single:
            self._set[key] = (number(value, self._fields[_ONLY]),)
            return
        if not isinstance(value, Mapping) or value.keys() != self._fields.keys():
            raise refused(f"{value!r:.80} is set, and not all fields", f"give each of {[*self._fields]}")
        self._set[key] = tuple(number(value[name], kind) for name, kind in self._fields.items())

    def __delitem__(self, key: K) -> None:
        if self._look_up(key) is None:
            raise KeyError(key)
        self._set[plain_key(self._key, key)] = None

    def __contains__(self, key: object) -> bool:
        return self._look_up(key) is not None

    def __iter__(self) -> Iterator[K]:
        for batch in self.batches():
            yield from batch["key"].to_pylist()

    def __len__(self) -> int:
        return len(self._merged())

    def __repr__(self) -> str:
        return f"ColumnState({len(self)} keys)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle it as an unbound state with all its keys."""
        return ColumnState, (self._key, self._given_values), [*map(batch_to_bytes, self.batches())]

    def __setstate__(self, batches: list[bytes]) -> None:
        for batch in batches:
            self.put_batch(batch_from_bytes(batch))

    def clear(self) -> None:
        """Delete all keys."""
        self._merged().clear()

    def update(self, other: Any = (), /, **more: Any) -> None:  # noqa: ANN401  # as MutableMapping
        """Set what another mapping holds; of another ColumnState by columns."""
        if isinstance(other, ColumnState):
            for batch in other.batches():
                self.put_batch(batch)
            other = ()
        super().update(other, **more)

    # ---- what the task calls ------------------------------------------------------------------------------

    @property
    def is_bound(self) -> bool:
        """Whether it is bound to a state store."""
        return self._is_bound

    def bind(
        self,
        store: StateStore,
        dumps: Callable[[object], bytes],  # noqa: ARG002  # numbers are not pickled
        loads: Callable[[bytes], Any],  # noqa: ARG002
        now_ms: int | None = None,  # noqa: ARG002  # keys in columns do not expire
    ) -> None:
        """Attach it to a store: continue from the store's content, or from its own if the store is empty.

        Called by the task between ``prepare`` and the first tuple.
        """
        self._merged().bind(store)
        self._is_bound = True

    def save(self) -> None:
        """Write the changes since :meth:`bind`; called by the task at the end of its micro-batch."""
        if not self.is_bound:
            raise ProtocolError(
                "an unbound state was saved", repr(self), "this is a bug in acktree: please report it"
            )
        self._merged().save()

    @property
    def may_stay(self) -> bool:
        return self._table.may_stay

    def go_on(
        self,
        store: StateStore,
        dumps: Callable[[object], bytes],  # noqa: ARG002  # numbers are not pickled
        loads: Callable[[bytes], Any],  # noqa: ARG002
    ) -> None:
        self._table.go_on(store)

    def emptied(self) -> ColumnState[K]:
        """An empty, unbound state with the same key type and fields."""
        return ColumnState(self._key, self._given_values)

    # ---- checks and conversions ---------------------------------------------------------------------------

    def _merged(self) -> ColumnTable:
        """The table, with what was set key by key."""
        if self._set:
            changed = self._set
            kept = {key: numbers for key, numbers in changed.items() if numbers is not None}
            if kept:
                columns = zip(*kept.values(), strict=True)
                numbers = {
                    name: np.array(column, dtype=NUMBERS[kind])
                    for (name, kind), column in zip(self._fields.items(), columns, strict=True)
                }
                self._table.put(asked_keys(self._key, kept), numbers)
            if len(kept) < len(changed):
                gone = [key for key, row in changed.items() if row is None]
                self._table.remove(asked_keys(self._key, gone))
            self._set = {}  # last: an exception from outside before this repeats the same values
        return self._table

    def _look_up(self, key: Any) -> tuple[int | float, ...] | None:  # noqa: ANN401
        if key in self._set:
            return self._set[key]
        slot = self._table.find_one(encoded_key(self._key, key), stable_hash(key))
        if slot < 0:
            return None
        return tuple(self._table.value(name, slot) for name in self._fields)

    def _columns_of(self, values: Any, count: int) -> dict[str, Numbers]:  # noqa: ANN401
        """Numbers by field, each of shape (count,)."""
        columns: dict[str, Any] = {_ONLY: values} if self._single else by_name(values)
        if not columns or not columns.keys() <= self._fields.keys():
            raise refused(
                f"numbers for {[*columns]}, of a state with the fields {[*self._fields]}",
                "give a mapping from names of fields to columns",
            )
        return {name: numbers(column, self._fields[name], count, name) for name, column in columns.items()}
