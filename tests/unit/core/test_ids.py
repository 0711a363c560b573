"""Ids are derived: unique where they must be, the same wherever and whenever they are made again."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.ids import (
    MAX_SPOUT_TASK,
    SEQUENCE_BITS,
    channel_id,
    edge_ids,
    fold,
    mix64,
    root_ids,
    row_root_ids,
    sequences_of,
)

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

unsigned = st.integers(0, MASK)
signed = st.integers(-(1 << 63), (1 << 63) - 1)
salts = st.integers(-(1 << 70), 1 << 70)
tasks = st.integers(0, MAX_SPOUT_TASK)
sequences = st.integers(0, (1 << SEQUENCE_BITS) - 1)


def uint64s(*values):
    return np.array(values, dtype=np.uint64)


def int64s(*values):
    return np.array(values, dtype=np.int64)


def mixed(value):
    """The mixer again, on Python's ints."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def edge(parent, channel, ordinal):
    return int(edge_ids(uint64s(parent & MASK), uint64s(channel), int64s(ordinal))[0])


# ---- the mixer --------------------------------------------------------------------------------------------


@given(st.sets(unsigned))
def test_what_is_mixed_stays_different(values):
    assert len(set(mix64(uint64s(*values)).tolist())) == len(values)


@given(st.lists(unsigned))
def test_the_mixer_says_what_plain_integers_say_and_leaves_its_argument_alone(values):
    given_values = uint64s(*values)
    assert mix64(given_values).tolist() == [mixed(value) for value in values]
    assert given_values.tolist() == values


# ---- roots ------------------------------------------------------------------------------------------------


@given(salts, tasks, st.lists(sequences))
def test_a_root_names_its_spout_task_and_its_place_in_the_spouts_order(salt, task, places):
    roots = root_ids(salt, task, int64s(*places))
    assert roots.dtype == np.int64
    named_tasks, named_places = sequences_of(salt, roots)
    assert named_tasks.dtype == named_places.dtype == np.int64
    assert named_tasks.tolist() == [task] * len(places)
    assert named_places.tolist() == places


@given(salts, st.sets(st.tuples(tasks, sequences), max_size=30))
def test_no_two_messages_of_a_checkpoint_have_one_root(salt, messages):
    roots = {int(root_ids(salt, task, int64s(place))[0]) for task, place in messages}
    assert len(roots) == len(messages)


@pytest.mark.parametrize("task", [0, MAX_SPOUT_TASK])
@pytest.mark.parametrize("place", [0, (1 << SEQUENCE_BITS) - 1])
@pytest.mark.parametrize("salt", [0, -1, 1 << 64])
def test_the_last_task_and_the_last_sequence_have_roots_like_any_other(salt, task, place):
    named = sequences_of(salt, root_ids(salt, task, int64s(place)))
    assert [part.tolist() for part in named] == [[task], [place]]


def test_another_salt_gives_other_roots():
    every = np.concatenate([root_ids(salt, 1, np.arange(1000)) for salt in range(20)])
    assert len(np.unique(every)) == 20_000


# ---- roots of rows ----------------------------------------------------------------------------------------


@given(salts, st.integers(0, 1 << 40), st.integers(0, 999), st.lists(st.integers(0, 5)))
def test_equal_rows_are_distinguished_only_by_their_occurrence(salt, batch_id, partition, hashes):
    roots = row_root_ids(salt, batch_id, partition, uint64s(*hashes)).tolist()
    assert len(set(roots)) == len(hashes)
    seen = {}
    for value, root in zip(hashes, roots, strict=True):
        occurrence = seen[value] = seen.get(value, 0) + 1
        alone = row_root_ids(salt, batch_id, partition, uint64s(*[value] * occurrence))
        assert int(alone[-1]) == root


def test_a_row_has_another_root_in_another_place():
    row = uint64s(12)
    places = [(salt, batch, part) for salt in range(4) for batch in range(10) for part in range(10)]
    assert len({int(row_root_ids(*place, row)[0]) for place in places}) == len(places)


# ---- channels and edges -----------------------------------------------------------------------------------


def test_channels_differ_by_component_stream_and_partition():
    names = ["a", "b", "ab", "1", "a1", "", "é", "\ud800"]
    triples = [(component, stream, task) for component in names for stream in names for task in range(-1, 12)]
    assert len({int(channel_id(*triple)) for triple in triples}) == len(triples)


@given(st.sets(st.tuples(signed, unsigned, st.integers(0, 1 << 40)), max_size=30))
def test_every_parent_channel_and_ordinal_has_its_own_edge(copies):
    assert len({edge(*copy) for copy in copies}) == len(copies)


def test_the_edges_of_a_hundred_parents_on_twenty_channels_are_all_different():
    parents = root_ids(3, 1, np.arange(100)).view(np.uint64)
    channels = np.array([channel_id("split", "default", task) for task in range(20)], dtype=np.uint64)
    grid = [axis.ravel() for axis in np.meshgrid(parents, channels, np.arange(50))]
    edges = edge_ids(*grid)
    assert edges.dtype == np.int64
    assert len(np.unique(edges)) == len(edges) == 100_000


