"""Counters over the last seconds, from samples of counters that only grow.

A window keeps twenty samples, as Storm's does. Its numbers are the difference between now and its oldest
sample, so they cover the window's length and up to a twentieth more.

Source: Storm's ``RollingWindow``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from acktree.core.ids import Int64s
from acktree.core.stats.counters import Counters, Key

__all__ = ["Windows"]

_SAMPLES: Final = 20


class Windows:
    """Samples for several windows; one thread uses it.

    >>> windows, counters = Windows([600], now_ms=0), Counters()
    >>> for now_ms in (30_000, 600_000, 900_000):
    ...     counters.add("orders", 1, "default", "emitted", 5)
    ...     windows.note(counters, now_ms)
    >>> grown, secs = windows.since(counters, 600, 900_000)
    >>> grown.total("emitted"), secs
    (10, 870.0)
    """

    def __init__(self, lengths_secs: Sequence[int], now_ms: int) -> None:
        """Start with counters of zero.

        Args:
            lengths_secs: The windows' lengths.
            now_ms: The time now, of a clock that is never set back.
        """
        self._places: dict[Key, int] = {}
        empty = np.zeros(0, dtype=np.int64)
        self._samples: dict[int, deque[tuple[int, Int64s]]] = {
            length: deque([(now_ms, empty)]) for length in lengths_secs
        }

    def note(self, counters: Counters, now_ms: int) -> None:
        """Keep a sample where the last one is a twentieth of a window old; drop what a window left behind."""
        values: Int64s | None = None
        for length, samples in self._samples.items():
            while len(samples) > 1 and samples[1][0] <= now_ms - length * 1000:
                samples.popleft()
            if now_ms - samples[-1][0] >= length * 1000 / _SAMPLES:
                values = self._values(counters) if values is None else values
                samples.append((now_ms, values))

    def since(self, counters: Counters, length_secs: int, now_ms: int) -> tuple[Counters, float]:
        """How much the counters have grown in a window, and how many seconds that covers."""
        at_ms, before = self._samples[length_secs][0]
        grown = self._values(counters)
        grown[: len(before)] -= before
        # A counter of a spout may lag behind its last sample: it is read while its thread runs.
        found = Counters.of((key, int(grown[at])) for key, at in self._places.items() if grown[at] > 0)
        return found, max(0, now_ms - at_ms) / 1000

    def _values(self, counters: Counters) -> Int64s:
        """Counters as an array: one column for each key that was ever seen."""
        places = self._places
        for key in counters:
            places.setdefault(key, len(places))
        values = np.zeros(len(places), dtype=np.int64)
        for key, n in counters.items():
            values[places[key]] = n
        return values
