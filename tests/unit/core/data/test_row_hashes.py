"""Hashes of rows: equal values have equal hashes, whatever column they are in."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data import distinct as module
from acktree.core.data import row_hashes
from acktree.core.data.hashing import hash_row
from acktree.core.data.row_hashes import hash_rows
from acktree.core.data.values import encode_rows

HASHABLE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(exclude_categories=[])),
    st.binary(),
    st.tuples(st.integers(), st.text()), st.decimals(), st.dates(),
)  # fmt: skip


ROWS = st.lists(st.tuples(HASHABLE, HASHABLE)) | st.lists(st.tuples(st.none() | st.text(), st.integers()))


@given(ROWS, st.sampled_from([["a"], ["b"], ["a", "b"], ["b", "a"], []]), st.sampled_from([0, 32]))
def test_a_row_hashes_as_its_values_however_its_columns_travel(rows, names, few):
    expected = [hash_row([dict(zip("ab", row, strict=True))[name] for name in names]) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_hashes, "FEW", few)
        assert hash_rows(encode_rows(["a", "b"], rows), names).tolist() == expected


def test_a_text_that_is_not_utf8_hashes_alike_among_few_and_among_many():
    hashes = set()
    for count in (1, 40):
        buffers = pa.array([b"a\xff"] * count).buffers()
        texts = pa.Array.from_buffers(pa.string(), count, buffers)
        hashes |= set(hash_rows(pa.record_batch({"f": texts}), ["f"]).tolist())
    assert len(hashes) == 1


TEXT = st.sampled_from(["", "a", "b", "\u00e4", "x" * 70])
TEXTS = st.lists(TEXT, max_size=30) | st.lists(st.none() | TEXT, max_size=30)


@given(TEXTS, st.sampled_from([pa.string(), pa.large_string()]), st.integers(0, 9))
def test_a_text_that_is_repeated_is_hashed_as_one_that_is_not(texts, kind, start):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SAMPLED", 2)
        patch.setattr(module, "_LONG", 1)
        patch.setattr(row_hashes, "FEW", 0)
        batch = pa.record_batch({"f": pa.array(texts, kind).slice(start)})
        assert hash_rows(batch, ["f"]).tolist() == [hash_row([text]) for text in texts[start:]]


@given(
    st.data(),
    st.lists(st.none() | st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4),
    st.sampled_from([pa.int16(), pa.uint64()]),
    st.booleans(),
)
def test_keys_in_a_dictionary_hash_as_they_do_without(data, values, width, has_nulls):
    place = st.integers(0, len(values) - 1)
    places = data.draw(st.lists(st.none() | place if has_nulls else place, max_size=60))
    expected = [hash_row([None if place is None else values[place]]) for place in places]
    known = pa.array(values, pa.string())  # with values that occur twice, or in no row
    column = pa.DictionaryArray.from_arrays(pa.array(places, width), known)
    assert hash_rows(pa.record_batch({"f": column}), ["f"]).tolist() == expected
