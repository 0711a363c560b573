"""What a ``ColumnState`` is given, as columns of the types that its table has; anything else is refused."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree.arrow_arrays import array_of
from acktree.core.data.distinct import codes_of, distinct
from acktree.core.state.asked_keys import AskedKeys
from acktree.core.state.column_blobs import Numbers
from acktree.errors import MisuseError

KEYS: Final[Mapping[type, str]] = {str: "large_string", bytes: "large_binary", int: "int64"}
"""The types of keys, and of the columns that hold them."""
NUMBERS: Final[Mapping[type, str]] = {int: "<i8", float: "<f8"}
"""The types of fields, and of the columns that hold them."""
_COLUMNS: Final[Mapping[type, str]] = {int: "int64", float: "float64"}
_TEXTS: Final[Mapping[str, type]] = {
    f"{large}{name}{view}": kind
    for name, kind in {"string": str, "binary": bytes}.items()
    for large, view in (("", ""), ("large_", ""), ("", "_view"))
}
_FIX_KEYS: Final = "give keys of the type that the ColumnState was made for, none of them None"
_FIX_NUMBERS: Final = "give one number for each key, or one number for all of them"


def refused(what: str, fix: str) -> MisuseError:
    """The error for a call that cannot be."""
    return MisuseError(what, "ColumnState", fix)


def encoded_key(kind: type, key: object) -> int | bytes:
    """One key as the table compares it: a text as UTF-8.

    Raises:
        MisuseError: It is not of this type, or Arrow cannot hold it.
    """
    try:
        if kind is str and isinstance(key, str):
            return key.encode()
        if kind is bytes and isinstance(key, bytes):
            return key
        if kind is int and -(1 << 63) <= index(key) < 1 << 63:  # type: ignore[arg-type]  # it raises a TypeError
            return index(key)  # type: ignore[arg-type]
    except (UnicodeEncodeError, TypeError):
        pass  # a lone surrogate, or no integer
    raise refused(f"{key!r:.80} is no key of type {kind.__name__} that Arrow holds", _FIX_KEYS)


def plain_key(kind: type, key: Any) -> Any:  # noqa: ANN401  # as the table gives it back
    """One key as an object of the table's own type: 1 for True and for numpy's, the text of a subclass.

    Raises:
        MisuseError: It is not of this type, or Arrow cannot hold it.
    """
    encoded = encoded_key(kind, key)
    return encoded.decode() if kind is str and isinstance(encoded, bytes) else encoded


def asked_keys(kind: type, keys: Any) -> AskedKeys:  # noqa: ANN401
    """Keys in a column of the type that the table has.

    Raises:
        MisuseError: They are of another type, or one of them is null.
    """
    codes = codes_of(keys) if isinstance(keys, pa.Array) else keys
    values, places = distinct(codes) if isinstance(codes, pa.DictionaryArray) else (keys, None)
    column = _key_column(kind, values)
    return AskedKeys(*distinct(column)) if places is None else AskedKeys(column, places)


def _key_column(kind: type, keys: Any) -> pa.Array:  # noqa: ANN401
    try:
        column = _column(keys)
        if len(column) and _key_type(column.type) is not kind:
            raise refused(f"keys of type {column.type} for a ColumnState of {kind.__name__}", _FIX_KEYS)
        column = column.cast(KEYS[kind])
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        raise refused(f"keys that are no column of {kind.__name__}: {error}", _FIX_KEYS) from None
    if column.null_count:
        raise refused(f"{column.null_count} of {len(column)} keys are null", _FIX_KEYS)
    return column


def numbers(values: Any, kind: type, count: int, name: str) -> Numbers:  # noqa: ANN401
    """Numbers for a field as a column, shape (count,), of int64 or float64.

    Args:
        values: A column of them, or one for all.
        kind: ``int`` or ``float``.
        count: How many.
        name: The field's name, for errors.

    Raises:
        MisuseError: They are of another type or number, or one of them is null.
    """
    if isinstance(values, int | float | np.number):
        return np.full(count, number(values, kind), dtype=NUMBERS[kind])
    try:
        column = _column(values)
        if column.null_count or len(column) != count or (count and not _is_number(column.type, kind)):
            raise refused(
                f"{len(column)} values of type {column.type}, {column.null_count} of them null, "
                f"for {count} keys and the field {name!r} of {kind.__name__}",
                _FIX_NUMBERS,
            )
        cast: Numbers = column.cast(_COLUMNS[kind]).to_numpy()
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise refused(f"numbers of field {name!r}: {error}", _FIX_NUMBERS) from None
    return cast


def number(value: Any, kind: type) -> int | float:  # noqa: ANN401
    """A number as a field holds it.

    Raises:
        MisuseError: It is of another type, or does not fit into 64 bits.
    """
    try:
        if kind is float:
            return float(value)
        whole = index(value)
        if -(1 << 63) <= whole < 1 << 63:
            return whole
    except (TypeError, ValueError, OverflowError):
        pass  # refused below
    raise refused(f"{value!r:.80} is no {kind.__name__} of 64 bits", "declare the field as float, or int")


def by_name(values: Any) -> dict[str, Any]:  # noqa: ANN401
    """Columns by name, of a mapping or a record batch.

    Raises:
        MisuseError: It is something else.
    """
    if isinstance(values, Mapping):
        return dict(values)
    if isinstance(values, pa.RecordBatch | pa.Table):
        return {name: values[name] for name in values.schema.names}
    raise refused(
        f"a {type(values).__name__} for a state with several fields", "give a mapping from names to columns"
    )


def _column(values: Any) -> pa.Array:  # noqa: ANN401
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    elif not isinstance(values, pa.Array):
        values = pa.array(values) if isinstance(values, np.ndarray) else array_of(list(values))
    return values.dictionary_decode() if isinstance(values.type, pa.DictionaryType) else values


def _key_type(kind: pa.DataType) -> type | None:
    return int if pa.types.is_integer(kind) else _TEXTS.get(str(kind))


def _is_number(column: pa.DataType, kind: type) -> bool:
    return pa.types.is_integer(column) or (kind is float and pa.types.is_floating(column))
