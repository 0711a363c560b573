"""A state remembers where its keys lie, and never longer than they lie there."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest

from acktree.core import key_value_state as module
from acktree.core.key_value_state import KeyValueState
from acktree.core.state import MemoryStore


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(module, "KEYS_PER_BUCKET", 2)


def bound_to(store, initial=None):
    state = KeyValueState(initial)
    state.bind(store, pickle.dumps, pickle.loads)
    return state


def test_a_key_is_found_again_however_many_were_asked_for_since(monkeypatch, small_buckets):
    monkeypatch.setattr(module, "_PLACES", 3)
    state = KeyValueState({number: number for number in range(9)})
    for _ in range(2):
        assert [state[number] for number in range(9)] == list(range(9))
        assert 99 not in state
    assert state[1.0] == state[Decimal(1)] == 1


def test_a_place_is_forgotten_when_keys_move(small_buckets):
    store = MemoryStore()
    state = bound_to(store, {"a": 1})
    assert state["a"] == 1
    state.update({number: number for number in range(9)})  # the buckets are doubled under it
    state["a"] = 2
    state.save()
    assert dict(bound_to(store)) == {"a": 2, **{number: number for number in range(9)}}


def test_a_place_in_one_store_is_none_in_another():
    here, there = MemoryStore(), MemoryStore()
    for store, value in ((here, 2), (there, 3)):
        bound_to(store, {"a": value}).save()
    state = bound_to(there)
    assert state["a"] == 3
    state.bind(here, pickle.dumps, pickle.loads)
    assert state["a"] == 2
