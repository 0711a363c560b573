"""The acker's sums: what every open tuple tree still owes, and since when.

Rules of this file
------------------
1. Whatever can change the fate of a root lives here and nowhere else.
2. Nothing here knows the time, draws a number or has heard of Spark: deltas and ``now_ms`` arrive as
   arguments, verdicts leave as return values.
3. FAILED wins over ACKED, ACKED over TIMED_OUT; a root is judged once and then forgotten.

A root's sum is the XOR of every edge created and every edge acked below it; it is zero when each edge was
seen twice. XOR commutes, so order and batching cannot matter. XOR is not idempotent, so a delta added twice
is a delta never added: the caller owes exactly-once, and Spark's checkpoint is how it pays. A sum of an
unfinished tree is zero with probability 2**-64: at 10,000 tests a second, once in 58 million years.

Open roots lie in **buckets** by the moment from which their age counts, each a blob of the state store; what
opens and closes in one micro-batch never enters one. An age counts from the end of the micro-batch that
admitted the root (slow is not lost), and that end is known when the next one comes. T / 16 may pass until a
micro-batch is asked for if none comes by itself, and T / 16 is lost by rounding up to a bucket: a root is
timed out never before T and at the latest after T + T/8 and one micro-batch. Acks do not refresh an age,
``reset_timeout`` does. With timeouts off no age begins.

A message about a root that is not open is left from a root already judged: an init is never later than its
acks' micro-batch. It is dropped, so nothing here can grow for ever.

Source: Storm's ``daemon/Acker``, ``utils/RotatingMap`` and its page "Guaranteeing message processing".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from acktree.core.deltas import Deltas, sum_by_root
from acktree.core.ids import Int32s, Int64s, sequences_of
from acktree.core.packing import int32s, int64s, pack, unpack
from acktree.core.state import StateStore
from acktree.errors import ProtocolError

BUCKETS: Final = 16
"""How many buckets a message timeout is cut into; the bound on lateness is twice the width of one."""

_DIRECTORY: Final = "buckets"
_FRESH: Final = -1


@dataclass(frozen=True, eq=False)
class Judged:
    """Roots that met one fate: ``roots`` and the spout task that opened each (``owners``), shape (n,)."""

    roots: Int64s
    owners: Int32s


@dataclass(frozen=True, eq=False)
class Settlement:
    """What one micro-batch decided.

    Attributes:
        acked: Every tuple of these trees was acked.
        failed: Some tuple of these was failed.
        failures: Index into the deltas' ``reasons`` of the first failure of each failed root, shape (n,).
        others: How many further failures each failed root was told, shape (n,).
        timed_out: These got neither in time.
        open_count: Roots still open.
        next_deadline_ms: When the ledger wants to be asked again if nothing happens before; None when never.
        oldest_ms: Since when the oldest open root's age counts; None when none is, or none yet.
    """

    acked: Judged
    failed: Judged
    failures: Int64s
    others: Int64s
    timed_out: Judged
    open_count: int
    next_deadline_ms: int | None
    oldest_ms: int | None


@dataclass
class _Bucket:
    """Open roots of one age, ascending by root; all shape (n,)."""

    roots: Int64s
    sums: Int64s
    owners: Int32s

    def find(self, roots: Int64s) -> tuple[Int64s, Int64s]:
        """Where these ascending roots are: (positions here, positions in ``roots``) of those found."""
        at = np.searchsorted(self.roots, roots)
        at[at == len(self.roots)] = 0
        found = np.flatnonzero(self.roots[at] == roots)
        return at[found], found

    @classmethod
    def of(cls, roots: Int64s, sums: Int64s, owners: Int32s) -> _Bucket:
        """From roots in any order, each once: a root that is open twice would get two verdicts."""
        order = np.argsort(roots)
        ascending = roots[order]
        twice = np.flatnonzero(ascending[1:] == ascending[:-1])
        if len(twice):
            root = int(ascending[twice[0]])
            raise ProtocolError(
                f"root {root} is open twice, from spout task {owners[roots == root].tolist()}",
                f"an acker's ledger, {len(twice)} such of {len(roots)} roots",
                "a bug in acktree, or one run_salt used again on other messages: please report it",
            )
        return cls(ascending, sums[order], owners[order])

    def keep(self, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> _Bucket:
        return _Bucket(self.roots[kept], self.sums[kept], self.owners[kept])

    def and_also(self, other: _Bucket) -> _Bucket:
        return _Bucket.of(
            np.concatenate((self.roots, other.roots)),
            np.concatenate((self.sums, other.sums)),
            np.concatenate((self.owners, other.owners)),
        )

    def to_bytes(self) -> bytes:
        return pack(self.roots, self.sums, self.owners)

    @classmethod
    def from_bytes(cls, blob: bytes) -> _Bucket:
        roots, sums, owners = unpack(blob)
        return cls(int64s(roots), int64s(sums), int32s(owners))


_EMPTY: Final = _Bucket(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))


class Ledger:
    """The open roots of one acker task."""

    def __init__(self, store: StateStore, timeout_ms: int | None) -> None:
        """Open the ledger that lies in ``store``.

        Args:
            timeout_ms: The message timeout; None when messages never time out.
        """
        self._store = store
        self._timeout_ms = timeout_ms
        blob = store.get(_DIRECTORY) or b"{}"
        # How many roots each bucket holds, by the moment (ms) from which their age counts.
        self._counts: dict[int, int] = {int(since): count for since, count in json.loads(blob).items()}
        self._as_stored = dict(self._counts)
        self._loaded: dict[int, _Bucket] = {}
        self._changed: set[int] = set()

    def settle(self, deltas: Deltas, now_ms: int) -> Settlement:
        """Add one micro-batch's deltas, judge what can be judged, and write back what changed.

        Args:
            deltas: All that this micro-batch told this acker task, in any order.
            now_ms: The micro-batch's clock.
        """
        self._stamp_fresh(now_ms)
        init = _Bucket.of(deltas.init_roots, deltas.init_sums, deltas.init_owners)
        fail_roots, firsts, repeats = np.unique(deltas.fail_roots, return_index=True, return_counts=True)
        ack_roots, ack_sums = sum_by_root(deltas.ack_roots, deltas.ack_sums)

        closed: list[_Bucket] = []
        failed: list[_Bucket] = []
        reset: list[_Bucket] = []
        left = self._apply(init, ack_roots, ack_sums, fail_roots, closed, failed)
        older = list(self._counts)
        asked = _of_others(init, ack_roots, fail_roots, deltas.reset_roots) if older else _EMPTY.roots
        for since in older if len(asked) else ():
            bucket = self._bucket(since)
            if not len(bucket.find(asked)[0]):
                continue
            kept = self._apply(bucket, ack_roots, ack_sums, fail_roots, closed, failed)
            moved = np.isin(kept.roots, deltas.reset_roots)
            reset.append(kept.keep(moved))
            self._set(since, kept.keep(~moved))

        timed_out = self._expire(now_ms)
        self._set(_FRESH, _together([self._bucket(_FRESH), left, *reset]))
        acked = _together(closed)
        lost = _together(failed)
        place = np.searchsorted(fail_roots, lost.roots)
        self._write()
        return Settlement(
            Judged(acked.roots, acked.owners),
            Judged(lost.roots, lost.owners),
            deltas.failures[firsts[place]],
            repeats[place] - 1,
            Judged(timed_out.roots, timed_out.owners),
            sum(self._counts.values()),
            self._next_deadline_ms(now_ms),
            min((since for since in self._counts if since != _FRESH), default=None),
        )

    def forget_before(self, run_salt: int, first_sequences: Mapping[int, int]) -> None:
        """Drop, without a verdict, what spout tasks opened in an earlier run and their queues bring back.

        Args:
            run_salt: The salt of the checkpoint, to read a root's sequence.
            first_sequences: For each spout task whose queue redelivers, the first sequence of this run.
        """
        for since in list(self._counts):
            bucket = self._bucket(since)
            sequences = sequences_of(run_salt, bucket.roots)[1]
            orphaned = np.zeros(len(bucket.roots), dtype=np.bool_)
            for owner, first in first_sequences.items():
                orphaned |= (bucket.owners == owner) & (sequences < first)
            if orphaned.any():
                self._set(since, bucket.keep(~orphaned))
        self._write()

    def _apply(
        self, bucket: _Bucket, ack_roots: Int64s, ack_sums: Int64s, fail_roots: Int64s,
        closed: list[_Bucket], failed: list[_Bucket],
    ) -> _Bucket:  # fmt: skip
        """Add the sums to a bucket's roots; hand out those that are done; return those that are not."""
        if not len(bucket.roots):
            return bucket
        at, found = bucket.find(ack_roots)
        sums = bucket.sums.copy()
        sums[at] ^= ack_sums[found]
        bucket = _Bucket(bucket.roots, sums, bucket.owners)
        has_failed = np.isin(bucket.roots, fail_roots)
        is_done = (sums == 0) & ~has_failed
        failed.append(bucket.keep(has_failed))
        closed.append(bucket.keep(is_done))
        return bucket.keep(~(has_failed | is_done))

    def _stamp_fresh(self, now_ms: int) -> None:
        """Let the age of what the last micro-batch left open begin now, rounded up to a bucket."""
        if self._timeout_ms is None or _FRESH not in self._counts:
            return
        width = _width_ms(self._timeout_ms)
        since = -(-now_ms // width) * width
        self._set(since, _together([self._bucket(_FRESH), self._bucket(since)]))
        self._set(_FRESH, _EMPTY)

    def _expire(self, now_ms: int) -> _Bucket:
        """Take out every bucket whose roots are older than the timeout."""
        if self._timeout_ms is None:
            return _EMPTY
        late = [since for since in self._counts if since != _FRESH and since + self._timeout_ms <= now_ms]
        expired = _together([self._bucket(since) for since in late])
        for since in late:
            self._set(since, _EMPTY)
        return expired

    def _next_deadline_ms(self, now_ms: int) -> int | None:
        if self._timeout_ms is None or not self._counts:
            return None
        ends = [since + self._timeout_ms for since in self._counts if since != _FRESH]
        if _FRESH in self._counts:  # an age that has not begun begins at the next micro-batch: let one come
            ends.append(now_ms + _width_ms(self._timeout_ms))
        return min(ends)

    def _bucket(self, since: int) -> _Bucket:
        if since not in self._counts:
            return _EMPTY
        if since not in self._loaded:
            blob = self._store.get(f"bucket/{since}")
            if blob is None:
                raise ProtocolError(
                    f"{self._counts[since]} open roots are gone: their bucket {since} is not in the store",
                    "an acker's ledger",
                    "go on from an older checkpoint, or submit on a new one; please report it",
                )
            self._loaded[since] = _Bucket.from_bytes(blob)
        return self._loaded[since]

    def _set(self, since: int, bucket: _Bucket) -> None:
        if bucket is self._bucket(since):
            return
        self._changed.add(since)
        if len(bucket.roots):
            self._counts[since] = len(bucket.roots)
            self._loaded[since] = bucket
        else:
            del self._counts[since]
            self._loaded.pop(since, None)

    def _write(self) -> None:
        for since in sorted(self._changed):
            if since in self._counts:
                self._store.put(f"bucket/{since}", self._loaded[since].to_bytes())
            elif since in self._as_stored:
                self._store.delete(f"bucket/{since}")
        self._changed.clear()
        if self._counts != self._as_stored:
            self._store.put(_DIRECTORY, json.dumps(self._counts).encode())
            self._as_stored = dict(self._counts)


def _width_ms(timeout_ms: int) -> int:
    return max(1, timeout_ms // BUCKETS)


def _of_others(init: _Bucket, *told: Int64s) -> Int64s:
    """The roots that something was told of and that were not opened just now, ascending."""
    asked = np.unique(np.concatenate(told))
    return asked[~np.isin(asked, init.roots)]


def _together(buckets: list[_Bucket]) -> _Bucket:
    joined = _EMPTY
    for bucket in buckets:
        if len(bucket.roots):
            joined = bucket if joined is _EMPTY else joined.and_also(bucket)
    return joined
