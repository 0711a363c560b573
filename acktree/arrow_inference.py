"""Arrow's own choice of a type for Python values, without what ends the process.

Source: Arrow's type inference follows a list that holds itself until the stack is full, and reads beside the
value where a number of numpy's comes after a ``numpy.datetime64`` in the same place (both seen with 26.0.1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, ValuesView
from typing import Final

import numpy as np
import pyarrow as pa

__all__ = ["array_of"]

_CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, ValuesView, set, frozenset, np.ndarray)
_TIMES: Final = "M"
_NOT_BESIDE_TIMES: Final = frozenset("biufcVSU")
"""The kinds of numpy's values, alone or in arrays, that Arrow cannot tell from its ``datetime64``."""
_KINDS: Final = _NOT_BESIDE_TIMES | {_TIMES}


def array_of(values: Sequence[object]) -> pa.Array | pa.ChunkedArray:
    """An array of the type that Arrow infers; in chunks where it is larger than 2 GiB.

    Where there are numpy's ``datetime64`` and numbers or texts of numpy's among the values, those count as
    Python's: beside a time they have no common type, in fields of their own they are int64, double or string.

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
    if {_TIMES} < _numpy_kinds(values):
        values = [_with_python_values(value) for value in values]
    return pa.array(values)


def _numpy_kinds(values: Collection[object]) -> set[str]:
    """The kinds of numpy's values among values, and in the containers among them.

    It goes into containers in depth first order. One that is met inside of itself is a loop: ValueError.
    """
    kinds: set[str] = set()
    above: set[int] = set()
    walked: set[int] = set()
    left = [(value, False) for value in _looked_into(values, kinds)]
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
            left.extend((child, False) for child in _looked_into(_children(value), kinds))
            if isinstance(value, np.ndarray):
                kinds |= {value.dtype.kind} & _KINDS
    return kinds


def _looked_into(values: Collection[object], kinds: set[str]) -> Iterable[object]:
    """The containers among values; adds the kinds of numpy's scalars among them."""
    types = set(map(type, values))  # a list of plain values costs no Python step for each
    for each in types:
        if issubclass(each, np.generic):
            kinds |= {np.dtype(each).kind} & _KINDS
    if not any(issubclass(each, _CONTAINERS) for each in types):
        return ()
    return [value for value in values if isinstance(value, _CONTAINERS)]


def _children(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else ()
    assert isinstance(value, Collection), "a container"
    return value


def _with_python_values(value: object) -> object:
    """A value with Python's numbers and texts in place of numpy's, at any depth."""
    if isinstance(value, np.generic):
        return _python_value(value) if value.dtype.kind in _NOT_BESIDE_TIMES else value
    if isinstance(value, dict):
        return {key: _with_python_values(child) for key, child in value.items()}
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype.kind not in _NOT_BESIDE_TIMES | {"O"}:
            return value
        return [_with_python_values(child) for child in value]
    if isinstance(value, _CONTAINERS):
        return [_with_python_values(child) for child in _children(value)]
    return value


def _python_value(value: np.generic) -> object:
    own = value.item()
    if isinstance(own, np.generic):
        raise ValueError(f"a {type(value).__name__} has no equal in Python")  # noqa: TRY004  # it is the value
    return own
