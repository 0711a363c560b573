"""Arrow arrays of Python values; what would end the process or change a value is refused.

Source: with Arrow 26.0.1 all of these were seen, values side by side, in lists, arrays or under one key.

* The inference follows a list that holds itself until the stack is full, as it does deep values. Arrow makes
  and writes types that are nested deeper than it reads.
* It reads beside the value where another type of numpy's comes after a ``numpy.datetime64``. It takes
  nanoseconds for seconds where arrays of ``timedelta64`` have different units.
* Beside an int a ``numpy.float16`` is cut off, and beside a float a large ``uint64`` is negative.
* Beside a date a number becomes a date, and beside a number anything that ``int()`` takes becomes a number.
  Beside a time with a zone one without becomes one of that zone. Beside a text bytes become a text.
* Where keys of dicts are texts and bytes, one in two values is null.
* A null as an entry of a map ends the process, and so does a scalar of Arrow's for a dictionary.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from math import isfinite
from operator import getitem, methodcaller
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

__all__ = [
    "FAITHFUL",
    "IMMUTABLE",
    "MOST_DEPTH",
    "array_of",
    "depth_of",
    "holds",
    "is_same",
    "kinds_of",
    "typed_array",
]

MOST_DEPTH: Final = 64
"""Arrow reads no type that is deeper, though it writes it (``kMaxNestingDepth`` of its IPC format)."""
FAITHFUL: Final[Mapping[type, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}
"""The types that Arrow returns unchanged; exactly these, no subclasses."""
IMMUTABLE: Final = frozenset(
    {*FAITHFUL, type(None), complex, date, datetime, time, timedelta, Decimal, Fraction, UUID}
    | {kind for kind in np.sctypeDict.values() if kind not in {np.void, np.object_}}
)
"""Types of plain values that cannot change; exactly these, no subclasses."""
_MOST_PLACES: Final = 100_000
"""The most fields that a type may have at one depth."""
_CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, ValuesView, set, frozenset, np.ndarray)
_PLAIN: Final = frozenset({bool, int, float, Decimal, str, bytes})
"""Beside each other Arrow takes values of these types as they are, or raises; all but texts beside bytes."""
_ALONE: Final = frozenset({date, timedelta, UUID})
"""Arrow takes values of one of these types as they are, if they are all of that type."""
_TIMES_OF_NUMPY: Final = (np.datetime64, np.timedelta64)


def array_of(values: Sequence[object]) -> pa.Array | pa.ChunkedArray:
    """An array of the type that Arrow infers; in chunks where it is larger than 2 GiB.

    Values of one type cost little more than in Arrow. Those of different types are compared with what Arrow
    made of them, but for plain ones, which it does not change.

    Raises:
        ValueError: A value contains itself, values are nested too deep, or keys of dicts have two types.
        TypeError: A value would become another one, as it is beside values of another type.
        Exception: What Arrow raises where it finds no common type, and what a value's own methods raise.

    >>> array_of([1, 2.5]).type
    DataType(double)
    >>> from datetime import date
    >>> array_of([date(2026, 1, 1), 2])
    Traceback (most recent call last):
    ...
    TypeError: a value of type int would become datetime.date(1970, 1, 3), as Arrow's type is date32[day]
    """
    may_change = _may_change(values)
    array = pa.array(values)
    if array.type.num_fields and (depth := depth_of(array.type)) > MOST_DEPTH:  # of scalars of Arrow's
        raise ValueError(f"values are nested {depth} deep, and Arrow reads at most {MOST_DEPTH}")
    if may_change:
        _refuse_changes(values, array)
    return array


def typed_array(values: Sequence[object], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """An array of a type. It may hold other values than were given: :func:`holds` tells.

    Raises:
        TypeError: A value would end the process.
        Exception: What Arrow raises where a value does not fit, and what a value's own methods raise.
    """
    if _may_end_the_process(kind):
        _refuse_what_ends_the_process(values, kind)
    return pa.array(values, kind)


def holds(array: pa.Array | pa.ChunkedArray, values: Sequence[object]) -> bool:
    """Whether an array has the values that were given, as :func:`is_same` has it."""
    kinds = kinds_of(values)
    if kinds == {int} and pa.types.is_integer(array.type):
        return True  # Arrow refuses an int that is too large for the width
    if len(kinds) == 1 and FAITHFUL.get(*kinds) == array.type:
        return True
    return all(map(is_same, values, _python_values(array)))


def kinds_of(column: Sequence[object]) -> set[type]:
    """The exact types in a column, except that of None."""
    types = [*map(type, column)]
    if types and types.count(types[0]) == len(types):  # nearly always true, and faster than a set
        del types[1:]
    return {*types} - {type(None)}


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


class _Call:
    """Is pickled as a call, and unpickled as what it returns."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _reduce_interval(value: object) -> tuple[Any, ...]:
    """Reduce an interval to calls of Python and Arrow: pickle does not find its class by a name."""
    return getitem, (_Call(methodcaller("to_pylist"), pa.array([value])), 0)


