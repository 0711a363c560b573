"""Sums of consecutive messages compared with a dict of (task, sequence): sums, and messages done."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acktree.core.ids import root_ids, row_root_ids, sequences_of
from acktree.core.tracking import sequence_sums as sequence_sums_module
from acktree.core.tracking.sequence_sums import (
    GAP,
    SHORTEST,
    THINNEST,
    Opened,
    SequenceSums,
    add_up,
    close,
    joined,
    sequence_sums_of,
)
from acktree.errors import ProtocolError

SALT = 5
HIGHEST = (1 << 16) - 1  # the last spout task: its ids are negative where one shifts carelessly


@contextmanager
def small_numbers():
    """Constants so small that drawn data is on both sides of each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("GAP", 2), ("THINNEST", 2), ("SHORTEST", 3)):
            patch.setattr(sequence_sums_module, name, value)
        yield


def int64s(values):
    """Read-only arrays, as they come off the wire."""
    array = np.array(list(values), dtype=np.int64)
    array.setflags(write=False)
    return array


def root(task, sequence):
    return int(root_ids(SALT, task, np.array([sequence]))[0])


tasks = st.sampled_from([1, 2, 3, HIGHEST])
sums = st.integers(0, 3)  # small: sums are zero by accident, and the model sees it alike
rows = st.sampled_from([0, -1, 77, (1 << 63) - 1, -(1 << 63)])  # roots of a DataFrame's rows: of any task


@st.composite
def drawn_sequence_sums(draw):
    first = draw(st.integers(0, 30))
    return SequenceSums(draw(tasks), first, int64s(draw(st.lists(sums, max_size=6))))


def said(sequence_sums):
    """(task, sequence) -> its sum, where there is one."""
    naive = {}
    for sequence_sum in sequence_sums:
        for place, total in enumerate(sequence_sum.sums.tolist()):
            key = (sequence_sum.task, sequence_sum.first + place)
            naive[key] = naive.get(key, 0) ^ total
    return {key: total for key, total in naive.items() if total}


def xor_of(pairs):
    naive = {}
    for key, total in pairs:
        naive[key] = naive.get(key, 0) ^ total
    return {key: total for key, total in naive.items() if total}


# ---- sums added up ---------------------------------------------------------------------------------------


@given(st.lists(drawn_sequence_sums(), max_size=8))
def test_sequence_sums_added_up_say_what_each_said_in_any_order_and_no_two_of_them_are_near(sequence_sums):
    with small_numbers():
        added = add_up(sequence_sums)
    assert said(added) == said(sequence_sums)
    assert [(sequence_sum.task, sequence_sum.first) for sequence_sum in added] == sorted(
        (sequence_sum.task, sequence_sum.first) for sequence_sum in added
    )
    for one, next_one in pairwise(added):
        assert one.task != next_one.task or next_one.first > one.end + 2
    assert all(sequence_sum.sums.dtype == np.int64 for sequence_sum in added)


@pytest.mark.parametrize(("between", "left"), [(0, 1), (GAP, 1), (GAP + 1, 2)])
def test_sequence_sums_become_one_up_to_a_gap_and_no_further(between, left):
    sequence_sums = [SequenceSums(1, 10, int64s([1, 2])), SequenceSums(1, 12 + between, int64s([3]))]
    assert len(add_up(sequence_sums)) == left
    assert said(add_up(sequence_sums)) == said(sequence_sums)
    assert len(add_up([sequence_sums[0], SequenceSums(2, 12, int64s([3]))])) == 2


def test_a_long_span_reaches_over_a_short_one_to_the_next():
    sequence_sums = [
        SequenceSums(1, 0, int64s([1] * 9)),
        SequenceSums(1, 2, int64s([2])),
        SequenceSums(1, 9, int64s([3])),
    ]
    (one,) = add_up(sequence_sums)
    assert one.sums.tolist() == [1, 1, 3, 1, 1, 1, 1, 1, 1, 3]
    assert sequence_sums[0].sums.tolist() == [1] * 9  # the input is not changed


# ---- acks as sequence sums --------------------------------------------------------------------------------

acks = st.lists(st.tuples(st.tuples(tasks, st.integers(0, 12)) | rows, sums), max_size=20)


def as_root(named):
    return named if isinstance(named, int) else root(*named)


def as_pairs(drawn):
    roots = int64s(as_root(named) for named, _ in drawn)
    return roots, int64s(total for _, total in drawn)


def reported(sequence_sums, roots, totals):
    """Root -> its sum, from sequence sums and pairs."""
    as_sequence_sums = ((root(*key), total) for key, total in said(sequence_sums).items())
    return xor_of([*as_sequence_sums, *zip(roots.tolist(), totals.tolist(), strict=True)])


