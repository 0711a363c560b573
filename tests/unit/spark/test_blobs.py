"""Memory in Spark's state store: blobs of any size, in parts that the JVM can copy."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st

from acktree.core.frames import WireRow
from acktree.spark import blobs, operators
from acktree.spark.blobs import MapStateStore


class MapState:
    """Spark's, as far as it is asked."""

    def __init__(self):
        self.values, self.largest = {}, 0

    def getValue(self, key):  # noqa: N802  # Spark's name
        return self.values.get(key)

    def updateValue(self, key, value):  # noqa: N802
        self.largest = max(self.largest, len(value[0]))
        self.values[key] = value

    def removeKey(self, key):  # noqa: N802
        self.values.pop(key, None)


NAMES = st.sampled_from("ab")
DEEDS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.binary(max_size=40)),
    st.tuples(st.sampled_from(["delete", "get", "next micro-batch"]), NAMES, st.just(b"")),
)


@given(st.lists(DEEDS, max_size=25))
def test_a_store_of_parts_is_a_dict_of_blobs_and_leaves_nothing_behind(deeds):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "PART_BYTES", 10)
        state, model = MapState(), {}
        store = MapStateStore(state)
        for deed, name, blob in deeds:
            if deed == "put":
                store.put(name, blob)
                model[name] = blob
            elif deed == "delete":
                store.delete(name)
                model.pop(name, None)
            elif deed == "get":
                assert store.get(name) == model.get(name)
            else:
                store = MapStateStore(state)
        again = MapStateStore(state)
        assert {name: again.get(name) for name in "ab"} == {name: model.get(name) for name in "ab"}
        assert state.largest <= 10
        assert len(state.values) == sum(1 + -(-len(b) // 10) * (len(b) > 10) for b in model.values())


@given(st.lists(st.integers(0, 200), max_size=20))
def test_rows_leave_a_level_in_batches_of_limited_number_and_weight(sizes):
    rows = [WireRow(0, 1, 1, 0, at, 0, b"", bytes(size)) for at, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "BYTES_PER_BATCH", 300)
        patch.setattr(operators, "ROWS_PER_BATCH", 5)
        found = list(operators._in_batches(rows))
    assert [row for batch in found for row in batch] == rows
    assert all(0 < len(batch) <= 5 and sum(len(row.body) for row in batch) <= 300 for batch in found)
