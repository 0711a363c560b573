"""Hashes of values that are equal in all processes: the basis of fields groupings.

Rules of this file
------------------
1. A hash never depends on the machine, the process (``PYTHONHASHSEED``), or the releases of Python and
   acktree. A restarted topology must find the memory of each key at the same task. Golden tests pin these
   numbers: a change would move every key of every running topology.
2. Values that are equal in Python have equal hashes: ``1 == 1.0 == True == Decimal(1)``,
   ``{1, 2} == {2, 1}``, two datetimes of one instant. Arrays and lists hash by content; a tuple and a
   list have different hashes.
3. Columns and single values agree: :func:`hash_columns` equals :func:`hash_row` of each row, but is faster.
4. A value without stable content (an open file, an object compared by identity) is refused; it is never
   hashed by its address.

Numbers are mixed, so that numpy can hash a whole column: an int64 by its value, else a number that is exactly
a double by its bits, else by the residue modulo 2**61 - 1. Texts and bytes are mixed word by word, for the
same reason: see ``text_hashing.py``. All other values are hashed with blake2b over a tag and canonical bytes;
containers over the hashes of their items.

Source: Storm's ``grouping/FieldsGrouping`` (arrays by content); the residue is Python's rule for numbers
("Hashing of numeric types"). Types are recognised by name, so that no module is imported for it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import fields, is_dataclass
from functools import lru_cache, reduce
from math import isnan
from operator import is_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from acktree.core.data.text_hashing import TextKind, hash_text, hash_texts
from acktree.core.ids import Int64s, UInt64s, mix64, mix64_one
from acktree.errors import MisuseError

if TYPE_CHECKING:
    import pyarrow as pa

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
# One key for each form of a number: otherwise an int would hash as the double with the same bits.
_INTEGER: Final = 0x8C61A5D3F0B7294E
_DOUBLE: Final = 0x37E90BC4D2586FA1
_EXACT: Final = 0xD1B54A32D192ED03
_ROW: Final = 0x5851F42D4C957F2D
_MODULUS: Final = (1 << 61) - 1
_INT64_END: Final = 1 << 63
_TEXTS: Final = frozenset({str, bytes})
_VIEWS: Final = frozenset({"string_view", "binary_view"})
"""Arrow can neither filter nor dictionary-encode these; some releases cannot cast them."""
_TEXT_COLUMNS: Final[Mapping[str, TextKind]] = {
    "string": TextKind.TEXT,
    "large_string": TextKind.TEXT,
    "binary": TextKind.BYTES,
    "large_binary": TextKind.BYTES,
}
_COLUMNS: Final[Mapping[type, str]] = {str: "large_string", bytes: "large_binary", int: "int64"}
_MANY: Final = 64
"""From this number of values on, a column costs less than a call for each."""
_SHORT: Final = 64
"""The hashes of texts up to this length are cached; 65,536 of them take at most about 15 MB."""


def stable_hash(value: object) -> int:
    """The hash of a value: unsigned, 64 bits, the same on every machine and in every release.

    Supports None, numbers (bool, int, float, Decimal, Fraction, numpy's), str, bytes and bytearray, list,
    tuple, set, frozenset, dict, datetime, date, time, timedelta, UUID, Enum, numpy arrays, and dataclasses
    (by name and the fields they compare). A subclass hashes as its base class: the two compare equal.

    Raises:
        MisuseError: The value, or one inside it, has no hash that is equal in all processes.

    >>> stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    True
    >>> stable_hash([1, 2]) == stable_hash((1, 2))
    False
    """
    return _hasher_of(type(value))(value)  # type: ignore[arg-type]  # mypy: a class is Hashable as its instances are


def hash_row(values: Iterable[object]) -> int:
    """The hash of several values in order; fields groupings take it modulo the number of tasks."""
    return reduce(lambda row, value: mix64_one((row + _GOLDEN & _MASK) ^ stable_hash(value)), values, _ROW)


def hash_values(values: Iterable[object]) -> UInt64s:
    """:func:`stable_hash` of each value, shape (n,); many texts, bytes or integers are hashed as a column."""
    values = list(values)
    column = _column_of(values) if len(values) >= _MANY else None
    if column is not None:
        return hash_column(column)
    return np.fromiter(map(known_hash, values), dtype=np.uint64)


def _column_of(values: Sequence[object]) -> pa.Array | None:
    """Values of exactly one type as a column, if Arrow holds all of them."""
    import pyarrow as pa  # noqa: PLC0415  # local for the same reason as in hash_column

    kinds = set(map(type, values))
    name = _COLUMNS.get(next(iter(kinds))) if len(kinds) == 1 else None
    if name is None:
        return None
    try:
        return pa.array(values, name)
    except (UnicodeEncodeError, OverflowError):  # a lone surrogate; an integer beyond 64 bits
        return None


def hash_columns(columns: Sequence[pa.Array], n: int) -> UInt64s:
    """:func:`hash_row` of each row of a table.

    Args:
        columns: The columns in order, each of length n; native Arrow columns only. ``row_hashes.hash_rows``
            also accepts pickled ones.
        n: The number of rows; needed if there is no column.

    300,000 texts of at most 64 bytes take about 10 ms.
    """
    return combine_hashes([hash_column(column) for column in columns], n)


def combine_hashes(hashes: Iterable[UInt64s], n: int) -> UInt64s:
    """Combine the hashes of the columns, each of shape (n,), into one per row. The order matters."""
    rows = np.full(n, _ROW, dtype=np.uint64)
    for column in hashes:
        rows += np.uint64(_GOLDEN)
        rows = mix64(rows ^ column)
    return rows


def hash_column(column: pa.Array) -> UInt64s:
    """:func:`stable_hash` of each value of an Arrow column, shape (n,)."""
    # Local: importing acktree must not import pyarrow; a caller with an Arrow array has imported it.
    import pyarrow as pa  # noqa: PLC0415

    if str(column.type) in _VIEWS:
        return hash_values(column.to_pylist())
    if pa.types.is_dictionary(column.type):
        return _hash_dictionary(column)
    if not column.null_count:
        return _hash_present(column)
    hashes = np.full(len(column), _NONE, dtype=np.uint64)
    if column.null_count < len(column):
        present = column.is_valid().to_numpy(zero_copy_only=False)
        hashes[present] = _hash_present(column.drop_null())
    return hashes


def _hash_dictionary(column: pa.DictionaryArray) -> UInt64s:
    """Hash each value of the dictionary once, where it has no more of them than rows."""
    from acktree.core.data.distinct import distinct  # noqa: PLC0415  # it imports pyarrow: see hash_column

    values, rows = distinct(column)
    if rows is None:
        return hash_column(column.dictionary_decode())
    taken: UInt64s = hash_column(values)[rows]
    return taken


def _hash_present(column: pa.Array) -> UInt64s:
    """The hashes of a column without nulls."""
    import pyarrow as pa  # noqa: PLC0415  # local for the same reason as in hash_column

    kind = column.type
    if pa.types.is_floating(kind):
        return _hash_doubles(column.to_numpy(zero_copy_only=False).astype(np.float64))
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not pa.types.is_uint64(kind)):
        return _hash_integers(column.to_numpy(zero_copy_only=False).astype(np.int64))
    if str(kind) in _TEXT_COLUMNS:
        return hash_texts(column, _TEXT_COLUMNS[str(kind)])
    return _hash_distinct(column)


def _hash_distinct(column: pa.Array) -> UInt64s:
    """Hash each distinct value once; nested types, which cannot be dictionary-encoded, value by value."""
    import pyarrow as pa  # noqa: PLC0415  # local for the same reason as in hash_column

    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return hash_values(column.to_pylist())
    taken: UInt64s = hash_values(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    return taken


def known_hash(value: object) -> int:
    """:func:`stable_hash` with a cache for short texts, because the same texts occur in every batch."""
    # Only exact types: an instance of a subclass may equal a text and have another hash.
    if type(value) in _TEXTS and len(value) <= _SHORT:  # type: ignore[arg-type]  # a text has a length
        return _hash_short_text(value)
    return stable_hash(value)


def hash_row_of_known(*values: object) -> int:
    """:func:`hash_row`, with that cache."""
    row = _ROW
    for value in values:
        row = mix64_one((row + _GOLDEN & _MASK) ^ known_hash(value))
    return row


@lru_cache(maxsize=1 << 16)
def _hash_short_text(value: str | bytes) -> int:
    return stable_hash(value)


# ---- numbers ----------------------------------------------------------------------------------------------


def _hash_integers(values: Int64s) -> UInt64s:
    return mix64(values.view(np.uint64) ^ np.uint64(_INTEGER))


def _hash_doubles(values: npt.NDArray[np.float64]) -> UInt64s:
    hashes = mix64(values.view(np.uint64) ^ np.uint64(_DOUBLE))
    with np.errstate(invalid="ignore"):  # a signalling NaN must not warn
        integral = (values == np.floor(values)) & (values >= -_INT64_END) & (values < _INT64_END)
    hashes[integral] = _hash_integers(values[integral].astype(np.int64))
    hashes[np.isnan(values)] = _NAN
    return hashes


def _hash_int(value: int) -> int:
    value = int(value)
    if -_INT64_END <= value < _INT64_END:
        return mix64_one((value & _MASK) ^ _INTEGER)
    return _hash_ratio(value)


def _hash_float(value: float) -> int:
    value = float(value)
    if value.is_integer() and -_INT64_END <= value < _INT64_END:
        return _hash_int(int(value))
    if isnan(value):
        return _NAN
    return mix64_one(struct.unpack("<Q", struct.pack("<d", value))[0] ^ _DOUBLE)


def _hash_ratio(value: Any) -> int:  # noqa: ANN401
    """An int beyond 64 bits, or a Fraction."""
    if value.denominator == 1 and -_INT64_END <= value < _INT64_END:
        return _hash_int(value.numerator)
    try:
        double = float(value)
    except OverflowError:
        double = float("nan")
    if double == value:
        return _hash_float(double)
    # Fermat's inverse; 0 if the modulus divides the denominator, which no double or Decimal can equal.
    return _hash_residue(value.numerator * pow(value.denominator, _MODULUS - 2, _MODULUS))


def _hash_decimal(value: Any) -> int:  # noqa: ANN401
    if value.is_nan():
        return _NAN
    if not value.is_finite():
        return _hash_float(float(value))
    if -_INT64_END <= value < _INT64_END and value == int(value):
        return _hash_int(int(value))
    if value == float(value):
        return _hash_float(float(value))
    # Not via int: Decimal("1e999999999") is small, but its digits as an int would fill the memory.
    sign, digits, exponent = value.as_tuple()
    mantissa = reduce(lambda number, digit: (number * 10 + digit) % _MODULUS, digits, 0)
    return _hash_residue((-mantissa if sign else mantissa) * pow(10, exponent, _MODULUS))


def _hash_residue(residue: int) -> int:
    return mix64_one(residue % _MODULUS ^ _EXACT)


def _hash_numpy(value: Any) -> int:  # noqa: ANN401
    if value.dtype.kind in "mM":  # as datetime and timedelta; tolist() gives ints for nanoseconds
        value = value.astype(f"{value.dtype.kind}8[us]")
    plain = value.tolist()
    # A long double has no Python equivalent, and tolist() returns it unchanged.
    return _refuse(plain) if isinstance(plain, np.generic) else stable_hash(plain)


def with_one_nan(value: Any) -> Any:  # noqa: ANN401
    """A key in which each NaN is one object: as a key of a dict it is found again.

    A NaN does not equal itself, also not in a tuple, a frozenset or a dataclass; but each has one hash here.
    All become one float, and all of numpy's NaT of a kind one. A key without NaN is returned as it is.

    >>> {with_one_nan((float("nan"), 1)): 2}[with_one_nan((float("nan"), 1))]
    2
    """
    if isinstance(value, float):
        return value if value == value else NAN  # noqa: PLR0124
    if isinstance(value, np.generic):
        return value if value == value else _NAT_OF.get(value.dtype.kind, NAN)  # noqa: PLR0124
    if isinstance(value, tuple | frozenset):
        items = [*map(with_one_nan, value)]
        base: Any = tuple if isinstance(value, tuple) else frozenset
        return value if all(map(is_, items, value)) else base.__new__(type(value), items)
    hasher = _hasher_of(type(value))  # type: ignore[arg-type]  # as above
    if hasher is _hash_decimal:
        return NAN if value.is_nan() else value
    return _fields_with_one_nan(value) if hasher is _hash_dataclass else value


def _fields_with_one_nan(value: Any) -> Any:  # noqa: ANN401
    names = [field.name for field in fields(value) if field.compare]
    replaced = {name: with_one_nan(getattr(value, name)) for name in names}
    changed = {name: one for name, one in replaced.items() if one is not getattr(value, name)}
    if changed:
        value = copy(value)
        for name, one in changed.items():
            object.__setattr__(value, name, one)  # it may be frozen
    return value


NAN: Final = float("nan")
_NAT_OF: Final[Mapping[str, Any]] = {"M": np.datetime64("NaT"), "m": np.timedelta64("NaT")}

# ---- everything else --------------------------------------------------------------------------------------


def _digest(tag: bytes, content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(tag + content, digest_size=8).digest(), "little")


_NONE: Final = _digest(b"none", b"")
_NAN: Final = _digest(b"nan", b"")


def _hash_text(value: str) -> int:
    # Unbound, so that a subclass cannot override it; lone surrogates are allowed.
    return hash_text(str.encode(value, "utf-8", "surrogatepass"), TextKind.TEXT)


def _hash_bytes(value: bytes | bytearray) -> int:
    return hash_text(b"".join((value,)), TextKind.BYTES)  # a subclass cannot override it


def _contents(values: Iterable[object]) -> list[bytes]:
    try:
        return [stable_hash(value).to_bytes(8, "little") for value in values]
    except RecursionError:
        raise MisuseError(
            "a value that contains itself, or is nested too deeply, cannot be hashed",
            "hashing a value",
            "group by a flat value: text, a number, a tuple of those",
        ) from None


def _hash_set(value: AbstractSet[object]) -> int:
    return _digest(b"set", b"".join(sorted({*_contents(value)})))  # several NaN are one


def _hash_dict(value: Mapping[object, object]) -> int:
    pairs = zip(_contents(value), _contents(value.values()), strict=True)
    return _digest(b"dict", b"".join(sorted(key + content for key, content in pairs)))


def _microseconds(days: int, seconds: int, microseconds: int) -> bytes:
    return b"%d" % ((days * 86_400 + seconds) * 1_000_000 + microseconds)


def _hash_duration(value: Any) -> int:  # noqa: ANN401
    return _digest(b"timedelta", _microseconds(value.days, value.seconds, value.microseconds))


def _hash_moment(value: Any) -> int:  # noqa: ANN401
    """A datetime or a time: with an offset as the instant in UTC, without one as local clock time."""
    if value != value:  # noqa: PLR0124  # pandas' NaT is a datetime that does not equal itself
        return _NAN
    offset = value.replace(fold=0).utcoffset()  # Python's == and hash() ignore the fold too
    days = value.toordinal() if hasattr(value, "toordinal") else 0
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    tag = b"datetime" if days else b"time"
    if offset is None:
        return _digest(tag, _microseconds(days, seconds, value.microsecond))
    microseconds = value.microsecond - offset.microseconds
    return _digest(tag + b"+", _microseconds(days - offset.days, seconds - offset.seconds, microseconds))


def _hash_enum(value: Any) -> int:  # noqa: ANN401
    # Without the module: a class of the main program is in __main__ here, and in a named module elsewhere.
    return _digest(b"enum", f"{type(value).__qualname__}.{value.name}".encode())


def _hash_dataclass(value: Any) -> int:  # noqa: ANN401
    compared = _contents(getattr(value, field.name) for field in fields(value) if field.compare)
    return _digest(b"dataclass", b"".join((type(value).__qualname__.encode(), b"\0", *compared)))


def _refuse(value: object) -> int:
    raise MisuseError(
        f"a {type(value).__module__}.{type(value).__qualname__} has no hash that is equal in all processes",
        "hashing a value",
        "group by text, numbers, dates, or tuples or dataclasses of those: emit such a key as a field",
    )


_HASHERS: Final[Mapping[str, Callable[[Any], int]]] = {
    "builtins.NoneType": lambda _: _NONE,
    "builtins.int": _hash_int,
    "builtins.float": _hash_float,
    "decimal.Decimal": _hash_decimal,
    "fractions.Fraction": _hash_ratio,
    "builtins.str": _hash_text,
    "builtins.bytes": _hash_bytes,
    "builtins.bytearray": _hash_bytes,
    "builtins.list": lambda value: _digest(b"list", b"".join(_contents(value))),
    "builtins.tuple": lambda value: _digest(b"tuple", b"".join(_contents(value))),
    "builtins.set": _hash_set,
    "builtins.frozenset": _hash_set,
    "builtins.dict": _hash_dict,
    "datetime.datetime": _hash_moment,
    "datetime.time": _hash_moment,
    "datetime.date": lambda value: _digest(b"date", b"%d" % value.toordinal()),
    "datetime.timedelta": _hash_duration,
    "uuid.UUID": lambda value: _digest(b"uuid", value.bytes),
    "enum.Enum": _hash_enum,
    "numpy.ndarray": _hash_numpy,
    "numpy.generic": _hash_numpy,
}


@lru_cache(maxsize=1024)
def _hasher_of(kind: type[Any]) -> Callable[[Any], int]:
    for base in kind.__mro__:
        hasher = _HASHERS.get(f"{base.__module__}.{base.__qualname__}")
        if hasher is not None:
            return hasher
    return _hash_dataclass if is_dataclass(kind) else _refuse
