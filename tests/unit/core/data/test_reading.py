"""A value that Python cannot represent raises where it is read, and nowhere else."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data import distinct as module
from acktree.core.data.reading import PartlyReadable, Unreadable, decoded
from acktree.core.data.row_hashes import hash_rows, hash_rows_anyhow
from acktree.core.data.values import rows_to_show
from acktree.errors import MisuseError

LATE = pa.array([0, 10**9, 1], pa.int64()).cast(pa.int32()).cast(pa.date32())  # the second is after 9999


def test_a_column_without_such_values_is_a_list():
    assert decoded(pa.array([1, 2])) == [1, 2]
    assert decoded([1, 2]) == [1, 2]


TEXT = st.sampled_from(["", "a", "b", "\u00e4", "x" * 70])
TEXTS = st.lists(TEXT, max_size=40) | st.lists(st.none() | TEXT, max_size=40)


@given(TEXTS, st.integers(0, 9), st.booleans())
def test_texts_that_are_repeated_are_read_as_those_that_are_not(texts, start, is_in_dictionary):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SAMPLED", 2)
        patch.setattr(module, "_LONG", 1)
        column = pa.array(texts, pa.string())
        column = (column.dictionary_encode() if is_in_dictionary else column).slice(start)
        assert decoded(column) == texts[start:]


def test_rows_with_one_text_share_one_object():
    for column in (pa.array(["word", "other"] * 5000), pa.array(["word"] * 9).dictionary_encode()):
        assert len(set(map(id, decoded(column)))) == len(column.unique())


def test_a_dictionary_with_a_text_that_is_no_utf_8_raises_where_it_is_read():
    known = pa.array([b"good", b"\xff"]).view(pa.string())
    column = decoded(pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), known), "here")
    assert (column[0], column[2]) == ("good", "good")
    with pytest.raises(MisuseError, match="cannot be read"):
        column[1]


def test_only_the_value_itself_raises_alone_or_in_a_slice():
    column = decoded(LATE, "bolt 'b', field 'day'")
    assert isinstance(column, PartlyReadable)
    assert len(column) == 3
    assert str(column[0]) == "1970-01-01"
    assert [str(day) for day in column[:1]] == ["1970-01-01"]
    for reads in (lambda: column[1], lambda: column[:2]):
        with pytest.raises(MisuseError, match="date32") as raised:
            reads()
        assert raised.value.where == "bolt 'b', field 'day'"


def test_a_held_tuple_keeps_the_placeholder():
    column = decoded((Unreadable("date32[day]", "too late"),), "here")
    with pytest.raises(MisuseError, match="too late"):
        column[0]
    assert repr(Unreadable("date32[day]", "too late")) == "<date32[day] that Python cannot hold>"


def test_for_display_such_a_row_is_replaced_by_the_reason():
    shown = list(rows_to_show(pa.record_batch({"day": LATE})))
    assert [len(row) for row in shown] == [1, 1, 1]
    assert str(shown[0][0]) == "1970-01-01"
    assert "date32" in str(shown[1][0])


def test_for_ids_a_row_without_a_hash_gets_one_of_its_bytes():
    batch = pa.record_batch({"day": LATE})
    with pytest.raises(MisuseError):
        hash_rows(batch, ["day"])
    hashes = hash_rows_anyhow(batch, ["day"])
    assert len(set(hashes.tolist())) == 3
    assert hashes[0] == hash_rows(batch.slice(0, 1), ["day"])[0]
