"""Keys in numbered slots, found by hash for a whole Arrow column at once: the index of a ``ColumnTable``.

A hash table with open addressing in numpy. An entry holds the upper half of a key's hash and the key's slot,
so a probe reads one number. A slot whose entry agrees is compared with the key itself: two keys with one hash
are two keys.

Rules of this file
------------------
1. The caller says how many slots there are. Entries after them do not count: an ``append`` that was
   interrupted leaves nothing, and its entries are ignored.
2. Keys are only added. A deleted key keeps its slot; the caller knows that it is deleted.
3. No Python object is made for a key, except by :meth:`KeyTable.find_one`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from acktree.core.data.hashing import hash_column
from acktree.core.ids import Int64s, UInt64s

_SHIFT: Final = 12
"""The lowest bits of a hash say the bucket, so a place in the index begins with the bits above them."""
_SLOT: Final = np.uint64(0xFFFFFFFF)
_UPPER: Final = np.uint64(0xFFFFFFFF00000000)
_LEAST: Final = 1 << 10
_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def grown(array: _Array, length: int) -> _Array:
    """The array, or a copy of it with room for at least ``length`` items; what is new is zero."""
    if len(array) >= length:
        return array
    larger = np.zeros(max(length, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger  # type: ignore[return-value]


class _Keys(ABC):
    """Keys by slot."""

    type: pa.DataType

    @abstractmethod
    def write(self, first: int, column: pa.Array) -> None:
        """Write keys to the slots from ``first`` on."""

    @abstractmethod
    def column(self, count: int) -> pa.Array:
        """The keys of the first ``count`` slots, without a copy; valid until the next :meth:`write`."""

    @abstractmethod
    def is_at(self, slot: int, key: Any) -> bool:  # noqa: ANN401  # int, or encoded text
        """Whether a slot holds this key."""


class _Integers(_Keys):
    type = pa.int64()

    def __init__(self) -> None:
        self._values: Int64s = np.zeros(0, dtype=np.int64)

    def write(self, first: int, column: pa.Array) -> None:
        values = grown(self._values, first + len(column))
        values[first : first + len(column)] = column.to_numpy()
        self._values = values

    def column(self, count: int) -> pa.Array:
        return pa.array(self._values[:count])

    def is_at(self, slot: int, key: Any) -> bool:  # noqa: ANN401
        return bool(self._values[slot] == key)


class _Texts(_Keys):
    """Texts or bytes, one after another; ``_ends[slot]`` is where the text of a slot begins."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._content: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._ends: Int64s = np.zeros(1, dtype=np.int64)

    def write(self, first: int, column: pa.Array) -> None:
        offsets, content = text_buffers(column)
        start, count = int(self._ends[first]), len(column)
        texts = grown(self._content, start + len(content))
        texts[start : start + len(content)] = content
        self._content = texts
        ends = grown(self._ends, first + count + 1)
        ends[first + 1 : first + count + 1] = start + offsets[1:]
        self._ends = ends

    def column(self, count: int) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._content)]
        return pa.Array.from_buffers(self.type, count, buffers)

    def is_at(self, slot: int, key: Any) -> bool:  # noqa: ANN401
        start, end = self._ends.item(slot), self._ends.item(slot + 1)
        return end - start == len(key) and self._content[start:end].tobytes() == key


