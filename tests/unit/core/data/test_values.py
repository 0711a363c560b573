from __future__ import annotations

import datetime as dt
import importlib
import math
import pickle
import subprocess
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config
from acktree.core import durable
from acktree.core.data.row_hashes import hash_rows
from acktree.core.data.values import (
    LOOKED_AT,
    batch_from_bytes,
    batch_to_bytes,
    decode_columns,
    decode_rows,
    encode_rows,
    native_batch,
    pickled_fields,
    quick_look,
    size_of,
    unpickled_columns,
)
from acktree.errors import MisuseError

ROOT = Path(__file__).parents[4]


class Text(str):
    __slots__ = ()


class Number(int):
    pass


@dataclass(frozen=True)
class Order:
    number: int
    price: Decimal


Pair = namedtuple("Pair", "x y")  # noqa: PYI024  # an untyped one is what users have

SCALARS = {
    "none": st.none(),
    "text": st.text(),
    "surrogates": st.text(st.characters(exclude_categories=[])),
    "bool": st.booleans(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "huge": st.integers(),
    "float": st.floats(),
    "bytes": st.binary(),
    "subclasses": st.one_of(st.text().map(Text), st.integers().map(Number)),
    "numpy": st.integers(-9, 9).map(np.int64),
    "decimal": st.decimals(allow_nan=False),
    "moment": st.one_of(st.datetimes(), st.dates(), st.times(), st.timedeltas(), st.uuids()),
    "object": st.builds(Order, st.integers(), st.decimals(allow_nan=False)),
}
ANY = st.recursive(
    st.one_of(list(SCALARS.values())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.text(), inner, max_size=2),
    ),
    max_leaves=5,
)


@st.composite
def tables(draw, cells=ANY):
    """Field names and rows; each column is of one kind, of two, or of any."""
    width, length = draw(st.integers(0, 4)), draw(st.integers(0, 6))
    columns = []
    for _ in range(width):
        kinds = draw(st.lists(st.sampled_from([*SCALARS, "any"]), min_size=1, max_size=2))
        cell = st.one_of([SCALARS.get(kind, cells) for kind in kinds])
        columns.append(draw(st.lists(cell, min_size=length, max_size=length)))
    rows = [list(row) for row in zip(*columns, strict=True)] if columns else [[]] * length
    return [f"field{i}" for i in range(width)], rows


def identical(given, back):
    """Equal and of the same type all the way down; a NaN is identical to a NaN, 0.0 is not to -0.0."""
    if type(given) is not type(back):
        return False
    if isinstance(given, float):
        return (given == back and math.copysign(1, given) == math.copysign(1, back)) or (
            math.isnan(given) and math.isnan(back)
        )
    if isinstance(given, list | tuple):
        return len(given) == len(back) and all(map(identical, given, back))
    if isinstance(given, dict):
        return list(given) == list(back) and identical(list(given.values()), list(back.values()))
    return given == back


def column_of(*values):
    return encode_rows(["f"], [[value] for value in values])


def back(batch):
    return [value for (value,) in decode_rows(batch)]


def typed(kind, *values, nullable=True):
    schema = pa.schema([pa.field("f", kind, nullable=nullable)])
    return encode_rows(["f"], [[value] for value in values], schema)


def refused(kind, *values, **options):
    with pytest.raises(MisuseError) as caught:
        typed(kind, *values, **options)
    assert "'f'" in caught.value.what
    assert str(kind) in caught.value.what
    return caught.value.what


# ---- without a schema: the round trip is the identity -----------------------------------------------------


@given(tables())
def test_what_comes_back_is_what_went_in_type_included(table):
    fields, rows = table
    travelled = batch_from_bytes(batch_to_bytes(encode_rows(fields, rows)))
    assert identical([tuple(row) for row in rows], decode_rows(travelled))


