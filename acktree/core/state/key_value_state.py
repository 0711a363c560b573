"""A dict that outlives the micro-batch: saved by the keys that changed, read by the keys that are asked for.

Keys lie in buckets by their stable hash, each bucket one blob of the state store. A call to the store costs
about as much as pickling 30 KB, so a bucket is kept near a few hundred keys: when they grow past that, the
number of buckets doubles. One changed key then writes one small bucket, whatever the size of the whole.

Rules of this file
------------------
1. What was read or written lies in one flat dict, so a key that is there costs what it costs in a dict. Only
   one that is not is hashed, to read its bucket, and only while there are buckets with keys to read.
2. A key is noted before it changes, once in a micro-batch, and its bucket is read first. What has no stable
   hash is refused there, where the tuple that wrote it is to blame.
3. A bucket holds what was read until the micro-batch is saved: then it gets the values of the keys that were
   noted, and new keys, which are hashed all at once.
4. A value that was changed in place (``state.setdefault(k, []).append(x)``) is noticed when the micro-batch
   ends, as ``shelve`` does with ``writeback``: what was read is pickled again and compared.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar, overload

import numpy as np

from acktree.core.data.hashing import hash_values, stable_hash
from acktree.core.state.store import MemoryStore, StateStore
from acktree.errors import ProtocolError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

KEYS_PER_BUCKET: Final = 256
"""The buckets are doubled when they hold more than this on average."""

_HASHABLE: Final = frozenset({int, float, bool, str, bytes, type(None)})
"""Exactly these types always have a stable hash; whether another key has one is seen when it is not there."""

_UNCHANGING: Final = _HASHABLE | {complex}

_hash_of: Final = lru_cache(maxsize=1024)(stable_hash)
"""Who asks for a key, does not find it and sets it, should have it hashed once; equal keys hash alike."""


@dataclass(frozen=True)
class _Shelf:
    """Where a state lies, and how values become bytes."""

    store: StateStore
    dumps: Callable[[object], bytes]
    loads: Callable[[bytes], Any]


_NOWHERE: Final = _Shelf(MemoryStore(), pickle.dumps, pickle.loads)
"""Where a state lies until it is bound: nothing is ever put there."""


class KeyValueState(MutableMapping[K, V], Generic[K, V]):
    """A mapping for ``remembers``: make it in ``prepare``, use it as a dict.

    Keys are what a fields grouping can hash (numbers, strings, bytes, dates, tuples of them, …); equal keys
    are one key, as in a dict. Values are anything that pickles, held tuples included. Iteration reads
    everything, in no order that means anything. Outside a topology it is a plain dict in memory.
    """

    def __init__(self, initial: Mapping[K, V] | None = None) -> None:
        self._shelf = _NOWHERE
        self._bits = 0
        self._values: dict[K, V] = {}
        self._unread = 0  # how many keys lie in buckets that were not read
        self._noted: set[K] = set()  # what may have changed
        self._new: dict[K, None] = {}  # what lies in no bucket yet; a dict, since sets have no order
        self._buckets: dict[int, dict[K, V]] = {}
        self._stored: dict[int, bytes] = {}
        self._stored_meta: bytes | None = None
        self._total = 0  # how many keys the store held when this was bound
        self._is_taking_in = False
        self.update(initial or {})

    def __getitem__(self, key: K) -> V:
        try:
            return self._values[key]
        except KeyError:
            pass  # look further outside, or a refused key would be told as a consequence of this
        self._look_for(key)
        return self._values[key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D) -> V | D: ...
    def get(self, key: K, default: V | D | None = None) -> V | D | None:
        # Not inherited: Mapping's own raises and catches a KeyError for each key that is not there.
        if key in self._values or self._look_for(key):
            return self._values[key]
        return default

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self._noted:
            self._note(key)
        self._values[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self._noted:
            self._note(key)
        del self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values or self._look_for(key)

    def __iter__(self) -> Iterator[K]:
        self._read_all()
        return iter(self._values)

    def __len__(self) -> int:
        self._repair()
        return len(self._values) + self._unread

    def __repr__(self) -> str:
        return f"KeyValueState({len(self)} keys)"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a plain one, with all its keys, that lies nowhere yet."""
        return KeyValueState, (dict(self),)

    @property
    def is_bound(self) -> bool:
        """Whether it lies in a state store already."""
        return self._shelf is not _NOWHERE

    def clear(self) -> None:
        self._read_all()
        self._noted.update(self._values)
        self._values.clear()

    def bind(
        self, store: StateStore, dumps: Callable[[object], bytes], loads: Callable[[bytes], Any]
    ) -> None:
        """Continue from what ``store`` holds; where it holds nothing, from what is here.

        Called by the task between ``prepare`` and the first tuple.
        """
        self._stored_meta = store.get("meta")
        if self._stored_meta is None:
            self._read_all()  # what still lies where this was bound before
            self._total = 0
        else:
            meta = json.loads(self._stored_meta)
            self._bits, self._unread = meta["bits"], meta["count"]
            self._total = self._unread
            self._values = {}
        self._shelf = _Shelf(store, dumps, loads)
        self._new = dict.fromkeys(self._values)
        self._noted, self._buckets, self._stored = set(), {}, {}

    def save(self) -> None:
        """Write what changed since :meth:`bind`; called by the task when its micro-batch ends."""
        if not self.is_bound:
            raise ProtocolError(
                "a state was saved that lies nowhere", repr(self), "bind it first: please report it"
            )
        if len(self) > KEYS_PER_BUCKET << self._bits:
            self._double()
        written = self._put_into_buckets()
        for number in sorted(self._buckets):
            self._save_bucket(number, self._buckets[number], is_written=number in written)
        meta = json.dumps({"bits": self._bits, "count": len(self)}).encode()
        if meta != self._stored_meta:
            self._shelf.store.put("meta", meta)
            self._stored_meta = meta
        self._noted.clear()
        self._new.clear()

    def _look_for(self, key: object) -> bool:
        """Read the bucket of a key that is not here, or refuse the key; whether it is here now."""
        if self._unread or type(key) not in _HASHABLE:
            self._read(_hash_of(key))
        return key in self._values

    def _note(self, key: K) -> None:
        """The key is about to change, for the first time in this micro-batch."""
        if key not in self._values and not self._look_for(key):
            self._new[key] = None
        self._noted.add(key)

    def _read(self, number: int) -> dict[K, V]:
        """The bucket of this number, or of the keys with this hash."""
        self._repair()
        number &= (1 << self._bits) - 1
        bucket = self._buckets.get(number)
        if bucket is None:
            blob = self._shelf.store.get(f"bucket/{number}") if self._unread else None
            if blob is None:
                bucket = self._buckets[number] = {}
            else:
                bucket = self._take_in(number, blob)
        return bucket

    def _take_in(self, number: int, blob: bytes) -> dict[K, V]:
        """Make the keys of a stored bucket available. If this is interrupted, the next access repairs it."""
        bucket: dict[K, V] = self._shelf.loads(blob)
        self._stored[number] = blob
        self._is_taking_in = True
        self._buckets[number] = bucket
        self._values.update(bucket)
        self._unread -= len(bucket)
        self._is_taking_in = False
        return bucket

    def _repair(self) -> None:
        """Finish what :meth:`_take_in` had begun, if an exception from outside interrupted it."""
        if not self._is_taking_in:
            return
        for bucket in self._buckets.values():
            for key, value in bucket.items():
                if key not in self._noted:  # else it was changed or deleted since
                    self._values.setdefault(key, value)
        self._unread = self._total - sum(map(len, self._buckets.values()))
        self._is_taking_in = False

    def _read_all(self) -> None:
        if self._unread or self._is_taking_in:
            for number in range(1 << self._bits):
                self._read(number)

    def _double(self) -> None:
        """Twice the buckets, or more: every key is put into its bucket anew."""
        self._read_all()
        while len(self) > KEYS_PER_BUCKET << self._bits:
            self._bits += 1
        self._new = dict.fromkeys(self._values)
        self._buckets = {number: {} for number in range(1 << self._bits)}

    def _put_into_buckets(self) -> set[int]:
        """Bring the buckets up to date; the numbers of those that may have changed by it."""
        written = set()
        for number, bucket in self._buckets.items():
            signals_wait = bucket.keys() & self._noted
            if signals_wait:
                written.add(number)
            for key in signals_wait:
                if key in self._values:
                    bucket[key] = self._values[key]
                else:
                    del bucket[key]
        new = [key for key in self._new if key in self._values]
        numbers = hash_values(new) & np.uint64((1 << self._bits) - 1)
        for key, number in zip(new, numbers.tolist(), strict=True):
            written.add(number)
            self._read(number)[key] = self._values[key]
        return written

    def _save_bucket(self, number: int, bucket: dict[K, V], *, is_written: bool) -> None:
        before = self._stored.get(number)
        if not bucket:
            if before is not None:
                self._shelf.store.delete(f"bucket/{number}")
                del self._stored[number]
            return
        if not is_written and _UNCHANGING.issuperset(map(type, bucket.values())):
            return
        blob = self._shelf.dumps(bucket)
        if blob != before:
            self._shelf.store.put(f"bucket/{number}", blob)
            self._stored[number] = blob
