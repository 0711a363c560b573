"""Hypothesis draws values, keys, message ids and whole Arrow columns that hardly anybody can handle."""

from __future__ import annotations

import ctypes
import datetime as dt
import decimal
import enum
import fractions
import threading
import uuid
from collections.abc import Callable, Sequence
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
    lambda: pa.scalar(1), lambda: pa.MonthDayNano([1, 2, 3]), lambda: pa.array([1]),
    lambda: pa.record_batch({"a": [1]}), lambda: len,
    threading.Lock, lambda: (n for n in ()), lambda: (lambda: 0), object, RaisesAtLoad, NoZone,
    lambda: OddText("odd"), lambda: OddNumber(3), type("Local", (), {}), lambda: ValueError("x"),
    *(lambda names=names: Raises(*names) for names in (
        (), ("eq",), ("hash",), ("repr",), ("reduce",), ("str",), ("array",), ("repr", "reduce", "str", "eq"),
    )),
]  # fmt: skip
"""Each makes one value anew, so that no two messages share one."""


class _CSchema(ctypes.Structure):
    """Arrow's C data interface: what a column of a stranger is made of."""


_Below = ctypes.POINTER(_CSchema)
_CSchema._fields_ = [
    *((name, ctypes.c_char_p) for name in ("format", "name", "metadata")),
    *((name, ctypes.c_int64) for name in ("flags", "n_children")),
    ("children", ctypes.POINTER(_Below)), ("dictionary", _Below),
    *((name, ctypes.c_void_p) for name in ("release", "private_data")),
]  # fmt: skip
MONTHS, DAYS = b"tiM", b"tiD"
"""Spark's intervals, of 32 and of 64 bits: Arrow knows them, and pyarrow has no class of theirs."""


def _retyped(array: pa.Array, kind: bytes, *path: int | str) -> pa.RecordBatch:
    """A column with another type of as many bits, in it or at some place below it."""
    batch = pa.record_batch([array], names=["key"])
    schema, data = _CSchema(), ctypes.create_string_buffer(200)
    batch._export_to_c(ctypes.addressof(data), ctypes.addressof(schema))
    place = schema.children[0].contents
    for step in path:
        place = place.dictionary.contents if isinstance(step, str) else place.children[step].contents
    place.format = kind
    return pa.RecordBatch._import_from_c(ctypes.addressof(data), ctypes.addressof(schema))


def _bad_text(*texts: bytes) -> pa.Array:
    texts = texts or (b"a", b"\xff", b"c")
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)))


def _run_ends(values: pa.Array | None = None, kind: pa.DataType | None = None) -> pa.Array:
    values = pa.array(["a", "b"]) if values is None else values
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], kind or pa.int32()), values)


def _cast(
    kind: pa.DataType, values: Sequence[object] = (5, 2**62, None), base: pa.DataType | None = None
) -> pa.Array:
    return pa.array(values, base or pa.int64()).cast(kind)


def _sparse(*parts: pa.Array) -> pa.Array:
    parts = parts or (pa.array([1, 2, 3]), pa.array(["a", "b", "c"]))
    return pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [*parts])


def _dense(*parts: pa.Array) -> pa.Array:
    codes, places = pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32())
    return pa.UnionArray.from_dense(codes, places, [*(parts or (pa.array([1, 2]), pa.array(["a"])))])


def _dictionary(values: pa.Array, places: Sequence[object] = (0, 1, None), **named: object) -> pa.Array:
    kind = named.pop("kind", pa.int8())
    return pa.DictionaryArray.from_arrays(pa.array(places, kind), values, **named)


def _listed(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), values)


def _in_struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values], names=["a"])


def _deep(depth: int) -> pa.Array:
    values = pa.array([1, 2, 3])
    for _ in range(depth):
        values = _listed(values)
    return values


def _nan(*bits: int) -> pa.Array:
    return pa.array(np.array(bits, np.uint64).view(np.float64))