@given(acks)
def test_acks_as_sequence_sums_and_alone_say_what_was_said(drawn):
    roots, totals = as_pairs(drawn)
    with small_numbers():
        sequence_sums, alone, alone_sums = sequence_sums_of(SALT, roots, totals)
    assert reported(sequence_sums, alone, alone_sums) == reported([], roots, totals)
    assert alone.dtype == alone_sums.dtype == np.int64
    distinct = set(zip(*(part.tolist() for part in sequences_of(SALT, roots)), strict=True))
    for sequence_sum in sequence_sums:
        said_here = sorted(
            at
            for task, at in distinct
            if task == sequence_sum.task and sequence_sum.first <= at < sequence_sum.end
        )
        assert len(said_here) >= 3
        assert len(sequence_sum.sums) <= 2 * len(said_here)
        assert (sequence_sum.first, sequence_sum.end) == (said_here[0], said_here[-1] + 1)
    # No delta is in both forms.
    assert not set(alone.tolist()) & {
        root(sequence_sum.task, at)
        for sequence_sum in sequence_sums
        for at in range(sequence_sum.first, sequence_sum.end)
    }


def of_messages(*sequences, task=1):
    roots = root_ids(SALT, task, int64s(sequences))
    return sequence_sums_of(SALT, roots, int64s(range(1, len(roots) + 1)))


def test_a_run_is_a_span_of_the_very_sums_that_were_given():
    totals = int64s(range(100))
    (sequence_sum,), alone, _ = sequence_sums_of(SALT, root_ids(SALT, 7, np.arange(50, 150)), totals)
    assert (sequence_sum.task, sequence_sum.first) == (7, 50)
    assert np.shares_memory(sequence_sum.sums, totals)
    assert not len(alone)


def test_fewer_deltas_than_shortest_are_sent_as_pairs():
    assert len(of_messages(*range(SHORTEST))[0]) == 1
    sequence_sums, alone, _ = of_messages(*range(SHORTEST - 1))
    assert (sequence_sums, len(alone)) == ([], SHORTEST - 1)
    # Repeats of one message are one thing to say.
    assert of_messages(*range(SHORTEST - 1), 0, 1, 2)[0] == []


def test_deltas_of_messages_too_far_apart_are_sent_as_pairs():
    close_by = [*range(SHORTEST - 1), THINNEST * SHORTEST - 1]
    assert len(of_messages(*close_by)[0][0].sums) == THINNEST * SHORTEST
    assert of_messages(*close_by[:-1], THINNEST * SHORTEST)[0] == []


def test_many_tasks_need_no_pairs_and_rows_of_a_dataframe_stay_pairs():
    each = [root_ids(SALT, task, np.arange(SHORTEST)) for task in range(40, 0, -1)]
    sequence_sums, alone, _ = sequence_sums_of(SALT, np.concatenate(each), np.concatenate(each))
    assert [part.task for part in sequence_sums] == list(range(1, 41))
    assert not len(alone)
    rows = row_root_ids(SALT, 1, 0, np.arange(5000, dtype=np.uint64))
    sequence_sums, alone, sums = sequence_sums_of(SALT, rows, rows + 1)
    assert sequence_sums == []
    assert sorted(zip(alone.tolist(), sums.tolist(), strict=True)) == sorted(
        (row, row + 1) for row in rows.tolist()
    )


def test_no_acks_are_no_spans():
    sequence_sums, alone, alone_sums = sequence_sums_of(SALT, int64s([]), int64s([]))
    assert (sequence_sums, len(alone), len(alone_sums)) == ([], 0, 0)


# ---- what was opened --------------------------------------------------------------------------------------

runs = st.builds(
    lambda task, first, length: Opened(task, first, first + length),
    tasks,
    st.integers(0, 30),
    st.integers(0, 6),
)


@given(st.lists(runs, max_size=6))
def test_runs_joined_are_the_same_messages_in_as_few_runs_as_possible_or_one_is_there_twice(opened):
    each = [(run.task, at) for run in opened for at in range(run.first, run.end)]
    if len(set(each)) < len(each):
        with pytest.raises(ProtocolError, match="is open twice"):
            joined(opened)
        return
    together = joined(opened)
    assert [(run.task, at) for run in together for at in range(run.first, run.end)] == sorted(each)
    assert all(one.task < after.task or one.end < after.first for one, after in pairwise(together))


def test_runs_that_touch_are_one_and_others_are_not():
    opened = [Opened(1, 2, 4), Opened(1, 0, 2), Opened(1, 5, 6), Opened(2, 6, 7), Opened(1, 9, 9)]
    assert joined(opened) == [Opened(1, 0, 4), Opened(1, 5, 6), Opened(2, 6, 7)]


def test_the_message_that_was_opened_twice_is_named():
    with pytest.raises(ProtocolError, match="message 14 of spout task 2 is open twice"):
        joined([Opened(2, 14, 20), Opened(1, 10, 15), Opened(2, 10, 15)])


# ---- judged -----------------------------------------------------------------------------------------------


