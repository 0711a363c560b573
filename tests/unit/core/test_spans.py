"""Sums of consecutive messages beside a dict of (task, sequence): what spans say, and what is done by it."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acktree.core import spans as spans_module
from acktree.core.ids import root_ids, sequences_of
from acktree.core.spans import (
    GAP,
    MOST_TASKS,
    SHORTEST,
    THINNEST,
    Opened,
    Span,
    add_up,
    close,
    joined,
    spans_of,
)
from acktree.errors import ProtocolError

SALT = 5
HIGHEST = (1 << 16) - 1  # the last spout task: its ids are negative where one shifts carelessly


@contextmanager
def small_numbers():
    """Constants so small that drawn data is on both sides of each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("GAP", 2), ("THINNEST", 2), ("SHORTEST", 3), ("MOST_TASKS", 2)):
            patch.setattr(spans_module, name, value)
        yield


def int64s(values):
    """As they come off the wire: nobody may write into them."""
    array = np.array(list(values), dtype=np.int64)
    array.setflags(write=False)
    return array


def root(task, sequence):
    return int(root_ids(SALT, task, np.array([sequence]))[0])


tasks = st.sampled_from([1, 2, 3, HIGHEST])
sums = st.integers(0, 3)  # small: sums are zero by accident, and the model sees it alike
rows = st.sampled_from([0, -1, 77, (1 << 63) - 1, -(1 << 63)])  # roots of a DataFrame's rows: of any task


@st.composite
def drawn_spans(draw):
    first = draw(st.integers(0, 30))
    return Span(draw(tasks), first, int64s(draw(st.lists(sums, max_size=6))))


def said(spans):
    """(task, sequence) -> its sum, where there is one."""
    naive = {}
    for span in spans:
        for place, total in enumerate(span.sums.tolist()):
            key = (span.task, span.first + place)
            naive[key] = naive.get(key, 0) ^ total
    return {key: total for key, total in naive.items() if total}


def xor_of(pairs):
    naive = {}
    for key, total in pairs:
        naive[key] = naive.get(key, 0) ^ total
    return {key: total for key, total in naive.items() if total}


# ---- spans added up ---------------------------------------------------------------------------------------


@given(st.lists(drawn_spans(), max_size=8))
def test_spans_added_up_say_what_each_said_in_any_order_and_no_two_of_them_are_near(spans):
    with small_numbers():
        added = add_up(spans)
    assert said(added) == said(spans)
    assert [(span.task, span.first) for span in added] == sorted((span.task, span.first) for span in added)
    for one, next_one in pairwise(added):
        assert one.task != next_one.task or next_one.first > one.end + 2
    assert all(span.sums.dtype == np.int64 for span in added)


@pytest.mark.parametrize(("between", "left"), [(0, 1), (GAP, 1), (GAP + 1, 2)])
def test_spans_become_one_up_to_a_gap_and_no_further(between, left):
    spans = [Span(1, 10, int64s([1, 2])), Span(1, 12 + between, int64s([3]))]
    assert len(add_up(spans)) == left
    assert said(add_up(spans)) == said(spans)
    assert len(add_up([spans[0], Span(2, 12, int64s([3]))])) == 2


def test_a_long_span_reaches_over_a_short_one_to_the_next():
    spans = [Span(1, 0, int64s([1] * 9)), Span(1, 2, int64s([2])), Span(1, 9, int64s([3]))]
    (one,) = add_up(spans)
    assert one.sums.tolist() == [1, 1, 3, 1, 1, 1, 1, 1, 1, 3]
    assert spans[0].sums.tolist() == [1] * 9  # what was given is nobody's to write into


# ---- acks as spans ----------------------------------------------------------------------------------------

acks = st.lists(st.tuples(st.tuples(tasks, st.integers(0, 12)) | rows, sums), max_size=20)


def as_root(named):
    return named if isinstance(named, int) else root(*named)


def as_pairs(drawn):
    roots = int64s(as_root(named) for named, _ in drawn)
    return roots, int64s(total for _, total in drawn)


def told(spans, roots, totals):
    """Root -> its sum, whichever way it was told."""
    in_spans = ((root(*key), total) for key, total in said(spans).items())
    return xor_of([*in_spans, *zip(roots.tolist(), totals.tolist(), strict=True)])


@given(acks)
def test_acks_as_spans_and_alone_say_what_was_said(drawn):
    roots, totals = as_pairs(drawn)
    with small_numbers():
        spans, alone, alone_sums = spans_of(SALT, roots, totals)
    assert told(spans, alone, alone_sums) == told([], roots, totals)
    assert alone.dtype == alone_sums.dtype == np.int64
    distinct = set(zip(*(part.tolist() for part in sequences_of(SALT, roots)), strict=True))
    for span in spans:
        said_here = [at for task, at in distinct if task == span.task]
        assert len(said_here) >= 3
        assert len(span.sums) <= 2 * len(said_here)
        assert (span.first, span.end) == (min(said_here), max(said_here) + 1)
    assert len({task for task, _ in distinct}) <= 2 or not spans
    # Nothing is told both ways.
    assert not set(alone.tolist()) & {
        root(span.task, at) for span in spans for at in range(span.first, span.end)
    }