copyreg.pickle(pa.MonthDayNano, _reduce_interval)


# ---- where Arrow infers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Values that get one type: a column, the items of all its lists, or what its dicts have under one key.

    Attributes:
        parts: The values.
        dtypes: Of further values, in arrays of numpy's.
    """

    parts: list[Collection[object]] = field(default_factory=list)
    dtypes: set[np.dtype[Any]] = field(default_factory=set)

    def __iter__(self) -> Iterator[object]:
        return chain.from_iterable(self.parts)

    def may_change(self, types: set[type]) -> bool:
        """Whether Arrow may take another value than was given.

        Args:
            types: Those of the values, without None.

        Raises:
            TypeError: Arrow would take another one, or end the process.
        """
        leaves = {each for each in types if not issubclass(each, _CONTAINERS)}
        if any(issubclass(each, _TIMES_OF_NUMPY) for each in leaves):
            self._refuse_mixed_times(types)
            return False
        if {str, bytes} <= types:
            raise TypeError("texts and bytes have no common type")
        if leaves <= _PLAIN:
            return False
        if len(leaves) > 1:
            return True
        [leaf] = leaves
        if issubclass(leaf, np.number | np.bool_):
            return leaf is np.longdouble
        if leaf not in (datetime, time):
            return leaf not in _ALONE
        zones = {each.tzinfo for each in self if isinstance(each, leaf)}
        known = leaf is datetime and all(isinstance(zone, timezone | ZoneInfo) for zone in zones)
        return zones != {None} and not (known and len(zones) == 1)

    def _refuse_mixed_times(self, types: set[type]) -> None:
        given = self.dtypes | {each.dtype for each in self if isinstance(each, np.generic)}
        if len(types) > 1 or len(given) > 1:
            names = sorted({each.__name__ for each in types} | {str(each) for each in given})
            raise TypeError(f"values of the types {', '.join(names)} have no common type")

    def below(self) -> Iterator[_Place]:
        """The places of what is in these values. Raises ValueError for what has no type in Arrow."""
        items = _Place()
        by_key: dict[object, list[object]] = {}
        keys: set[type] = set()
        containers = {id(each): each for each in self if isinstance(each, _CONTAINERS)}
        for each in containers.values():
            if isinstance(each, dict):
                keys.update(map(type, each))
                for key, child in dict.items(each):  # not its own: Arrow calls no methods of subclasses
                    by_key.setdefault(key, []).append(child)
            elif isinstance(each, np.ndarray):
                items.add_array(each)
            else:
                items.parts.append(_items(each))
        if any(issubclass(key, bytes) for key in keys) and any(issubclass(key, str) for key in keys):
            raise ValueError("some keys of dicts are texts and some are bytes: give them one type")
        yield from (_Place([children]) for children in by_key.values())
        if items.parts or items.dtypes:
            yield items

    def add_array(self, array: np.ndarray[Any, Any]) -> None:
        """Add an array's values. Raises ValueError or TypeError for one that Arrow does not take."""
        if array.ndim != 1:
            raise ValueError(
                f"an array of {array.ndim} dimensions: Arrow takes those of one; give its tolist()"
            )
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("a masked array, and Arrow does not see its mask: give its tolist()")
        if array.dtype.kind == "O":
            self.parts.append(_items(array))
        else:
            self.dtypes.add(array.dtype)