@given(tables(), st.data())
def test_a_slice_of_a_batch_is_a_slice_of_the_rows(table, data):
    fields, rows = table
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    batch = encode_rows(fields, rows)
    sliced = batch_from_bytes(batch_to_bytes(batch.slice(start, stop - start)))
    assert identical([tuple(row) for row in rows[start:stop]], decode_rows(sliced))
    taken = batch.take(pa.array(range(start, stop), pa.int64()))
    assert identical(decode_rows(sliced), decode_rows(taken))


@given(tables())
def test_only_pickled_columns_are_decoded_in_advance(table):
    fields, rows = table
    batch = encode_rows(fields, rows)
    pickled = [bool((field.metadata or {}).get(b"acktree") == b"pickle") for field in batch.schema]
    columns = unpickled_columns(batch)
    assert [isinstance(column, list) for column in columns] == pickled[: len(fields)]


@given(tables())
def test_columns_are_the_rows_turned(table):
    fields, rows = table
    columns = decode_columns(encode_rows(fields, rows))
    assert len(columns) == len(fields)
    assert identical([[row[i] for row in rows] for i in range(len(fields))], columns)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None, ""], pa.string()),
        ([1, None, -(2**63), 2**63 - 1], pa.int64()),
        ([0.5, None, -0.0, math.inf, 1.0], pa.float64()),
        ([True, None, False], pa.bool_()),
        ([b"", None, b"\0"], pa.binary()),
        ([None, None], pa.null()),
        ([], pa.null()),
    ],
    ids=str,
)
def test_one_faithful_type_travels_as_arrows_own(values, kind):
    batch = column_of(*values)
    assert batch.schema.field("f").type == kind
    assert batch.schema.field("f").metadata is None
    assert identical(values, back(batch))
    assert typed(kind, *values).equals(batch)


@pytest.mark.parametrize(
    "values",
    [
        [1, 1.0], [True, 1], ["a", b"a"], [2**63], ["\ud800"], [Text("a")], [Number(1)], [(1,)], [[1]],
        [{"a": 1}],
        [np.float64(1)], [Decimal(1)], [dt.date(2024, 1, 1), None], [lambda: 1], [Order],
    ],
)  # fmt: skip
def test_any_other_column_travels_pickled_and_is_marked(values):
    field = column_of(*values).schema.field("f")
    assert field.type == pa.binary()
    assert field.metadata == {b"acktree": b"pickle"}


def test_a_nan_is_a_value_and_none_is_null():
    batch = column_of(math.nan, None)
    assert batch.column(0).null_count == 1
    assert identical([math.nan, None], back(batch))
    assert column_of((1,), None).column(0).null_count == 1


def test_what_went_in_can_change_afterwards():
    value = [1]
    batch = column_of(value)
    value.append(2)
    assert back(batch) == [[1]]
    assert back(batch)[0] is not back(batch)[0]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_batch_without_fields_remembers_how_many_rows_it_has(rows):
    batch = batch_from_bytes(batch_to_bytes(encode_rows([], [[]] * rows)))
    assert batch.num_rows == rows
    assert decode_rows(batch) == [()] * rows
    assert decode_columns(batch) == []
    assert len(hash_rows(batch, [])) == rows
    assert native_batch(batch).num_rows == rows
    assert encode_rows([], [[]] * rows, pa.schema([])).num_rows == rows


@pytest.mark.parametrize(
    "schema", [None, pa.schema([("a", pa.int64()), ("b", pa.string())])], ids=["names", "schema"]
)
def test_a_batch_without_rows_keeps_its_fields(schema):
    batch = batch_from_bytes(batch_to_bytes(encode_rows(["a", "b"], [], schema)))
    assert batch.schema.names == ["a", "b"]
    assert decode_rows(batch) == []
    assert decode_columns(batch) == [[], []]
    assert len(hash_rows(batch, ["b", "a"])) == 0


