"""Hypothesis draws values, keys, message ids and whole Arrow columns that hardly anybody can handle."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st


class Colour(enum.Enum):
    RED = 1


class Raises:
    """Raises whatever is asked of it, if named: ``eq``, ``hash``, ``repr``, ``reduce``, ``str``."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def _do(self, name: str) -> None:
        if name in self.names:
            raise KeyError(name)

    def __eq__(self, other: object) -> bool:
        self._do("eq")
        return isinstance(other, Raises)

    def __hash__(self) -> int:
        self._do("hash")
        return 1

    def __repr__(self) -> str:
        self._do("repr")
        return "Raises()"

    def __str__(self) -> str:
        self._do("str")
        return "raises"

    def __reduce__(self) -> tuple[object, ...]:
        self._do("reduce")
        return Raises, self.names

    def __arrow_array__(self, kind: object = None) -> pa.Array:
        self._do("array")
        return pa.array([1])


class RaisesAtLoad:
    """Pickles, and raises when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return _raise, ()


def _raise() -> None:
    raise RuntimeError("not here")


class OddText(str):
    """A text whose own methods raise."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        raise KeyError("encode")

    def __repr__(self) -> str:
        raise KeyError("repr")


class OddNumber(int):
    def __index__(self) -> int:
        raise KeyError("index")


class NoZone(dt.tzinfo):
    def utcoffset(self, moment: object) -> dt.timedelta:
        raise RuntimeError("no database of zones")


@dataclass
class HalfMade:
    a: int
    b: int

    def __init__(self) -> None:
        self.a = 1


