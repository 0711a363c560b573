"""Which keys are one key: all NaN are, and equal keys of any types, as in a dict."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.hashing import stable_hash, with_one_nan
from acktree.core.state import key_value_state as module
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.state.store import MemoryStore
from tests.unit.core.state.counting_store import bound_to


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
