"""Hashes of values that are the same everywhere: what fields groupings stand on.

Rules of this file
------------------
1. A hash never depends on the machine, the process (``PYTHONHASHSEED``), the Python or our release. A
   topology that is started again must find each key's memory at the task where it left it, so golden tests
   pin these numbers; whoever changes one moves every key of every running topology.
2. Values that Python calls equal hash alike: ``1 == 1.0 == True == Decimal(1)``, ``{1, 2} == {2, 1}``, two
   times of day that are one instant. Beyond that, arrays and lists hash by content; a tuple is not a list.
3. Whole columns and single values agree: :func:`hash_columns` is :func:`hash_row` of each row, only faster.
4. What has no stable content (an open file, an object with an identity) is refused, never hashed by address.

Numbers are mixed, so that numpy can do a column at once: what fits in an int64 by its value, else what is
exactly a double by its bits, else by the residue modulo 2**61 - 1. Everything else is a tag and canonical
bytes through blake2b; containers hash the hashes of what they hold.

Source: Storm's ``grouping/FieldsGrouping`` (arrays by content); the residue is Python's own rule for numbers
("Hashing of numeric types"). Types are recognised by name, so that nothing is imported to look at a value.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from functools import lru_cache, reduce
from math import isnan
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s, UInt64s, mix64
from acktree.errors import MisuseError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "combine_hashes",
    "hash_column",
    "hash_columns",
    "hash_row",
    "hash_values",
    "known_hash",
    "stable_hash",
]

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
# One key for each way of a number: else an int would hash as the double that has its bits.
_INTEGER: Final = 0x8C61A5D3F0B7294E
_DOUBLE: Final = 0x37E90BC4D2586FA1
_EXACT: Final = 0xD1B54A32D192ED03
_ROW: Final = 0x5851F42D4C957F2D
_MODULUS: Final = (1 << 61) - 1
_INT64_END: Final = 1 << 63
_TEXTS: Final = frozenset({str, bytes})
_VIEWS: Final = frozenset({"string_view", "binary_view"})
"""Arrow can neither filter nor encode these; not every release of it casts them."""
_SHORT: Final = 64
"""Texts up to this length are remembered with their hash; 65,536 of them cost at most about 15 MB."""


def stable_hash(value: object) -> int:
    """One number for a value: unsigned, 64 bits, the same on every machine and in every release.

    Knows None, numbers (bool, int, float, Decimal, Fraction, numpy's), str, bytes and bytearray, list, tuple,
    set, frozenset, dict, datetime, date, time, timedelta, UUID, Enum, numpy arrays, and dataclasses (by name
    and the fields they compare). Subclasses hash as what they extend, as they compare equal to it.

    Raises:
        MisuseError: The value, or one inside it, has no content that is the same everywhere.

    >>> stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    True
    >>> stable_hash([1, 2]) == stable_hash((1, 2))
    False
    """
    return _hasher_of(type(value))(value)  # type: ignore[arg-type]  # mypy: a class is Hashable as its instances are


def hash_row(values: Iterable[object]) -> int:
    """One number for several values in order; what fields groupings take modulo the number of tasks."""
    return reduce(lambda row, value: _mix((row + _GOLDEN & _MASK) ^ stable_hash(value)), values, _ROW)


def hash_values(values: Iterable[object]) -> UInt64s:
    """:func:`stable_hash` of each value, shape (n,)."""
    return np.fromiter(map(known_hash, values), dtype=np.uint64)


def hash_columns(columns: Sequence[pa.Array], n: int) -> UInt64s:
    """:func:`hash_row` of each row of a table.

    Args:
        columns: The columns in order, each of length n; as Arrow stores them, so no pickled ones
            (``values.hash_rows`` knows those).
        n: The number of rows; needed where there is no column.

    Costs a dictionary encoding for each column of texts: 300,000 of 5,000 different ones take about 15 ms.
    """
    return combine_hashes([hash_column(column) for column in columns], n)


def combine_hashes(hashes: Iterable[UInt64s], n: int) -> UInt64s:
    """Fold the hashes of the columns, each of shape (n,), into one per row. The order of columns counts."""
    rows = np.full(n, _ROW, dtype=np.uint64)
    for column in hashes:
        rows += np.uint64(_GOLDEN)
        rows = mix64(rows ^ column)
    return rows


def hash_column(column: pa.Array) -> UInt64s:
    """:func:`stable_hash` of each value of an Arrow column, shape (n,)."""
    # Local: importing acktree must not import pyarrow; whoever holds an Arrow array has paid for it.
    import pyarrow as pa  # noqa: PLC0415

    if str(column.type) in _VIEWS:
        return hash_values(column.to_pylist())
    if column.null_count:
        hashes = np.full(len(column), _NONE, dtype=np.uint64)
        if column.null_count < len(column):
            present = column.is_valid().to_numpy(zero_copy_only=False)
            hashes[present] = hash_column(column.drop_null())
        return hashes
    kind = column.type
    if pa.types.is_floating(kind):
        return _hash_doubles(column.to_numpy(zero_copy_only=False).astype(np.float64))
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not pa.types.is_uint64(kind)):
        return _hash_integers(column.to_numpy(zero_copy_only=False).astype(np.int64))
    return _hash_distinct(column)


def _hash_distinct(column: pa.Array) -> UInt64s:
    """Hash each different value once. Nested types have no dictionary, so those go value by value."""
    import pyarrow as pa  # noqa: PLC0415  # local for the same reason as in hash_column

    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return hash_values(column.to_pylist())
    taken: UInt64s = hash_values(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    return taken


def known_hash(value: object) -> int:
    """As :func:`stable_hash`, remembering short texts: the same words come in every batch."""
    # Only exact types, which are never equal to each other: what equals a text may be another kind of thing.
    if type(value) in _TEXTS and len(value) <= _SHORT:  # type: ignore[arg-type]  # a text has a length
        return _hash_short_text(value)
    return stable_hash(value)


@lru_cache(maxsize=1 << 16)
def _hash_short_text(value: str | bytes) -> int:
    return stable_hash(value)


# ---- numbers ----------------------------------------------------------------------------------------------


def _mix(value: int) -> int:
    """``ids.mix64`` of one number; numpy would take ten times as long for a single one."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _hash_integers(values: Int64s) -> UInt64s:
    return mix64(values.view(np.uint64) ^ np.uint64(_INTEGER))


def _hash_doubles(values: npt.NDArray[np.float64]) -> UInt64s:
    hashes = mix64(values.view(np.uint64) ^ np.uint64(_DOUBLE))
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other
        integral = (values == np.floor(values)) & (values >= -_INT64_END) & (values < _INT64_END)
    hashes[integral] = _hash_integers(values[integral].astype(np.int64))
    hashes[np.isnan(values)] = _NAN
    return hashes


def _hash_int(value: int) -> int:
    value = int(value)
    if -_INT64_END <= value < _INT64_END:
        return _mix((value & _MASK) ^ _INTEGER)
    return _hash_ratio(value)


def _hash_float(value: float) -> int:
    value = float(value)
    if value.is_integer() and -_INT64_END <= value < _INT64_END:
        return _hash_int(int(value))
    if isnan(value):
        return _NAN
    return _mix(struct.unpack("<Q", struct.pack("<d", value))[0] ^ _DOUBLE)


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
    # Fermat's inverse; it is 0 where the modulus divides the denominator, and no double or Decimal is there.
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
    # Never as an int: Decimal("1e999999999") is short, and its digits would fill the memory.
    sign, digits, exponent = value.as_tuple()
    mantissa = reduce(lambda number, digit: (number * 10 + digit) % _MODULUS, digits, 0)
    return _hash_residue((-mantissa if sign else mantissa) * pow(10, exponent, _MODULUS))


def _hash_residue(residue: int) -> int:
    return _mix(residue % _MODULUS ^ _EXACT)


def _hash_numpy(value: Any) -> int:  # noqa: ANN401
    if value.dtype.kind in "mM":  # as datetime and timedelta; nanoseconds would come out as ints
        value = value.astype(f"{value.dtype.kind}8[us]")
    plain = value.tolist()
    # A long double has no Python twin and stays what it is.
    return _refuse(plain) if isinstance(plain, np.generic) else stable_hash(plain)


# ---- everything else --------------------------------------------------------------------------------------


def _digest(tag: bytes, content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(tag + content, digest_size=8).digest(), "little")


_NONE: Final = _digest(b"none", b"")
_NAN: Final = _digest(b"nan", b"")


def _hash_text(value: str) -> int:
    # Unbound, so that a subclass is taken for its characters; lone surrogates are text too.
    return _digest(b"s", str.encode(value, "utf-8", "surrogatepass"))


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
    return _digest(b"set", b"".join(sorted(_contents(value))))


def _hash_dict(value: Mapping[object, object]) -> int:
    pairs = zip(_contents(value), _contents(value.values()), strict=True)
    return _digest(b"dict", b"".join(sorted(key + content for key, content in pairs)))


def _microseconds(days: int, seconds: int, microseconds: int) -> bytes:
    return b"%d" % ((days * 86_400 + seconds) * 1_000_000 + microseconds)


def _hash_duration(value: Any) -> int:  # noqa: ANN401
    return _digest(b"timedelta", _microseconds(value.days, value.seconds, value.microseconds))


def _hash_moment(value: Any) -> int:  # noqa: ANN401
    """A datetime or a time: with an offset as the instant in UTC, without one as the clock shows it."""
    if value != value:  # noqa: PLR0124  # pandas' NaT says that it is a datetime, and equals nothing
        return _NAN
    offset = value.replace(fold=0).utcoffset()  # Python's == and hash() ignore the fold as well
    days = value.toordinal() if hasattr(value, "toordinal") else 0
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    tag = b"datetime" if days else b"time"
    if offset is None:
        return _digest(tag, _microseconds(days, seconds, value.microsecond))
    microseconds = value.microsecond - offset.microseconds
    return _digest(tag + b"+", _microseconds(days - offset.days, seconds - offset.seconds, microseconds))


def _hash_enum(value: Any) -> int:  # noqa: ANN401
    # Without the module: a class of the user's program is in __main__ here and in a named module elsewhere.
    return _digest(b"enum", f"{type(value).__qualname__}.{value.name}".encode())


def _hash_dataclass(value: Any) -> int:  # noqa: ANN401
    compared = _contents(getattr(value, field.name) for field in fields(value) if field.compare)
    return _digest(b"dataclass", b"".join((type(value).__qualname__.encode(), b"\0", *compared)))


def _refuse(value: object) -> int:
    raise MisuseError(
        f"a {type(value).__module__}.{type(value).__qualname__} has no hash that is the same everywhere",
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
    "builtins.bytes": lambda value: _digest(b"b", value),
    "builtins.bytearray": lambda value: _digest(b"b", value),
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
