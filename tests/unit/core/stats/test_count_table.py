"""A table of counters has the counts that were added, however its keys were encoded."""

from __future__ import annotations

import json
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.stats import count_table
from acktree.core.stats.count_table import CountTable, PackedTable
from acktree.core.stats.counters import Counters

KEYS = st.tuples(
    st.text(max_size=3), st.integers(0, 5), st.text(max_size=3), st.sampled_from(["emitted", "x"])
)
COUNTED = st.dictionaries(KEYS, st.integers(0, 1 << 50), max_size=5)


@given(COUNTED, st.lists(st.tuples(COUNTED, COUNTED), max_size=8), st.integers(0, 3))
def test_what_is_read_is_the_sum_of_what_was_added(begun, steps, most_new):
    """With few keys encoded again, so that both parts of the keys change."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(count_table, "_NEW_KEYS", most_new)
        table, model = CountTable(Counters.of(begun.items())), Counter(begun)
        for grown, more in steps:
            table.add(Counters.of(grown.items()))
            model.update(grown)
            packed = table.packed([Counters.of(more.items()), Counters.of(more.items())])
            assert dict(CountTable.unpacked(packed)) == dict(+Counter(model) + Counter(more) + Counter(more))
            assert dict(table.counters()) == dict(+model)  # what was only encoded is not in it


def test_keys_are_encoded_when_they_are_new_and_most_of_them_once(monkeypatch):
    encoded, encode = [], count_table._encoded
    monkeypatch.setattr(count_table, "_encoded", lambda keys: encoded.append(len(keys)) or encode(keys))
    table = CountTable()

    def count(keys):
        table.add(Counters.of((("a", at, "s", "emitted"), 1) for at in keys))
        return table.packed()

    count(range(1000))
    before = count(range(1000))
    assert encoded == [1000]
    assert count([3]).keys is not None
    assert encoded == [1000]
    assert count([1000, 1001]).keys[0] == before.keys[0]
    assert encoded == [1000, 2]
    count(range(1002, 1100))
    assert encoded == [1000, 2, 100]
    count(range(1100, 2000))
    assert encoded == [1000, 2, 100, 2000]
    assert len(CountTable.unpacked(table.packed())) == 2000


def packed(keys, *counts):
    return PackedTable(
        [zlib.compress(json.dumps(keys).encode())],
        zlib.compress(np.array(counts, dtype="<i8").view(np.uint8).reshape(-1, 8).T.tobytes()),
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (packed([["a", 1, "s", "x"]]), "0 counts of 1 keys"),
        (packed([["a", 1, "s", "x"]] * 2, 1, 1), "2 counts of 2 keys"),
        (packed([["a", 1, "s", "x"]], -1), "negative"),
        (packed([["a", 1, "s", "x"]], 1 << 62), "too large"),
        (packed([["a", "one", "s", "x"]], 1), "invalid literal"),
        (packed([["a", 1, "s"]], 1), "not enough values"),
        (PackedTable([], zlib.compress(b"1234567")), "reshape"),
    ],
)
def test_a_damaged_table_is_refused(given, why):
    with pytest.raises(ValueError, match=why):
        CountTable.unpacked(given)


def test_an_empty_table_is_one():
    assert CountTable.unpacked(CountTable().packed()) == Counters()
