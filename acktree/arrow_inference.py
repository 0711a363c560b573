"""Arrow's own choice of a type for Python values, without what ends the process.

Source: Arrow's type inference follows a list that holds itself until the stack is full, and reads beside the
value where a number of numpy's comes after a ``numpy.datetime64`` in the same place (both seen with 26.0.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

__all__ = ["array_of"]

_CONTAINERS: Final = (list, tuple, dict, set, frozenset, np.ndarray)
_TIMES: Final = "M"
"""The kind of numpy's ``datetime64``."""
_NOT_BESIDE_TIMES: Final = frozenset("biufcV")
"""The kinds of numpy that Arrow cannot tell from it; of all others it says so itself."""
_TOP: Final = 0


def array_of(values: Sequence[object]) -> pa.Array | pa.ChunkedArray:
    """An array of the type that Arrow infers; in chunks where it is larger than 2 GiB.

    Raises:
        ValueError: A value contains itself, or times of numpy's are mixed with numbers of numpy's.
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
    if any(issubclass(kind, (*_CONTAINERS, np.generic)) for kind in set(map(type, values))):
        _refuse_loops(values)
        _refuse_mixed_times(values)
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


def _refuse_mixed_times(values: Sequence[object]) -> None:
    """Collect the kinds of numpy's values in each place: a column, a field of dicts, the items of lists."""
    places: dict[tuple[int, object], int] = {}
    kinds: dict[int, set[str]] = {}
    walked: set[tuple[int, int]] = set()
    left: list[tuple[int, object]] = [(_TOP, value) for value in values]
    while left:
        place, value = left.pop()
        if isinstance(value, np.generic):
            kinds.setdefault(place, set()).add(value.dtype.kind)
        elif isinstance(value, _CONTAINERS) and (place, id(value)) not in walked:
            walked.add((place, id(value)))
            if isinstance(value, dict):
                named = [(key, child) for key, child in value.items() if type(key) is str]
                left.extend((places.setdefault((place, key), len(places) + 1), child) for key, child in named)
                continue
            items = places.setdefault((place, None), len(places) + 1)
            if isinstance(value, np.ndarray) and not value.dtype.hasobject:
                kinds.setdefault(items, set()).add(value.dtype.kind)
            left.extend((items, child) for child in _children(value))
    if any(_TIMES in found and found & _NOT_BESIDE_TIMES for found in kinds.values()):
        raise ValueError("numpy.datetime64 is mixed with numbers of numpy's")


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else ()
    assert isinstance(value, Iterable), "a container"
    return value
