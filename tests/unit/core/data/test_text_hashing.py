"""Hashes of texts: a column and single values agree, and a hash sees every byte and the length."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data import text_hashing
from acktree.core.data.text_hashing import SHORT, TextKind, hash_text, hash_texts

TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["", "x" * SHORT, "x" * (SHORT + 1), "wört" * 40]))
ARROW_KINDS = [
    (pa.string(), TextKind.TEXT), (pa.large_string(), TextKind.TEXT),
    (pa.binary(), TextKind.BYTES), (pa.large_binary(), TextKind.BYTES),
]  # fmt: skip


def one_by_one(texts: list[str], kind: TextKind) -> list[int]:
    return [hash_text(text.encode(), kind) for text in texts]


@pytest.mark.parametrize(("arrow", "kind"), ARROW_KINDS, ids=str)
@given(texts=st.lists(TEXTS, max_size=40), data=st.data())
def test_a_column_hashes_as_each_of_its_values(arrow, kind, texts, data):
    column = pa.array([text.encode() for text in texts], pa.binary()).cast(arrow)
    first = data.draw(st.integers(0, len(texts)))
    count = data.draw(st.integers(0, len(texts) - first))
    assert hash_texts(column, kind).tolist() == one_by_one(texts, kind)
    assert hash_texts(column.slice(first, count), kind).tolist() == one_by_one(texts[first:][:count], kind)


def test_a_column_of_several_blocks_hashes_as_one(monkeypatch):
    texts = [f"{number}" * (number % 9) for number in range(100)]
    whole = hash_texts(pa.array(texts), TextKind.TEXT)
    monkeypatch.setattr(text_hashing, "_ROWS", 7)
    assert (hash_texts(pa.array(texts), TextKind.TEXT) == whole).all()


def test_an_empty_column_and_one_of_empty_texts_hold_no_bytes():
    assert hash_texts(pa.array([], pa.string()), TextKind.TEXT).tolist() == []
    assert hash_texts(pa.array(["", ""]), TextKind.TEXT).tolist() == one_by_one(["", ""], TextKind.TEXT)


@given(st.binary(max_size=SHORT + 2), st.data())
def test_each_byte_and_the_length_are_in_the_hash(content, data):
    others = [content + b"\0", b"\0" + content]
    if content:
        at = data.draw(st.integers(0, len(content) - 1))
        flipped = bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))])
        others += [content[:at] + flipped + content[at + 1 :], content[:-1]]
    for other in others:
        if other != content:
            assert hash_text(other, TextKind.BYTES) != hash_text(content, TextKind.BYTES)


def test_a_text_and_its_bytes_have_different_hashes():
    assert hash_text(b"word", TextKind.TEXT) != hash_text(b"word", TextKind.BYTES)


@pytest.mark.parametrize("tasks", [2, 3, 8, 100])
@pytest.mark.parametrize("form", ["{}", "key-{:08}", "{:064}", "user/{}/orders"])
def test_numbered_keys_are_spread_evenly(form, tasks):
    """A chi-squared value that random numbers exceed about once in 10,000 times for each of these."""
    column = pa.array([form.format(number) for number in range(100_000)])
    counts = np.bincount(hash_texts(column, TextKind.TEXT) % np.uint64(tasks), minlength=tasks)
    expected = len(column) / tasks
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = tasks - 1
    assert chi_squared < freedom + 4 * np.sqrt(2 * freedom) + 10
