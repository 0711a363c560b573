"""Sums of some messages of a range compared with a dict of root: sum."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.ids import root_ids, row_root_ids
from acktree.core.tracking import sequence_sums
from acktree.core.tracking import sparse_sums as module
from acktree.core.tracking.sequence_sums import SHORTEST
from acktree.core.tracking.sparse_sums import MOST_ZEROS, WIDEST, SparseSums, sparse_sums_of, spread

SALT = 5
HIGHEST = (1 << 16) - 1
tasks = st.sampled_from([1, 2, HIGHEST])
sums = st.integers(0, 3)
rows = st.sampled_from([0, -1, 77, (1 << 63) - 1, -(1 << 63)])  # roots of a DataFrame's rows: of any task


@contextmanager
def small_numbers():
    """Constants so small that drawn data is on both sides of each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SHORTEST", 3), ("WIDEST", 30), ("MOST_ZEROS", 4)):
            patch.setattr(module, name, value)
        patch.setattr(sequence_sums, "SHORTEST", 3)
        yield


def int64s(values):
    return np.array(list(values), dtype=np.int64)


def root(task, sequence):
    return int(root_ids(SALT, task, np.array([sequence]))[0])


def xor_of(pairs):
    """Root -> its sum, without zeros."""
    found = {}
    for key, total in pairs:
        found[key] = found.get(key, 0) ^ total
    return {key: total for key, total in found.items() if total}


def reported(sums_of_messages, roots, totals):
    """The same of sparse or sequence sums, and pairs."""
    pairs = [*zip(roots.tolist(), totals.tolist(), strict=True)]
    for each in sums_of_messages:
        places = each.places.tolist() if isinstance(each, SparseSums) else range(len(each.sums))
        pairs += [
            (root(each.task, each.first + at), total)
            for at, total in zip(places, each.sums.tolist(), strict=True)
        ]
    return xor_of(pairs)


acks = st.lists(st.tuples(st.builds(root, tasks, st.integers(0, 60)) | rows, sums), max_size=20)


@given(acks)
def test_acks_as_sparse_sums_and_alone_say_what_was_said(drawn):
    roots, totals = int64s(key for key, _ in drawn), int64s(total for _, total in drawn)
    with small_numbers():
        found, alone, alone_sums = sparse_sums_of(SALT, roots, totals)
    assert reported(found, alone, alone_sums) == xor_of(drawn)
    for each in found:
        assert (each.places.dtype, each.sums.dtype) == (np.int32, np.int64)
        assert each.places[0] == 0
        assert (np.diff(each.places) > 0).all()
        assert len(each.places) >= 3
        assert each.end - each.first <= 30
    assert not set(alone.tolist()) & {
        root(each.task, each.first + at) for each in found for at in each.places.tolist()
    }


@given(st.lists(acks, max_size=4))
def test_sparse_sums_of_many_partitions_are_added_up_and_no_range_is_thinner_than_allowed(partitions):
    with small_numbers():
        each = [sparse_sums_of(SALT, *(int64s(column) for column in zip(*drawn, strict=True)))[0]
                for drawn in partitions if drawn]  # fmt: skip
        sparse = [part for parts in each for part in parts]
        added, alone, alone_sums = spread(SALT, sparse)
    assert reported(added, alone, alone_sums) == reported(sparse, int64s([]), int64s([]))
    ends = {}
    for one in added:
        within = [part for part in sparse if part.task == one.task and one.first <= part.first < one.end]
        assert len(one.sums) <= 4 * sum(len(part.places) for part in within)
        assert one.first >= ends.get(one.task, 0)
        ends[one.task] = one.end


def of_messages(sequences, task=1):
    roots = root_ids(SALT, task, int64s(sequences))
    return sparse_sums_of(SALT, roots, np.arange(1, len(roots) + 1))


def test_fewer_than_shortest_and_messages_too_far_apart_are_pairs():
    assert len(of_messages(range(0, 100 * SHORTEST, 100))[0]) == 1
    assert of_messages(range(0, 100 * (SHORTEST - 1), 100))[0] == []
    assert of_messages([*range(SHORTEST), WIDEST - 1])[0][0].end == WIDEST
    assert of_messages([*range(SHORTEST), WIDEST])[0] == []


def test_a_few_messages_of_a_wide_range_are_pairs_in_the_driver():
    """What is spread takes memory in proportion to what was sent, however far apart the messages are."""
    near, far = ((SHORTEST * zeros - 1) for zeros in (MOST_ZEROS, MOST_ZEROS + 1))
    for last, is_spread in ((near, True), (far, False)):
        sparse, _, _ = of_messages([*range(SHORTEST - 1), last])
        added, alone, _ = spread(SALT, sparse)
        assert (bool(added), len(alone)) == (is_spread, 0 if is_spread else SHORTEST)


def test_a_sequence_beyond_32_bits_comes_back_from_a_wide_range():
    first = 1 << 40
    sparse, _, _ = of_messages([*range(first, first + SHORTEST), first + WIDEST - 1])
    _, alone, _ = spread(SALT, sparse)
    assert root(1, first + WIDEST - 1) in alone.tolist()


def test_rows_of_a_dataframe_stay_pairs():
    roots = row_root_ids(SALT, 1, 0, np.arange(5000, dtype=np.uint64))
    found, alone, _ = sparse_sums_of(SALT, roots, roots)
    assert found == []
    assert sorted(alone.tolist()) == sorted(roots.tolist())


def test_many_spout_tasks_need_no_pairs():
    each = [root_ids(SALT, task, np.arange(0, 10 * SHORTEST, 10)) for task in range(1, 41)]
    found, alone, _ = sparse_sums_of(SALT, np.concatenate(each), np.concatenate(each))
    assert [part.task for part in found] == list(range(1, 41))
    assert not len(alone)
