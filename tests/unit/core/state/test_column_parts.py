"""The parts of a ColumnState: buckets that are divided, and the table of keys."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.hashing import hash_column, stable_hash
from acktree.core.state.buckets import bucket_of, buckets_of, divided
from acktree.core.state.key_table import KeyTable
from acktree.core.state.store import MemoryStore
from tests.unit.core.state.column_keys import ALIKE, KEYS, MASK, bound_to


@given(st.lists(st.integers(0, MASK), min_size=1), st.integers(1, 300), st.integers(0, 300))
def test_a_key_stays_in_its_bucket_or_goes_to_a_new_one_from_a_bucket_that_is_divided(hashes, before, more):
    column = np.array(hashes, dtype=np.uint64)
    old, new = buckets_of(column, before), buckets_of(column, before + more)
    assert old.tolist() == [bucket_of(each, before) for each in hashes]
    assert (old >= 0).all()
    assert (old < before).all()
    assert (new < before + more).all()
    moved = old != new
    assert (new[moved] >= before).all()
    assert {*old[moved].tolist()} <= {*divided(before, before + more).tolist()}
    assert (divided(before, before + more) < before).all()


@given(st.lists(st.lists(st.sampled_from(ALIKE + KEYS[bytes]), unique=True), max_size=4))
def test_a_table_finds_the_keys_that_were_added_and_no_others_whatever_their_hashes(parts):
    table, slots = KeyTable(pa.large_binary()), {}
    for part in parts:
        new = [key for key in part if key not in slots]
        table.append(pa.array(new, pa.large_binary()), len(slots))
        slots.update((key, len(slots)) for key in new)
    column = pa.array(KEYS[bytes], pa.large_binary())
    expected = [slots.get(key, -1) for key in KEYS[bytes]]
    assert table.find(column, hash_column(column), len(slots)).tolist() == expected
    assert [table.find_one(key, stable_hash(key), len(slots)) for key in KEYS[bytes]] == expected


def test_what_an_interrupted_append_left_is_not_found_and_does_no_harm():
    table, few, many = KeyTable(pa.int64()), pa.array(range(10)), pa.array(range(10, 5000))
    table.append(few, 0)
    for _ in range(5):
        table.append(many, 10)  # its slots are never said to be there
    assert table.find(many, hash_column(many), 10).tolist() == [-1] * 4990
    again = pa.array(range(100, 200))
    table.append(again, 10)
    assert table.find(again, hash_column(again), 110).tolist() == [*range(10, 110)]
    assert table.find(few, hash_column(few), 110).tolist() == [*range(10)]


def test_thousands_of_keys_that_come_and_go_agree_with_a_dict():
    chance, store, naive = random.Random(5), MemoryStore(), {}
    for _ in range(12):
        state = bound_to(store)
        words = [f"word {chance.randrange(40_000)}" for _ in range(30_000)]
        more = [chance.randrange(-(10**6), 10**9) for _ in words]
        after = state.add_many(pa.array(words), pa.array(more)).to_pylist()
        for word, count in zip(words, more, strict=True):
            naive[word] = naive.get(word, 0) + count
        assert after == [naive[word] for word in words]
        gone = words[:5000]
        state.remove_many(pa.chunked_array([gone[:100], gone[100:]]))
        for word in gone:
            naive.pop(word, None)
        state.save()
    assert len(state) == len(naive)
    state = bound_to(store)
    assert {row["key"]: row["value"] for batch in state.batches() for row in batch.to_pylist()} == naive