def _may_change(values: Collection[object]) -> bool:
    """Whether Arrow may take another value than was given, in any place.

    Raises:
        ValueError, TypeError: What :func:`array_of` says.
    """
    may_change = False
    places = [_Place([values])]
    for _ in range(MOST_DEPTH):
        below: list[_Place] = []
        for place in places:
            types = set(map(type, place))  # a list of plain values costs no Python step for each
            types |= {each.type for each in place.dtypes}
            types.discard(type(None))
            may_change |= place.may_change(types)
            if any(issubclass(each, _CONTAINERS) for each in types):
                below += place.below()
        if not below:
            return may_change
        if len(below) > _MOST_PLACES:
            raise ValueError(f"dicts with {len(below):,} fields in all; at most {_MOST_PLACES:,} are allowed")
        places = below
    raise ValueError(
        f"a value is nested more than {MOST_DEPTH} deep, which Arrow cannot read, or contains itself"
    )


def _items(container: object) -> Collection[object]:
    """As Arrow sees them: it calls no methods of subclasses."""
    if isinstance(container, list):
        return list.copy(container)
    if isinstance(container, tuple):
        return tuple.__getitem__(container, slice(None))
    if isinstance(container, np.ndarray):
        return [*np.asarray(container)]
    assert isinstance(container, Collection), "a container"
    return container


def _refuse_changes(values: Sequence[object], array: pa.Array | pa.ChunkedArray) -> None:
    """Raise TypeError for a value that the array does not have: it has another one in its place."""
    for given, back in zip(values, _python_values(array), strict=True):
        if not is_same(_of_arrows_types(given), back):
            kind = type(given).__name__
            raise TypeError(
                f"a value of type {kind} would become {back!r:.60}, as Arrow's type is {array.type}"
            )


def _of_arrows_types(value: object) -> object:
    """An equal value of the types that Arrow returns where it infers: lists, texts as keys, no scalars."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if isinstance(value, _TIMES_OF_NUMPY):
        return _python_values(pa.array([value]))[0]  # numpy compares its times with no others
    if isinstance(value, dict):
        return {_text_of(key): _of_arrows_types(child) for key, child in dict.items(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return _python_values(pa.array(value)) if value.dtype.kind in "mM" else value
    if isinstance(value, _CONTAINERS):
        return [_of_arrows_types(child) for child in _items(value)]
    return value


def _text_of(key: object) -> object:
    return key.decode() if isinstance(key, bytes) else key


# ---- where a type is declared -----------------------------------------------------------------------------


def _may_end_the_process(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.DictionaryType | pa.MapType):
        return True
    return any(_may_end_the_process(kind.field(at).type) for at in range(kind.num_fields))


def _refuse_what_ends_the_process(values: Iterable[object], kind: pa.DataType) -> None:
    """Raise TypeError for a scalar of Arrow's, and for an entry of a map that is no pair, at any depth."""
    given = [each for each in values if each is not None]
    if any(isinstance(each, pa.Scalar) for each in given):
        raise TypeError(f"a scalar of Arrow's for the type {kind}: give its as_py()")
    if isinstance(kind, pa.MapType):
        entries = [entry for each in given for entry in _entries_of(each, kind)]
        _refuse_what_ends_the_process([key for key, _ in entries], kind.key_type)
        _refuse_what_ends_the_process([item for _, item in entries], kind.item_type)
    elif isinstance(kind, pa.StructType):
        rows = [each for each in given if isinstance(each, dict)]
        for below in kind:
            _refuse_what_ends_the_process([each.get(below.name) for each in rows], below.type)
    elif kind.num_fields:
        items = [item for each in given if isinstance(each, _CONTAINERS) for item in _items(each)]
        _refuse_what_ends_the_process(items, kind.field(0).type)


def _entries_of(value: object, kind: pa.DataType) -> list[tuple[object, object]]:
    if isinstance(value, dict):
        return [*dict.items(value)]
    pairs: list[tuple[object, object]] = []
    for entry in _items(value) if isinstance(value, list | tuple) else [value]:
        if not isinstance(entry, tuple) or len(entry) != 2:  # noqa: PLR2004
            raise TypeError(f"the type {kind} takes dicts, and lists of pairs")
        pairs.append(entry)
    return pairs


# ---- both -------------------------------------------------------------------------------------------------


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
        return isfinite(back) or not np.isfinite(given)  # rounding is allowed, an overflow to infinity is not
    if isinstance(back, datetime) and isinstance(given, datetime) and None not in (given.tzinfo, back.tzinfo):
        return given.astimezone(UTC) == back.astimezone(UTC)  # in an hour that comes twice, == is False
    if isinstance(given, np.timedelta64) and not isinstance(back, timedelta):
        return False  # for numpy a timedelta64 of one month equals the number 1
    return bool(given == back)


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
