"""A state is a dict that outlives its process: both take the same random actions, saves and crashes too."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from acktree.core.data.hashing import stable_hash, with_one_nan
from acktree.core.state import key_value_state as module
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.state.store import MemoryStore
from acktree.errors import MisuseError, ProtocolError
from tests.drawn import drawn


class CountingStore(MemoryStore):
    """Remembers what was asked of it."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get(self, name):
        self.asked.append(("get", name))
        return super().get(name)

    def put(self, name, blob):
        self.asked.append(("put", name))
        super().put(name, blob)

    def delete(self, name):
        self.asked.append(("delete", name))
        super().delete(name)

    def calls(self, *kinds):
        """What was asked of these kinds since last called."""
        asked, self.asked = self.asked, []
        return [name for kind, name in asked if kind in kinds]


def bound_to(store, initial=None):
    state = KeyValueState(initial)
    state.bind(store, pickle.dumps, pickle.loads)
    return state


@pytest.fixture
def store():
    return CountingStore()


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(module, "KEYS_PER_BUCKET", 2)


keys = st.sampled_from(
    [0, 1, True, 1.0, Decimal(1), -1, 2.5, 1 << 70, None, "", "a", "b", "ab", b"a", (), (1, "a"), (True, "a")]
    + [date(2024, 5, day) for day in range(1, 9)]
    + [f"key {number}" for number in range(48)]
)
values = st.integers() | st.none() | st.text() | st.lists(st.integers(), max_size=2) | st.just({})


