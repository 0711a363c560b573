"""Many values are hashed at once: each as if it were alone, however Arrow stores them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from acktree.core.data.hashing import hash_column, hash_values, stable_hash


class OwnText(str):
    """Not exactly a str."""

    __slots__ = ()


TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
TEXT_TYPES += [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]
LENGTHS_OF_TEXTS = [0, 1, 7, 8, 9, 15, 16, 17, 40, 64, 127, 128, 129, 300]


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
@pytest.mark.parametrize("lengths", [[0], [4, 9], [70], [200], LENGTHS_OF_TEXTS], ids=str)
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("repeats", [1, 3])
def test_columns_of_texts_of_any_type_and_length_hash_as_single_values(kind, lengths, nulls, repeats):
    alphabet = "aä€𝄞\0z"
    texts = ["".join(alphabet[n * i % 6] for i in range(1, n % 90 + 1)) for n in range(90)]
    texts = [(text * 300)[: lengths[n % len(lengths)]] for n, text in enumerate(texts)] * repeats
    if "binary" in str(kind):
        texts = [text.encode()[: lengths[n % len(lengths)]] for n, text in enumerate(texts)]
    if kind == pa.binary(2):
        texts = [(text + b"..")[:2] for text in texts]
    if nulls:
        texts[3::7] = [None] * len(texts[3::7])
    if pa.types.is_dictionary(kind):
        column = pa.array(texts, kind.value_type).dictionary_encode()
    else:
        column = pa.array(texts, kind)
    expected = [stable_hash(text) for text in texts]
    assert hash_column(column).tolist() == expected
    assert hash_column(column.slice(5)).tolist() == expected[5:]
    assert hash_column(column.slice(5, 70)).tolist() == expected[5:75]
    assert hash_column(column.slice(9, 9)).tolist() == expected[9:18]
    assert hash_column(column.slice(9, 0)).tolist() == []
    chunks = pa.chunked_array([column.slice(0, 11), column.slice(11, 0), column.slice(11)]).chunks
    assert [hashed for chunk in chunks for hashed in hash_column(chunk).tolist()] == expected


MANY = [
    [f"key {n}" for n in range(100)],
    [f"{chr(0xD800 + n)} {n}" for n in range(100)],
    ["é" * (n % 90) for n in range(200)],
    [b"%d" % n for n in range(100)],
    [7**n for n in range(20)] * 5,
    [7**n for n in range(50)] * 2,
    [n % 2 == 0 for n in range(100)],
    [OwnText(n) for n in range(100)],
    [*range(99), "99", None, 0.5, (1, "a")],
]


@pytest.mark.parametrize("values", MANY, ids=lambda values: f"{values[0]!a} to {values[-1]!a}"[:40])
def test_many_values_hash_as_one_by_one(values):
    assert hash_values(values).tolist() == [stable_hash(value) for value in values]


def test_a_column_of_lists_which_has_no_dictionary_is_hashed_value_by_value():
    column = pa.array([[1], [2, 3], [1]])
    assert hash_column(column).tolist() == hash_values(column.to_pylist()).tolist()
