"""Runs: equal values that follow each other."""

from __future__ import annotations

from typing import Final

import numpy as np

from acktree.core.ids import Int32s, Int64s, UInt64s

__all__ = ["starts_of_runs"]

_NONE: Final = np.zeros(0, dtype=np.int64)


def starts_of_runs(values: Int64s | Int32s | UInt64s, cuts: Int64s = _NONE) -> Int64s:
    """The index at which each run of equal values begins and, last, the number of values; shape (r + 1,).

    Args:
        values: Shape (n,).
        cuts: Indices from 1 to n - 1 at which a run begins in any case.
    """
    if not len(values):
        return np.zeros(1, dtype=np.int64)
    is_change = values[1:] != values[:-1]
    is_change[cuts - 1] = True
    changes = np.flatnonzero(is_change)
    starts = np.empty(len(changes) + 2, dtype=np.int64)
    starts[0], starts[-1] = 0, len(values)
    np.add(changes, 1, out=starts[1:-1])
    return starts