class StateBesideADict(RuleBasedStateMachine):
    """A state, a dict with the same contents, and copies of the dict as it was when it was saved."""

    read = Bundle("read")  # values that a bolt holds on to and may change in place

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "KEYS_PER_BUCKET", 2)
        self.store = CountingStore()
        self.saved = None  # the dict as it was saved last

    def teardown(self):
        self.patch.undo()

    @initialize(initial=st.dictionaries(keys, values, max_size=9))
    def prepare(self, initial):
        self.naive = copy.deepcopy(initial)
        self.state = KeyValueState(initial)

    def is_bound(self):
        return self.state.is_bound

    @precondition(lambda self: not self.state.is_bound)
    @rule()
    def bind(self):
        self.state.bind(self.store, pickle.dumps, pickle.loads)

    @rule(key=keys, value=values)
    def set(self, key, value):
        self.state[key] = copy.deepcopy(value)
        self.naive[key] = value

    @rule(more=st.dictionaries(keys, values))
    def update(self, more):
        self.state.update(copy.deepcopy(more))
        self.naive.update(more)

    @rule(more=st.lists(st.tuples(keys, values)))
    def update_many(self, more):
        self.state.update_many([key for key, _ in more], copy.deepcopy([value for _, value in more]))
        self.naive.update(more)

    @rule(asked=st.lists(keys))
    def look_at_many(self, asked):
        assert self.state.get_many(asked, "nothing") == [self.naive.get(key, "nothing") for key in asked]
        assert self.state.get_many(asked) == [self.naive.get(key) for key in asked]

    @rule(first=st.integers(0, 40), save=st.booleans())
    def grow(self, first, save):
        """One by one, so that buckets are doubled with little or much in them."""
        for number in range(first, first + 8):
            self.set(f"key {number}", number)
            if save and self.state.is_bound:
                self.save()

    @rule(key=keys)
    def delete(self, key):
        if key in self.naive:
            del self.state[key]
            del self.naive[key]
        else:
            with pytest.raises(KeyError):
                del self.state[key]

    @rule(key=keys)
    def pop(self, key):
        assert self.state.pop(key, "nothing") == self.naive.pop(key, "nothing")

    @rule(key=keys)
    def look(self, key):
        assert (key in self.state) == (key in self.naive)
        assert self.state.get(key, "nothing") == self.naive.get(key, "nothing")
        if key not in self.naive:
            with pytest.raises(KeyError):
                self.state[key]

    @rule(target=read, key=keys)
    def append_in_place(self, key):
        if not isinstance(self.naive.setdefault(key, []), list):
            self.state.setdefault(key, [])
            return None
        ours = self.state.setdefault(key, [])
        ours.append(1)
        self.naive[key].append(1)
        return ours, self.naive[key], self.state

    @rule(both=consumes(read))
    def append_to_what_was_read_before(self, both):
        if both is not None and both[2] is self.state:
            ours, naive, _ = both
            ours.append(2)
            naive.append(2)

    @rule()
    def clear(self):
        self.state.clear()
        self.naive.clear()

    @precondition(is_bound)
    @rule()
    def save(self):
        self.state.save()
        self.saved = copy.deepcopy(self.naive)

    @precondition(is_bound)
    @rule(initial=st.dictionaries(keys, values, max_size=3))
    def next_micro_batch(self, initial):
        """What ``prepare`` sets is overruled by what was saved."""
        self.save()
        self.state = bound_to(self.store, initial)

    @precondition(is_bound)
    @rule(same_object=st.booleans())
    def crash(self, same_object):
        """What was not saved is gone, in another process or in this one."""
        if self.saved is None:
            return
        if not same_object:
            self.state = KeyValueState()
        self.state.bind(self.store, pickle.dumps, pickle.loads)
        self.naive = copy.deepcopy(self.saved)

    @precondition(is_bound)
    @rule()
    def lose_the_store(self):
        """It is bound to an empty store: all that is here goes there, however little of it was read."""
        self.store = CountingStore()
        self.state.bind(self.store, pickle.dumps, pickle.loads)
        self.saved = None

    @rule()
    def travel(self):
        copied = pickle.loads(pickle.dumps(self.state))
        assert copied == self.naive
        assert not copied.is_bound

    @rule()
    def read_everything(self):
        assert dict(self.state) == self.naive
        assert len(list(self.state)) == len(self.naive)
        assert self.state == self.naive

    @invariant()
    def they_have_the_same_size(self):
        if hasattr(self, "state"):
            assert len(self.state) == len(self.naive)
            assert repr(self.state) == f"KeyValueState({len(self.naive)} keys)"

    @invariant()
    def an_empty_bucket_is_not_kept(self):
        if self.saved is not None:
            meta = self.store.blobs["meta"]
            blobs = {name: pickle.loads(blob) for name, blob in self.store.blobs.items() if name != "meta"}
            assert all(blobs.values())
            assert sum(map(len, blobs.values())) == len(self.saved)
            assert meta.startswith(b"{")


StateBesideADict.TestCase.settings = settings(max_examples=drawn(150), stateful_step_count=40, deadline=None)
TestStateBesideADict = pytest.mark.slow(StateBesideADict.TestCase)


# ---- keys that expire -------------------------------------------------------------------------------------


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


# ---- what is written and what is read ---------------------------------------------------------------------


def test_one_changed_key_writes_one_bucket(store, small_buckets):
    state = bound_to(store, {number: number for number in range(40)})
    state.save()
    assert len(store.calls("put")) > 15
    state = bound_to(store)
    state[7] += 1
    state.save()
    assert len(store.calls("put")) == 1
    assert dict(bound_to(store)) == {number: number + (number == 7) for number in range(40)}


def test_what_was_only_read_is_not_written(store, small_buckets):
    state = bound_to(store, {number: [number] for number in range(20)})
    state.save()
    state = bound_to(store)
    store.calls()
    assert sorted(map(tuple, state.values())) == [(number,) for number in range(20)]
    state.save()
    assert store.calls("put", "delete") == []


def test_only_the_keys_that_are_asked_for_are_read(store, small_buckets):
    state = bound_to(store, {number: number for number in range(40)})
    state.save()
    state = bound_to(store)
    store.calls()
    assert state[7] == 7
    assert len(state) == 40
    assert len(store.calls("get")) == 1


