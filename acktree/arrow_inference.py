"""Arrays of the type that Arrow infers; what would end the process or change a value is refused.

Source: with Arrow 26.0.1 all of these were seen.

* The inference follows a list that holds itself until the stack is full.
* It reads beside the value where a number of numpy's comes after a ``numpy.datetime64`` in the same place.
* Beside a date a number becomes a date, and beside a number anything that ``int()`` takes becomes a number.
  Beside a time with a zone one without becomes one of that zone.
* Where keys of dicts are texts and bytes, one in two is null.
* Arrow makes and writes types that are nested deeper than it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["MOST_DEPTH", "array_of", "depth_of", "is_same"]

MOST_DEPTH: Final = 64
"""Arrow reads no type that is deeper, though it writes it (``kMaxNestingDepth`` of its IPC format)."""
_CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, ValuesView, set, frozenset, np.ndarray)
_TIMES: Final = "M"
_NOT_BESIDE_TIMES: Final = frozenset("biufcVSU")
"""The kinds of numpy's values, alone or in arrays, that Arrow cannot tell from its ``datetime64``."""
_KINDS: Final = _NOT_BESIDE_TIMES | {_TIMES}
_TAKEN: Final = frozenset({type(None), str, bytes, bool, int, float, Decimal, *_CONTAINERS})
"""Beside each other Arrow takes values of these types as they are, or raises; a text may become its bytes."""


@dataclass(frozen=True)
class _Seen:
    """What is among values, at any depth: the types, those of keys, and the kinds of numpy's values."""

    types: set[type] = field(default_factory=set)
    keys: set[type] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    @property
    def may_change(self) -> bool:
        """Whether Arrow may take another value than was given."""
        return not self.types <= _TAKEN or {str, bytes} <= self.keys


def array_of(values: Sequence[object]) -> pa.Array | pa.ChunkedArray:
    """An array of the type that Arrow infers; in chunks where it is larger than 2 GiB.

    Where there are numpy's ``datetime64`` and numbers or texts of numpy's among the values, those count as
    Python's: beside a time they have no common type, in fields of their own they are int64, double or string.

    Raises:
        ValueError: A value contains itself, or values are nested too deep to be sent.
        TypeError: A value would become another one, as it is beside values of another type.
        Exception: What Arrow raises where it finds no common type, and what a value's own methods raise.

    >>> array_of([1, 2.5]).type
    DataType(double)
    >>> from datetime import date
    >>> array_of([date(2026, 1, 1), 2])
    Traceback (most recent call last):
    ...
    TypeError: a value of type int would become datetime.date(1970, 1, 3), as Arrow's type is date32[day]
    >>> loop = []
    >>> loop.append(loop)
    >>> array_of([loop])
    Traceback (most recent call last):
    ...
    ValueError: a list contains itself
    """
    seen = _seen_among(values)
    if {_TIMES} < seen.kinds:
        values = [_with_python_values(value) for value in values]
    array = pa.array(values)
    if array.type.num_fields and (depth := depth_of(array.type)) > MOST_DEPTH:
        raise ValueError(f"values are nested {depth} deep, and Arrow reads at most {MOST_DEPTH}")
    if seen.may_change:
        _refuse_changes(values, array)
    return array


def depth_of(kind: pa.DataType) -> int:
    """How deep a type is nested.

    >>> depth_of(pa.int64()), depth_of(pa.list_(pa.int64())), depth_of(pa.map_(pa.string(), pa.int64()))
    (1, 2, 3)
    """
    depth, level = 0, [kind]
    while level:
        depth += 1
        stored = [_stored(each) for each in level]
        level = [each.field(at).type for each in stored for at in range(each.num_fields)]
    return depth


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type of the values that a dictionary or an extension stores."""
    while isinstance(kind, pa.BaseExtensionType | pa.DictionaryType):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    return kind


def _seen_among(values: Collection[object]) -> _Seen:
    """The types among values, and in the containers among them.

    It goes into containers in depth first order. One that is met inside of itself is a loop: ValueError.
    """
    seen = _Seen()
    above: set[int] = set()
    walked: set[int] = set()
    left = [(value, False) for value in _looked_into(values, seen)]
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
            left.extend((child, False) for child in _looked_into(_children(value), seen))
            if isinstance(value, dict):
                seen.keys.update(map(type, value))
            elif isinstance(value, np.ndarray):
                seen.types.add(value.dtype.type)
                seen.kinds.update({value.dtype.kind} & _KINDS)
    return seen


def _looked_into(values: Collection[object], seen: _Seen) -> Iterable[object]:
    """The containers among values; adds their types, and the kinds of numpy's scalars."""
    types = set(map(type, values))  # a list of plain values costs no Python step for each
    seen.types.update(types)
    for each in types:
        if issubclass(each, np.generic):
            seen.kinds.update({np.dtype(each).kind} & _KINDS)
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


def _refuse_changes(values: Sequence[object], array: pa.Array | pa.ChunkedArray) -> None:
    """Raise TypeError for a value that the array does not have: it has another one in its place."""
    for given, back in zip(values, _python_values(array), strict=True):
        if not is_same(_of_arrows_types(given), back):
            kind = type(given).__name__
            raise TypeError(
                f"a value of type {kind} would become {back!r:.60}, as Arrow's type is {array.type}"
            )


def _python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of an array. Where pandas is missing, Arrow returns no nanoseconds: they are cut off."""
    try:
        values: list[Any] = array.to_pylist()
    except ValueError:
        values = array.cast(_in_microseconds(array.type), safe=False).to_pylist()
    return values


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds for each unit of time, at any depth."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_in_microseconds(each.type)) for each in kind])
    return kind


def is_same(given: Any, back: Any) -> bool:  # noqa: ANN401
    """Whether Arrow returned an equal value.

    A tuple or an array equals a list, a dict one that has further keys for None, and a float a rounded one.
    """
    if isinstance(back, list | tuple):
        items = list(given.items()) if isinstance(given, Mapping) else given
        # Lengths are not compared: Arrow drops no items. But it accepts other types (text, sets) as lists.
        return isinstance(items, list | tuple | np.ndarray) and all(map(is_same, items, back))
    if isinstance(back, dict) and isinstance(given, Mapping):
        return given.keys() <= back.keys() and all(is_same(given.get(key), back[key]) for key in back)
    if isinstance(back, float) and isinstance(given, float | np.floating):
        return isfinite(back) or not isfinite(given)  # rounding is allowed, an overflow to infinity is not
    return bool(given == back)


def _of_arrows_types(value: object) -> object:
    """An equal value of the types that Arrow returns where it infers: lists, texts as keys, no scalars."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if isinstance(value, np.generic) and value.dtype.kind in "mM":
        return _python_values(pa.array([value]))[0]  # numpy compares its times with no others
    if isinstance(value, dict):
        return {_text_of(key, value): _of_arrows_types(child) for key, child in value.items()}
    if isinstance(value, _CONTAINERS) and not isinstance(value, np.ndarray):
        return [_of_arrows_types(child) for child in _children(value)]
    return value


def _text_of(key: object, row: Mapping[Any, object]) -> object:
    if not isinstance(key, bytes):
        return key
    if (text := key.decode()) in row:
        raise ValueError(f"a dict has the keys {key!r} and {text!r}, and Arrow has one name for both")
    return text
