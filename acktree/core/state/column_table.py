"""The rows of a ``ColumnState``: keys in slots, a column of numbers for each field, read and saved by bucket.

Rules of this file
------------------
1. A row is a slot. Rows of a bucket are read together, when one of its keys is asked for; all buckets that a
   call needs are read before it changes anything.
2. A change is worked out first, as absolute values. Then it is noted with one assignment, and made. If an
   exception from outside interrupts that, the next access makes it again: a call happens whole, or not.
3. Slots behind ``Extent.slots`` are not there. So rows can be read and added by writing them first, and then
   the extent.
4. A bucket whose keys are as they were stored is saved from its columns alone. Only where keys came or went
   are its keys collected again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree.core.data.hashing import hash_column
from acktree.core.ids import Int64s
from acktree.core.state.asked_keys import AskedKeys
from acktree.core.state.buckets import bucket_of, buckets_of, divided
from acktree.core.state.column_blobs import Numbers, StoredKeys, decoded, encoded
from acktree.core.state.column_changes import ColumnChange, Extent, Flags, Marks, ReadBucket, Rows, Where
from acktree.core.state.key_table import KeyTable, grown
from acktree.core.state.store import MemoryStore, StateStore
from acktree.errors import MisuseError

KEYS_PER_BUCKET: Final = 1024
"""The most keys of a bucket on average, when a state is saved."""

_BATCH_ROWS: Final = 1 << 16
_READ_AT_ONCE: Final = 64
_MOST_SLOTS: Final = 1 << 19
"""With more rows than this it does not stay in memory."""
_MOST_BYTES: Final = 1 << 24
"""And not with more bytes of keys than this."""
_DENSE: Final = 4
"""If the added rows times this are more than all rows, a sum for every row costs less than sorting."""


class ColumnTable:
    """Numbers by key."""

    def __init__(self, kind: pa.DataType, fields: Mapping[str, np.dtype[Any]]) -> None:
        """Begin empty.

        Args:
            kind: The type of keys: ``int64``, ``large_string`` or ``large_binary``.
            fields: The name of each field, and whether it is ``int64`` or ``float64``.
        """
        self._kind, self._fields = kind, dict(fields)
        self._store: StateStore = MemoryStore()
        self._stored_meta: bytes | None = None
        self._begin(np.ones(1, dtype=np.bool_), 0)

    def _begin(self, is_read: Flags, unread: int) -> None:
        self._keys = KeyTable(self._kind)
        self._values: dict[str, Numbers] = {name: np.zeros(1, kind) for name, kind in self._fields.items()}
        self._alive: Flags = np.zeros(1, dtype=np.bool_)  # never empty, so that any slot can be looked at
        self._read_buckets: dict[int, ReadBucket] = {}
        self._marks = Marks.of(len(is_read))
        self._extent = Extent(0, is_read, unread)
        self._change: ColumnChange | None = None
        self._has_same_keys = False

    def __len__(self) -> int:
        self._finish()
        return int(np.count_nonzero(self._alive[: self._extent.slots])) + self._extent.unread

    # ---- look up ------------------------------------------------------------------------------------------

    def find(self, asked: AskedKeys) -> Int64s:
        """The slot of each key, shape (n,); -1 for a key that is not there."""
        return asked.of_each(self._alive_slots(asked))

    def _alive_slots(self, asked: AskedKeys) -> Int64s:
        slots = self._located(asked.keys)
        slots[(slots >= 0) & ~self._alive[slots]] = -1
        return slots

    def find_one(self, key: int | bytes, key_hash: int) -> int:
        """The slot of one key (a text as UTF-8) with this hash; -1 if it is not there."""
        self._finish()
        number = bucket_of(key_hash, self._extent.buckets)
        if not self._extent.is_read[number]:
            self._read(np.array([number]))
        slot = self._keys.find_one(key, key_hash, self._extent.slots)
        return slot if slot >= 0 and self._alive[slot] else -1

    def values(self, name: str, slots: Int64s) -> Numbers:
        """A field of some rows, shape (n,)."""
        taken: Numbers = self._values[name][slots]
        return taken

    def value(self, name: str, slot: int) -> int | float:
        """A field of one row."""
        number: int | float = self._values[name].item(slot)
        return number

    def batches(self) -> Iterator[tuple[pa.Array, list[Numbers]]]:
        """All keys and values as they are now, some at a time. What was not read is decoded and not kept."""
        self._finish()
        extent = self._extent
        alive = np.flatnonzero(self._alive[: extent.slots])
        read = self._keys.take(alive, extent.slots)
        values = [self._values[name][alive] for name in self._fields]
        unread = np.flatnonzero(~extent.is_read).tolist() if extent.unread else []
        for first in range(0, len(alive), _BATCH_ROWS):
            rows = slice(first, first + _BATCH_ROWS)
            yield read.slice(first, _BATCH_ROWS), [column[rows] for column in values]
        for number in unread:
            blob = self._store.get(_bucket_name(number))
            if blob is not None:
                keys, columns = decoded(blob)
                kinds = self._fields.values()
                yield (
                    keys.column(self._kind),
                    [column.astype(kind) for column, kind in zip(columns, kinds, strict=True)],
                )

    # ---- change -------------------------------------------------------------------------------------------

    def put(self, asked: AskedKeys, columns: Mapping[str, Numbers]) -> None:
        """Set fields of the rows of some keys; of equal keys the last one counts. Others of new keys are 0.

        Args:
            asked: n keys.
            columns: Some fields, each of shape (n,).
        """
        rows = self._rows_for(asked.keys)
        zeros = [(name, rows.fresh, 0) for name in self._fields] if len(rows.fresh) else []
        slots = asked.of_each(rows.slots)
        values = [(name, slots, numbers) for name, numbers in columns.items()]
        self._make(rows.slots, ColumnChange(rows.extent, [*zeros, *values], [(rows.fresh, True)]))

    def add(self, asked: AskedKeys, columns: Mapping[str, Numbers]) -> dict[str, Numbers]:
        """Add to fields of the rows of some keys; a new key begins with 0.

        Args:
            asked: n keys.
            columns: Some fields, each of shape (n,).

        Returns:
            These fields afterwards, each of shape (n,).

        Raises:
            MisuseError: A sum does not fit into 64 bits. Nothing is added.
        """
        rows = self._rows_for(asked.keys)
        where: Where = slice(0, rows.extent.slots)
        places, fresh = rows.slots, rows.fresh
        if _DENSE * len(rows.slots) < rows.extent.slots:
            where, places = np.unique(rows.slots, return_inverse=True)
            fresh = np.searchsorted(where, fresh)
        places = asked.of_each(places)
        zeros = [(name, rows.fresh, 0) for name in self._fields if name not in columns]
        values: list[tuple[str, Where, Numbers]] = []
        for name, numbers in columns.items():
            sums = self._values[name][where].copy()
            sums[fresh] = 0
            _refuse_overflow(name, sums, numbers)
            np.add.at(sums, places, numbers)
            values.append((name, where, sums))
        self._make(rows.slots, ColumnChange(rows.extent, [*zeros, *values], [(rows.fresh, True)]))
        return {name: sums[places] for name, _, sums in values}

    def remove(self, asked: AskedKeys) -> None:
        """Delete keys, if they are there."""
        slots = self._alive_slots(asked)
        slots = slots[slots >= 0]
        self._mark(slots, is_reshaped=True)
        self._apply(ColumnChange(self._extent, alive=[(slots, False)]))

    def clear(self) -> None:
        """Delete all keys; reads none."""
        self._finish()
        extent = self._extent
        self._marks.reshaped[:] = True
        everything = Extent(extent.slots, np.ones(extent.buckets, dtype=np.bool_), 0)
        self._apply(ColumnChange(everything, alive=[(slice(0, extent.slots), False)]))

    def _rows_for(self, column: pa.Array) -> Rows:
        """Find keys, and give a slot to each that has none."""
        slots, extent = self._located(column), self._extent
        missing = np.flatnonzero(slots < 0)
        fresh: Int64s = np.unique(slots[(slots >= 0) & ~self._alive[slots]])
        if len(missing):
            new = column.take(pa.array(missing)).dictionary_encode()
            count = self._keys.append(new.dictionary, extent.slots)
            slots[missing] = extent.slots + new.indices.to_numpy()
            fresh = np.concatenate((fresh, np.arange(extent.slots, count)))
            extent = replace(extent, slots=count)
            self._make_room(count)
        return Rows(slots, fresh, extent)

    def _make_room(self, count: int) -> None:
        for name, column in self._values.items():
            self._values[name] = grown(column, count)
        self._alive = grown(self._alive, count)

    def _make(self, slots: Int64s, change: ColumnChange) -> None:
        fresh = change.alive[0][0]
        self._mark(slots, is_reshaped=False)
        self._mark(fresh, is_reshaped=True)  # type: ignore[arg-type]  # slots here, and never a slice
        self._apply(change)

    def _mark(self, slots: Int64s, *, is_reshaped: bool) -> None:
        """Note the buckets of some rows. Before they change: a bucket noted too much is only saved again."""
        if not len(slots):
            return
        hashes = self._keys.hashes(int(slots.max()) + 1)[slots]
        marks = self._marks.reshaped if is_reshaped else self._marks.changed
        marks[buckets_of(hashes, self._extent.buckets)] = True

    def _apply(self, change: ColumnChange) -> None:
        self._change = change
        self._finish()

    def _finish(self) -> None:
        """Make the change that is noted, if one is."""
        change = self._change
        if change is None:
            return
        for name, where, numbers in change.values:
            self._values[name][where] = numbers
        for where, is_alive in change.alive:
            self._alive[where] = is_alive
        self._extent = change.extent
        self._change = None

    # ---- read ---------------------------------------------------------------------------------------------

    def _located(self, column: pa.Array) -> Int64s:
        """The slot of each key, also of deleted ones; reads the buckets of all of them."""
        self._finish()
        hashes = hash_column(column)
        if self._extent.unread:
            numbers = buckets_of(hashes, self._extent.buckets)
            is_wanted = np.zeros(self._extent.buckets, dtype=np.bool_)
            is_wanted[numbers] = True
            self._read(np.flatnonzero(is_wanted & ~self._extent.is_read))
        return self._keys.find(column, hashes, self._extent.slots)

    def _read(self, numbers: Int64s) -> None:
        """Read buckets that were not read, some at a time, so that they stay in the processor's cache."""
        if len(numbers) > _READ_AT_ONCE:
            is_unread = np.count_nonzero(~self._extent.is_read)
            self._keys.reserve(self._extent.slots, self._extent.unread * len(numbers) // int(is_unread))
        for first in range(0, len(numbers), _READ_AT_ONCE):
            self._read_some(numbers[first : first + _READ_AT_ONCE])

    def _read_some(self, numbers: Int64s) -> None:
        extent, read, keys, columns = self._extent, {}, [], []
        first = extent.slots
        for number in numbers.tolist():
            blob = self._store.get(_bucket_name(number))
            if blob is not None:
                stored, values = decoded(blob)
                read[number] = ReadBucket(first, stored)
                keys.append(stored.column(self._kind))
                columns.append(values)
                first += stored.count
        is_read = extent.is_read.copy()
        is_read[numbers] = True
        if keys:
            self._keys.append(pa.concat_arrays(keys), extent.slots)
            self._make_room(first)
            for name, parts in zip(self._fields, zip(*columns, strict=True), strict=True):
                np.concatenate(parts, out=self._values[name][extent.slots : first], casting="unsafe")
            self._alive[extent.slots : first] = True
        self._read_buckets.update(read)
        self._extent = Extent(first, is_read, extent.unread - (first - extent.slots))

    # ---- store --------------------------------------------------------------------------------------------

    def bind(self, store: StateStore) -> None:
        """Attach it to a store: continue from the store's content, or from its own if the store is empty."""
        meta = store.get("meta")
        if meta is None:
            self._finish()
            self._read(np.flatnonzero(~self._extent.is_read))  # from the earlier store
            self._read_buckets = {}
            self._marks.reshaped[:] = True
        else:
            description = json.loads(meta)
            self._begin(np.zeros(description["buckets"], dtype=np.bool_), description["count"])
        self._store, self._stored_meta = store, meta

    @property
    def may_stay(self) -> bool:
        """Whether it may be used on after :meth:`save`: its rows are as they were read, bucket by bucket.

        Not where keys came or went: it would be slower with each change, and a deleted key keeps its slot.
        """
        slots = self._extent.slots
        return self._has_same_keys and slots <= _MOST_SLOTS and self._keys.column(slots).nbytes <= _MOST_BYTES

    def go_on(self, store: StateStore) -> None:
        """Use it on; the store has what the last :meth:`save` has written."""
        self._store = store

    def save(self) -> None:
        """Write what changed since :meth:`bind` or the last save."""
        self._divide()
        count, marks = len(self), self._marks
        kept = np.flatnonzero(marks.changed & ~marks.reshaped).tolist()
        kept = [number for number in kept if number in self._read_buckets]
        for number in kept:
            bucket = self._read_buckets[number]
            rows = slice(bucket.first, bucket.first + bucket.keys.count)
            self._put(number, bucket.keys, [column[rows] for column in self._values.values()])
        is_left = marks.changed | marks.reshaped
        is_left[kept] = False
        self._has_same_keys = not is_left.any()
        self._save_by_key(is_left)
        meta = json.dumps(
            {
                "buckets": self._extent.buckets,
                "count": count,
                "key": str(self._kind),
                "fields": {name: kind.str for name, kind in self._fields.items()},
            }
        ).encode()
        if meta != self._stored_meta:
            self._store.put("meta", meta)
            self._stored_meta = meta
        marks.changed[:] = marks.reshaped[:] = False

    def _divide(self) -> None:
        """Make as many buckets as the keys need; read and note those that give keys away."""
        count = len(self)
        before, after = self._extent.buckets, max(1, -(-count // KEYS_PER_BUCKET))
        if after <= before:
            return
        giving = divided(before, after)
        self._read(giving[~self._extent.is_read[giving]])
        marks, is_read = Marks.of(after), np.ones(after, dtype=np.bool_)
        marks.changed[:before] = self._marks.changed[:before]
        marks.reshaped[:before] = self._marks.reshaped[:before]
        marks.reshaped[giving] = marks.reshaped[before:] = True
        is_read[:before] = self._extent.is_read
        self._marks = marks
        self._extent = replace(self._extent, is_read=is_read)

    def _save_by_key(self, is_left: Flags) -> None:
        """Write buckets whose keys are not together, or not as they were stored."""
        if not is_left.any():
            return
        slots = self._extent.slots
        numbers = buckets_of(self._keys.hashes(slots), self._extent.buckets)
        rows = np.flatnonzero(is_left[numbers] & self._alive[:slots])
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        keys = self._keys.take(rows, slots)
        values = [column[rows] for column in self._values.values()]
        written = np.flatnonzero(is_left)
        starts = np.searchsorted(numbers[rows], written).tolist()
        ends = np.searchsorted(numbers[rows], written, side="right").tolist()
        for number, start, end in zip(written.tolist(), starts, ends, strict=True):
            self._read_buckets.pop(number, None)
            if start < end:
                part = StoredKeys.of(keys.slice(start, end - start))
                self._put(number, part, [column[start:end] for column in values])
            elif self._store.get(_bucket_name(number)) is not None:
                self._store.delete(_bucket_name(number))

    def _put(self, number: int, keys: StoredKeys, values: Sequence[Numbers]) -> None:
        self._store.put(_bucket_name(number), encoded(keys, values))


def _bucket_name(number: int) -> str:
    return f"bucket/{number}"


def _largest(numbers: Numbers) -> int:
    """The greatest distance of any from 0."""
    return max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)))


def _refuse_overflow(name: str, sums: Numbers, added: Numbers) -> None:
    """MisuseError if adding could leave 64 bits, judged by the greatest number and the sum of all."""
    if sums.dtype.kind == "f" or not len(added):
        return
    most, largest = _largest(sums), _largest(added)
    if most + largest * len(added) < 1 << 63:
        return
    if most + float(np.abs(added.astype(np.float64)).sum()) >= float(1 << 63):
        raise MisuseError(
            f"add_many() could leave 64 bits in field {name!r}: it has {most}",
            "ColumnState",
            "declare the field as float, or add smaller numbers",
        )