def test_the_same_value_set_again_is_not_written(store):
    state = bound_to(store, {"a": 1})
    state.save()
    store.calls()
    state["a"] = 1
    state.save()
    assert store.calls("put") == []


def test_a_value_changed_in_place_is_written(store):
    state = bound_to(store)
    state["a"] = [[]]
    state.save()
    state = bound_to(store)
    state["a"][0].append(5)
    state.save()
    assert bound_to(store)["a"] == [[5]]


def test_what_was_deleted_leaves_nothing_behind(store, small_buckets):
    state = bound_to(store, {number: number for number in range(40)})
    state.save()
    state = bound_to(store)
    for number in range(40):
        del state[number]
    state.save()
    assert list(store.blobs) == ["meta"]
    assert len(bound_to(store)) == 0


def test_nothing_is_written_when_nothing_happened(store):
    state = bound_to(store)
    state.save()
    store.calls()
    bound_to(store).save()
    assert store.calls("put", "delete") == []


def test_the_number_of_buckets_grows_with_the_keys(store):
    count = module.KEYS_PER_BUCKET * 5
    bound_to(store, dict.fromkeys(range(count))).save()
    buckets = [pickle.loads(blob) for name, blob in store.blobs.items() if name != "meta"]
    assert len(buckets) == 8
    assert max(map(len, buckets)) < 2 * module.KEYS_PER_BUCKET
    assert sorted(bound_to(store)) == list(range(count))


def test_growing_key_by_key_leaves_every_key_in_one_bucket(store, small_buckets):
    """Some buckets give all their keys away when they are doubled."""
    state = bound_to(store)
    for number in range(100):
        state[number] = number
        state.save()
        buckets = [pickle.loads(blob) for name, blob in store.blobs.items() if name != "meta"]
        assert sum(map(len, buckets)) == number + 1
        assert len(bound_to(store)) == number + 1
    assert dict(bound_to(store)) == {number: number for number in range(100)}


def test_what_was_saved_is_not_pickled_again(store):
    def dumps(value):
        pickled.append(value)
        return pickle.dumps(value)

    pickled = []
    state = KeyValueState({"a": 1})
    state.bind(store, dumps, pickle.loads)
    state.save()
    state.save()
    assert pickled == [{"a": 1}]
    state["a"] = 2
    state.save()
    assert pickled == [{"a": 2}, {"a": 2}]  # the same bucket
    state.save()
    assert len(pickled) == 2


def test_growing_moves_keys_that_were_saved_before(store, small_buckets):
    state = bound_to(store, {number: number for number in range(8)})
    state.save()
    state[8] = 8  # one too many for four buckets
    state.save()
    assert len(store.blobs) > 5
    assert dict(bound_to(store)) == {number: number for number in range(9)}


def test_growing_moves_keys_that_were_not_read_too(store, small_buckets):
    bound_to(store, {number: number for number in range(8)}).save()
    state = bound_to(store)
    state[8] = 8  # one too many for four buckets, of which one was read
    state.save()
    state = bound_to(store)
    assert [state.get(number) for number in range(9)] == [*range(9)]


@pytest.mark.parametrize("read", [[], [7], [*range(40)]], ids=["nothing", "one", "all"])
def test_a_cleared_state_deletes_all_its_blobs_with_any_keys_read_before(store, small_buckets, read):
    bound_to(store, {number: number for number in range(40)}).save()
    state = bound_to(store)
    assert [state[number] for number in read] == read
    state.clear()
    assert len(state) == len(list(state)) == 0
    state["after"] = 1
    state.save()
    assert dict(bound_to(store)) == {"after": 1}
    assert len(store.blobs) == 2


