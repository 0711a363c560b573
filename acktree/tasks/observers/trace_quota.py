"""How many tuples of traced messages a level records."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s

__all__ = ["MOST_FACTS", "MOST_TUPLES", "Quota"]

MOST_TUPLES: Final = 1000
"""The most tuples of a message that are recorded; the others are counted by component."""
MOST_FACTS: Final = 20_000
"""The most links, and the most executions, of one level, partition and micro-batch."""

Bools = npt.NDArray[np.bool_]


class Quota:
    """How many tuples of each message are recorded, and how many of all."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept = 0
        self._few: list[Int64s] = []

    def kept(self, roots: Int64s) -> Bools | None:
        """Which of these tuples are recorded, given by their roots, shape (n,); None for all."""
        if self._kept + len(roots) <= min(MOST_TUPLES, MOST_FACTS):
            self._few.append(roots)  # no message can have too many
            self._kept += len(roots)
            return None
        if self._few:
            few, self._few, self._kept = np.concatenate(self._few), [], 0
            self._counted(few)
        return self._counted(roots)

    def _counted(self, roots: Int64s) -> Bools | None:
        """The same, counting each message."""
        found, at, counts = np.unique(roots, return_inverse=True, return_counts=True)
        keys = found.tolist()
        before = np.array([self._seen.get(key, 0) for key in keys], np.int64)
        after = before + counts
        self._seen.update(zip(keys, after.tolist(), strict=True))
        if after.max() <= MOST_TUPLES and self._kept + len(roots) <= MOST_FACTS:
            self._kept += len(roots)
            return None
        order = np.argsort(at, kind="stable")
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))
        nth = np.empty(len(roots), np.int64)
        nth[order] = np.arange(len(roots)) - np.repeat(starts, counts)
        fits: Bools = nth + before[at] < MOST_TUPLES
        fits &= self._kept + np.cumsum(fits) <= MOST_FACTS
        self._kept += int(np.count_nonzero(fits))
        return fits