class Extension(pa.ExtensionType):
    """Of a stranger: registered, or not, and with code that raises, or not."""

    registered = True
    raises = ""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, f"hostile.{type(self).__name__}")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, _: bytes) -> pa.ExtensionType:
        if cls.raises == "load":
            raise KeyError("load")
        return cls(storage)

    def __arrow_ext_scalar_class__(self) -> type:
        return _OddScalar if self.raises == "value" else pa.ExtensionScalar

    def __arrow_ext_class__(self) -> type:
        return _OddArray if self.raises == "array" else pa.ExtensionArray


class _OddScalar(pa.ExtensionScalar):
    def as_py(self, **_: object) -> object:
        raise KeyError("as_py")


class _OddArray(pa.ExtensionArray):
    def _raise(self, *_: object, **__: object) -> None:
        raise KeyError("array")

    slice = take = to_pylist = dictionary_encode = drop_null = is_valid = _raise  # type: ignore[assignment]


_KINDS = {
    name: type(name, (Extension,), {"raises": name.lower(), "registered": name != "Unknown"})
    for name in ("Plain", "Load", "Value", "Array", "Unknown")
}
for _kind in _KINDS.values():
    if _kind.registered:
        pa.register_extension_type(_kind(pa.int64()))


def _extension(storage: pa.Array, name: str = "Plain") -> pa.Array:
    return pa.ExtensionArray.from_storage(_KINDS[name](storage.type), storage)


_UNITS = ("s", "ms", "us", "ns")
_PLACES = ("uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_ZONES = ("Mars/Olympus", "+25:99", "a\0b", "../../etc/passwd")
_FEW = lambda: pa.array([1, 2, None])  # noqa: E731
_TEXTS = lambda: pa.array(["a", "b", None])  # noqa: E731
_UUIDS = lambda: pa.array([b"0" * 16, b"1" * 16, None], pa.binary(16)).cast(pa.uuid())  # noqa: E731
_VIEW = lambda: pa.array(["a", "b" * 40, None], pa.string_view())  # noqa: E731
_INTERVAL = lambda: pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([0, 0, 1])])  # noqa: E731
_INT32 = lambda count=3: pa.array([1, 2, None][:count], pa.int32())  # noqa: E731
_MAP = pa.map_(pa.string(), pa.int64())

