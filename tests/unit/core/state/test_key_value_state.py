"""A state is a dict that outlives its process: both take the same random actions, saves and crashes too."""

from __future__ import annotations

import copy
import pickle
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import settings
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

from acktree.core.data.hashing import stable_hash
from acktree.core.state import key_value_state as module
from acktree.core.state.key_value_state import KeyValueState
from acktree.errors import MisuseError, ProtocolError
from tests.drawn import drawn
from tests.unit.core.state.counting_store import CountingStore, bound_to

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
    @rule()
    def next_epoch(self):
        """It stays in memory where it may, and nobody can tell it from one that is read."""
        self.save()
        if self.state.may_stay:
            self.state.go_on(self.store, pickle.dumps, pickle.loads)
        else:
            self.state = bound_to(self.store)

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


def test_a_state_that_stays_reads_no_bucket_again_and_writes_those_that_changed(store, small_buckets):
    state = bound_to(store, {f"key {number}": number for number in range(40)})
    state.save()
    for number in range(1, 4):
        assert state.may_stay
        state.go_on(store, pickle.dumps, pickle.loads)
        store.calls("get", "put")
        state["key 7"] = -number
        assert state["key 8"] == 8
        state.save()
        assert [name.partition("/")[0] for name in store.calls("get", "put")] == ["bucket"]
    assert bound_to(store) == state


@pytest.mark.parametrize("value", [[], (1,), Decimal(1)])
def test_a_state_with_values_that_may_change_or_share_a_part_does_not_stay(store, value):
    state = bound_to(store, {"a": 1})
    state.save()
    state.go_on(store, pickle.dumps, pickle.loads)
    state["a"] = value
    state.save()
    assert not state.may_stay
    state["a"] = 1
    state.save()
    assert state.may_stay


def test_a_state_whose_keys_expire_does_not_stay(store):
    state = KeyValueState({"a": 1}, ttl_secs=60)
    state.bind(store, pickle.dumps, pickle.loads, now_ms=0)
    state.save()
    assert not state.may_stay


def test_a_large_state_does_not_stay_in_memory(store, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    state = bound_to(store, {"a": "x" * 900})
    state.save()
    assert state.may_stay
    state["b"] = "x" * 100
    state.save()
    assert not state.may_stay


def test_what_an_interruption_left_is_counted_right_in_a_state_that_has_stayed(store, small_buckets):
    bound_to(store, {f"key {number}": number for number in range(40)}).save()
    state = bound_to(store)
    state["new"] = 1
    state.save()
    state.go_on(store, pickle.dumps, pickle.loads)
    state._is_taking_in = True  # as an exception from outside leaves it
    assert len(state) == 41
