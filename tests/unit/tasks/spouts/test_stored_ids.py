"""Message ids come back from the inbox as they were emitted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.tasks.spouts.chunks.stored_ids import ids_from_bytes, ids_to_bytes

LEAST, MOST = -(1 << 63), (1 << 63) - 1
integers = st.integers(LEAST, MOST)


@given(st.lists(integers, max_size=20))
def test_an_array_comes_back_whatever_integers_it_has(drawn):
    ids = np.array(drawn, np.int64)
    back = ids_from_bytes(ids_to_bytes(ids))
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.tolist()) == (np.int64, drawn)


@given(st.integers(LEAST, MOST - 40), st.integers(1, 40), st.integers(0, 39), st.sampled_from([0, 1, -7]))
def test_consecutive_integers_and_nearly_consecutive_ones_come_back(first, count, at, by):
    ids = first + np.arange(count)
    ids[min(at, count - 1)] ^= by
    back = ids_from_bytes(ids_to_bytes(ids))
    assert (back.dtype, back.tolist()) == (np.int64, ids.tolist())


SEQUENCES = [
    [],
    [1, 2, 3],
    ["a", None],
    [(1, "x"), 2.5],
    [np.int64(4), np.int64(5)],
    (1, 2),
    range(5),
    range(0, 10, 2),
    range(9, -1, -1),
    range(2**70, 2**70 + 3),
    b"\x01 bytes are a sequence of integers",
]


@pytest.mark.parametrize("ids", SEQUENCES, ids=repr)
def test_a_sequence_comes_back_as_it_is(ids):
    back = ids_from_bytes(ids_to_bytes(ids))
    assert (type(back), back) == (type(ids), ids)


def test_an_array_of_strings_or_of_another_integer_keeps_its_type():
    for ids in (np.array(["a", "b"]), np.arange(3, dtype=np.int32), np.arange(3, dtype=np.uint64)):
        back = ids_from_bytes(ids_to_bytes(ids))
        assert (back.dtype, back.tolist()) == (ids.dtype, ids.tolist())


def test_offsets_take_no_bytes_of_their_own():
    assert len(ids_to_bytes(np.arange(100_000) + 17)) < 100
