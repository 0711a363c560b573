"""Hashes of rows: equal values have equal hashes, whatever column they are in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.hashing import hash_row
from acktree.core.data.row_hashes import hash_rows
from acktree.core.data.values import encode_rows

HASHABLE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(exclude_categories=[])),
    st.binary(),
    st.tuples(st.integers(), st.text()), st.decimals(), st.dates(),
)  # fmt: skip


@given(st.lists(st.tuples(HASHABLE, HASHABLE)), st.sampled_from([["a"], ["b"], ["a", "b"], ["b", "a"], []]))
def test_a_row_hashes_as_its_values_however_its_columns_travel(rows, names):
    expected = [hash_row([dict(zip("ab", row, strict=True))[name] for name in names]) for row in rows]
    assert hash_rows(encode_rows(["a", "b"], rows), names).tolist() == expected


@given(HASHABLE, HASHABLE)
def test_a_key_hashes_alike_in_any_company(key, other):
    together = hash_rows(encode_rows(["f"], [[key], [other], [None], [(1, 2)]]), ["f"])
    assert together[0] == hash_rows(encode_rows(["f"], [[key]]), ["f"])[0]