@pytest.mark.parametrize("rows", [[[1]], [[1, 2], [1, 2, 3]], [[1, 2], []]], ids=repr)
def test_a_row_of_another_width_is_refused(rows):
    with pytest.raises(MisuseError, match="values for 2 fields"):
        encode_rows(["a", "b"], rows)
    with pytest.raises(MisuseError, match="values for 0 fields"):
        encode_rows([], rows)


def test_reading_a_batch_copies_nothing():
    payload = batch_to_bytes(column_of(1.0, 2.0))
    inside = np.frombuffer(payload, dtype=np.uint8)
    column = batch_from_bytes(payload).column(0).to_numpy()
    assert np.shares_memory(inside, column)
    assert decode_rows(batch_from_bytes(memoryview(payload))) == decode_rows(
        batch_from_bytes(pa.py_buffer(payload))
    )


# ---- what pickle can and cannot ---------------------------------------------------------------------------


def test_a_value_that_plain_pickle_refuses_travels_by_cloudpickle():
    class Local:
        def __init__(self):
            self.call = lambda: 42

    (value,) = back(column_of(Local()))
    assert value.call() == 42


class Unwilling:
    def __reduce__(self):
        raise RuntimeError("not me")


@pytest.mark.parametrize(
    "value", [threading.Lock(), (1, [threading.Lock()]), Unwilling()], ids=["lock", "in", "own"]
)
def test_a_value_that_nothing_can_pickle_is_refused_by_field_and_value(value):
    with pytest.raises(MisuseError, match="cannot be pickled") as caught:
        column_of("fine", value)
    assert "'f'" in caught.value.where
    assert type(value).__name__ in caught.value.what or "lock" in caught.value.what


class Unreadable:
    def __reduce__(self):
        return exec, ("raise ImportError('no module named elsewhere')",)


def test_the_error_for_a_value_that_cannot_be_unpickled_names_its_field():
    batch = column_of(Unreadable())
    for read in (decode_rows, native_batch, lambda batch: hash_rows(batch, ["f"])):
        with pytest.raises(MisuseError, match="elsewhere") as caught:
            read(batch)
        assert "'f'" in caught.value.where
        assert "on the workers" in caught.value.fix


@pytest.mark.slow
def test_a_class_of_the_users_program_can_be_read_in_another_process():
    program = """
import sys
from acktree.core.data.values import *
class Event:
    def __init__(self, name): self.name = name
sys.stdout.buffer.write(batch_to_bytes(encode_rows(["f"], [[Event("x")], [(1, Event("y"))]])))
"""
    payload = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True
    ).stdout
    first, (_, second) = back(batch_from_bytes(payload))
    assert (first.name, second.name) == ("x", "y")


def test_a_class_of_a_module_that_is_pickled_by_value_takes_its_class_along(tmp_path, monkeypatch):
    (tmp_path / "beside_the_program.py").write_text("class Event:\n    name = 'x'\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("beside_the_program")
    cloudpickle.register_pickle_by_value(module)
    try:
        batch = column_of(module.Event())
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules["beside_the_program"]
        monkeypatch.undo()
    assert back(batch)[0].name == "x"


def test_the_words_of_a_payload_that_name_such_a_module_do_no_harm():
    assert back(column_of(("__main__",))) == [("__main__",)]


# ---- with a schema ----------------------------------------------------------------------------------------


def test_values_take_the_declared_type():
    assert back(typed(pa.int8(), 1, None, 2)) == [1, None, 2]
    assert identical(back(typed(pa.float64(), 1, 2.5)), [1.0, 2.5])
    assert identical(back(typed(pa.int64(), 1.0, np.int32(7))), [1, 7])
    assert back(typed(pa.large_string(), "a", Text("b"))) == ["a", "b"]
    assert back(typed(pa.list_(pa.int64()), (1, 2), [3], np.array([4]), [])) == [[1, 2], [3], [4], []]
    assert back(typed(pa.map_(pa.string(), pa.int64()), {"a": 1}, [("b", 2)])) == [[("a", 1)], [("b", 2)]]
    assert back(typed(pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1})) == [{"a": 1, "b": None}]
    assert back(typed(pa.decimal128(5, 2), Decimal("1.5"))) == [Decimal("1.50")]
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert back(typed(pa.timestamp("us", "UTC"), moment)) == [moment]