@given(st.lists(st.tuples(unsigned, st.integers(0, 99)), min_size=1), unsigned, st.randoms())
def test_an_edge_does_not_depend_on_its_place_among_others(copies, channel, chance):
    folds, ordinals = uint64s(*(parent for parent, _ in copies)), int64s(*(ordinal for _, ordinal in copies))
    edges = edge_ids(folds, uint64s(channel), ordinals)
    assert edges.tolist() == edge_ids(folds, uint64s(*[channel] * len(copies)), ordinals).tolist()
    order = list(range(len(copies)))
    chance.shuffle(order)
    assert edge_ids(folds[order], uint64s(channel), ordinals[order]).tolist() == edges[order].tolist()


@given(unsigned, st.integers(0, 1 << 40))
def test_no_edge_is_zero_because_a_sum_would_not_see_it(channel, ordinal):
    parent = uint64s(-(channel + (ordinal + 1) * GOLDEN) & MASK)  # the one that mixes to zero
    assert edge_ids(parent, uint64s(channel), int64s(ordinal)).view(np.uint64).tolist() == [GOLDEN]


@pytest.mark.parametrize("parent", [0, 1, 2, -1])
def test_no_few_edges_of_one_parent_cancel_each_other(parent):
    # Independent over XOR: no subset of these sums to zero. A mixer with structure in it fails here.
    basis = {}
    for ordinal in range(24):
        for channel in (5, 6):
            rest = edge(parent, channel, ordinal) & MASK
            while rest and rest.bit_length() in basis:
                rest ^= basis[rest.bit_length()]
            assert rest
            basis[rest.bit_length()] = rest


def test_each_bit_of_an_edge_is_set_half_of_the_time():
    edges = edge_ids(uint64s(*range(4096)), uint64s(0), np.zeros(4096, dtype=np.int64)).view(np.uint64)
    for bit in range(64):
        assert 1850 < int((edges >> np.uint64(bit) & np.uint64(1)).sum()) < 2250


# ---- folds ------------------------------------------------------------------------------------------------

maps = st.dictionaries(signed, signed, min_size=2, max_size=5)


def folded(pairs):
    return fold(int64s(*(root for root, _ in pairs)), int64s(*(value for _, value in pairs)))


@given(signed, signed)
def test_with_one_root_the_fold_is_the_edge(root, value):
    assert folded([(root, value)]) == value & MASK


@given(maps, st.randoms())
def test_a_fold_does_not_depend_on_the_order_of_the_pairs(pairs, chance):
    shuffled = list(pairs.items())
    chance.shuffle(shuffled)
    assert folded(shuffled) == folded(list(pairs.items()))
    assert 0 <= folded(shuffled) <= MASK


@given(maps, signed, st.data())
def test_a_fold_changes_with_every_root_and_every_edge(pairs, other, data):
    before = list(pairs.items())
    at = data.draw(st.integers(0, len(before) - 1))
    root, value = before[at]
    if other != value:
        assert folded([*before[:at], (root, other), *before[at + 1 :]]) != folded(before)
    if other not in pairs:
        assert folded([*before[:at], (other, value), *before[at + 1 :]]) != folded(before)


def test_a_join_of_two_copies_with_one_edge_does_not_fold_to_nothing():
    assert folded([(1, 77), (2, 77)]) not in (0, folded([(1, 78), (2, 78)]), folded([(1, 77), (3, 77)]))
    assert folded([(1, 77), (2, 78)]) != folded([(1, 78), (2, 77)])


# ---- the same for ever ------------------------------------------------------------------------------------


def pinned():
    return [
        mix64(uint64s(0, 1, MASK)).tolist(),
        root_ids(0, 0, np.arange(3)).tolist(),
        root_ids(7, 3, int64s(41)).tolist(),
        root_ids(-1, MAX_SPOUT_TASK, int64s((1 << 48) - 1)).tolist(),
        [int(channel_id("split", "default", 4)), int(channel_id("zähler", "\ud800", -1))],
        edge_ids(uint64s(5, 5, 6), uint64s(9), int64s(0, 1, 0)).tolist(),
        [fold(int64s(3, -4), int64s(5, 6))],
        row_root_ids(7, 2, 1, uint64s(8, 9, 8)).tolist(),
    ]


def test_ids_are_those_that_running_checkpoints_hold():
    # A change of one of these numbers orphans every open message of every checkpoint.
    assert pinned() == [
        [0, 6238072747940578789, 13029008266876403067],
        [-2152535657050944081, -2152535657050944082, -2152535657050944083],
        [7190245175962242558],
        [1956407806741107679],
        [683148031329193304, 2054203185731479536],
        [7685909621375755838, 1315361123233219194, -8693192994549575675],
        [1249554073763513061],
        [-5604483349932527046, -5591415945853005410, 3401829041902968931],
    ]


@pytest.mark.slow
def test_another_process_with_another_hash_seed_makes_the_same_ids():
    program = f"import runpy; print(runpy.run_path({__file__!r})['pinned']())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "4711"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == repr(pinned())