def test_a_key_that_comes_and_goes_within_a_micro_batch_is_not_saved(store):
    state = bound_to(store, {"stays": 1})
    state["goes"] = 1
    del state["goes"]
    state["comes again"] = state.pop("stays")
    state["stays"] = state.pop("comes again")
    state.save()
    assert dict(bound_to(store)) == {"stays": 1}


def test_what_still_lies_in_the_old_store_moves_to_the_new_one(store, small_buckets):
    state = bound_to(store, {number: number for number in range(40)})
    state.save()
    state = bound_to(store)
    fresh = CountingStore()
    state.bind(fresh, pickle.dumps, pickle.loads)
    state.save()
    assert dict(bound_to(fresh)) == {number: number for number in range(40)}


def test_a_bucket_is_read_once_and_one_that_cannot_be_there_never(store, small_buckets):
    bound_to(store, {"a": 1}).save()
    assert store.calls("get") == ["meta"]
    store = CountingStore()
    state = bound_to(store, {number: number for number in range(40)})
    assert 99 not in state
    state.save()
    assert store.calls("get") == ["meta"]
    state = bound_to(store)
    for _ in range(2):
        state.update(dict.fromkeys(range(40), -1))
        assert [state.get(number) for number in range(80)] == [-1] * 40 + [None] * 40
    state.save()
    asked = store.calls("get")
    assert len(asked) == len(set(asked))


def test_a_key_that_was_noted_is_saved_in_each_of_its_micro_batches(store):
    state = bound_to(store, {"a": 1})
    for value in (2, 3, 4):
        state["a"] = state["new"] = value
        state.save()
        assert dict(bound_to(store)) == {"a": value, "new": value}
    del state["a"]
    state.save()
    assert dict(bound_to(store)) == {"new": 4}


# ---- what is hashed ---------------------------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch):
    """The keys that are hashed one by one."""

    def hash_of(key):
        keys.append(key)
        return stable_hash(key)

    keys = []
    monkeypatch.setattr(module, "_hash_of", hash_of)
    return keys


def test_a_key_that_is_there_is_not_hashed(store, small_buckets, hashed):
    bound_to(store, {(number, "key"): number for number in range(40)}).save()
    state = bound_to(store)
    assert state[7, "key"] == 7
    hashed.clear()
    for _ in range(3):
        state[7, "key"] = state.get((7, "key"), 0) + state[7, "key"]
        assert (7, "key") in state
        state.setdefault((7, "key"), 0)
    assert hashed == []
    state.save()
    assert hashed == []
    assert bound_to(store)[7, "key"] == 7 * 2**3


def test_where_nothing_is_left_to_read_no_text_is_hashed_before_it_is_saved(hashed):
    state = KeyValueState()
    for number in range(99):
        state[f"key {number}"] = state.get(f"key {number}", number)
    assert hashed == []


# ---- many keys at once ------------------------------------------------------------------------------------


def test_of_many_keys_only_their_buckets_are_read_and_written(store, small_buckets):
    bound_to(store, {f"key {number}": number for number in range(200)}).save()
    asked = [f"key {number}" for number in range(5)]
    state = bound_to(store)
    store.calls()
    assert state.get_many(asked) == [0, 1, 2, 3, 4]
    state.update_many(asked, [value + 1 for value in range(5)])
    read = store.calls("get")
    assert len(read) <= 5
    state.save()
    assert set(store.calls("put")) <= set(read)
    assert bound_to(store).get_many(asked) == [1, 2, 3, 4, 5]


def test_arrow_columns_are_taken_for_their_values(store):
    state = bound_to(store)
    state.update_many(pa.array(["a", "b"]), pa.array([1, 2]))
    assert dict(state) == {"a": 1, "b": 2}
    assert state.get_many(pa.array(["b", "c", None]), 0) == [2, 0, 0]


@pytest.mark.parametrize("values", [[1], [1, 2, 3]])
def test_many_keys_need_one_value_each_and_else_nothing_is_set(values):
    state = KeyValueState({"a": 0})
    with pytest.raises(MisuseError, match=f"2 keys and {len(values)} values") as refused:
        state.update_many(["a", "b"], values)
    assert "give one value for each key" in str(refused.value)
    assert dict(state) == {"a": 0}


