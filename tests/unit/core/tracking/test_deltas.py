"""Messages to the acker may be summed, split, joined and sent in any way: what they say stays the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.ids import root_ids
from acktree.core.tracking.deltas import Deltas, as_sequence_sums, concat_deltas
from acktree.core.tracking.sequence_sums import SHORTEST, Opened, SequenceSums
from acktree.core.tracking.sparse_sums import SparseSums
from acktree.errors import ProtocolError

ids = st.integers(-(1 << 63), (1 << 63) - 1)
roots = st.sampled_from([0, 1, -1, 6, 7, (1 << 63) - 1, -(1 << 63)])
tasks = st.sampled_from([1, 2, (1 << 16) - 1])


def int64s(values):
    return np.array(list(values), dtype=np.int64)


@st.composite
def in_runs(draw):
    """(opened, sequence sums, sparse sums): ranges of messages that were opened, each once; sums of any."""
    opened, at = [], 0
    for _ in range(draw(st.integers(0, 3))):
        first = at + draw(st.integers(0, 3))
        at = first + draw(st.integers(1, 4))
        opened.append(Opened(draw(tasks), first, at))
    starts = st.lists(st.tuples(tasks, st.integers(0, 5000)), max_size=3)
    sequence_sums = tuple(
        SequenceSums(*start, int64s(draw(st.lists(ids, max_size=4)))) for start in draw(starts)
    )
    sparse_sums = []
    for start in draw(starts):
        places = draw(st.dictionaries(st.integers(0, (1 << 31) - 1), ids, min_size=1, max_size=4))
        at = sorted(places)
        here = np.array(at, dtype=np.int32)
        sparse_sums.append(SparseSums(*start, here, int64s(places[place] for place in at)))
    return tuple(opened), sequence_sums, tuple(sparse_sums)


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
        int64s(resets), *draw(in_runs()),
    )  # fmt: skip


def said(deltas):
    """What a message says, the slow way: inits, XOR of the acks, fails in order with their words, resets,
    messages opened in runs, XOR of what was said in runs."""
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
    opened = sorted((run.task, at) for run in deltas.opened for at in range(run.first, run.end))
    places = {}
    for sequence_sum in deltas.sequence_sums:
        assert sequence_sum.sums.dtype == np.int64
        for place, total in enumerate(sequence_sum.sums.tolist()):
            places[sequence_sum.task, sequence_sum.first + place] = (
                places.get((sequence_sum.task, sequence_sum.first + place), 0) ^ total
            )
    for sparse_sum in deltas.sparse_sums:
        assert (sparse_sum.places.dtype, sparse_sum.sums.dtype) == (np.int32, np.int64)
        for place, total in zip(sparse_sum.places.tolist(), sparse_sum.sums.tolist(), strict=True):
            key = sparse_sum.task, sparse_sum.first + place
            places[key] = places.get(key, 0) ^ total
    owed = {place: total for place, total in places.items() if total}
    return sorted(inits), acks, fails, sorted(set(deltas.reset_roots.tolist())), opened, owed


def together(each):
    """What several messages say."""
    inits, acks, fails, resets, opened, places = [], {}, {}, set(), [], {}
    for its_inits, its_acks, its_fails, its_resets, its_opened, its_places in map(said, each):
        inits += its_inits
        opened += its_opened
        for sums, its_sums in ((acks, its_acks), (places, its_places)):
            for key, total in its_sums.items():
                sums[key] = sums.get(key, 0) ^ total
        for root, words in its_fails.items():
            fails.setdefault(root, []).extend(words)
        resets |= set(its_resets)
    owed = {place: total for place, total in places.items() if total}
    return sorted(inits), acks, fails, sorted(resets), sorted(opened), owed


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


@given(messages())
def test_a_message_is_true_when_it_says_anything(deltas):
    inits, acks, fails, resets, opened, _ = said(deltas)
    assert bool(deltas) == bool(
        inits or acks or fails or resets or opened or deltas.sequence_sums or deltas.sparse_sums
    )


@given(messages())
def test_summing_makes_as_few_runs_as_possible(deltas):
    summed = deltas.summed()
    assert (
        len(summed.sequence_sums) <= len({sequence_sum.task for sequence_sum in deltas.sequence_sums}) * 2
    )  # drawn no further than two gaps
    assert len(summed.opened) <= len(deltas.opened)
    assert all(run.first < run.end for run in summed.opened)


def test_a_message_that_two_runs_opened_stops_loudly_where_it_is_summed():
    twice = Deltas(opened=(Opened(1, 0, 5), Opened(1, 4, 6)))
    with pytest.raises(ProtocolError, match="message 4 of spout task 1 is open twice"):
        twice.summed()


@given(st.lists(st.tuples(st.integers(0, 2 * SHORTEST), st.integers(1, 60), ids), max_size=4))
def test_acks_of_frames_are_sequence_sums_where_sequences_are_close_and_pairs_elsewhere(frames):
    acks = [
        (root_ids(3, 1, np.arange(first, first + count)), int64s([sum_] * count))
        for first, count, sum_ in frames
    ]
    sent = as_sequence_sums(3, acks)
    naive = {}
    for acked, sums in acks:
        for root, total in zip(acked.tolist(), sums.tolist(), strict=True):
            naive[root] = naive.get(root, 0) ^ total
    owed = dict.fromkeys(naive, 0)
    for sequence_sum in sent.sequence_sums:
        for root, total in zip(
            root_ids(3, 1, np.arange(sequence_sum.first, sequence_sum.end)).tolist(),
            sequence_sum.sums.tolist(),
            strict=True,
        ):
            owed[root] ^= total
    for part in sent.sparse_sums:
        sequences = part.first + part.places.astype(np.int64)
        for root, total in zip(root_ids(3, 1, sequences).tolist(), part.sums.tolist(), strict=True):
            owed[root] ^= total
    for root, total in zip(sent.ack_roots.tolist(), sent.ack_sums.tolist(), strict=True):
        owed[root] ^= total
    assert owed == naive
    assert len(sent.sequence_sums) == sum(count >= SHORTEST for _, count, _ in frames)
    assert sent.opened == ()


@pytest.mark.parametrize("name", ["init_roots", "ack_roots", "fail_roots", "reset_roots"])
def test_one_word_is_something(name):
    assert Deltas(**{name: int64s([0])})


def test_one_run_is_something():
    assert Deltas(opened=(Opened(1, 0, 1),))
    assert Deltas(sequence_sums=(SequenceSums(1, 0, int64s([5])),))


def test_nothing_said_is_nothing():
    assert not Deltas()
    assert not concat_deltas([])
    assert said(Deltas.from_bytes(Deltas().to_bytes())) == ([], {}, {}, [], [], {})


def test_one_message_put_together_is_itself():
    deltas = Deltas()
    assert concat_deltas([deltas]) is deltas
