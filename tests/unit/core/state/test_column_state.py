"""A column state is a dict of numbers that outlives its process: both take the same random actions."""

from __future__ import annotations

import copy
import itertools
import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acktree import ColumnState, KeyValueState, MisuseError, ProtocolError
from acktree.core.data import distinct
from acktree.core.data.hashing import hash_column, stable_hash
from acktree.core.state import column_table as module
from acktree.core.state.asked_keys import AskedKeys
from acktree.core.state.column_blobs import decoded
from acktree.core.state.store import MemoryStore
from tests.chaos.faults import Interrupter, LateError
from tests.drawn import drawn
from tests.unit.core.state.column_keys import ALIKE, KEYS, bound_to
from tests.unit.core.state.counting_store import CountingStore

FIELDS = {"count": int, "total": float}
ints = st.integers(-(1 << 40), 1 << 40) | st.sampled_from([0, 1, 255, 256, -1])
floats = st.floats(-1e6, 1e6)


def test_keys_with_one_hash_are_found():
    assert len({*ALIKE}) == 12
    assert len({stable_hash(key) for key in ALIKE}) == 1
    assert len({*hash_column(pa.array(ALIKE, pa.large_binary())).tolist()}) == 1


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(module, "KEYS_PER_BUCKET", 2)


class ColumnsBesideADict(RuleBasedStateMachine):
    """A state of two fields, a dict of pairs with the same contents, and the dict as it was saved last."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "KEYS_PER_BUCKET", 2)
        self.patch.setattr(distinct, "_SAMPLED", 4)
        self.patch.setattr(distinct, "_LONG", 1)
        self.store, self.saved = CountingStore(), None

    def teardown(self):
        self.patch.undo()

    @initialize(kind=st.sampled_from([str, bytes, int]))
    def prepare(self, kind):
        self.kind, self.naive = kind, {}
        self.keys = KEYS[kind]
        self.state = ColumnState(kind, FIELDS)

    def some(self, data, least=0):
        return data.draw(st.lists(st.sampled_from(self.keys), min_size=least, max_size=30))

    def column(self, data, keys):
        """Keys as a column, plain or in a dictionary, which may have others too, and some of them twice."""
        kind = {str: pa.string(), bytes: pa.binary(), int: pa.int64()}[self.kind]
        if data.draw(st.booleans()):
            return pa.array(keys, kind)
        known = [*data.draw(st.lists(st.sampled_from(self.keys), max_size=2)), *dict.fromkeys(keys)]
        turns = itertools.cycle((known.index, lambda key: len(known) - 1 - known[::-1].index(key)))
        places = pa.array([place_of(key) for key, place_of in zip(keys, turns, strict=False)], pa.int32())
        return pa.DictionaryArray.from_arrays(places, pa.array(known, kind))

    def is_bound(self):
        return self.state.is_bound

    @precondition(lambda self: not self.state.is_bound)
    @rule()
    def bind(self):
        self.state.bind(self.store, pickle.dumps, pickle.loads)

    @rule(data=st.data())
    def add_many(self, data):
        keys = self.some(data)
        counts = data.draw(st.lists(ints, min_size=len(keys), max_size=len(keys)))
        after = self.state.add_many(self.column(data, keys), {"count": pa.array(counts, pa.int64())})
        for key, count in zip(keys, counts, strict=True):
            before = self.naive.get(key, (0, 0.0))
            self.naive[key] = before[0] + count, before[1]
        assert after["count"].to_pylist() == [self.naive[key][0] for key in keys]

    @rule(data=st.data(), total=floats)
    def update_many(self, data, total):
        keys = self.some(data)
        counts = data.draw(st.lists(ints, min_size=len(keys), max_size=len(keys)))
        self.state.update_many(self.column(data, keys), {"count": counts, "total": total})
        self.naive.update((key, (count, total)) for key, count in zip(keys, counts, strict=True))

    @rule(data=st.data(), total=floats)
    def update_one_field(self, data, total):
        keys = self.some(data)
        self.state.update_many(keys, {"total": total})
        self.naive.update((key, (self.naive.get(key, (0, 0.0))[0], total)) for key in keys)

    @rule(data=st.data())
    def remove_many(self, data):
        keys = self.some(data)
        self.state.remove_many(self.column(data, keys))
        for key in keys:
            self.naive.pop(key, None)

    @rule(data=st.data())
    def look_at_many(self, data):
        keys = self.some(data)
        found = self.state.get_many(self.column(data, keys), -7)
        missing = (-7, -7.0)
        assert found["count"].to_pylist() == [self.naive.get(key, missing)[0] for key in keys]
        assert found["total"].to_pylist() == [self.naive.get(key, missing)[1] for key in keys]
        nulls = self.state.get_many(keys, None)["count"].to_pylist()
        assert nulls == [self.naive.get(key, (None,))[0] for key in keys]
        assert self.state.contains_many(keys).to_pylist() == [key in self.naive for key in keys]

    @rule(data=st.data(), count=ints, total=floats)
    def set(self, data, count, total):
        for key in self.some(data):
            self.state[key] = {"count": count, "total": total}
            self.naive[key] = count, total

    @rule(data=st.data())
    def delete(self, data):
        (key, *_) = self.some(data, 1)
        if key in self.naive:
            del self.state[key], self.naive[key]
        else:
            with pytest.raises(KeyError):
                del self.state[key]

    @rule(data=st.data())
    def look(self, data):
        for key in self.some(data):
            expected = None if key not in self.naive else dict(zip(FIELDS, self.naive[key], strict=True))
            assert self.state.get(key) == expected
            assert (key in self.state) == (key in self.naive)

    @rule()
    def clear(self):
        self.state.clear()
        self.naive.clear()

    @precondition(is_bound)
    @rule()
    def save(self):
        self.state.save()
        self.saved = dict(self.naive)

    @precondition(is_bound)
    @rule()
    def next_micro_batch(self):
        self.save()
        self.state = bound_to(self.store, self.kind, FIELDS)

    @precondition(is_bound)
    @rule()
    def next_epoch(self):
        """It stays in memory where it may, and nobody can tell it from one that is read."""
        self.save()
        if self.state.may_stay:
            self.state.go_on(self.store, pickle.dumps, pickle.loads)
        else:
            self.state = bound_to(self.store, self.kind, FIELDS)

    @precondition(is_bound)
    @rule(same_object=st.booleans())
    def crash(self, same_object):
        """What was not saved is gone, in another process or in this one."""
        if self.saved is None:
            return
        if not same_object:
            self.state = ColumnState(self.kind, FIELDS)
        self.state.clear()
        self.state.bind(self.store, pickle.dumps, pickle.loads)
        self.naive = dict(self.saved)

    @precondition(is_bound)
    @rule()
    def lose_the_store(self):
        """It is bound to an empty store: all that is here goes there, however little of it was read."""
        self.store, self.saved = CountingStore(), None
        self.state.bind(self.store, pickle.dumps, pickle.loads)

    @rule()
    def travel(self):
        for copied in (pickle.loads(pickle.dumps(self.state)), copy.deepcopy(self.state)):
            assert self.plain(copied) == self.naive
            assert not copied.is_bound

    @rule()
    def read_everything(self):
        assert self.plain(self.state) == self.naive
        assert sorted(self.state) == sorted(self.naive)

    def plain(self, state):
        rows = [row for batch in state.batches() for row in batch.to_pylist()]
        assert len(rows) == len({row["key"] for row in rows})
        return {row["key"]: (row["count"], row["total"]) for row in rows}

    @invariant()
    def they_have_the_same_size(self):
        if hasattr(self, "state"):
            assert len(self.state) == len(self.naive)

    @invariant()
    def every_key_is_stored_once_in_the_bucket_of_its_hash(self):
        if self.saved is None:
            return
        found = {name: decoded(blob) for name, blob in self.store.blobs.items() if name != "meta"}
        assert all(keys.count for keys, _ in found.values())
        assert sum(keys.count for keys, _ in found.values()) == len(self.saved)


def test_a_state_that_was_stored_empty_does_not_read_its_own_keys_again(store, small_buckets):
    bound_to(store).save()
    state = bound_to(store)
    for key in map(str, range(20)):  # more buckets are made meanwhile
        state.add_many([key], [1])
        state.save()
    keys = [row["key"] for batch in state.batches() for row in batch.to_pylist()]
    assert sorted(keys) == sorted(map(str, range(20)))


@pytest.mark.usefixtures("small_buckets")
def test_a_state_that_was_stored_empty_moves_to_another_store_whole_and_once(store):
    bound_to(store).save()
    state = bound_to(store)
    state.add_many(["a"], [1])
    state.save()
    state.bind(CountingStore(), pickle.dumps, pickle.loads)
    assert [row["key"] for batch in state.batches() for row in batch.to_pylist()] == ["a"]


def test_a_bucket_that_was_empty_when_the_last_key_was_read_is_not_read_again(store, small_buckets):
    state = bound_to(store)
    state.add_many([str(n) for n in range(20)], [1] * 20)
    state.save()
    state = bound_to(store)
    state.remove_many([str(n) for n in range(19)])
    state.save()
    state = bound_to(store)
    assert state.get("19") == 1
    for n in range(19):
        state.add_many([str(n)], [1])
        state.save()
    state.bind(CountingStore(), pickle.dumps, pickle.loads)
    keys = [row["key"] for batch in state.batches() for row in batch.to_pylist()]
    assert sorted(keys) == sorted(map(str, range(20)))


ColumnsBesideADict.TestCase.settings = settings(max_examples=drawn(60), stateful_step_count=30, deadline=None)
TestColumnsBesideADict = pytest.mark.slow(ColumnsBesideADict.TestCase)


# ---- what is written and what is read ---------------------------------------------------------------------


def test_one_changed_key_reads_and_writes_one_bucket(store):
    state = bound_to(store, int)
    state.update_many(range(20_000), 1)
    state.save()
    assert len(store.calls("put")) == 21
    state = bound_to(store, int)
    store.calls()
    state.add_many([77])
    assert len(store.calls("get")) == 1
    state.save()
    assert len(store.calls("put")) == 1
    assert bound_to(store, int)[77] == 2


def test_a_state_that_grows_divides_few_buckets_at_a_time(store):
    state = bound_to(store, int)
    state.update_many(range(64 * 1024), 1)
    state.save()
    for first in range(64 * 1024, 67 * 1024, 1024):
        state = bound_to(store, int)
        state.update_many([first], 1)
        state._table.put(AskedKeys(pa.array(range(first, first + 1024))), {"value": np.ones(1024, np.int64)})
        store.calls()
        state._table._divide()
        assert len(store.calls("get")) <= 2


def test_only_what_was_changed_is_written_and_what_is_looked_through_is_not_kept(store, small_buckets):
    state = bound_to(store, int)
    state.update_many(range(100), 5)
    state.save()
    state = bound_to(store, int)
    store.calls()
    assert sum(batch.num_rows for batch in state.batches()) == 100
    assert state._table._extent.unread == 100
    assert state.get_many([3, 4]).to_pylist() == [5, 5]
    state.save()
    assert store.calls("put", "delete") == []


def test_what_was_deleted_leaves_nothing_behind(store, small_buckets):
    for delete in (lambda state: state.remove_many(range(40)), lambda state: state.clear()):
        state = bound_to(store, int)
        state.update_many(range(40), 1)
        state.save()
        state = bound_to(store, int)
        delete(state)
        state.save()
        assert [*store.blobs] == ["meta"]
        assert len(bound_to(store, int)) == 0


def test_small_numbers_and_short_texts_take_few_bytes(store):
    state = bound_to(store)
    state.update_many([f"{number:08}" for number in range(100_000)], 200)
    state.save()
    assert sum(map(len, store.blobs.values())) < 100_000 * (8 + 1 + 1 + 0.3)


def test_numbers_of_every_width_come_back(store):
    numbers = [0, -1, 127, -128, 255, 256, 65_535, 65_536, -40_000, 1 << 32, (1 << 63) - 1, -(1 << 63)]
    for low, high in pairwise(numbers):
        state = bound_to(MemoryStore(), int)
        state.update_many([1, 2], [low, high])
        kept, state = state._table._store, None
        bound = ColumnState(int, int)
        saved = ColumnState(int, int)
        saved.bind(kept, pickle.dumps, pickle.loads)
        saved.update_many([1, 2], [low, high])
        saved.save()
        bound.bind(kept, pickle.dumps, pickle.loads)
        assert bound.get_many([1, 2]).to_pylist() == [low, high]


# ---- what is refused, and changes nothing -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda state: state.add_many(["a", None]), "1 of 2 keys are null"),
        (lambda state: state.add_many([1, 2]), "keys of type int64 for a ColumnState of str"),
        (lambda state: state.add_many(["a", 2]), "keys that are no column of str"),
        (lambda state: state.add_many(["a", "\udce9"]), "keys that are no column of str"),
        (lambda state: state.add_many(["a", "b"], [1]), "1 values of type int64, 0 of them null, for 2 keys"),
        (lambda state: state.add_many(["a"], [None]), "1 values of type null, 1 of them null"),
        (lambda state: state.add_many(["a"], [0.5]), "1 values of type double"),
        (lambda state: state.add_many(["a"], 0.5), "0.5 is no int of 64 bits"),
        (lambda state: state.add_many(["a"], 1 << 63), "is no int of 64 bits"),
        (lambda state: state.add_many(["a"], [1 << 63]), "numbers of field 'value'"),
        (lambda state: state.add_many(["b", "a"], [1, (1 << 63) - 1]), "add_many.. could leave 64 bits"),
        (lambda state: state.update_many(["b"], "x"), "values of type string"),
        (lambda state: state.__setitem__("b", 1.5), "1.5 is no int of 64 bits"),
        (lambda state: state.__setitem__(7, 1), "7 is no key of type str"),
        (lambda state: state.get("\udce9"), "is no key of type str"),
        (lambda state: state.get_many(["a"], 0.5), "0.5 is no int"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_has_changed(call, message):
    state = ColumnState(str, int)
    state["a"] = 1
    with pytest.raises(MisuseError, match=message):
        call(state)
    assert dict(state) == {"a": 1}


def test_fields_are_checked():
    state = ColumnState(str, FIELDS)
    for refused in (5, {"count": 1, "other": 2}, {}):
        with pytest.raises(MisuseError):
            state.update_many(["a"], refused)
        with pytest.raises(MisuseError):
            state["a"] = refused
    with pytest.raises(MisuseError, match="not all fields"):
        state["a"] = {"count": 1}
    assert len(state) == 0
    state.add_many(pa.array(["a"]), pa.record_batch({"count": [1], "total": [0.5]}))
    assert state["a"] == {"count": 1, "total": 0.5}
    for refused in ((float, int), (str, str), (str, {}), (str, {"a": bool})):
        with pytest.raises(MisuseError, match="cannot be"):
            ColumnState(*refused)
    with pytest.raises(ProtocolError, match="unbound"):
        state.save()


def test_values_of_a_dictionary_are_refused_where_a_row_has_them():
    state, known = ColumnState(str, int), pa.array(["a", None])
    state.add_many(pa.DictionaryArray.from_arrays(pa.array([0, 0]), known))
    for places in ([0, 1, 0], [0, None, 0]):
        with pytest.raises(MisuseError, match="are null"):
            state.add_many(pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), known))
    assert dict(state) == {"a": 2}
    numbers = ColumnState(int, int)
    too_large = pa.array([1, 2**64 - 1], pa.uint64())
    numbers.add_many(pa.DictionaryArray.from_arrays(pa.array([0, 0]), too_large))
    assert dict(numbers) == {1: 2}


def test_keys_come_in_any_column_and_go_into_another_state():
    state = ColumnState(str, int)
    for keys in (
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"], pa.string_view()),
        np.array(["a", "b"]),
        ("a", "b"),
        pa.array(["x", "a", "b"]).slice(1),
        [],
        pa.array([], pa.string()),
    ):
        state.add_many(keys)
    assert dict(state) == {"a": 6, "b": 6}
    numbers = ColumnState(int, float)
    numbers.add_many(pa.array([1, 2], pa.uint8()), pa.array([1, 2], pa.int32()))
    numbers.add_many([np.int64(1), 2], 0.5)
    assert dict(numbers) == {1: 1.5, 2: 2.5}
    other = ColumnState(str, int)
    other.update(state)
    other.update({"c": 1}, d=2)
    assert dict(other) == {"a": 6, "b": 6, "c": 1, "d": 2}
    plain = KeyValueState(other)
    assert dict(plain) == dict(other)


# ---- exceptions from outside ------------------------------------------------------------------------------


STEPS = {
    "add_many": (
        lambda state: state.add_many([*range(40, 60)]),
        lambda naive: naive.update((key, naive.get(key, 0) + 1) for key in range(40, 60)),
    ),
    "update_many": (
        lambda state: state.update_many([3, 70], 9),
        lambda naive: naive.update({3: 9, 70: 9}),
    ),
    "remove_many": (
        lambda state: state.remove_many([4, 5]),
        lambda naive: (naive.pop(4), naive.pop(5)),
    ),
    "set": (lambda state: state.__setitem__(8, 4), lambda naive: naive.__setitem__(8, 4)),
    "len": (len, lambda naive: None),
    "clear": (lambda state: state.clear(), lambda naive: naive.clear()),
}
"""Calls, each with what it makes of a dict."""


STRIDES = 17, 3, 1
"""The step between the opcodes that are tried: in `make test`, in `.ci/run`, and all, in a minute."""


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_call_that_is_interrupted_has_happened_whole_or_not_at_all(step, monkeypatch, sized):
    monkeypatch.setattr(module, "KEYS_PER_BUCKET", 16)
    call, naive = STEPS[step]
    store, keys = MemoryStore(), [*range(80)]
    saved = bound_to(store, int)
    saved.update_many(range(48), range(48))
    saved.save()
    before = {key: key for key in range(48)} | {8: -8}
    after = dict(before)
    naive(after)
    at = 0
    while True:
        at += sized(*STRIDES)
        state = bound_to(store, int)
        state[8] = -8
        interrupter = Interrupter(at)
        try:
            with interrupter:
                call(state)
        except LateError:
            pass
        found = dict(zip(keys, state.get_many(keys, -1).to_pylist(), strict=True))
        happened = [one for one in (before, after) if found == {key: one.get(key, -1) for key in keys}]
        assert happened
        assert len(state) == len(happened[0])
        if not interrupter.has_raised:
            break
    assert at > 50
    assert happened == [after] * len(happened)


def test_a_field_may_not_be_named_as_the_column_of_keys():
    with pytest.raises(MisuseError, match="named 'key'"):
        ColumnState(int, {"key": int, "n": int})


@pytest.mark.parametrize("key", [True, np.int64(1), np.uint64(1)])
def test_a_key_set_alone_is_kept_as_the_tables_own_type(key):
    state = ColumnState(int, int)
    state[7] = 1
    state[key] = 2
    state[np.int64(9)] = 3
    assert dict(state) == {7: 1, 1: 2, 9: 3}
    assert state.get_many([1]).to_pylist() == [2]
    del state[key]
    assert sorted(state) == [7, 9]


def test_a_state_whose_keys_stay_the_same_stays_and_reads_no_bucket_again(store, small_buckets):
    bound_to(store).save()
    first = bound_to(store)
    first.add_many([str(number) for number in range(20)])
    first.save()
    assert not first.may_stay, "its rows are as they came"
    state = bound_to(store)
    store.calls("get", "put")
    state.add_many(["1", "2"])
    state.save()
    assert "bucket" in {name.partition("/")[0] for name in store.calls("get")}
    for _ in range(3):
        assert state.may_stay
        state.go_on(store, pickle.dumps, pickle.loads)
        assert state.add_many(["1"])[0].as_py() > 2
        state.save()
        assert not store.calls("get")
    again = bound_to(store)
    assert dict(again) == dict(state)
    state.add_many(["new"])
    state.save()
    assert not state.may_stay


@pytest.mark.parametrize("most", ["_MOST_SLOTS", "_MOST_BYTES"])
def test_a_large_state_does_not_stay_in_memory(store, most, monkeypatch):
    bound_to(store).save()
    for keys in (["a"], ["b"] * 3):
        state = bound_to(store)
        state.add_many(keys)
        state.save()
    state = bound_to(store)
    state.add_many(["a", "b"])
    state.save()
    assert state.may_stay
    monkeypatch.setattr(module, most, 1)
    assert not state.may_stay