# ---- NaN --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Price:
    name: str
    amount: object
    note: object = field(default=None, compare=False)


class Pair(NamedTuple):
    a: object
    b: int


nans = [
    *(lambda: float("nan"), lambda: -float("nan"), lambda: Decimal("nan"), lambda: np.float32("nan")),
    *(lambda: np.float64("nan"), lambda: np.datetime64("NaT"), lambda: np.timedelta64("NaT", "s")),
]
numbers = [lambda value=value: value for value in (0.0, -0.0, 0, 1, True, 1.5, "nan", None)]
leaves = st.sampled_from(numbers + nans)
nested = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(lambda made: lambda: tuple(make() for make in made)),
        st.lists(parts, max_size=3).map(lambda made: lambda: frozenset(make() for make in made)),
        parts.map(lambda make: lambda: Pair(make(), 1)),
        parts.map(lambda make: lambda: Price("a", make(), note=object)),
    ),
    max_leaves=4,
)
"""Each makes an equal key anew."""


def form(key):
    """The naive key: a text in the place of each NaN, and of each class."""
    if isinstance(key, tuple):
        return ("tuple", *map(form, key))
    if isinstance(key, frozenset):
        return ("frozenset", frozenset(map(form, key)))
    if isinstance(key, Price):
        return ("Price", key.name, form(key.amount))
    if isinstance(key, np.generic) and key.dtype.kind in "mM":
        return ("NaT", key.dtype.kind)
    return ("NaN",) if key != key else key  # noqa: PLR0124


