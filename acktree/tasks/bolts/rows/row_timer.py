"""Times some rows of a frame, each alone, while a task executes all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from time import perf_counter

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s


class RowTimer:
    """Which rows of a frame are timed, and what is measured of them.

    Attributes:
        mask: Whether each row is timed, shape (n + 1,); the last item is for row -1, which is none.
        began: Row -> when it was executed, in seconds of a stopwatch; of rows that were timed alone.
        took_ms: Row -> how long it was executed.
        call: When the call for all other rows began, and how long it took; None for none.
        together: How many rows were executed in one call; 1 for rows that were timed alone.
    """

    __slots__ = ("began", "call", "mask", "together", "took_ms")

    def __init__(self, rows: Int64s, count: int) -> None:
        """Time some of ``count`` rows."""
        self.mask: npt.NDArray[np.bool_] = np.zeros(count + 1, dtype=np.bool_)
        self.mask[rows] = True
        self.began: dict[int, float] = {}
        self.took_ms: dict[int, float] = {}
        self.call: tuple[float, float] | None = None
        self.together = 1

    def steps(self) -> Iterable[int]:
        """All rows in order. Between a timed row and the next row the time is taken.

        The loop over the other rows runs through ``range`` objects, so it costs what
        it costs without a timer.
        """
        return chain.from_iterable(self._stretches())

    def _stretches(self) -> Iterator[Iterable[int]]:
        at = 0
        for row in np.flatnonzero(self.mask).tolist():
            yield range(at, row)
            self.began[row] = began = perf_counter()
            yield (row,)
            self.took_ms[row] = (perf_counter() - began) * 1000
            at = row + 1
        yield range(at, len(self.mask) - 1)

    def note_call(self, row: int, began: float, spent_ms: float) -> None:
        """Note the time of one call of a concurrent bolt."""
        if self.mask[row]:
            self.began[row], self.took_ms[row] = began, spent_ms

    def note_batch(self, began: float, spent_ms: float) -> None:
        """Note the time of a call for all rows; of rows that were timed alone nothing is noted."""
        if len(self.took_ms) < np.count_nonzero(self.mask):
            self.call = began, spent_ms
            self.together = len(self.mask) - 1