def test_a_float_may_be_rounded_to_the_width_declared():
    assert back(typed(pa.float32(), 0.1, -math.inf, math.nan))[:2] == [pytest.approx(0.1), -math.inf]
    assert "1e+300" in refused(pa.float32(), 0.5, 1e300)


def test_the_batch_has_the_declared_schema():
    schema = pa.schema(
        [pa.field("f", pa.int8(), nullable=False, metadata={"unit": "m"})], metadata={"by": "user"}
    )
    assert encode_rows(["f"], [[1]], schema).schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5), (pa.int64(), "1"), (pa.int64(), True), (pa.int64(), 2**63), (pa.int8(), 128),
        (pa.float64(), 2**60 + 1), (pa.float64(), "0.5"), (pa.bool_(), 1), (pa.string(), 1),
        (pa.string(), b"x"), (pa.string(), "\ud800"), (pa.binary(), "x"),
        (pa.list_(pa.string()), "ab"), (pa.list_(pa.int64()), {1}),
        (pa.list_(pa.int64()), (1, 2.5)), (pa.list_(pa.int64(), 2), [1, 2, 3]), (pa.timestamp("us"), 5),
        (pa.timestamp("s"), dt.datetime(2024, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
        (pa.timestamp("us"), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        (pa.date32(), dt.datetime(2024, 1, 1, 5)),  # noqa: DTZ001
        (pa.duration("s"), dt.timedelta(microseconds=1)), (pa.decimal128(5, 2), Decimal("1.234")),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}), (pa.struct([("a", pa.int64())]), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}), (pa.int64(), object()), (pa.null(), 1),
    ],
)  # fmt: skip
def test_a_value_that_the_type_does_not_hold_is_refused_and_shown(kind, value):
    what = refused(kind, None, value)
    assert type(value).__name__ in what


def test_the_value_shown_is_the_one_at_fault_and_cut():
    assert "128" in refused(pa.int8(), 1, 2, 128, 129)
    assert len(refused(pa.int8(), "x" * 10_000)) < 250


def test_none_is_refused_where_the_field_is_not_null():
    assert "not null" in refused(pa.int64(), 1, None, nullable=False)
    assert back(typed(pa.int64(), 1, nullable=False)) == [1]


def test_a_column_that_only_together_does_not_fit_is_refused():
    refused(pa.dictionary(pa.int8(), pa.string()), *map(str, range(200)))  # an int8 has room for 128 of them


# ---- for ArrowBolt ----------------------------------------------------------------------------------------


def test_a_batch_without_pickled_columns_is_native_already():
    batch = encode_rows(["a", "b"], [[1, "x"], [None, "y"]])
    assert native_batch(batch) is batch


def test_pickled_columns_become_what_arrow_infers():
    batch = native_batch(encode_rows(["a", "b", "c"], [[1, (1, 2), "x"], [2.5, None, "y"]]))
    assert batch.schema.types == [pa.float64(), pa.list_(pa.int64()), pa.string()]
    assert batch.to_pydict() == {"a": [1.0, 2.5], "b": [[1, 2], None], "c": ["x", "y"]}
    assert all(field.metadata is None for field in batch.schema)


@pytest.mark.parametrize("values", [[1, "a"], [object()], [2**70]], ids=["mixed", "object", "huge"])
def test_values_without_one_arrow_type_are_refused_with_the_way_out(values):
    batch = column_of(*values, (1,))
    with pytest.raises(MisuseError, match="'f'") as caught:
        native_batch(batch)
    assert "pa.schema" in caught.value.fix


# ---- a quick look ----------------------------------------------------------------------------------------

