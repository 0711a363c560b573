"""Counters over the last seconds, from samples of counters that only grow.

A window keeps twenty samples, as Storm's does. Its numbers are the difference between now and its oldest
sample, so they cover the window's length and up to a twentieth more. With the samples of earlier runs a
window goes on over a restart; its seconds are those in which a driver ran.

Source: Storm's ``RollingWindow``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from acktree.core.ids import Int64s
from acktree.core.stats.counters import Counters, Key

_SAMPLES: Final = 20


class Earlier(NamedTuple):
    """The counters at an earlier time.

    Attributes:
        at_ms: By the same clock as the windows; may be negative.
        ran_ms: For how long drivers had run.
    """

    at_ms: int
    ran_ms: int
    counters: Counters


class _Sample(NamedTuple):
    at_ms: int
    ran_ms: int
    values: Int64s


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

    def __init__(
        self,
        lengths_secs: Sequence[int],
        now_ms: int,
        begun: Earlier | None = None,
        earlier: Iterable[Earlier] = (),
    ) -> None:
        """Start where earlier runs ended.

        Args:
            lengths_secs: The windows' lengths.
            now_ms: The time now, of a clock that is never set back.
            begun: The counters as earlier runs left them, and when; None: all are zero, and begin now.
            earlier: Earlier samples, the oldest first. Those that have more than ``begun`` are of another
                history, and left out.
        """
        self._places: dict[Key, int] = {}
        self._samples: dict[int, deque[_Sample]] = {length: deque() for length in lengths_secs}
        end = begun or Earlier(now_ms, now_ms, Counters())
        known = [*(sample for sample in earlier if _is_before(sample, end)), end]
        if end.at_ms < now_ms:
            known.append(end._replace(at_ms=now_ms))  # nothing happened since
        for sample in known:
            made = self._sample(sample.counters, sample.at_ms, sample.ran_ms)
            for samples in self._samples.values():
                samples.append(made)
        for length, samples in self._samples.items():
            _drop_before(samples, now_ms - length * 1000)

    def note(self, counters: Counters, now_ms: int, ran_ms: int | None = None) -> None:
        """Keep a sample where the last one is a twentieth of a window old; drop what a window left behind.

        Args:
            ran_ms: For how long drivers have run; None: as long as the clock.
        """
        made: _Sample | None = None
        for length, samples in self._samples.items():
            _drop_before(samples, now_ms - length * 1000)
            if now_ms - samples[-1].at_ms >= length * 1000 / _SAMPLES:
                made = made or self._sample(counters, now_ms, now_ms if ran_ms is None else ran_ms)
                samples.append(made)

    def since(
        self, counters: Counters, length_secs: int, now_ms: int, ran_ms: int | None = None
    ) -> tuple[Counters, float]:
        """How much the counters have grown in a window, and in how many seconds of running."""
        before = self._samples[length_secs][0]
        grown = self._values(counters)
        grown[: len(before.values)] -= before.values
        # A counter of a spout may lag behind its last sample: it is read while its thread runs.
        growth = Counters.of((key, int(grown[at])) for key, at in self._places.items() if grown[at] > 0)
        return growth, max(0, (now_ms if ran_ms is None else ran_ms) - before.ran_ms) / 1000

    def _sample(self, counters: Counters, at_ms: int, ran_ms: int) -> _Sample:
        return _Sample(at_ms, ran_ms, self._values(counters))

    def _values(self, counters: Counters) -> Int64s:
        """Counters as an array: one column for each key that was ever seen."""
        places = self._places
        for key in counters:
            places.setdefault(key, len(places))
        values = np.zeros(len(places), dtype=np.int64)
        for key, n in counters.items():
            values[places[key]] = n
        return values


def _drop_before(samples: deque[_Sample], begin_ms: int) -> None:
    """Drop samples until the oldest is the last one at the begin of a window, or before it."""
    while len(samples) > 1 and samples[1].at_ms <= begin_ms:
        samples.popleft()


def _is_before(earlier: Earlier, later: Earlier) -> bool:
    """Whether counters can have grown from one to the other."""
    if earlier.at_ms > later.at_ms or earlier.ran_ms > later.ran_ms:
        return False
    return all(n <= later.counters.get(key, 0) for key, n in earlier.counters.items())
