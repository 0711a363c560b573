"""The different values of a column and their places give the column back, whatever form it has."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data import distinct as module
from acktree.core.data.distinct import distinct, distinct_texts

WIDTHS = [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()]


def put_together(values, rows):
    return values.to_pylist() if rows is None else [values[int(row)].as_py() for row in rows]


@given(st.data(), st.sampled_from(WIDTHS), st.integers(0, 3))
def test_the_values_and_places_of_a_dictionary_are_its_rows(data, width, start):
    known = data.draw(st.lists(st.none() | st.sampled_from("abc"), max_size=5))
    place = st.none() | st.integers(0, len(known) - 1) if known else st.none()
    places = data.draw(st.lists(place, max_size=12))
    column = pa.DictionaryArray.from_arrays(pa.array(places, width), pa.array(known, pa.string())).slice(
        start
    )
    values, rows = distinct(column)
    assert put_together(values, rows) == column.to_pylist()
    if rows is not None:
        assert {*range(len(values))} == {*rows.tolist()}, "each of the values is one of a row"


@given(st.lists(st.sampled_from(["a", "b", "x" * 70]), max_size=40), st.booleans(), st.integers(0, 3))
def test_the_values_and_places_of_a_column_are_its_rows(texts, has_null, start):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SAMPLED", 4)
        patch.setattr(module, "_LONG", 1)
        column = pa.array([*texts, None] if has_null else texts, pa.string()).slice(start)
        values, rows = distinct(column)
        assert put_together(values, rows) == column.to_pylist()
        assert rows is None or not has_null


def texts_of(count, different, seed=1):
    chance = random.Random(seed)
    return [f"text {chance.randrange(different)}" for _ in range(count)]


@pytest.mark.parametrize(
    ("texts", "is_encoded"),
    [
        (texts_of(20_000, 2), True),
        (texts_of(20_000, 5_000), True),
        (texts_of(20_000, 500_000), False),
        ([f"text {number}" for number in range(20_000)], False),
        (["frequent" if number % 5 == 0 else f"text {number}" for number in range(20_000)], False),
        (texts_of(8_000, 2), False),
    ],
    ids=["two", "five thousand", "half a million", "all differ", "one is frequent", "short"],
)
def test_a_long_column_is_encoded_where_many_of_its_texts_repeat(texts, is_encoded):
    _, rows = distinct_texts(pa.array(texts))
    assert (rows is not None) == is_encoded


def test_numbers_are_no_texts():
    for column in (pa.array([1] * 20_000), pa.array([1] * 20_000).dictionary_encode()):
        assert distinct_texts(column) == (column, None)