TYPES = st.sampled_from(
    [pa.string(), pa.int64(), pa.int8(), pa.float64(), pa.float32(), pa.bool_(), pa.binary()]
)


@given(st.lists(st.tuples(TYPES, st.booleans(), ANY), max_size=4), st.booleans())
def test_a_quick_look_never_praises_what_does_not_fit(cells, is_typed):
    schema = pa.schema([pa.field(f"f{i}", kind, nullable) for i, (kind, nullable, _) in enumerate(cells)])
    values = [value for _, _, value in cells]
    if quick_look(schema if is_typed else None)(values):
        encode_rows(schema.names, [values], schema if is_typed else None)  # raises if not


@given(st.lists(ANY, max_size=4))
def test_the_size_of_a_tuple_is_about_that_of_its_batch(values):
    fields = [f"f{i}" for i in range(len(values))]
    in_batch = encode_rows(fields, [values]).nbytes
    slack = 32 * len(values) + 8  # offsets, and the frame of a pickle
    huge = sum(value.bit_length() for value in values if type(value) is int)
    assert in_batch - slack - huge <= size_of(fields, values) <= 4 * in_batch + slack


def test_the_size_of_what_cannot_be_pickled_is_refused_as_its_batch():
    value = threading.Lock()
    with pytest.raises(MisuseError) as refused:
        encode_rows(["f"], [[value]])
    with pytest.raises(MisuseError) as caught:
        size_of(["f"], [value])
    assert str(caught.value) == str(refused.value)


@pytest.mark.parametrize(
    ("schema", "fits", "unsure"),
    [
        (None, ["a", 1, 2.0, True, b"b", None, "\ud800", 1 << 70], [(1,), [1], Number(1), Text("a")]),
        (pa.string(), ["", "a"], ["\ud800", b"a", None, Text("a")]),
        (pa.int64(), [0, -(1 << 63), (1 << 63) - 1], [1 << 63, -(1 << 63) - 1, True, 1.0, Number(1)]),
        (pa.float64(), [1.0, math.inf], [1]),
        (pa.bool_(), [True], [1]),
        (pa.binary(), [b""], [""]),
        (pa.int8(), [], [1, 1000]),
    ],
)
def test_a_quick_look_knows_the_values_that_are_usual(schema, fits, unsure):
    look = quick_look(None if schema is None else pa.schema([("f", schema)]))
    assert [look([value]) for value in fits] == [True] * len(fits)
    assert [look([value]) for value in unsure] == [False] * len(unsure)


def test_pickled_fields_are_recognised_without_unpickling():
    rows = [["a", (1, 2), None], ["b", (3, 4), None]]
    assert pickled_fields(encode_rows(["text", "pair", "nothing"], rows)) == {"pair"}
    assert pickled_fields(encode_rows([], [[], []])) == frozenset()


def test_errors_survive_the_way_to_the_driver():
    with pytest.raises(MisuseError) as caught:
        typed(pa.int8(), "x")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_value_of_more_than_arrow_has_room_for_is_refused():
    with pytest.raises(MisuseError, match="more than 2 GiB"):
        encode_rows(["v"], [[bytes(2**31)]])  # zeros that are never read take no memory


@pytest.mark.parametrize("value", ["x" * (LOOKED_AT + 1), b"x" * (LOOKED_AT + 1)], ids=["str", "bytes"])
def test_a_quick_look_says_nothing_of_a_large_value(value):
    assert not quick_look(None)([value])
    assert not quick_look(pa.schema([("v", pa.string())]))([value])


@pytest.mark.parametrize(
    ("value", "is_rewritten"),
    [
        ("acktree and __main__", False),
        ({"__main__": [1, (2.5, None)]}, False),
        (b"\x93", False),
        (Config(), True),
    ],
)
def test_a_pickle_is_rewritten_only_if_it_names_a_class(value, is_rewritten):
    assert durable.must_be_rewritten(pickle.dumps(value, 5)) is is_rewritten