@given(st.lists(nested, min_size=1, max_size=4), st.data())
def test_all_nan_are_one_key_wherever_they_stand(makers, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEYS_PER_BUCKET", 2)
        store, naive = MemoryStore(), {}
        state = bound_to(store)
        for number in range(20):
            make = data.draw(st.sampled_from(makers))
            match data.draw(st.sampled_from(["set", "delete", "many", "save"])):
                case "set":
                    state[make()] = state.get(make(), 0) + 1
                    naive[form(make())] = naive.get(form(make()), 0) + 1
                case "delete":
                    assert state.pop(make(), None) == naive.pop(form(make()), None)
                case "many":
                    state.update_many([make(), make()], [0, number])
                    naive[form(make())] = number
                case "save":
                    state.save()
                    state = bound_to(store)
            asked = [make() for make in makers]
            assert [key in state for key in asked] == [form(key) in naive for key in asked]
            assert len(state) == len(naive)
        assert state.get_many(asked) == [naive.get(form(key)) for key in asked]
        assert {form(key): value for key, value in state.items()} == naive


@given(nested)
def test_a_key_of_one_nan_has_the_hash_of_the_key(make):
    key = make()
    assert stable_hash(with_one_nan(key)) == stable_hash(make())
    one = with_one_nan(key)
    assert with_one_nan(one) is one


def test_nan_that_an_earlier_release_kept_apart_become_one_key_when_they_are_read(store):
    earlier = {float("nan"): number for number in range(5)} | {1.5: 7}
    number = stable_hash(float("nan")) & 1
    buckets = {number: {key: kept for key, kept in earlier.items() if stable_hash(key) & 1 == number}}
    buckets[1 - number] = {key: kept for key, kept in earlier.items() if key not in buckets[number]}
    for at, bucket in buckets.items():
        if bucket:
            store.put(f"bucket/{at}", pickle.dumps(bucket))
    store.put("meta", b'{"bits": 1, "count": 6}')
    state = bound_to(store)
    state[float("nan")] = state[float("nan")] + 1
    assert len(state) == 2
    state.save()
    state = bound_to(store)
    assert (state[float("nan")], state[1.5], len(state)) == (5, 7, 2)


# ---- as a dict --------------------------------------------------------------------------------------------


def test_equal_keys_of_any_types_are_one_key(store, small_buckets):
    state = bound_to(store, dict.fromkeys(range(20), "int"))
    state.save()
    state = bound_to(store)
    state[True] = "bool"
    state[2.0] = "float"
    state[Decimal(3)] = "decimal"
    assert len(state) == 20
    assert (state[1], state[2], state[3]) == ("bool", "float", "decimal")


@pytest.mark.parametrize(
    "change", [lambda state: state.update({99: 1}), lambda state: state.pop(1), KeyValueState.clear]
)
def test_changing_the_size_while_iterating_is_noticed_as_in_a_dict(small_buckets, change):
    state = KeyValueState({number: number for number in range(9)})

    def change_on_the_way():
        for key in state:
            if key == 1:
                change(state)

    with pytest.raises(RuntimeError, match="changed size during iteration"):
        change_on_the_way()


def test_growing_while_iterating_is_noticed_whichever_bucket_grows(small_buckets):
    def grow_on_the_way(state, new):
        for _ in state:
            state[new] = 1

    for new in range(100, 130):
        with pytest.raises(RuntimeError, match="changed size during iteration"):
            grow_on_the_way(KeyValueState({number: number for number in range(8)}), new)


def test_values_may_be_replaced_while_iterating(small_buckets):
    state = KeyValueState({number: number for number in range(9)})
    for key in state:
        state[key] = -key
    assert dict(state) == {number: -number for number in range(9)}


class Opaque:
    """Hashable for Python, but without a stable hash."""


@pytest.mark.parametrize("what", ["unbound", "new", "unread", "read"])
@pytest.mark.parametrize("key", [Opaque(), (1, Opaque())], ids=["alone", "inside"])
def test_a_key_without_a_stable_hash_is_refused_wherever_it_is_named_and_changes_nothing(
    store, small_buckets, what, key
):
    if what in {"unread", "read"}:
        bound_to(store, {number: number for number in range(40)}).save()
    state = KeyValueState() if what == "unbound" else bound_to(store)
    before = dict(state) if what == "read" else None
    for refuse in (
        state.get, state.__contains__, state.setdefault, lambda key: state.update({key: 1}),
        lambda key: state.get_many([7, key]), lambda key: state.update_many([99, key], [1, 2]),
    ):  # fmt: skip
        with pytest.raises(MisuseError, match="no hash that is equal in all processes"):
            refuse(key)
    with pytest.raises(TypeError, match="unhashable"):
        state[[1]] = 1
    assert len(state) == (40 if what in {"unread", "read"} else 0)
    assert before is None or dict(state) == before
    if state.is_bound:
        state.save()
        assert len(bound_to(store)) == len(state)


def test_unbound_states_do_not_share_anything():
    first, second = KeyValueState({"a": 1}), KeyValueState()
    assert not first.is_bound
    assert list(second) == []
    assert pickle.loads(pickle.dumps(first)) == {"a": 1}


def test_a_state_that_lies_nowhere_cannot_be_saved():
    with pytest.raises(ProtocolError, match="unbound state"):
        KeyValueState({"a": 1}).save()


def test_a_state_bound_again_forgets_what_it_believed_of_the_store(store):
    state = bound_to(store, {"a": 1, "b": 2})
    state.save()
    fresh = CountingStore()
    state.bind(fresh, pickle.dumps, pickle.loads)
    state.save()
    assert dict(bound_to(fresh)) == {"a": 1, "b": 2}


def test_a_state_bound_to_another_store_reads_that_one(store):
    there = CountingStore()
    for each, value in ((store, 2), (there, 3)):
        bound_to(each, {"a": value}).save()
    state = bound_to(there)
    assert state["a"] == 3
    state.bind(store, pickle.dumps, pickle.loads)
    assert state["a"] == 2
