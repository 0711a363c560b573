"""A dict that outlives the micro-batch: saved by the keys that changed, read by the keys that are asked for.

Keys lie in buckets by their stable hash, each bucket one blob of the state store. A call to the store costs
about as much as pickling 30 KB, so a bucket is kept near a few hundred keys: when they grow past that, the
number of buckets doubles. One changed key then writes one small bucket, whatever the size of the whole.

A value that was changed in place (``state.setdefault(k, []).append(x)``) is noticed when the micro-batch
ends, as ``shelve`` does with ``writeback``: what was read is pickled again and compared.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from acktree.core.hashing import known_hash, stable_hash
from acktree.core.state import MemoryStore, StateStore
from acktree.errors import ProtocolError

K = TypeVar("K")
V = TypeVar("V")

KEYS_PER_BUCKET: Final = 256
"""The buckets are doubled when they hold more than this on average."""

_PLACES: Final = 1 << 16
"""So many keys' places are remembered at most: a key that is asked for again is not hashed again."""

_UNCHANGING: Final = frozenset({int, float, bool, str, bytes, complex, type(None)})


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
        self._count = 0
        self._stored_meta: bytes | None = None
        self._buckets: dict[int, dict[K, V]] = {0: {}}
        self._places: dict[object, tuple[int, dict[K, V]]] = {}
        self._stored: dict[int, bytes] = {}
        self._written: set[int] = {0}
        self.update(initial or {})

    def __getitem__(self, key: K) -> V:
        return self._bucket_of(key)[1][key]

    def __setitem__(self, key: K, value: V) -> None:
        number, bucket = self._bucket_of(key)
        if key not in bucket:
            self._count += 1
        bucket[key] = value
        self._written.add(number)
        if self._count > KEYS_PER_BUCKET << self._bits:
            self._double()

    def __delitem__(self, key: K) -> None:
        number, bucket = self._bucket_of(key)
        del bucket[key]
        self._count -= 1
        self._written.add(number)

    def __contains__(self, key: object) -> bool:
        return key in self._bucket_of(key)[1]

    def __iter__(self) -> Iterator[K]:
        count = self._count
        for number in range(1 << self._bits):
            yield from self._bucket(number)
            if self._count != count:  # a dict would have noticed; each bucket only notices for itself
                raise RuntimeError("KeyValueState changed size during iteration")

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"KeyValueState({self._count} keys)"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a plain one, with all its keys, that lies nowhere yet."""
        return KeyValueState, (dict(self),)

    @property
    def is_bound(self) -> bool:
        """Whether it lies in a state store already."""
        return self._shelf is not _NOWHERE

    def clear(self) -> None:
        for number in range(1 << self._bits):
            self._bucket(number).clear()
            self._written.add(number)
        self._count = 0

    def bind(
        self, store: StateStore, dumps: Callable[[object], bytes], loads: Callable[[bytes], Any]
    ) -> None:
        """Continue from what ``store`` holds; where it holds nothing, from what is here.

        Called by the task between ``prepare`` and the first tuple.
        """
        self._stored_meta = store.get("meta")
        if self._stored_meta is not None:
            meta = json.loads(self._stored_meta)
            self._bits, self._count = meta["bits"], meta["count"]
            self._buckets = {}
            self._places.clear()
        else:
            for number in range(1 << self._bits):  # what still lies where this was bound before
                self._bucket(number)
        self._shelf = _Shelf(store, dumps, loads)
        self._stored, self._written = {}, set(self._buckets)

    def save(self) -> None:
        """Write what changed since :meth:`bind`; called by the task when its micro-batch ends."""
        if not self.is_bound:
            raise ProtocolError(
                "a state was saved that lies nowhere", repr(self), "bind it first: please report it"
            )
        for number in sorted(self._buckets):
            self._save_bucket(number, self._buckets[number])
        meta = json.dumps({"bits": self._bits, "count": self._count}).encode()
        if meta != self._stored_meta:
            self._shelf.store.put("meta", meta)
            self._stored_meta = meta
        self._written.clear()

    def _save_bucket(self, number: int, bucket: dict[K, V]) -> None:
        if number not in self._written and _UNCHANGING.issuperset(map(type, bucket.values())):
            return
        before = self._stored.get(number)
        if not bucket:
            if before is not None:
                self._shelf.store.delete(f"bucket/{number}")
                del self._stored[number]
            return
        blob = self._shelf.dumps(bucket)
        if blob != before:
            self._shelf.store.put(f"bucket/{number}", blob)
            self._stored[number] = blob

    def _bucket_of(self, key: object) -> tuple[int, dict[K, V]]:
        place = self._places.get(key)  # equal keys have equal hashes, so they share a place
        if place is None:
            number = known_hash(key) & ((1 << self._bits) - 1)
            if len(self._places) >= _PLACES:
                self._places.clear()
            place = self._places[key] = number, self._bucket(number)
        return place

    def _bucket(self, number: int) -> dict[K, V]:
        bucket = self._buckets.get(number)
        if bucket is None:
            blob = self._shelf.store.get(f"bucket/{number}")
            bucket = self._buckets[number] = {} if blob is None else self._shelf.loads(blob)
            if blob is not None:
                self._stored[number] = blob
        return bucket

    def _double(self) -> None:
        """Twice the buckets: bucket b keeps half of its keys, b + old number takes the rest."""
        old = 1 << self._bits
        for number in range(old):
            self._bucket(number)
        self._bits += 1
        self._places.clear()
        for number in range(old):
            bucket = self._buckets[number]
            moved = {key: bucket.pop(key) for key in list(bucket) if stable_hash(key) & old}
            self._buckets[number + old] = moved
        self._written.update(range(2 * old))
