"""Arrow's own choice of a type for Python values, without what ends the process.

Source: Arrow's type inference follows a list that holds itself until the stack is full (seen with 26.0.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

__all__ = ["array_of"]

_CONTAINERS: Final = (list, tuple, dict, set, frozenset, np.ndarray)


def array_of(values: Sequence[object]) -> pa.Array | pa.ChunkedArray:
    """An array of the type that Arrow infers; in chunks where it is larger than 2 GiB.

    Raises:
        ValueError: A value contains itself.
        Exception: What Arrow raises where it finds no common type, and what a value's own methods raise.

    >>> array_of([1, 2.5]).type
    DataType(double)
    >>> loop = []
    >>> loop.append(loop)
    >>> array_of([loop])
    Traceback (most recent call last):
    ...
    ValueError: a list contains itself
    """
    _refuse_loops(values)
    return pa.array(values)


def _refuse_loops(values: Sequence[object]) -> None:
    """Walk into containers in depth first order: one that is met inside of itself is a loop."""
    above: set[int] = set()
    walked: set[int] = set()
    left: list[tuple[object, bool]] = [(value, False) for value in values if isinstance(value, _CONTAINERS)]
    while left:
        value, is_left = left.pop()
        key = id(value)
        if is_left:
            above.discard(key)
            walked.add(key)
        elif key in above:
            raise ValueError(f"a {type(value).__name__} contains itself")
        elif key not in walked:
            above.add(key)
            left.append((value, True))
            left.extend((child, False) for child in _children(value) if isinstance(child, _CONTAINERS))


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else ()
    assert isinstance(value, Iterable), "a container"
    return value
