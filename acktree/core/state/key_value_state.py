"""A dict that is kept between micro-batches: reads the keys that are accessed, saves the keys that changed.

Keys are distributed to buckets by their stable hash; each bucket is one blob of the state store. A call to
the store costs about as much as pickling 30 KB, so a bucket has at most a few hundred keys on average: above
that, the number of buckets is doubled. One changed key writes one small bucket, however large the state is.

Rules of this file
------------------
1. All keys that were read or written are in one flat dict, so access to them costs what it costs in a dict.
   Only a key that is not there is hashed, to read its bucket, and only while some buckets are unread.
2. A key is noted before its first change in a micro-batch, and its bucket is read first. A key without a
   stable hash is refused there, so the tuple that wrote it fails.
3. A bucket is unchanged until the micro-batch is saved. It then gets the values of the noted keys, and the
   new keys, which are hashed together.
4. Many keys at once (``get_many``, ``update_many``) follow the same rules, with one hash of all missing keys.
5. A value that was changed in place (``state.setdefault(k, []).append(x)``) is found when the micro-batch is
   saved, as ``shelve`` does with ``writeback``: all values that were read are pickled again and compared.
6. A NaN does not equal itself, and its key is to be found again: a key that may hold one gets the same object
   for each NaN before it is looked up, and when its bucket is read.
7. With ``ttl_secs`` each key of a bucket has the clock of the micro-batch that wrote it. Keys written at the
   *horizon* or before are gone. They are left out when their bucket is read, so that no other code meets
   one. The horizon never goes back: what has expired once stays expired, whatever ``ttl_secs`` is later.
8. Each save also reads some buckets that nobody asked for, one after the other, so that expired keys leave
   the store. The work of a micro-batch depends on what it reads and writes, not on the number of keys.
9. A state stays in memory after a save only where no value can change in place, or share a part with another
   one, and no key expires. One that is read from the store then has equal keys and values.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeVar, overload

import numpy as np

from acktree.core.data.hashing import hash_values, stable_hash, with_one_nan
from acktree.core.state.store import MemoryStore, StateStore
from acktree.core.state.stored_state import StoredState
from acktree.errors import MisuseError, ProtocolError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

KEYS_PER_BUCKET: Final = 256
"""The number of buckets is doubled when they have more keys than this on average."""

_BUCKETS_FOR_ONE_SWEPT: Final = 16
"""A save looks for expired keys in one bucket, and in one more for each 16 buckets that were read."""

_MOST_BYTES: Final = 1 << 23
"""With more stored bytes in the buckets that were read it does not stay in memory."""

_HASHABLE: Final = frozenset({int, float, bool, str, bytes, type(None)})
"""Exactly these types always have a stable hash; a key of another type is checked at its first use."""

_WITHOUT_NAN: Final = _HASHABLE - {float}
_UNCHANGING: Final = _HASHABLE | {complex}

_hash_of: Final = lru_cache(maxsize=1024)(stable_hash)
"""Cached, so that a lookup followed by an insert of the same key hashes it once."""


@dataclass
class _Ages:
    """When the keys of a state were written, which expires them.

    Attributes:
        horizon_ms: Keys that were written at this clock or before are gone.
        now_ms: The clock of this micro-batch, and later than the horizon.
        since_ms: The clock that counts for keys that were saved without one, before the state had a ttl.
        next_swept: The bucket in which expired keys are looked for next.
    """

    horizon_ms: int
    now_ms: int
    since_ms: int
    next_swept: int

    @classmethod
    def of(cls, saved: Mapping[str, int], ttl_ms: int | None, now_ms: int | None) -> _Ages | None:
        """The ages in one micro-batch; None for a state that never had a ttl.

        Args:
            saved: What :meth:`saved` returned in the last micro-batch, among other numbers.
            ttl_ms: How long a key lives after it was written; None: for ever.
            now_ms: The clock of the micro-batch; None where no time passes.
        """
        horizons = [saved["horizon"]] if "horizon" in saved else []
        if ttl_ms is not None and now_ms is not None:
            horizons.append(now_ms - ttl_ms)
        if not horizons:
            return None
        horizon_ms = max(horizons)
        now_ms = horizon_ms + 1 if now_ms is None else max(now_ms, horizon_ms + 1)
        return cls(horizon_ms, now_ms, saved.get("since", now_ms), saved.get("swept", 0))

    def saved(self) -> dict[str, int]:
        """What :meth:`of` needs in the next micro-batch."""
        return {"horizon": self.horizon_ms, "since": self.since_ms, "swept": self.next_swept}


@dataclass(frozen=True)
class _Shelf:
    """The store of a state, and how its values are encoded."""

    store: StateStore
    dumps: Callable[[object], bytes]
    loads: Callable[[bytes], Any]


_NOWHERE: Final = _Shelf(MemoryStore(), pickle.dumps, pickle.loads)
"""The store of an unbound state; it is always empty."""


class KeyValueState(StoredState[K, V]):
    """A mapping for ``remembers``: make it in ``prepare``, use it as a dict.

    Keys are of the types that a fields grouping can hash (numbers, strings, bytes, dates, tuples of them, …);
    equal keys are one key, as in a dict. All NaN are one key too, also within a tuple. Values can be anything
    picklable, held tuples included. Iteration reads all keys, in no defined order. Outside a topology it is a
    plain dict in memory.

    With ``ttl_secs`` a key that was not written for so long is gone, by the clock of the micro-batch
    (``context.now_ms()``). Setting a key writes it, and so does changing its value in place; reading does
    not. ``len`` then reads all keys, as iteration does. Keys expire in a state that is a remembered attribute
    itself; not in one inside another value, and not outside a topology.
    """

    def __init__(self, initial: Mapping[K, V] | None = None, ttl_secs: float | None = None) -> None:
        """Begin with the keys of ``initial``.

        Args:
            initial: Keys and values, where nothing was saved yet.
            ttl_secs: How long a key stays after it was last written; None: until it is deleted. It may change
                between two runs.

        Raises:
            MisuseError: A key has no stable hash, or ``ttl_secs`` is not a positive number.
        """
        lifetime: object = ttl_secs
        is_number = isinstance(lifetime, int | float) and not isinstance(lifetime, bool)
        if ttl_secs is not None and not (is_number and 0 < ttl_secs < math.inf):
            what = f"ttl_secs={ttl_secs!r} is not a positive number of seconds"
            raise MisuseError(what, "KeyValueState", "give seconds, such as 86_400 for a day, or None")
        self.ttl_secs = ttl_secs
        self._ages: _Ages | None = None
        self._written_ms: dict[K, int] = {}  # when a key that was read was written; only with ages
        self._shelf = _NOWHERE
        self._bits = 0
        self._values: dict[K, V] = {}
        self._unread = 0  # the number of keys in buckets that were not read
        self._noted: set[K] = set()  # keys that may have changed
        self._new: dict[K, None] = {}  # keys that are in no bucket yet; a dict, since sets have no order
        self._buckets: dict[int, dict[K, V]] = {}
        self._stored: dict[int, bytes] = {}
        self._stored_meta: bytes | None = None
        self._total = 0  # the number of keys in the store when this was bound
        self._dropped: dict[int, int] = {}  # how many keys of a bucket were not taken in
        self._is_taking_in = False
        self._plain: set[int] = set()
        """Buckets that were saved with unchanging values alone: they change where a key is written."""
        self.update(initial or {})

    def __getitem__(self, key: K) -> V:
        try:
            return self._values[key]
        except KeyError:
            pass  # continue outside of the handler: the error of a refused key must not be chained
        return self._values[self._looked_for(key)]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D) -> V | D: ...
    def get(self, key: K, default: V | D | None = None) -> V | D | None:
        # Not inherited: Mapping.get raises and catches a KeyError for each missing key.
        if key in self._values:
            return self._values[key]
        return self._values.get(self._looked_for(key), default)

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self._noted:
            key = self._note(key)
        self._values[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self._noted:
            key = self._note(key)
        del self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values or self._looked_for(key) in self._values

    def __iter__(self) -> Iterator[K]:
        self._read_all()
        return iter(self._values)

    def __len__(self) -> int:
        if self._ages is not None:
            self._read_all()
        return self._count()

    def __repr__(self) -> str:
        if self._ages is not None:  # len() would read all keys
            return f"KeyValueState(ttl_secs={self.ttl_secs})"
        return f"KeyValueState({len(self)} keys)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle it as an unbound state with all its keys."""
        return KeyValueState, (dict(self),) if self.ttl_secs is None else (dict(self), self.ttl_secs)

    @property
    def is_bound(self) -> bool:
        """Whether it is bound to a state store."""
        return self._shelf is not _NOWHERE

    @overload
    def get_many(self, keys: Iterable[K]) -> list[V | None]: ...
    @overload
    def get_many(self, keys: Iterable[K], default: D) -> list[V | D]: ...
    def get_many(self, keys: Iterable[K], default: Any = None) -> list[Any]:
        """What :meth:`get` returns for each key, in order; faster for many keys.

        Args:
            keys: Values as ``state[key]`` takes, or an Arrow column of them.

        Raises:
            MisuseError: A key has no stable hash.
        """
        keys = self._looked_for_many(_listed(keys))
        get = self._values.get
        return [get(key, default) for key in keys]

    def update_many(self, keys: Iterable[K], values: Iterable[V]) -> None:
        """Set each key to the value at its place; faster for many keys. Of equal keys the last one counts.

        Raises:
            MisuseError: A key has no stable hash, or the numbers of keys and values differ. Nothing is set.
        """
        keys, values = _listed(keys), _listed(values)
        if len(keys) != len(values):
            what = f"update_many() of {len(keys)} keys and {len(values)} values"
            raise MisuseError(what, "KeyValueState", "give one value for each key")
        keys = self._looked_for_many(keys)
        fresh = dict(zip(keys, values, strict=True))  # set in one step below: all of them or none
        known, noted = self._values, self._noted
        self._new.update(dict.fromkeys(key for key in fresh if key not in known and key not in noted))
        noted.update(fresh)
        self._values.update(fresh)

    def clear(self) -> None:
        self._read_all()
        self._noted.update(self._values)
        self._values.clear()

    def bind(
        self,
        store: StateStore,
        dumps: Callable[[object], bytes],
        loads: Callable[[bytes], Any],
        now_ms: int | None = None,
    ) -> None:
        """Attach it to a store: continue from the store's content, or from its own if the store is empty.

        Called by the task between ``prepare`` and the first tuple.

        Args:
            store: The store.
            dumps: How a bucket is encoded.
            loads: How it is decoded.
            now_ms: The clock of the micro-batch; None where no time passes.
        """
        self._stored_meta = store.get("meta")
        meta: Mapping[str, int]
        if self._stored_meta is None:
            self._read_all()  # keys that are still unread in the earlier store
            self._total = 0
            meta = {} if self._ages is None else self._ages.saved()
        else:
            meta = json.loads(self._stored_meta)
            self._written_ms = {}
            self._bits, self._unread = meta["bits"], meta["count"]
            self._total = self._unread
            self._values = {}
        ttl_ms = None if self.ttl_secs is None else math.ceil(self.ttl_secs * 1000)
        self._ages = _Ages.of(meta, ttl_ms, now_ms)
        self._shelf = _Shelf(store, dumps, loads)
        self._new = dict.fromkeys(self._values)
        self._noted, self._buckets, self._stored, self._dropped = set(), {}, {}, {}
        self._plain = set()

    def save(self) -> None:
        """Write the changes since :meth:`bind`; called by the task at the end of its micro-batch."""
        if not self.is_bound:
            raise ProtocolError(
                "an unbound state was saved", repr(self), "this is a bug in acktree: please report it"
            )
        if self._ages is not None:
            self._sweep(self._ages)
            self._note_times(self._ages.now_ms)
        if self._count() > KEYS_PER_BUCKET << self._bits:
            self._double()
        written = self._put_into_buckets()
        for number in sorted(self._buckets.keys() - (self._plain - written)):
            self._save_bucket(number, self._buckets[number], is_written=number in written)
        ages = {} if self._ages is None else self._ages.saved()
        meta = json.dumps({"bits": self._bits, "count": self._count(), **ages}).encode()
        if meta != self._stored_meta:
            self._shelf.store.put("meta", meta)
            self._stored_meta = meta
        self._noted.clear()
        self._new.clear()

    @property
    def may_stay(self) -> bool:
        is_small = sum(map(len, self._stored.values())) <= _MOST_BYTES
        return is_small and self._ages is None and not self._dropped and self._plain.issuperset(self._buckets)

    def go_on(
        self, store: StateStore, dumps: Callable[[object], bytes], loads: Callable[[bytes], Any]
    ) -> None:
        self._shelf, self._total = _Shelf(store, dumps, loads), self._count()

    def emptied(self) -> KeyValueState[K, V]:
        """An empty, unbound state with the same ttl."""
        return KeyValueState(ttl_secs=self.ttl_secs)

    def take_times(self, other: KeyValueState[K, V]) -> None:
        """Let keys that came from another state be as old as they are there; called before :meth:`bind`."""
        if other._ages is not None:
            self._ages = replace(other._ages, next_swept=0)
            known = other._written_ms
            self._written_ms.update((key, known[key]) for key in self._values if key in known)

    def _count(self) -> int:
        """How many keys there are, with those that have expired in buckets that were not read."""
        self._repair()
        return len(self._values) + self._unread

    def _looked_for(self, key: Any) -> Any:  # noqa: ANN401  # any key
        """Read the bucket of a key that was not read; returns the key as it is kept. May refuse the key."""
        if self._unread or type(key) not in _HASHABLE:
            self._read(_hash_of(key))
        return key if type(key) in _WITHOUT_NAN else with_one_nan(key)

    def _looked_for_many(self, keys: list[K]) -> list[K]:
        """:meth:`_looked_for` for each key that was not read. May refuse a key; then no bucket was read."""
        known = self._values
        if self._unread:
            missing = [key for key in keys if key not in known]
        else:
            missing = [key for key in keys if type(key) not in _WITHOUT_NAN and key not in known]
        if not missing:
            return keys
        numbers = hash_values(missing) & np.uint64((1 << self._bits) - 1)
        for number in np.unique(numbers).tolist():
            self._read(number)
        return keys if _WITHOUT_NAN.issuperset(map(type, missing)) else [*map(with_one_nan, keys)]

    def _note(self, key: K) -> K:
        """Note a key before its first change in this micro-batch. Returns it as it is kept."""
        if key not in self._values:
            key = self._looked_for(key)
            if key not in self._values:
                self._new[key] = None
        self._noted.add(key)
        return key

    def _read(self, number: int) -> dict[K, V]:
        """The bucket of this number, or of keys with this hash; reads it if necessary."""
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
        """Add the keys of a stored bucket. If an exception interrupts it, the next access repairs it."""
        bucket: dict[K, V]
        bucket, times = _parts(self._shelf.loads(blob))
        count = len(bucket)
        if not _WITHOUT_NAN.issuperset(map(type, bucket)):
            bucket = {with_one_nan(key): value for key, value in bucket.items()}
        if self._ages is not None:
            bucket = self._without_expired(bucket, times, self._ages)
        if len(bucket) < count:  # or a release before this one kept each NaN as a key of its own
            self._dropped[number] = count - len(bucket)
        self._stored[number] = blob
        self._is_taking_in = True
        self._buckets[number] = bucket
        self._values.update(bucket)
        self._unread -= count
        self._is_taking_in = False
        return bucket

    def _without_expired(self, bucket: dict[K, V], times: bytes, ages: _Ages) -> dict[K, V]:
        """The keys of a bucket that are not gone; notes when they were written."""
        written = np.frombuffer(times, dtype="<i8").tolist() if times else [ages.since_ms] * len(bucket)
        if min(written, default=ages.now_ms) <= ages.horizon_ms:
            pairs = [pair for pair in zip(bucket, written, strict=True) if pair[1] > ages.horizon_ms]
            bucket = {key: bucket[key] for key, _ in pairs}
            written = [at for _, at in pairs]
        self._written_ms.update(zip(bucket, written, strict=True))
        return bucket

    def _sweep(self, ages: _Ages) -> None:
        """Read a few buckets in turn: what has expired in them leaves the store with this save."""
        for _ in range(1 + len(self._buckets) // _BUCKETS_FOR_ONE_SWEPT):
            if not self._unread:
                return
            ages.next_swept %= 1 << self._bits
            self._read(ages.next_swept)
            ages.next_swept += 1

    def _note_times(self, now_ms: int) -> None:
        """Note that the keys that were set, and those whose values were changed in place, are written now."""
        for number, blob in self._stored.items():
            bucket = self._buckets[number]
            loose = [key for key in bucket.keys() - self._noted if type(bucket[key]) not in _UNCHANGING]
            if loose and self._dumps_bucket(bucket) != blob:
                dumps, (before, _) = self._shelf.dumps, _parts(self._shelf.loads(blob))
                before = {with_one_nan(key): value for key, value in before.items()}
                changed = [key for key in loose if dumps(bucket[key]) != dumps(before[key])]
                self._written_ms.update(dict.fromkeys(changed, now_ms))
        self._written_ms.update(dict.fromkeys(self._noted, now_ms))

    def _dumps_bucket(self, bucket: dict[K, V]) -> bytes:
        if self._ages is None:
            return self._shelf.dumps(bucket)
        times = [self._written_ms.get(key, self._ages.now_ms) for key in bucket]
        return self._shelf.dumps((bucket, np.array(times, dtype="<i8").tobytes()))

    def _repair(self) -> None:
        """Complete a :meth:`_take_in` that an asynchronous exception has interrupted."""
        if not self._is_taking_in:
            return
        for bucket in self._buckets.values():
            for key, value in bucket.items():
                if key not in self._noted:  # a noted key was changed or deleted since
                    self._values.setdefault(key, value)
        dropped = sum(self._dropped.get(number, 0) for number in self._buckets)
        self._unread = self._total - sum(map(len, self._buckets.values())) - dropped
        self._is_taking_in = False

    def _read_all(self) -> None:
        if self._unread or self._is_taking_in:
            for number in range(1 << self._bits):
                self._read(number)

    def _double(self) -> None:
        """Double the number of buckets until it suffices, and distribute all keys again."""
        self._read_all()
        while self._count() > KEYS_PER_BUCKET << self._bits:
            self._bits += 1
        self._new = dict.fromkeys(self._values)
        self._buckets, self._plain = {number: {} for number in range(1 << self._bits)}, set()

    def _put_into_buckets(self) -> set[int]:
        """Write noted and new keys to their buckets; returns the numbers of the affected buckets."""
        written = set(self._dropped)
        for number, bucket in self._buckets.items():
            changed = bucket.keys() & self._noted
            if not changed:
                continue
            written.add(number)
            kept = changed & self._values.keys()
            bucket.update(zip(kept, map(self._values.__getitem__, kept), strict=True))
            for key in changed - kept:
                del bucket[key]
        new = [key for key in self._new if key in self._values]
        numbers = hash_values(new) & np.uint64((1 << self._bits) - 1)
        for key, number in zip(new, numbers.tolist(), strict=True):
            written.add(number)
            self._read(number)[key] = self._values[key]
        return written

    def _save_bucket(self, number: int, bucket: dict[K, V], *, is_written: bool) -> None:
        before, is_plain = self._stored.get(number), _UNCHANGING.issuperset(map(type, bucket.values()))
        (self._plain.add if is_plain else self._plain.discard)(number)
        if not bucket:
            if before is not None:
                self._shelf.store.delete(f"bucket/{number}")
                del self._stored[number]
            return
        if is_plain and not is_written:
            return
        blob = self._dumps_bucket(bucket)
        if blob != before:
            self._shelf.store.put(f"bucket/{number}", blob)
            self._stored[number] = blob


def _parts(stored: Any) -> tuple[dict[Any, Any], bytes]:  # noqa: ANN401
    """The keys of a stored bucket, and when they were written; no times if it was saved without ages."""
    return stored if type(stored) is tuple else (stored, b"")


def _listed(values: Any) -> list[Any]:  # noqa: ANN401
    """The values as Python objects; an Arrow column iterates over objects of its own, which are no keys."""
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)
