"""The keys of messages: which are open, which are decided, and whether a message with such a key runs.

Rules of this file
------------------
1. A key is *claimed* by the first message that has it, until that message is ACKED or given up. A key that
   was ACKED is kept; one whose message was given up is free: the next message that has it claims it.
2. What a micro-batch decides counts when it is committed: :meth:`Keys.publish`.
3. A message that its spout has lost keeps its claim until the verdict of its attempt: it may still be ACKED.
4. Of several attempts with one key the first that is ACKED is its message. The others are *repeated*: they
   are ACKED too, and pass no gate. A claim makes that rare; rows of a DataFrame do not wait for claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from threading import Lock
from typing import NamedTuple

import numpy as np

from acktree.core.ids import Int64s
from acktree.core.spouts.keys import Digests, KeptKeys, KeptPart, digests_of
from acktree.core.spouts.pending import MessageIds
from acktree.core.stats.numbers import KeyNumbers
from acktree.tasks.spouts.keys.labels import Labelled

_DAY_MS = 86_400_000


class Fate(Enum):
    """What becomes of a message that comes with a key."""

    RUNS = "it claimed its key, or has none"
    WAITS = "another message has claimed its key"
    ACKED = "its key was ACKED"


class JudgedKeys(NamedTuple):
    """What a micro-batch decided of keys.

    Attributes:
        kept: The keys that were ACKED.
        repeated: Roots that were ACKED after another with the same key.
    """

    kept: Digests
    repeated: Int64s


def keys_of(message_ids: MessageIds | Iterable[object]) -> list[bytes]:
    """The digest of the key of each message; empty for none."""
    if isinstance(message_ids, np.ndarray):
        return [b""] * len(message_ids)
    return [message_id.key if type(message_id) is Labelled else b"" for message_id in message_ids]


class Keys:
    """The keys of all spout tasks of a run. Any thread may call it.

    Attributes:
        is_used: Whether any message has had a key.
        changes: How often keys became free, or were decided.
    """

    def __init__(self, retention_ms: int = _DAY_MS, age_ms: Callable[[], int] = lambda: 0) -> None:
        """No key was seen yet.

        Args:
            retention_ms: For how long a key is kept.
            age_ms: The age of the topology at this moment. Any thread calls it.
        """
        self._age_ms = age_ms
        self.is_used, self.changes = False, 0
        self._has_reopened = False
        self._lock = Lock()
        self._kept = KeptKeys(retention_ms)
        self._claimed: set[bytes] = set()
        self._of_root: dict[int, bytes] = {}  # of attempts without a verdict
        self._rows: set[int] = set()  # those of rows of DataFrames
        self._lost: set[int] = set()  # those of messages that their spouts have lost
        self._acked: list[tuple[int, Digests]] = []  # in micro-batches that are not committed
        self._free: list[bytes] = []  # keys to free once these are committed

    def __len__(self) -> int:
        """The number of keys that are kept."""
        with self._lock:
            return len(self._kept)

    def claim(self, digests: Sequence[bytes]) -> list[Fate]:
        """What becomes of messages with these keys, in their order; an empty digest is no key."""
        self.is_used = True
        age_ms = self._age_ms()
        with self._lock:
            self._kept.forget_before(age_ms)  # what is ACKED at once makes no micro-batch, which would do so
            is_kept = self._kept.among(_padded(digests)).tolist()
            return [self._claim(*pair) for pair in zip(digests, is_kept, strict=True)]

    def _claim(self, digest: bytes, is_kept: bool) -> Fate:  # noqa: FBT001
        if digest and is_kept:
            return Fate.ACKED
        if digest in self._claimed:
            return Fate.WAITS
        if digest:
            self._claimed.add(digest)
        return Fate.RUNS

    def sent(self, roots: Int64s, message_ids: MessageIds) -> None:
        """Note the keys of attempts that are about to be handed over."""
        with self._lock:
            self._of_root |= _keyed(roots, message_ids)

    def rows(self, roots: Int64s, digests: Digests) -> None:
        """Note the keys of rows of a DataFrame, which have no verdict yet."""
        with self._lock:
            self.is_used = True
            keyed = dict(zip(roots.tolist(), _whole_digests(digests), strict=True))
            self._of_root |= keyed
            self._rows |= keyed.keys()

    def open_rows(self) -> dict[int, bytes]:
        """The rows of DataFrames without a verdict, with their keys."""
        with self._lock:
            self._rows &= self._of_root.keys()
            return {root: self._of_root[root] for root in sorted(self._rows)}

    def reopened(self, roots: Int64s, message_ids: MessageIds) -> None:
        """Note and claim the keys of attempts that an earlier run handed over, and that are still open."""
        keyed = _keyed(roots, message_ids)
        with self._lock:
            self.is_used |= bool(keyed)
            self._of_root |= keyed
            self._claimed.update(keyed.values())
            self._has_reopened |= bool(keyed)

    def give_up(self, message_ids: Iterable[object]) -> None:
        """Free the keys of messages that get no further attempt."""
        if self.is_used:
            with self._lock:
                self._free_now(keys_of(message_ids))

    def lose(self, roots: Int64s, message_ids: MessageIds) -> None:
        """Note that a spout has lost these messages. Keys of those that are not under way are free."""
        with self._lock:
            keyed = _keyed(roots, message_ids)
            under_way = self._of_root.keys() & keyed.keys()
            self._lost |= under_way
            acked = {digest for _, digests in self._acked for digest in _whole_digests(digests)}
            self._free_now({keyed[root] for root in keyed.keys() - under_way} - acked)

    def _free_now(self, digests: Iterable[bytes]) -> None:
        claimed = self._claimed.intersection(digests)
        if self._has_reopened:  # then another open attempt may have the same key
            claimed -= set(self._of_root.values())
        self._claimed -= claimed
        self.changes += bool(claimed)

    def settle(self, acked: Int64s, failed: Int64s) -> None:
        """Forget reopened attempts that an earlier run has decided; the keys of acked ones are kept."""
        with self._lock:
            for root in failed.tolist():
                self._of_root.pop(root, None)
            self._claimed -= {self._of_root.pop(root, b"") for root in acked.tolist()}

    @property
    def waits_for_verdicts(self) -> bool:
        """Whether attempts with keys have no verdict."""
        return bool(self._of_root)

    def judge(self, acked: Int64s, failed: Int64s, age_ms: int) -> JudgedKeys:
        """Take the verdicts of a micro-batch at this age of the topology; those before are published."""
        with self._lock:
            self._kept.forget_before(age_ms)  # rows of a DataFrame claim nothing
            decided, repeated = dict[bytes, int](), list[int]()
            for root in sorted(self._of_root.keys() & acked.tolist()):
                digest = self._of_root.pop(root)
                self._lost.discard(root)
                if digest in decided:
                    repeated.append(root)
                decided.setdefault(digest, root)
            digests = digests_of(decided)
            is_kept = self._kept.among(digests)
            repeated += [
                root for root, is_old in zip(decided.values(), is_kept.tolist(), strict=True) if is_old
            ]
            for root in self._of_root.keys() & failed.tolist():
                digest = self._of_root.pop(root)
                if root in self._lost:
                    self._lost.discard(root)
                    self._free.append(digest)
            kept = digests[~is_kept]
            self._free += [digest for digest, is_old in zip(decided, is_kept.tolist(), strict=True) if is_old]
            if len(kept):
                self._acked.append((age_ms, kept))
            return JudgedKeys(kept, np.array(sorted(repeated), dtype=np.int64))

    def publish(self, age_ms: int) -> None:
        """Keep and free keys as judged so far: it is committed."""
        with self._lock:
            for decided_ms, digests in self._acked:
                self._kept.add(KeptPart.of(decided_ms, digests))
                self._claimed.difference_update(_whole_digests(digests))
            self._claimed.difference_update(self._free)
            self.changes += bool(self._acked or self._free)
            self._acked, self._free = [], []
            self._kept.forget_before(age_ms)

    def keep(self, parts: Iterable[KeptPart]) -> None:
        """Add the keys that an earlier run has kept."""
        with self._lock:
            for part in parts:
                self._kept.add(part)

    def numbers(self, age_ms: int) -> KeyNumbers:
        """How many are kept, since when at this age of the topology, and how many are open."""
        with self._lock:
            self._kept.forget_before(age_ms)
            oldest_ms = min((part.first_ms for part in self._kept.parts), default=None)
            age_secs = None if oldest_ms is None else (age_ms - oldest_ms) / 1000
            return KeyNumbers(len(self._kept), age_secs, len(self._claimed))

    def parts(self) -> list[KeptPart]:
        """All that is kept, and what is not committed yet."""
        with self._lock:
            return [*self._kept.parts, *(KeptPart.of(*part) for part in self._acked)]


def _keyed(roots: Int64s, message_ids: MessageIds) -> dict[int, bytes]:
    """The attempts whose messages have keys."""
    return {root: key for root, key in zip(roots.tolist(), keys_of(message_ids), strict=True) if key}


def _padded(digests: Sequence[bytes]) -> Digests:
    return np.array(digests, dtype="S16")


def _whole_digests(digests: Digests) -> list[bytes]:
    """The digests in all their 16 bytes: numpy leaves out the zeros at their ends."""
    blob = digests.tobytes()
    return [blob[at : at + 16] for at in range(0, len(blob), 16)]