def text_buffers(column: pa.Array) -> tuple[Int64s, npt.NDArray[np.uint8]]:
    """Where each text of a large string or binary column ends, shape (n + 1,) from 0, and their bytes."""
    _, places, data = column.buffers()
    if not len(column) or places is None:
        return np.zeros(len(column) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(places, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    first, end = int(offsets[0]), int(offsets[-1])
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)[first:end]
    return offsets - first, content


class KeyTable:
    """Different keys of one type, in the order in which they were added."""

    def __init__(self, kind: pa.DataType) -> None:
        """Begin without keys.

        Args:
            kind: ``int64``, ``large_string`` or ``large_binary``; of all columns that are given.
        """
        self._keys: _Keys = _Integers() if pa.types.is_integer(kind) else _Texts(kind)
        self._hashes: UInt64s = np.zeros(0, dtype=np.uint64)
        self._index: UInt64s = np.zeros(_LEAST, dtype=np.uint64)
        self._entries = 0  # how many places of the index may be taken

    @property
    def type(self) -> pa.DataType:
        """The type of the keys."""
        return self._keys.type

    def hashes(self, count: int) -> UInt64s:
        """The hashes of the first ``count`` slots, shape (count,)."""
        return self._hashes[:count]

    def take(self, slots: Int64s, count: int) -> pa.Array:
        """The keys of some of the first ``count`` slots."""
        return self._keys.column(count).take(pa.array(slots))

    def column(self, count: int) -> pa.Array:
        """The keys of the first ``count`` slots, without a copy; valid until the next :meth:`append`."""
        return self._keys.column(count)

    def find(self, column: pa.Array, hashes: UInt64s, count: int) -> Int64s:
        """The slot of each key among the first ``count``, shape (n,); -1 for a key that is not there.

        Args:
            column: Keys, without nulls; may be repeated.
            hashes: ``hash_column`` of them, shape (n,).
            count: How many slots there are.
        """
        slots = np.full(len(hashes), -1, dtype=np.int64)
        if not count:
            return slots
        known, mask = self._keys.column(count), len(self._index) - 1
        rows, places = np.arange(len(hashes)), _places(hashes, mask)
        while len(rows):
            entries = self._index[places]
            is_taken = entries != 0
            is_alike = is_taken & ((entries ^ hashes[rows]) <= _SLOT)
            alike = np.flatnonzero(is_alike)
            candidates = (entries[alike] & _SLOT).astype(np.int64) - 1
            if len(alike):
                is_there = candidates < count
                if not is_there.all():
                    alike, candidates = alike[is_there], candidates[is_there]
                asked = column if len(alike) == len(column) else column.take(pa.array(rows[alike]))
                is_same = pc.equal(known.take(pa.array(candidates)), asked).to_numpy(zero_copy_only=False)
                slots[rows[alike[is_same]]] = candidates[is_same]
                is_taken[alike[is_same]] = False
            rows, places = rows[is_taken], (places[is_taken] + 1) & mask
        return slots

    def find_one(self, key: int | bytes, key_hash: int, count: int) -> int:
        """The slot of one key (a text as UTF-8) among the first ``count``; -1 if it is not there."""
        index, mask, upper = self._index, len(self._index) - 1, key_hash >> 32
        place = (key_hash >> _SHIFT) & mask
        while entry := index.item(place):
            slot = (entry & 0xFFFFFFFF) - 1
            if entry >> 32 == upper and slot < count and self._keys.is_at(slot, key):
                return slot
            place = (place + 1) & mask
        return -1

    def reserve(self, count: int, more: int) -> None:
        """Make room in the index for ``more`` keys beside the first ``count``, so that it grows once."""
        if 2 * (self._entries + more) > len(self._index):
            index = np.zeros(max(_LEAST, 1 << (2 * (count + more)).bit_length()), dtype=np.uint64)
            _enter(index, self._hashes[:count], 0)
            self._index, self._entries = index, count

    def append(self, column: pa.Array, first: int) -> int:
        """Add keys to the slots from ``first`` on; how many slots there are then.

        Args:
            column: Different keys, none of which is there.
            first: How many slots there are.
        """
        count = first + len(column)
        self._keys.write(first, column)
        hashes = grown(self._hashes, count)
        hashes[first:count] = hash_column(column)
        self._hashes = hashes
        self.reserve(first, len(column))
        self._entries += len(column)
        _enter(self._index, hashes[first:count], first)
        return count


def _places(hashes: UInt64s, mask: int) -> Int64s:
    return ((hashes >> np.uint64(_SHIFT)) & np.uint64(mask)).astype(np.int64)


def _enter(index: UInt64s, hashes: UInt64s, first: int) -> None:
    """Enter the slots from ``first`` on, each at the first free place from its own on."""
    entries = (hashes & _UPPER) | np.arange(first + 1, first + 1 + len(hashes), dtype=np.uint64)
    mask = len(index) - 1
    places = _places(hashes, mask)
    while len(entries):
        is_free = index[places] == 0
        index[places[is_free]] = entries[is_free]  # of several for one place the last one stays
        is_waiting = index[places] != entries
        entries, places = entries[is_waiting], (places[is_waiting] + 1) & mask
