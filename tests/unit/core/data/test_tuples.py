"""A tuple is read like a dict and like a list, and knows where it came from."""

from __future__ import annotations

import copy
import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.tuples import Tuple


class Word(enum.StrEnum):
    TEXT = "word"


class FakeRows:
    """Rows of which nothing was read yet."""

    component, stream, source_task = "split", "default", 4
    fields = ("word", "count")

    def __init__(self, *values):
        self.values = values
        self.columns = {}
        self.reads = []

    def read(self, field):
        self.reads.append(field)
        place = self.fields.index(field)
        column = [values[place] for values in self.values]
        self.columns |= dict.fromkeys((field, place, place - len(self.fields)), column)
        return column

    def task_of(self, row):
        return self.source_task

    def attempt_of(self, row):
        return row + 1

    def anchors_of(self, row):
        return {row: 100 + row}


class Clock(FakeRows):
    component, stream, source_task = "__system", "__tick", -1
    fields = ("rate_secs",)


@pytest.fixture
def rows():
    return FakeRows(("fail", 5), ("ack", 6), ("ack", 7))


@pytest.fixture
def tup(rows):
    return Tuple(rows, 2)


def test_a_value_is_read_by_field_and_by_place(tup):
    assert (tup["word"], tup["count"]) == ("ack", 7)
    assert (tup[0], tup[1], tup[-1]) == ("ack", 7, 7)
    assert tup.values == ("ack", 7)


def test_a_slice_gives_values(tup):
    assert tup[:1] == ("ack",)
    assert tup[::-1] == (7, "ack")


@given(st.lists(st.sampled_from(["word", "count", 0, 1, -1, -2]), max_size=10), st.integers(0, 2))
def test_values_read_in_any_order_are_those_of_the_row_and_read_once(asked, row):
    rows = FakeRows(("a", 1), ("b", 2), ("c", 3))
    by_name = {"word": 0, "count": 1}
    assert [Tuple(rows, row)[each] for each in asked] == [
        rows.values[row][by_name.get(each, each)] for each in asked
    ]
    assert len(rows.reads) == len(set(rows.reads))


def test_a_column_that_is_not_read_is_not_decoded(tup, rows):
    assert (tup["count"], tup.fields, len(tup), "word" in tup) == (7, ("word", "count"), 2, True)
    assert rows.reads == ["count"]


def test_a_value_that_cannot_be_decoded_raises_its_own_error(rows):
    def cannot(field):
        raise ValueError(field)

    rows.read = cannot
    with pytest.raises(ValueError, match="word") as raised:
        Tuple(rows, 0)["word"]
    assert raised.value.__context__ is None


def test_a_name_that_is_an_enum_is_a_name(tup):
    assert tup[Word.TEXT] == "ack"
    assert Word.TEXT in tup


def test_a_tuple_iterates_over_values_and_contains_fields(tup):
    assert list(tup) == ["ack", 7]
    assert len(tup) == 2
    assert "word" in tup
    assert "ack" not in tup
    assert tup.as_dict() == {"word": "ack", "count": 7}


def test_a_field_that_is_not_there_is_named_with_those_that_are(tup):
    with pytest.raises(KeyError, match=r"no field 'wrod' in Tuple\(split:default task 4.*it has word, count"):
        tup["wrod"]


@pytest.mark.parametrize("place", [2, -3])
def test_a_place_that_is_not_there_is_an_index_error(tup, place):
    with pytest.raises(IndexError):
        tup[place]


@pytest.mark.parametrize("field", [None, ["word"], 0.5])
def test_what_is_neither_a_name_nor_a_place_is_a_type_error(tup, field):
    with pytest.raises(TypeError):
        tup[field]


def test_a_tuple_says_where_it_comes_from_and_what_it_hangs_on(tup):
    assert (tup.component, tup.stream, tup.task_id) == ("split", "default", 4)
    assert tup.fields == ("word", "count")
    assert tup.attempt == 3
    assert tup.anchors == {2: 102}
    assert not tup.is_tick


def test_a_tick_comes_from_the_system():
    tick = Tuple(Clock((5.0,)), 0)
    assert tick.values == (5.0,)
    assert tick.is_tick
    assert (tick.component, tick.stream, tick.task_id) == ("__system", "__tick", -1)


def test_two_handles_of_one_tuple_ask_the_same_account():
    rows = FakeRows()
    assert Tuple(rows, 5).anchors == Tuple(rows, 5).anchors


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_another_handle_of_the_same_tuple_and_copies_nothing_of_its_neighbours(copied):
    class Shared(FakeRows):
        def __deepcopy__(self, memo):
            return self

    rows = Shared((object(), 1), (object(), 2))
    tup = Tuple(rows, 1)
    assert tup["word"] is copied(tup)["word"] is rows.values[1][0]
    assert copied(tup).anchors == tup.anchors


def test_a_tuple_is_shown_on_one_line_however_long_its_values_are(tup):
    assert repr(tup) == "Tuple(split:default task 4: word='ack', count=7)"
    assert len(repr(Tuple(FakeRows(("x" * 10_000, 7)), 0))) < 250
