"""A tuple is read like a dict and like a list, and knows where it came from."""

from __future__ import annotations

import enum

import pytest

from acktree.core.tuples import Tuple


class Word(enum.StrEnum):
    TEXT = "word"


class FakeRows:
    component, stream, task_id = "split", "default", 4
    fields = ("word", "count")
    positions = {"word": 0, "count": 1}  # a fake's constant

    def attempt_of(self, row):
        return row + 1

    def anchors_of(self, row):
        return {row: 100 + row}


class Clock(FakeRows):
    component, stream, task_id = "__system", "__tick", -1
    fields = ("rate_secs",)
    positions = {"rate_secs": 0}  # the same


@pytest.fixture
def tup():
    return Tuple(("ack", 7), FakeRows(), 2)


def test_a_value_is_read_by_field_and_by_place(tup):
    assert (tup["word"], tup["count"]) == ("ack", 7)
    assert (tup[0], tup[1], tup[-1]) == ("ack", 7, 7)
    assert tup.values == ("ack", 7)


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


def test_a_place_that_is_not_there_is_an_index_error(tup):
    with pytest.raises(IndexError):
        tup[2]


def test_a_tuple_says_where_it_comes_from_and_what_it_hangs_on(tup):
    assert (tup.component, tup.stream, tup.task_id) == ("split", "default", 4)
    assert tup.fields == ("word", "count")
    assert tup.attempt == 3
    assert tup.anchors == {2: 102}
    assert not tup.is_tick


def test_a_tick_comes_from_the_system():
    tick = Tuple((5.0,), Clock(), 0)
    assert tick.is_tick
    assert (tick.component, tick.stream, tick.task_id) == ("__system", "__tick", -1)


def test_two_handles_of_one_tuple_ask_the_same_account():
    rows = FakeRows()
    assert Tuple((1, 2), rows, 5).anchors == Tuple((1, 2), rows, 5).anchors


def test_a_tuple_is_shown_on_one_line_however_long_its_values_are(tup):
    assert repr(tup) == "Tuple(split:default task 4: word='ack', count=7)"
    assert len(repr(Tuple(("x" * 10_000, 7), FakeRows(), 0))) < 250
