"""Memory in Spark's state store: blobs of any size, in parts that the JVM can copy."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.frames import WireRow
from acktree.spark.query import operators, state_blobs
from acktree.spark.query.state_blobs import MapStateStore
from acktree.spark.worker.state_channel import StateChannelLostError


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


class Interrupted(MapState):
    """Is interrupted, as by a user's timer, after it was asked and before it has answered."""

    def getValue(self, key):  # noqa: N802
        if key == ("torn",):
            raise TimeoutError("from a signal's handler")
        return super().getValue(key)

    def removeKey(self, key):  # noqa: N802
        raise MemoryError


@pytest.mark.parametrize("ask", [lambda store: store.get("torn"), lambda store: store.delete("a")])
def test_a_channel_that_was_interrupted_in_a_question_is_not_used_again_even_if_the_error_was_caught(ask):
    state = Interrupted()
    store = MapStateStore(state)
    store.put("a", b"1")
    with pytest.raises(StateChannelLostError, match="was interrupted"):
        ask(store)
    for again in (lambda: store.get("b"), lambda: store.put("b", b"2"), lambda: store.delete("b")):
        with pytest.raises(StateChannelLostError):
            again()
    assert not issubclass(StateChannelLostError, Exception)  # no `except Exception` goes on after it
    assert ("b",) not in state.values
    with pytest.raises(StateChannelLostError):  # what the operator asks in the end
        store.channel.refuse_if_lost()


def test_a_channel_that_was_not_interrupted_is_not_lost():
    store = MapStateStore(MapState())
    store.put("a", b"1")
    store.delete("a")
    assert store.get("a") is None
    store.channel.refuse_if_lost()


NAMES = st.sampled_from("ab")
DEEDS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.binary(max_size=40)),
    st.tuples(st.sampled_from(["delete", "get", "next micro-batch"]), NAMES, st.just(b"")),
)


@given(st.lists(DEEDS, max_size=25))
def test_a_store_of_parts_is_a_dict_of_blobs_and_leaves_nothing_behind(deeds):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_blobs, "PART_BYTES", 10)
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
