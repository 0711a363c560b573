"""Messages to the acker may be summed, split, joined and sent in any way: what they say stays the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.deltas import Deltas, acker_of, concat_deltas, sum_by_root

ids = st.integers(-(1 << 63), (1 << 63) - 1)
roots = st.sampled_from([0, 1, -1, 6, 7, (1 << 63) - 1, -(1 << 63)])


def int64s(values):
    return np.array(list(values), dtype=np.int64)


@st.composite
def messages(draw):
    """Some Deltas; an init's root is not asked to be new."""
    inits = draw(st.lists(st.tuples(roots, ids, st.integers(1, 9)), max_size=4))
    acks = draw(st.lists(st.tuples(roots, ids), max_size=6))
    reasons = tuple(draw(st.lists(st.binary(max_size=9), max_size=3)))
    fails = draw(st.lists(st.tuples(roots, st.integers(0, len(reasons) - 1)), max_size=5)) if reasons else []
    resets = draw(st.lists(roots, max_size=4))
    return Deltas(
        int64s(root for root, _, _ in inits), int64s(total for _, total, _ in inits),
        np.array([owner for _, _, owner in inits], dtype=np.int32),
        int64s(root for root, _ in acks), int64s(total for _, total in acks),
        int64s(root for root, _ in fails), int64s(reason for _, reason in fails), reasons,
        int64s(resets),
    )  # fmt: skip


def said(deltas):
    """What a message says, the slow way: inits, XOR of the acks, fails in order with their words, resets."""
    assert deltas.init_owners.dtype == np.int32
    wide = (deltas.init_roots, deltas.init_sums, deltas.ack_roots, deltas.ack_sums, deltas.fail_roots)
    assert {part.dtype for part in (*wide, deltas.failures, deltas.reset_roots)} == {np.dtype(np.int64)}
    inits = zip(
        deltas.init_roots.tolist(), deltas.init_sums.tolist(), deltas.init_owners.tolist(), strict=True
    )
    acks = {}
    for root, total in zip(deltas.ack_roots.tolist(), deltas.ack_sums.tolist(), strict=True):
        acks[root] = acks.get(root, 0) ^ total
    fails = {}
    for root, reason in zip(deltas.fail_roots.tolist(), deltas.failures.tolist(), strict=True):
        fails.setdefault(root, []).append(deltas.reasons[reason])
    return sorted(inits), acks, fails, sorted(set(deltas.reset_roots.tolist()))


def together(each):
    """What several messages say."""
    inits, acks, fails, resets = [], {}, {}, set()
    for its_inits, its_acks, its_fails, its_resets in map(said, each):
        inits += its_inits
        for root, total in its_acks.items():
            acks[root] = acks.get(root, 0) ^ total
        for root, words in its_fails.items():
            fails.setdefault(root, []).extend(words)
        resets |= set(its_resets)
    return sorted(inits), acks, fails, sorted(resets)


@given(st.lists(st.tuples(roots, ids)))
def test_deltas_of_a_root_are_added_up_in_any_order(pairs):
    naive = {}
    for root, delta in pairs:
        naive[root] = naive.get(root, 0) ^ delta
    summed, sums = sum_by_root(int64s(root for root, _ in pairs), int64s(delta for _, delta in pairs))
    assert summed.tolist() == sorted(naive)
    assert sums.tolist() == [naive[root] for root in sorted(naive)]


@given(messages())
def test_summing_keeps_what_is_said_and_says_each_acked_root_once(deltas):
    summed = deltas.summed()
    assert said(summed) == said(deltas)
    assert len(set(summed.ack_roots.tolist())) == len(summed.ack_roots)
    assert len(set(summed.reset_roots.tolist())) == len(summed.reset_roots)


@given(messages())
def test_the_wire_keeps_what_is_said(deltas):
    assert said(Deltas.from_bytes(deltas.to_bytes())) == said(deltas)


@given(st.lists(messages(), max_size=4))
def test_messages_put_together_say_what_each_said_in_order(each):
    assert said(concat_deltas(each)) == together(each)


@given(messages(), st.integers(1, 5))
def test_every_root_goes_to_its_own_acker_and_to_no_other(deltas, ackers):
    parts = deltas.split(ackers)
    assert len(parts) == ackers
    assert together(parts) == said(deltas)
    for acker, part in enumerate(parts):
        for name in ("init_roots", "ack_roots", "fail_roots", "reset_roots"):
            assert all(root % ackers == acker for root in getattr(part, name).tolist())
        if ackers > 1:
            assert set(part.failures.tolist()) == set(range(len(part.reasons)))  # only the words it needs


@given(messages())
def test_a_message_is_true_when_it_says_anything(deltas):
    inits, acks, fails, resets = said(deltas)
    assert bool(deltas) == bool(inits or acks or fails or resets)


@pytest.mark.parametrize("name", ["init_roots", "ack_roots", "fail_roots", "reset_roots"])
def test_one_word_is_something(name):
    assert Deltas(**{name: int64s([0])})


def test_nothing_said_is_nothing():
    assert not Deltas()
    assert not concat_deltas([])
    assert said(Deltas.from_bytes(Deltas().to_bytes())) == ([], {}, {}, [])
    assert [len(part) for part in sum_by_root(int64s([]), int64s([]))] == [0, 0]


def test_one_message_put_together_is_itself():
    deltas = Deltas()
    assert concat_deltas([deltas]) is deltas


@pytest.mark.parametrize("ackers", [1, 2, 3, 7])
def test_a_negative_root_has_an_acker_too(ackers):
    assert acker_of(int64s([-1, -(1 << 63), 5]), ackers).tolist() == [
        -1 % ackers,
        -(1 << 63) % ackers,
        5 % ackers,
    ]
