"""Batches are joined whole or not at all; a row alone keeps nothing of its neighbours."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.batches import alone, joined, taken, with_short_dictionaries
from acktree.errors import MisuseError

LETTERS = pa.array(["a", "b", "secret", "d"]).dictionary_encode()


def test_batches_are_joined_in_their_order():
    parts = [pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [3]})]
    assert joined(parts).to_pydict() == {"x": [1, 2, 3]}


def test_batches_that_no_one_batch_can_hold_are_refused():
    kind = pa.dictionary(pa.int8(), pa.string())
    parts = [
        pa.record_batch({"x": pa.array([f"{part}.{n}" for n in range(100)]).dictionary_encode().cast(kind)})
        for part in range(2)
    ]
    with pytest.raises(MisuseError, match="2 batches do not fit into one"):
        joined(parts)


VALUES = st.tuples(
    st.none() | st.text(), st.none() | st.integers(0, 1 << 62), st.none() | st.floats(allow_nan=False),
    st.none() | st.booleans(), st.none() | st.binary(max_size=9),
)  # fmt: skip
KINDS = pa.schema(
    {"t": pa.string(), "i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "c": pa.binary()},
    metadata={"kept": "yes"},
)


@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(0, 5), st.data())
def test_rows_are_taken_as_arrow_takes_them(rows, start, data):
    columns = map(pa.array, zip(*rows, strict=True), KINDS.types)
    batch = pa.RecordBatch.from_arrays([*columns], schema=KINDS).slice(min(start, len(rows) - 1))
    which = np.array(data.draw(st.lists(st.integers(0, batch.num_rows - 1), max_size=40)), dtype=np.int64)
    assert taken(batch, which).equals(batch.take(pa.array(which)), check_metadata=True)


CODES = pa.array([0, 0, 1], pa.int8())
NUMBERS = pa.array([7, 8, 9])
NULL_SECOND = pa.array([False, True, False])
COLUMNS = {
    "dictionary": LETTERS,
    "dictionary with nulls": pa.array(["a", None, "secret"]).dictionary_encode(),
    "struct": pa.StructArray.from_arrays([LETTERS], ["a"]),
    "list": pa.ListArray.from_arrays([0, 1, 2, 4], LETTERS),
    "null list": pa.ListArray.from_arrays(pa.array([0, 1, 2, 4], pa.int32()), LETTERS, mask=NULL_SECOND),
    "large list": pa.LargeListArray.from_arrays([0, 1, 2, 4], LETTERS),
    "fixed size list": pa.FixedSizeListArray.from_arrays(LETTERS, 1),
    "map": pa.MapArray.from_arrays([0, 1, 2, 4], LETTERS, pa.array([1, 2, 3, 4])),
    "dense union": pa.UnionArray.from_dense(CODES, pa.array([0, 1, 0], pa.int32()), [LETTERS, NUMBERS]),
    "sparse union": pa.UnionArray.from_sparse(CODES, [LETTERS.slice(0, 3), NUMBERS]),
    "extension": pa.ExtensionArray.from_storage(pa.opaque(LETTERS.type, "letters", "tests"), LETTERS),
    "nested": pa.ListArray.from_arrays([0, 1, 2, 4], pa.StructArray.from_arrays([LETTERS], ["a"])),
    "plain": pa.array(["a", "b", "secret"]),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("row", [0, 1])
def test_a_row_alone_has_its_value_and_no_byte_of_another_row(column, row):
    one = alone(pa.RecordBatch.from_arrays([column], names=["x"]), row)
    assert one.column(0).to_pylist() == column.slice(row, 1).to_pylist()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, one.schema) as writer:
        writer.write_batch(one)
    assert b"secret" not in sink.getvalue().to_pybytes()


@pytest.mark.parametrize("values", [["b", None, "a"], ["b", "b"], [None], []])
@pytest.mark.parametrize("width", [pa.int8(), pa.int64()])
def test_a_dictionary_longer_than_its_batch_keeps_only_what_is_used(values, width):
    known = pa.array(["a", "unused", "b", *map(str, range(90))])
    places = [None if value is None else known.to_pylist().index(value) for value in values]
    kind = pa.dictionary(width, pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array(places, width), known)
    other = pa.array(range(len(values)))
    short = with_short_dictionaries(pa.record_batch({"long": column, "other": other}))
    assert short.schema.field("long").type == kind
    assert short.to_pydict() == {"long": values, "other": [*range(len(values))]}
    assert set(short["long"].dictionary.to_pylist()) == {*values} - {None}


ORDERED = pa.DictionaryArray.from_arrays([1], ["low", "high"], ordered=True)
LISTS = pa.DictionaryArray.from_arrays([1], pa.array([[1], [2]]))


@pytest.mark.parametrize(
    "column",
    [LETTERS, ORDERED, LISTS, pa.DictionaryArray.from_arrays([1], pa.array([None, "a"])), pa.array(["a"])],
    ids=["used", "ordered", "nested", "with a null", "none"],
)
def test_other_dictionaries_stay_as_they_are(column):
    batch = pa.record_batch({"x": column})
    assert with_short_dictionaries(batch) is batch


def test_short_dictionaries_are_joined_again():
    parts = [with_short_dictionaries(pa.record_batch({"x": LETTERS.slice(row, 1)})) for row in range(4)]
    assert joined(parts).to_pydict() == {"x": ["a", "b", "secret", "d"]}


def test_a_row_alone_has_a_dictionary_of_its_own_also_where_that_has_one_value():
    column = pa.array(["same", "same"]).dictionary_encode()
    row = alone(pa.record_batch({"word": column}), 1)
    assert row.to_pydict() == {"word": ["same"]}
    assert row["word"].dictionary.buffers()[2].address != column.dictionary.buffers()[2].address