@st.composite
def micro_batches(draw):
    """(opened, sequence sums, fails, pairs) of one micro-batch; each range is within some sequence sums."""
    opened, sequence_sums = [], []
    for task in draw(st.sets(tasks, max_size=3)):
        at = 0
        for _ in range(draw(st.integers(0, 3))):
            first = at + draw(st.integers(0, 5))
            at = first + draw(st.integers(0, 5))
            opened.append(Opened(task, first, at))
            sent = draw(st.lists(sums, min_size=at - first, max_size=at - first))
            sequence_sums.append(SequenceSums(task, first, int64s(sent)))
    sequence_sums += draw(st.lists(drawn_sequence_sums(), max_size=4))
    messages = st.tuples(tasks, st.integers(0, 34))
    fails = draw(st.lists(messages | rows, max_size=6))
    alone = draw(st.lists(st.tuples(messages | rows, sums), max_size=8))
    return draw(st.permutations(opened)), draw(st.permutations(sequence_sums)), fails, alone


@given(micro_batches())
def test_what_was_opened_is_judged_by_all_that_was_said_of_it_and_the_rest_is_handed_on(batch):
    opened, sequence_sums, fails, alone = batch
    roots, totals = as_pairs(alone)
    with small_numbers():
        closing = close(SALT, sequence_sums, opened, int64s(map(as_root, fails)), roots, totals)
    # The slow way: a dict of everything that was said.
    everything = reported(sequence_sums, roots, totals)
    mine = [(run.task, at) for run in opened for at in range(run.first, run.end)]
    is_done = {key for key in mine if not everything.get(root(*key)) and key not in fails}
    done = [(task, at) for task, sequences in closing.done for at in sequences.tolist()]
    assert sorted(done) == sorted(is_done)
    still_open = dict(zip(closing.open_roots.tolist(), closing.open_sums.tolist(), strict=True))
    assert len(still_open) == len(closing.open_roots)
    assert still_open == {root(*key): everything.get(root(*key), 0) for key in mine if key not in is_done}
    owners = dict(zip(closing.open_roots.tolist(), closing.open_owners.tolist(), strict=True))
    assert owners == {root(*key): key[0] for key in mine if key not in is_done}
    names = {root(*key) for key in mine}
    old = xor_of(zip(closing.old_roots.tolist(), closing.old_sums.tolist(), strict=True))
    assert old == {key: total for key, total in everything.items() if key not in names}
    assert not names & set(closing.old_roots.tolist())
    assert all(len(sequences) for _, sequences in closing.done)
    assert (closing.open_owners.dtype, closing.open_roots.dtype) == (np.int32, np.int64)


def test_a_sum_is_tested_only_after_the_pairs_were_added():
    said_of_it = SequenceSums(1, 0, int64s([0]))
    closing = close(SALT, [said_of_it], [Opened(1, 0, 1)], int64s([]), int64s([root(1, 0)]), int64s([9]))
    assert closing.done == []
    assert closing.open_sums.tolist() == [9]


@pytest.mark.parametrize(
    "sequence_sums", [[], [SequenceSums(1, 4, int64s([0, 0]))], [SequenceSums(2, 4, int64s([0, 0, 0]))]]
)
def test_a_message_that_was_opened_without_its_sum_is_never_passed_over_in_silence(sequence_sums):
    with pytest.raises(ProtocolError, match=r"first=4, end=7.*was opened without its sums"):
        close(SALT, sequence_sums, [Opened(1, 4, 7)], int64s([]))


@example(0, 1 << 15)
@given(st.integers(0, 3), st.sampled_from([0, 1, HIGHEST]))
def test_a_message_of_any_task_and_the_highest_sequence_is_found(back, task):
    last = (1 << 48) - 1 - back
    sequence_sum = SequenceSums(task, last, int64s([0]))
    failed = int64s([root(task, last)])
    closing = close(SALT, [sequence_sum], [Opened(task, last, last + 1)], failed)
    assert (closing.done, closing.open_roots.tolist()) == ([], failed.tolist())
    closing = close(SALT, [sequence_sum], [Opened(task, last, last + 1)], int64s([]))
    assert [(told_task, at.tolist()) for told_task, at in closing.done] == [(task, [last])]


def test_nothing_said_and_nothing_opened_is_nothing():
    closing = close(SALT, [], [], int64s([]))
    assert closing.done == []
    assert [len(part) for part in (closing.open_roots, closing.open_owners, closing.old_roots)] == [0, 0, 0]


def test_where_a_spout_task_leaves_sequences_out_no_sum_is_sent_for_them():
    sequences = np.concatenate([np.arange(5_000), np.arange(5_000) + 200_000, np.arange(9) + 900_000])
    sums = np.random.default_rng(1).integers(1, 1 << 62, len(sequences))
    found, roots, left = sequence_sums_of(SALT, root_ids(SALT, 3, sequences), sums)
    assert [(each.first, len(each.sums)) for each in found] == [(0, 5_000), (200_000, 5_000)]
    assert np.concatenate([*(each.sums for each in found), left]).tolist() == sums.tolist()
    assert sequences_of(SALT, roots)[1].tolist() == sequences[-9:].tolist()
