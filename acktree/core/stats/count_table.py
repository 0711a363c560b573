"""Counters as a table: keys that are encoded once, and an array of counts.

The counts of all runs are stored with each micro-batch. Their keys are texts, and rarely new ones; their
counts change each time. So a micro-batch costs one look-up for each count that it brings, and the encoding of
the array; :class:`Counters` as JSON would cost the encoding of all keys.

::

    keys     JSON, compressed: a list of [component, task id, stream, what]; in two parts
    counts   64-bit whole numbers, compressed: first the lowest bytes of all, then the next ones, and so on
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s
from acktree.core.stats.counters import Counters, Key

_LITTLE: Final = np.dtype("<i8")
_LEVEL: Final = 1
_NEW_KEYS: Final = 256
"""New keys are encoded as a second part, again for each one. With more keys than this, and than an eighth of
the first part's, it joins the first part."""
_MOST: Final = 1 << 62


class PackedTable(NamedTuple):
    """A table as bytes."""

    keys: Sequence[bytes]
    counts: bytes


class _Encoded(NamedTuple):
    """Keys as bytes, and the place where they end."""

    end: int
    keys: bytes


class CountTable:
    """Counters that only grow, for storing. One thread uses it.

    >>> table, grown = CountTable(), Counters()
    >>> grown.add("split", 3, "default", "emitted", 5)
    >>> table.add(grown)
    >>> table.add(grown)
    >>> CountTable.unpacked(table.packed()).total("emitted")
    10
    """

    def __init__(self, counters: Counters | None = None) -> None:
        """Begin with some counters; None: empty."""
        self._places: dict[Key, int] = {}
        self._counts: Int64s = np.zeros(0, dtype=np.int64)
        self._settled = self._latest = _Encoded(0, b"")
        if counters is not None:
            self.add(counters)

    def add(self, counters: Counters) -> None:
        """Add the counts of some counters, which are not changed."""
        at = self._at(counters)  # it may make the table longer
        self._counts[at] += _counts_of(counters)

    def counters(self) -> Counters:
        """The sums."""
        return Counters.of(zip(self._places, self._counts.tolist(), strict=True))

    def packed(self, more: Iterable[Counters] = ()) -> PackedTable:
        """Encode the sums.

        Args:
            more: What is added to what is encoded, and not to the table.
        """
        more = list(more)
        places = [self._at(counters) for counters in more]
        counts = self._counts.astype(_LITTLE)
        for at, counters in zip(places, more, strict=True):
            counts[at] += _counts_of(counters)
        planes = counts.view(np.uint8).reshape(-1, _LITTLE.itemsize).T
        return PackedTable(self._encoded_keys(), zlib.compress(planes.tobytes(), _LEVEL))

    @staticmethod
    def unpacked(packed: PackedTable) -> Counters:
        """The counters of an encoded table.

        Raises:
            ValueError, TypeError, zlib.error: It is damaged.
        """
        keys: list[Key] = []
        for part in packed.keys:
            keys += ((str(a), int(b), str(c), str(d)) for a, b, c, d in json.loads(zlib.decompress(part)))
        planes = np.frombuffer(zlib.decompress(packed.counts), dtype=np.uint8)
        counts = planes.reshape(_LITTLE.itemsize, -1).T.copy().view(_LITTLE)[:, 0]
        if len(set(keys)) != len(keys) or len(counts) != len(keys):
            raise ValueError(f"{len(counts)} counts of {len(keys)} keys")
        if len(counts) and not (counts.min() >= 0 and counts.max() < _MOST):
            raise ValueError("a count is negative, or too large")
        return Counters.of(zip(keys, counts.tolist(), strict=True))

    def _at(self, counters: Counters) -> npt.NDArray[np.intp]:
        """The place of each key; new keys are added with a count of zero."""
        places = self._places
        try:
            return np.fromiter(map(places.__getitem__, counters), np.intp, len(counters))
        except KeyError:
            for key in counters:
                places.setdefault(key, len(places))
        self._counts = np.concatenate(
            (self._counts, np.zeros(len(places) - len(self._counts), dtype=np.int64))
        )
        return self._at(counters)

    def _encoded_keys(self) -> list[bytes]:
        """All keys: a part that was encoded once, and the keys that came since."""
        if self._latest.end < len(self._places):
            keys, settled = list(self._places), self._settled.end
            if len(keys) - settled > max(_NEW_KEYS, settled // 8):
                self._settled = self._latest = _Encoded(len(keys), _encoded(keys))
            else:
                self._latest = _Encoded(len(keys), _encoded(keys[settled:]))
        both = [self._settled] if self._latest is self._settled else [self._settled, self._latest]
        return [part.keys for part in both if part.keys]


def _counts_of(counters: Counters) -> Int64s:
    return np.fromiter(counters.values(), np.int64, len(counters))


def _encoded(keys: Sequence[Key]) -> bytes:
    return zlib.compress(json.dumps(keys, separators=(",", ":")).encode(), _LEVEL)