COLUMNS: dict[str, Callable[[], pa.Array | pa.RecordBatch]] = {
    "plain": lambda: pa.array([1, 2, 3]),
    "months": lambda: _retyped(_INT32(), MONTHS),
    "days": lambda: _retyped(_FEW(), DAYS),
    "months_in_list": lambda: _retyped(_listed(_INT32()), MONTHS, 0),
    "months_in_struct": lambda: _retyped(_in_struct(_INT32()), MONTHS, 0),
    "months_in_dictionary": lambda: _retyped(_dictionary(_INT32(2)), MONTHS, "dictionary"),
    "months_in_map": lambda: (
        _retyped(pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32())), MONTHS, 0, 1)
    ),
    "months_in_runs": lambda: _retyped(_run_ends(_INT32(2)), MONTHS, 1),
    "months_in_union": lambda: _retyped(_sparse(_INT32(), _TEXTS()), MONTHS, 0),
    "days_in_union": lambda: _retyped(_dense(_FEW(), _TEXTS()), DAYS, 0),
    "months_in_extension": lambda: _retyped(_extension(_INT32()), MONTHS),
    "interval": _INTERVAL,
    "intervals_in_list": lambda: _listed(_INTERVAL()),
    "intervals_in_dictionary": lambda: _dictionary(_INTERVAL().drop_null()),
    "decimal32": lambda: _FEW().cast(pa.decimal128(19, 0)).cast(pa.decimal32(5, 3)),
    "decimal64": lambda: _FEW().cast(pa.decimal128(19, 0)).cast(pa.decimal64(15, 3)),
    "decimal128": lambda: _FEW().cast(pa.decimal128(38, 0)),
    "decimal256": lambda: _FEW().cast(pa.decimal256(60, 3)),
    "decimal_too_wide": lambda: pa.Decimal128Array.from_buffers(
        pa.decimal128(3, 1), 3, [None, pa.py_buffer(b"\xff" * 15 + b"\x7f" + bytes(32))]
    ),
    **{f"duration_{unit}": lambda unit=unit: _cast(pa.duration(unit)) for unit in _UNITS},
    **{f"timestamp_{unit}": lambda unit=unit: _cast(pa.timestamp(unit)) for unit in _UNITS},
    **{f"timestamp_{unit}_utc": lambda unit=unit: _cast(pa.timestamp(unit, "UTC")) for unit in _UNITS},
    **{f"zone_{zone!a}": lambda zone=zone: _cast(pa.timestamp("us", zone), (1, 2, None)) for zone in _ZONES},
    "zone": lambda: _cast(pa.timestamp("ms", "Europe/Berlin"), (1, -(2**62), 2**62)),
    "time32": lambda: _cast(pa.time32("s"), (1, 10**9, None), pa.int32()),
    "time64_us": lambda: _cast(pa.time64("us")),
    "time64_ns": lambda: _cast(pa.time64("ns"), (1, 1001, -1)),
    "date32": lambda: _cast(pa.date32(), (-(2**31), 99_999_999, None), pa.int32()),
    "date64": lambda: _cast(pa.date64(), (5, 86_400_000, 2**60 // 86_400_000 * 86_400_000)),
    "dates_in_list": lambda: _listed(_cast(pa.date32(), (5, 99_999_999, None), pa.int32())),
    "large_text": lambda: pa.array(["a", "b", None], pa.large_string()),
    "large_binary": lambda: pa.array([b"a", b"\xff", None], pa.large_binary()),
    "fixed_binary": lambda: pa.array([b"ab", b"cd", None], pa.binary(2)),
    "no_binary": lambda: pa.array([b"", b"", None], pa.binary(0)),
    "string_view": _VIEW,
    "binary_view": lambda: pa.array([b"a", b"\xff" * 40, None], pa.binary_view()),
    "list_view": lambda: pa.array([[1], [2, 3], None], pa.list_view(pa.int64())),
    "large_list_view": lambda: pa.array([["a"], ["b", "c"], None], pa.large_list_view(pa.string_view())),
    "overlapping_list_view": lambda: pa.ListViewArray.from_arrays(
        pa.array([1, 0, 1], pa.int32()), pa.array([2, 1, 0], pa.int32()), pa.array([1, 2, 3])
    ),
    "large_list": lambda: pa.array([[1], [2], None], pa.large_list(pa.int64())),
    "fixed_list": lambda: pa.array([[1, 2], [2, 3], None], pa.list_(pa.int64(), 2)),
    "no_list": lambda: pa.array([[], [], None], pa.list_(pa.int64(), 0)),
    "views_in_fixed_list": lambda: pa.array([["a"], ["b"], None], pa.list_(pa.string_view(), 1)),
    "struct": lambda: pa.array([{"a": 1}, {}, None], pa.struct([("a", pa.int64())])),
    "no_struct": lambda: pa.array([{}, {}, None], pa.struct([])),
    "twice_in_struct": lambda: pa.StructArray.from_arrays([_FEW(), _TEXTS()], names=["a", "a"]),
    "views_in_struct": lambda: _in_struct(_VIEW()),
    "runs": _run_ends,
    "runs_by_int16": lambda: _run_ends(kind=pa.int16()),
    "runs_of_null": lambda: _run_ends(pa.array(["a", None])),
    "runs_of_nulls": lambda: _run_ends(pa.nulls(2)),
    "runs_of_lists": lambda: _run_ends(pa.array([[1], [2]])),
    "runs_of_dictionary": lambda: _run_ends(pa.array(["a", "b"]).dictionary_encode()),
    "runs_of_views": lambda: _run_ends(_VIEW().slice(0, 2)),
    "runs_of_runs": lambda: _run_ends(_run_ends().slice(1, 2)),
    "runs_in_struct": lambda: _in_struct(_run_ends()),
    "runs_in_list": lambda: _listed(_run_ends()),
    "runs_in_union": lambda: _sparse(_run_ends(), _TEXTS()),
    "runs_sliced": lambda: _run_ends(pa.array(["a", "c"])).slice(0, 3),
    "sparse_union": _sparse,
    "dense_union": _dense,
    "union_of_nulls": lambda: _sparse(pa.array([1, None, None]), pa.array([None, "b", None])),
    "union_of_lists": lambda: _dense(pa.array([[1], [2]]), pa.array(["a"]).dictionary_encode()),
    "union_of_views": lambda: _dense(_VIEW(), pa.array(["a"])),
    "union_of_dates": lambda: _dense(_cast(pa.date32(), (5, 99_999_999), pa.int32()), pa.array(["a"])),
    "union_of_codes": lambda: pa.UnionArray.from_dense(
        pa.array([5, 9, 5], pa.int8()), pa.array([0, 0, 1], pa.int32()),
        [pa.array([1, 2]), pa.array(["a"])], ["x", "y"], [5, 9],
    ),
    "unions_in_list": lambda: _listed(_dense()),
    "unions_in_struct": lambda: _in_struct(_sparse()),
    "dictionary": lambda: _TEXTS().dictionary_encode(),
    **{f"dictionary_{kind}": lambda kind=kind: _dictionary(pa.array(["a", "b"]), kind=pa.type_for_alias(kind))
        for kind in _PLACES},
    "dictionary_with_null": lambda: _dictionary(pa.array(["a", None])),
    "dictionary_in_order": lambda: _dictionary(pa.array(["a", "b"]), ordered=True),
    "dictionary_with_twins": lambda: _dictionary(pa.array(["a", "a"])),
    "dictionary_of_lists": lambda: _dictionary(pa.array([[1], [2]])),
    "dictionary_of_structs": lambda: _dictionary(pa.array([{"a": 1}, {"a": 2}])),
    "dictionary_of_nulls": lambda: _dictionary(pa.nulls(2)),
    "dictionary_of_nothing": lambda: _dictionary(pa.array([], pa.string()), (None, None, None)),
    "dictionary_of_nan": lambda: _dictionary(pa.array([float("nan"), -0.0]), (0, 1, 0)),
    "dictionary_of_views": lambda: _dictionary(_VIEW().slice(0, 2)),
    "dictionary_of_runs": lambda: _dictionary(_run_ends().slice(1, 2)),
    "dictionary_of_bad_text": lambda: _dictionary(_bad_text(b"a", b"\xff")),
    "dictionary_of_dates": lambda: _dictionary(_cast(pa.date32(), (5, 99_999_999), pa.int32())),
    "dictionary_of_dictionary": lambda: _dictionary(pa.array(["a", "b"]).dictionary_encode()),
    "dictionary_of_unions": lambda: _dictionary(_sparse(), (0, 1, 2)),
    "dictionary_of_extensions": lambda: _dictionary(_extension(pa.array([1, 2]))),
    "dictionary_beyond": lambda: _dictionary(pa.array(["a", "b"]), (0, 7, None), safe=False),
    "dictionary_before": lambda: _dictionary(pa.array(["a", "b"]), (0, -7, None), safe=False),
    "dictionary_in_list": lambda: _listed(_dictionary(pa.array(["a", "b"]))),
    "dictionary_beyond_in_list": lambda: _listed(_dictionary(pa.array(["a", "b"]), (0, 7, None), safe=False)),
    "dictionary_in_struct": lambda: _in_struct(_dictionary(pa.array(["a", None]))),
    "map": lambda: pa.array([[("a", 1)], [], None], _MAP),
    "map_with_twins": lambda: pa.array([[("a", 1), ("a", 2)], [], None], _MAP),
    "map_by_lists": lambda: (
        pa.array([[([1], {"x": 1})], [], None], pa.map_(pa.list_(pa.int64()), pa.struct([("x", pa.int64())])))
    ),
    "map_of_views": lambda: pa.array([[("a", "b")], [], None], pa.map_(pa.string_view(), pa.string_view())),
    "map_by_bad_text": lambda: (
        pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), _bad_text(), _FEW())
    ),
    "bad_text": _bad_text,
    "bad_large_text": lambda: _bad_text().cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()),
    "bad_text_in_list": lambda: _listed(_bad_text()),
    "bad_text_in_struct": lambda: _in_struct(_bad_text()),
    "nested": lambda: _deep(60),
    "nested_too_deep": lambda: _deep(70),
    "null": lambda: pa.nulls(3),
    "nulls_in_list": lambda: _listed(pa.nulls(3)),
    "float16": lambda: pa.array([np.float16(1), np.float16("nan"), None], pa.float16()),
    "float32": lambda: pa.array([float("nan"), -0.0, 0.0], pa.float32()),
    "nan": lambda: _nan(0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000),
    "uint64": lambda: pa.array([2**64 - 1, 1, None], pa.uint64()),
    "bool8": lambda: pa.array([True, False, None]).cast(pa.int8()).cast(pa.bool8()),
    "uuid": _UUIDS,
    "uuids_in_list": lambda: _listed(_UUIDS()),
    "json": lambda: pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', "2", None])),
    "opaque": lambda: pa.ExtensionArray.from_storage(pa.opaque(pa.string_view(), "t", "v"), _VIEW()),
    "tensor": lambda: pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int64(), (2,)), pa.array([[1, 2], [2, 3], None], pa.list_(pa.int64(), 2))
    ),
    **{f"extension_{name}": lambda name=name: _extension(_FEW(), name) for name in _KINDS},
    "extension_of_views": lambda: _extension(_VIEW()),
    "extension_of_list_views": lambda: _extension(pa.array([[1], [2, 3], None], pa.list_view(pa.int64()))),
    "extension_of_runs": lambda: _extension(_run_ends()),
    "extension_of_dictionary": lambda: _extension(_TEXTS().dictionary_encode()),
    "extension_of_union": lambda: _extension(_sparse()),
    "extension_of_extension": lambda: _extension(_extension(_FEW())),
    "extensions_in_list": lambda: _listed(_extension(_FEW())),
    "extension_of_views_in_struct": lambda: _in_struct(_extension(_VIEW())),
    "text_sliced": lambda: pa.array(["z", "a", "b", None, "q"]).slice(1, 3),
    "bools_sliced": lambda: pa.array([True] * 9 + [False, None]).slice(8, 3),
    "list_sliced": lambda: pa.array([[9], [1], [2], None, [3]]).slice(1, 3),
    "fixed_list_sliced": lambda: (
        pa.array([[9, 9], [1, 2], [2, 3], None], pa.list_(pa.int64(), 2)).slice(1, 3)
    ),
    "struct_sliced": lambda: (
        pa.array([{"a": 9}, {"a": 1}, {}, None], pa.struct([("a", pa.int64())])).slice(1, 3)
    ),
    "map_sliced": lambda: pa.array([[("z", 0)], [("a", 1)], [], None], _MAP).slice(1, 3),
    "dictionary_sliced": lambda: pa.array(["z", "a", "b", None]).dictionary_encode().slice(1, 3),
    "union_sliced": lambda: pa.concat_arrays([_dense(), _dense()]).slice(2, 3),
}  # fmt: skip
"""Columns of three rows, one for each kind of Arrow's; a batch of one column where pyarrow has no array."""


def column(name: str) -> pa.RecordBatch:
    """A column of :data:`COLUMNS` as a batch with the field ``key``."""
    made = COLUMNS[name]()
    return made if isinstance(made, pa.RecordBatch) else pa.RecordBatch.from_arrays([made], names=["key"])


GROUPINGS = (
    "shuffle", "fields", "custom", "partial_key", "all", "global", "none", "local_or_shuffle"
)  # fmt: skip

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
    grouping=st.sampled_from(GROUPINGS),
    retries=st.booleans(),
    partitions=st.integers(1, 2),
    redelivers=st.booleans(),
)
