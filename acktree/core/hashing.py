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
exactly a double by its bits, else by the residue modulo 2**61 - 1. Texts are what ``text_hashing`` says, for
the same reason. Everything else is a tag and canonical bytes through blake2b; containers hash the hashes of
what they hold.

Source: Storm's ``grouping/FieldsGrouping`` (arrays by content); the residue is Python's own rule for numbers
("Hashing of numeric types"). Types are recognised by name, so that nothing is imported to look at a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache, reduce
from math import isnan
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s, UInt64s, mix64, mix64_of_one
from acktree.core.text_hashing import BYTES, FEW, TEXT, digest, hash_text, hash_texts, hash_texts_at
from acktree.errors import MisuseError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "combine_hashes",
    "hash_column",
    "hash_columns",
    "hash_row",
    "hash_values",
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
_TAGS: Final = dict.fromkeys(("string", "large_string", "string_view"), TEXT) | dict.fromkeys(
    ("binary", "large_binary", "binary_view", "fixed_size_binary"), BYTES
)
"""The tag of each Arrow type that holds texts."""
_SHORT: Final = 64
"""Bytes a text up to which it is hashed wherever it stands, what Arrow says of its place included."""


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
    if type(value) is str:  # by far the most; asking for its hasher is a sixth of the work
        return _hash_text(value)
    return _hasher_of(type(value))(value)  # type: ignore[arg-type]  # mypy: a class is Hashable as its instances are


def hash_row(values: Iterable[object]) -> int:
    """One number for several values in order; what fields groupings take modulo the number of tasks."""
    return reduce(lambda row, value: mix64_of_one((row + _GOLDEN & _MASK) ^ stable_hash(value)), values, _ROW)


def hash_values(values: Sequence[Any]) -> UInt64s:
    """:func:`stable_hash` of each value, shape (n,); many of exactly one common type are hashed at once."""
    kinds = set(map(type, values)) if len(values) >= FEW else set()
    if kinds == {str}:
        return hash_texts(TEXT, list(map(_utf8, values)))
    if kinds == {bytes}:
        return hash_texts(BYTES, values)
    if kinds == {int}:
        with suppress(OverflowError):
            return _hash_integers(np.array(values, dtype=np.int64))
    return np.fromiter(map(stable_hash, values), dtype=np.uint64, count=len(values))


