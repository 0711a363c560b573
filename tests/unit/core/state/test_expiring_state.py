"""Keys that expire: a state with a ttl and a dict of when each key was written take the same actions."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
)

from acktree.core.state import key_value_state as module
from acktree.core.state.key_value_state import KeyValueState
from acktree.errors import MisuseError
from tests.unit.core.state.counting_store import CountingStore, bound_to


def aged(store, now_ms, ttl_secs=10, initial=None):
    """A state in the micro-batch with this clock."""
    state = KeyValueState(initial, ttl_secs)
    state.bind(store, pickle.dumps, pickle.loads, now_ms)
    return state


some_keys = st.sampled_from([0, 1, True, "a", (1, "a"), *(f"key {number}" for number in range(9))])
some_values = st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=2)


class ExpiringStateBesideADict(RuleBasedStateMachine):
    """A state whose ttl may change between micro-batches; for each key its value and when it was written."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "KEYS_PER_BUCKET", 2)
        self.store, self.now_ms, self.ttl_secs = CountingStore(), 0, None
        self.horizon_ms = None  # None: it never had a ttl
        self.naive, self.saved, self.before = {}, ({}, None), {}
        self.begin(None)

    def teardown(self):
        self.patch.undo()

    def begin(self, ttl_secs):
        self.state = aged(self.store, self.now_ms, ttl_secs)
        if ttl_secs is not None:
            first = self.horizon_ms is None
            expired_ms = self.now_ms - int(ttl_secs * 1000)
            self.horizon_ms = expired_ms if first else max(self.horizon_ms, expired_ms)
            if first:
                self.naive = {key: (value, self.now_ms) for key, (value, _) in self.naive.items()}
        if self.horizon_ms is not None:
            self.naive = {key: pair for key, pair in self.naive.items() if pair[1] > self.horizon_ms}
        self.ttl_secs = ttl_secs

    @rule(key=some_keys, value=some_values)
    def set(self, key, value):
        self.state[key] = copy.deepcopy(value)
        self.naive[key] = (value, self.now_ms)

    @rule(more=st.dictionaries(some_keys, some_values))
    def update_many(self, more):
        self.state.update_many(more.keys(), copy.deepcopy([*more.values()]))
        self.naive.update({key: (value, self.now_ms) for key, value in more.items()})

    @rule(key=some_keys)
    def delete(self, key):
        assert (self.state.pop(key, "none") == "none") == (self.naive.pop(key, "none") == "none")

    @rule(key=some_keys)
    def change_in_place(self, key):
        value = self.state.get(key)
        if isinstance(value, list):
            value.append(7)
            self.naive[key] = ([*self.naive[key][0], 7], self.now_ms)

    @rule(key=some_keys)
    def look_at(self, key):
        assert (key in self.state) == (key in self.naive)
        assert self.state.get(key, "none") == self.naive.get(key, ("none",))[0]

    @rule()
    def count(self):
        assert len(self.state) == len(self.naive)

    @rule()
    def read_everything(self):
        assert dict(self.state) == {key: value for key, (value, _) in self.naive.items()}
        assert pickle.loads(pickle.dumps(self.state)) == self.state

    @rule(
        secs=st.sampled_from([0, 0.001, 1, 4, 9.999, 10, 30]), ttl_secs=st.sampled_from([None, 4, 10, 10, 20])
    )
    def next_micro_batch(self, secs, ttl_secs):
        self.state.save()
        self.saved = copy.deepcopy((self.naive, self.horizon_ms))
        self.before = dict(self.store.blobs)
        self.now_ms += int(secs * 1000)
        self.begin(ttl_secs)

    @rule()
    def the_micro_batch_runs_again(self):
        """With the same clock it finds the same keys, whatever the lost attempt did."""
        self.store.blobs = dict(self.before)
        self.naive, self.horizon_ms = copy.deepcopy(self.saved)
        self.begin(self.ttl_secs)


ExpiringStateBesideADict.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestExpiringStateBesideADict = ExpiringStateBesideADict.TestCase


def test_a_key_is_gone_when_it_was_not_written_for_its_ttl_and_not_before(store):
    state = aged(store, 0)
    state["a"] = state["b"] = 1
    state.save()
    state = aged(store, 9_999)
    assert dict(state) == {"a": 1, "b": 1}
    state["b"] = 1  # writing the same value is writing
    state.save()
    state = aged(store, 10_000)
    assert ("a" in state, "b" in state, len(state)) == (False, True, 1)
    with pytest.raises(KeyError):
        del state["a"]


def test_expired_keys_leave_the_store_a_few_buckets_at_a_time(store, small_buckets):
    aged(store, 0, initial={number: number for number in range(1000)}).save()
    buckets = len(store.blobs) - 1
    for number in range(1000):
        store.calls()
        state = aged(store, 10_000 + number)
        assert 500 not in state
        state.save()
        assert len(store.calls("get", "put", "delete")) <= 6  # two buckets and the count
        if len(store.blobs) == 1:
            break
    assert buckets // 2 < number < 2 * buckets


@pytest.mark.parametrize(("now_ms", "ttl_secs"), [(10_000, None), (10_001, 100), (5_000, 10)])
def test_what_has_expired_stays_expired(store, small_buckets, now_ms, ttl_secs):
    """Also if the ttl is removed or longer later, or the clock goes back."""
    aged(store, 0, initial={number: number for number in range(100)}).save()
    aged(store, 10_000).save()
    state = aged(store, now_ms, ttl_secs)
    assert len(store.blobs) > 30
    state["b"] = now_ms
    state.save()
    assert len(aged(store, now_ms, ttl_secs)) == 1
    assert dict(aged(store, now_ms, ttl_secs)) == {"b": now_ms}


def test_a_value_changed_in_place_is_a_key_that_was_written(store):
    aged(store, 0, initial={"a": [1], "b": [1], "c": 1}).save()
    state = aged(store, 9_000)
    state["a"].append(2)
    state.save()
    assert dict(aged(store, 10_000)) == {"a": [1, 2]}


def test_without_a_ttl_the_store_has_what_it_always_had(store):
    other = CountingStore()
    aged(store, 5, None, {"a": 1, "b": [2]}).save()
    bound_to(other, {"a": 1, "b": [2]}).save()
    assert store.blobs == other.blobs


@pytest.mark.parametrize("ttl_secs", [0, -1, float("inf"), float("nan")])
def test_a_ttl_is_a_positive_number_of_seconds(ttl_secs):
    with pytest.raises(MisuseError, match=r"ttl_secs=.* is not a positive number"):
        KeyValueState(ttl_secs=ttl_secs)
