"""Runs, which are equal values that follow each other; rows in the order of a number; sums of equal keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s, Int64s, UInt64s

Key = TypeVar("Key", np.int64, np.uint64)

Small = npt.NDArray[np.unsignedinteger[Any]]
"""Small whole numbers, of the smallest type that holds them."""

_NONE: Final = np.zeros(0, dtype=np.int64)
_FEW: Final = 8
"""Up to this many numbers, to look for each takes less than to sort."""
_PART: Final = 64
"""Keys are merged if their ascending parts have more than this many keys on average."""


def end_to_end(parts: Iterable[Int64s]) -> Int64s:
    """The numbers of all parts, in order. There may be no part.

    >>> end_to_end([]).tolist(), end_to_end([np.array([2, 1]), np.array([3])]).tolist()
    ([], [2, 1, 3])
    """
    return np.concatenate([_NONE, *parts])


def starts_of_runs(values: Int64s | Int32s | UInt64s, cuts: Int64s = _NONE) -> Int64s:
    """The index at which each run of equal values begins and, last, the number of values; shape (r + 1,).

    Args:
        values: Shape (n,).
        cuts: Indices from 1 to n - 1 at which a run begins in any case.
    """
    if not len(values):
        return np.zeros(1, dtype=np.int64)
    is_change = values[1:] != values[:-1]
    if len(cuts):
        is_change[cuts - 1] = True
    changes = is_change.nonzero()[0]
    starts = np.empty(len(changes) + 2, dtype=np.int64)
    starts[0], starts[-1] = 0, len(values)
    np.add(changes, 1, out=starts[1:-1])
    return starts


def rows_by_number(numbers: Small, count: int) -> tuple[Int64s, Int64s]:
    """The rows of each number, in their order: those of 0 first.

    Args:
        numbers: Of each row, shape (n,); from 0 to ``count`` - 1.
        count: How many numbers there are.

    Returns:
        The rows, shape (n,), and how many of them each number has, shape (``count``,).

    >>> [part.tolist() for part in rows_by_number(np.array([1, 0, 1], dtype=np.uint8), 2)]
    [[1, 0, 2], [1, 2]]
    """
    if count <= _FEW:
        rows = [(numbers == number).nonzero()[0] for number in range(count)]
        return np.concatenate(rows), np.array([len(part) for part in rows])
    # Of integers of 8 or 16 bits numpy makes a radix sort.
    return np.argsort(numbers, kind="stable"), np.bincount(numbers, minlength=count)


def xor_by_key(keys: npt.NDArray[Key], values: Int64s) -> tuple[npt.NDArray[Key], Int64s]:
    """XOR together the values of each key. It costs no sort if the keys already ascend.

    Args:
        keys: Shape (n,). Any order, repeats allowed.
        values: Shape (n,).

    Returns:
        The distinct keys, ascending, shape (m,), and the XOR of the values of each, shape (m,).

    >>> [part.tolist() for part in xor_by_key(np.array([7, 9, 7]), np.array([5, 3, 5]))]
    [[7, 9], [0, 3]]
    """
    breaks = np.count_nonzero(keys[1:] <= keys[:-1])
    if not breaks:
        return keys, values
    # Merging a few ascending parts takes a third of a sort's time; merging many takes three times as much.
    order = np.argsort(keys, kind="stable" if breaks < len(keys) // _PART else None)
    keys, values = keys[order], values[order]
    starts = starts_of_runs(keys)
    if len(starts) > len(keys):
        return keys, values
    return keys[starts[:-1]], np.bitwise_xor.reduceat(values, starts[:-1])