def hash_columns(columns: Sequence[pa.Array], n: int) -> UInt64s:
    """:func:`hash_row` of each row of a table.

    Args:
        columns: The columns in order, each of length n; as Arrow stores them, so no pickled ones
            (``values.hash_rows`` knows those).
        n: The number of rows; needed where there is no column.

    A short text costs about 40 ns; what is neither text nor number about 1 us for each different value.
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

    tag = _TAGS.get(str(column.type).partition("[")[0])
    if tag is not None:
        column = column.cast(pa.large_binary())  # one layout instead of seven; moves no text but of views
    if not column.null_count:
        return _hash_present(column, tag)
    hashes = np.full(len(column), _NONE, dtype=np.uint64)
    if column.null_count < len(column):
        present = column.is_valid().to_numpy(zero_copy_only=False)
        hashes[present] = _hash_present(column.drop_null(), tag)
    return hashes


def _hash_present(column: pa.Array, tag: bytes | None) -> UInt64s:
    """Hash a column without nulls; that of texts has their tag."""
    import pyarrow as pa  # noqa: PLC0415  # local for the same reason as in hash_column

    kind = column.type
    if tag is not None:
        return _hash_texts(tag, column)
    if pa.types.is_dictionary(kind):
        taken: UInt64s = hash_column(column.dictionary)[column.indices.to_numpy()]
        return taken
    if pa.types.is_floating(kind):
        return _hash_doubles(column.to_numpy(zero_copy_only=False).astype(np.float64))
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not pa.types.is_uint64(kind)):
        return _hash_integers(column.to_numpy(zero_copy_only=False).astype(np.int64))
    return _hash_distinct(column)


def _hash_texts(tag: bytes, texts: pa.LargeBinaryArray) -> UInt64s:
    """Hash short texts where they lie; of long ones, which take longer to hash than to compare, each once."""
    if texts.nbytes <= _SHORT * len(texts):
        return _hash_each_text(tag, texts)
    encoded = texts.dictionary_encode()
    taken: UInt64s = _hash_each_text(tag, encoded.dictionary)[encoded.indices.to_numpy()]
    return taken


def _hash_each_text(tag: bytes, texts: pa.LargeBinaryArray) -> UInt64s:
    if len(texts) < FEW:
        return np.array([hash_text(tag, content) for content in texts.to_pylist()], dtype=np.uint64)
    _, offsets, data = texts.buffers()
    within = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return hash_texts_at(tag, np.frombuffer(data, dtype=np.uint8), within)


def _hash_distinct(column: pa.Array) -> UInt64s:
    """Hash each different value once. Nested types have no dictionary, so those go value by value."""
    import pyarrow as pa  # noqa: PLC0415  # local for the same reason as in hash_column

    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return hash_values(column.to_pylist())
    taken: UInt64s = hash_values(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    return taken


# ---- numbers ----------------------------------------------------------------------------------------------


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
        return mix64_of_one((value & _MASK) ^ _INTEGER)
    return _hash_ratio(value)


def _hash_float(value: float) -> int:
    value = float(value)
    if value.is_integer() and -_INT64_END <= value < _INT64_END:
        return _hash_int(int(value))
    if isnan(value):
        return _NAN
    return mix64_of_one(struct.unpack("<Q", struct.pack("<d", value))[0] ^ _DOUBLE)


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
    return mix64_of_one(residue % _MODULUS ^ _EXACT)


def _hash_numpy(value: Any) -> int:  # noqa: ANN401
    if value.dtype.kind in "mM":  # as datetime and timedelta; nanoseconds would come out as ints
        value = value.astype(f"{value.dtype.kind}8[us]")
    plain = value.tolist()
    # A long double has no Python twin and stays what it is.
    return _refuse(plain) if isinstance(plain, np.generic) else stable_hash(plain)


# ---- everything else --------------------------------------------------------------------------------------


_NONE: Final = digest(b"none", b"")
_NAN: Final = digest(b"nan", b"")


def _utf8(value: str) -> bytes:
    # Unbound, so that a subclass is taken for its characters; lone surrogates are text too, and seldom there.
    try:
        return str.encode(value)
    except UnicodeEncodeError:
        return str.encode(value, "utf-8", "surrogatepass")


def _hash_text(value: str) -> int:
    return hash_text(TEXT, _utf8(value))


def _hash_bytes(value: bytes | bytearray) -> int:
    return hash_text(BYTES, value)


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
    return digest(b"set", b"".join(sorted(_contents(value))))


def _hash_dict(value: Mapping[object, object]) -> int:
    pairs = zip(_contents(value), _contents(value.values()), strict=True)
    return digest(b"dict", b"".join(sorted(key + content for key, content in pairs)))


def _microseconds(days: int, seconds: int, microseconds: int) -> bytes:
    return b"%d" % ((days * 86_400 + seconds) * 1_000_000 + microseconds)


def _hash_duration(value: Any) -> int:  # noqa: ANN401
    return digest(b"timedelta", _microseconds(value.days, value.seconds, value.microseconds))


def _hash_moment(value: Any) -> int:  # noqa: ANN401
    """A datetime or a time: with an offset as the instant in UTC, without one as the clock shows it."""
    if value != value:  # noqa: PLR0124  # pandas' NaT says that it is a datetime, and equals nothing
        return _NAN
    offset = value.replace(fold=0).utcoffset()  # Python's == and hash() ignore the fold as well
    days = value.toordinal() if hasattr(value, "toordinal") else 0
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    tag = b"datetime" if days else b"time"
    if offset is None:
        return digest(tag, _microseconds(days, seconds, value.microsecond))
    microseconds = value.microsecond - offset.microseconds
    return digest(tag + b"+", _microseconds(days - offset.days, seconds - offset.seconds, microseconds))


def _hash_enum(value: Any) -> int:  # noqa: ANN401
    # Without the module: a class of the user's program is in __main__ here and in a named module elsewhere.
    return digest(b"enum", f"{type(value).__qualname__}.{value.name}".encode())


def _hash_dataclass(value: Any) -> int:  # noqa: ANN401
    compared = _contents(getattr(value, field.name) for field in fields(value) if field.compare)
    return digest(b"dataclass", b"".join((type(value).__qualname__.encode(), b"\0", *compared)))


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
    "builtins.bytes": _hash_bytes,
    "builtins.bytearray": _hash_bytes,
    "builtins.list": lambda value: digest(b"list", b"".join(_contents(value))),
    "builtins.tuple": lambda value: digest(b"tuple", b"".join(_contents(value))),
    "builtins.set": _hash_set,
    "builtins.frozenset": _hash_set,
    "builtins.dict": _hash_dict,
    "datetime.datetime": _hash_moment,
    "datetime.time": _hash_moment,
    "datetime.date": lambda value: digest(b"date", b"%d" % value.toordinal()),
    "datetime.timedelta": _hash_duration,
    "uuid.UUID": lambda value: digest(b"uuid", value.bytes),
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