def of_messages(*sequences, task=1):
    roots = root_ids(SALT, task, int64s(sequences))
    return spans_of(SALT, roots, int64s(range(1, len(roots) + 1)))


def test_a_run_is_a_span_of_the_very_sums_that_were_given():
    totals = int64s(range(100))
    (span,), alone, _ = spans_of(SALT, root_ids(SALT, 7, np.arange(50, 150)), totals)
    assert (span.task, span.first) == (7, 50)
    assert np.shares_memory(span.sums, totals)
    assert not len(alone)


def test_fewer_than_are_worth_it_are_told_alone():
    assert len(of_messages(*range(SHORTEST))[0]) == 1
    spans, alone, _ = of_messages(*range(SHORTEST - 1))
    assert (spans, len(alone)) == ([], SHORTEST - 1)
    # Repeats of one message are one thing to say.
    assert of_messages(*range(SHORTEST - 1), 0, 1, 2)[0] == []


def test_messages_too_far_apart_are_told_alone():
    close_by = [*range(SHORTEST - 1), THINNEST * SHORTEST - 1]
    assert len(of_messages(*close_by)[0][0].sums) == THINNEST * SHORTEST
    assert of_messages(*close_by[:-1], THINNEST * SHORTEST)[0] == []


def test_messages_of_too_many_tasks_are_told_alone():
    each = [root_ids(SALT, task, np.arange(SHORTEST)) for task in range(1, MOST_TASKS + 2)]
    few, many = np.concatenate(each[:-1]), np.concatenate(each)
    assert len(spans_of(SALT, few, few)[0]) == MOST_TASKS
    spans, alone, _ = spans_of(SALT, many, many)
    assert (spans, len(alone)) == ([], len(many))


def test_no_acks_are_no_spans():
    spans, alone, alone_sums = spans_of(SALT, int64s([]), int64s([]))
    assert (spans, len(alone), len(alone_sums)) == ([], 0, 0)


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
    """(opened, spans, fails, acks told alone) of one micro-batch; each run has its sums in some span."""
    opened, spans = [], []
    for task in draw(st.sets(tasks, max_size=3)):
        at = 0
        for _ in range(draw(st.integers(0, 3))):
            first = at + draw(st.integers(0, 5))
            at = first + draw(st.integers(0, 5))
            opened.append(Opened(task, first, at))
            sent = draw(st.lists(sums, min_size=at - first, max_size=at - first))
            spans.append(Span(task, first, int64s(sent)))
    spans += draw(st.lists(drawn_spans(), max_size=4))
    messages = st.tuples(tasks, st.integers(0, 34))
    fails = draw(st.lists(messages | rows, max_size=6))
    alone = draw(st.lists(st.tuples(messages | rows, sums), max_size=8))
    return draw(st.permutations(opened)), draw(st.permutations(spans)), fails, alone


@given(micro_batches())
def test_what_was_opened_is_judged_by_all_that_was_said_of_it_and_the_rest_is_handed_on(batch):
    opened, spans, fails, alone = batch
    roots, totals = as_pairs(alone)
    with small_numbers():
        closing = close(SALT, spans, opened, int64s(map(as_root, fails)), roots, totals)
    # The slow way: a dict of everything that was said.
    everything = told(spans, roots, totals)
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


def test_a_sum_that_is_zero_without_what_was_told_alone_is_not_that_of_a_finished_tree():
    said_of_it = Span(1, 0, int64s([0]))
    closing = close(SALT, [said_of_it], [Opened(1, 0, 1)], int64s([]), int64s([root(1, 0)]), int64s([9]))
    assert closing.done == []
    assert closing.open_sums.tolist() == [9]


@pytest.mark.parametrize("spans", [[], [Span(1, 4, int64s([0, 0]))], [Span(2, 4, int64s([0, 0, 0]))]])
def test_a_message_that_was_opened_without_its_sum_is_never_passed_over_in_silence(spans):
    with pytest.raises(ProtocolError, match=r"first=4, end=7.*was opened without its sums"):
        close(SALT, spans, [Opened(1, 4, 7)], int64s([]))


@example(0, 1 << 15)
@given(st.integers(0, 3), st.sampled_from([0, 1, HIGHEST]))
def test_a_message_of_any_task_and_the_highest_sequence_is_found(back, task):
    last = (1 << 48) - 1 - back
    span = Span(task, last, int64s([0]))
    failed = int64s([root(task, last)])
    closing = close(SALT, [span], [Opened(task, last, last + 1)], failed)
    assert (closing.done, closing.open_roots.tolist()) == ([], failed.tolist())
    closing = close(SALT, [span], [Opened(task, last, last + 1)], int64s([]))
    assert [(told_task, at.tolist()) for told_task, at in closing.done] == [(task, [last])]


def test_nothing_said_and_nothing_opened_is_nothing():
    closing = close(SALT, [], [], int64s([]))
    assert closing.done == []
    assert [len(part) for part in (closing.open_roots, closing.open_owners, closing.old_roots)] == [0, 0, 0]