def nested(depth: int) -> object:
    """A list in a list, so deep."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def recursive() -> object:
    """A list that holds itself."""
    value: list[object] = []
    value.append(value)
    return value


MAKERS: list[Callable[[], object]] = [
    lambda: None, lambda: 0, lambda: 7, lambda: 2**63, lambda: 10**4000, lambda: -0.0, lambda: float("nan"),
    lambda: float("inf"), lambda: "text", lambda: "\ud800", lambda: "\0", lambda: "7", lambda: b"\xff",
    lambda: bytearray(b"x"), lambda: memoryview(b"x"), lambda: 1j, list, lambda: [1, "a", None],
    dict, lambda: {1: 2}, lambda: {"a": [1]}, lambda: {1, "a"}, lambda: frozenset({1}), lambda: (1, 2),
    lambda: nested(60), lambda: nested(64), lambda: nested(100), lambda: nested(400), lambda: nested(3000),
    recursive, lambda: Colour.RED, HalfMade,
    lambda: dt.date.max, lambda: dt.datetime(2020, 1, 1, tzinfo=NoZone()), lambda: dt.timedelta.max,
    lambda: decimal.Decimal("sNaN"), lambda: decimal.Decimal("1e999999"), lambda: fractions.Fraction(1, 3),
    lambda: uuid.UUID(int=1), lambda: np.float16(1), lambda: np.int64(7), lambda: np.datetime64("NaT"),
    lambda: np.array([1, 2]), lambda: np.array([object()]), lambda: np.zeros((2, 2)),
    lambda: pa.scalar(1), lambda: pa.array([1]), lambda: pa.record_batch({"a": [1]}), lambda: len,
    threading.Lock, lambda: (n for n in ()), lambda: (lambda: 0), object, RaisesAtLoad, NoZone,
    lambda: OddText("odd"), lambda: OddNumber(3), type("Local", (), {}), lambda: ValueError("x"),
    *(lambda names=names: Raises(*names) for names in (
        (), ("eq",), ("hash",), ("repr",), ("reduce",), ("str",), ("array",), ("repr", "reduce", "str", "eq"),
    )),
]  # fmt: skip
"""Each makes one value anew, so that no two messages share one."""


def _bad_text(*texts: bytes) -> pa.Array:
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)))


def _run_ends() -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"]))


def _wide(kind: pa.DataType) -> pa.Array:
    return pa.array([5, 2**62, None], pa.int64()).cast(kind)


COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "string_view": lambda: pa.array(["a", "b" * 40, None], pa.string_view()),
    "binary_view": lambda: pa.array([b"a", b"b", None], pa.binary_view()),
    "list_view": lambda: pa.array([[1], [2, 3], None], pa.list_view(pa.int64())),
    "large_list": lambda: pa.array([[1], [2], None], pa.large_list(pa.int64())),
    "fixed_list": lambda: pa.array([[1, 2], [2, 3], None], pa.list_(pa.int64(), 2)),
    "views_in_struct": lambda: pa.array([{"a": "x"}, {}, None], pa.struct([("a", pa.string_view())])),
    "run_ends": _run_ends,
    "sparse_union": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    ),
    "dense_union": lambda: pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a"])]
    ),
    "dictionary": lambda: pa.array(["a", "b", None]).dictionary_encode(),
    "dictionary_with_null": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None], pa.int8()), pa.array(["a", None])
    ),
    "dictionary_of_lists": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None], pa.int8()), pa.array([[1], [2]])
    ),
    "decimal256": lambda: pa.array([1, 2, None]).cast(pa.decimal256(60, 3)),
    "decimal32": lambda: pa.array([1, 2, None]).cast(pa.decimal128(19, 0)).cast(pa.decimal32(5, 3)),
    "float16": lambda: pa.array([np.float16(1), np.float16("nan"), None], pa.float16()),
    "uint64": lambda: pa.array([2**64 - 1, 1, None], pa.uint64()),
    "interval": lambda: pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([0, 0, 1])]),
    "time64": lambda: pa.array([1, 1001, None], pa.int64()).cast(pa.time64("ns")),
    "duration_ns": lambda: pa.array([1, 1001, None], pa.int64()).cast(pa.duration("ns")),
    "duration_s": lambda: _wide(pa.duration("s")),
    "timestamp_s": lambda: _wide(pa.timestamp("s")),
    "timestamp_ms": lambda: _wide(pa.timestamp("ms")),
    "timestamp_ns": lambda: pa.array([1, 1001, None], pa.int64()).cast(pa.timestamp("ns")),
    "timestamp_of_nowhere": lambda: pa.array([1, 2, 3], pa.int64()).cast(pa.timestamp("us", "Mars/Olympus")),
    "date32": lambda: pa.array([5, 99_999_999, None], pa.int32()).cast(pa.date32()),
    "lists_of_dates": lambda: pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 2], pa.int32()), pa.array([5, 99_999_999], pa.int32()).cast(pa.date32())
    ),
    "map": lambda: pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "struct": lambda: pa.array([{"a": 1}, {}, None], pa.struct([("a", pa.int64())])),
    "bad_text": lambda: _bad_text(b"a", b"\xff", b"c"),
    "nested": lambda: pa.array([nested(60), None, nested(60)]),
    "null": lambda: pa.nulls(3),
    "bool8": lambda: pa.array([True, False, None]).cast(pa.int8()).cast(pa.bool8()),
    "uuid": lambda: pa.array([b"0" * 16, b"1" * 16, None], pa.binary(16)).cast(pa.uuid()),
    "json": lambda: pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', "2", None])),
    "large_text": lambda: pa.array(["a", "b", None], pa.large_string()),
    "plain": lambda: pa.array([1, 2, 3]),
}
"""Columns of three rows, one for each kind of Arrow's."""

makers = st.sampled_from(MAKERS)
columns = st.sampled_from([*COLUMNS])


@dataclass(frozen=True)
class Line:
    """A spout, bolts in a line, and the groupings between them."""

    bolts: tuple[str, ...]
    grouping: str
    retries: bool
    partitions: int
    redelivers: bool


lines = st.builds(
    Line,
    bolts=st.lists(st.sampled_from(["basic", "hand", "arrow"]), min_size=1, max_size=3).map(tuple),
    grouping=st.sampled_from(["shuffle", "fields", "custom", "partial_key"]),
    retries=st.booleans(),
    partitions=st.integers(1, 2),
    redelivers=st.booleans(),
)
