"""The traced tuples of one frame while a task works on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["TracedRow", "TracedRows"]


class TracedRow(NamedTuple):
    """A tuple under one of its roots."""

    row: int
    root: int
    edge: int


class TracedRows:
    """Which rows of a frame are traced, and what is measured of them.

    Attributes:
        pairs: Each traced row under each of its traced roots, by row.
        surplus: The same, of messages that have too many tuples: only failed ones are recorded.
        mask: Whether each row is traced, shape (n + 1,); the last item is for row -1, which is none.
        began: Row -> when it was executed, in seconds of a stopwatch.
        took_ms: Row -> how long it was executed.
        together: How many rows were executed in one call; 1 for rows that were timed alone.
        reasons: Row -> why it was failed.
    """

    __slots__ = ("began", "mask", "pairs", "reasons", "surplus", "together", "took_ms")

    def __init__(self, pairs: list[TracedRow], surplus: list[TracedRow], count: int) -> None:
        self.pairs, self.surplus = pairs, surplus
        self.mask: npt.NDArray[np.bool_] = np.zeros(count + 1, dtype=np.bool_)
        self.mask[[pair.row for pair in pairs]] = True
        self.began: dict[int, float] = {}
        self.took_ms: dict[int, float] = {}
        self.reasons: dict[int, str] = {}
        self.together = 1

    def steps(self) -> Iterable[int]:
        """All rows in order. Between a traced row and the next row the time is taken.

        The loop over untraced rows runs through ``range`` objects, so it costs what it costs without tracing.
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
        for pair in self.pairs:
            if pair.row not in self.took_ms:
                self.began[pair.row], self.took_ms[pair.row] = began, spent_ms
                self.together = len(self.mask) - 1
