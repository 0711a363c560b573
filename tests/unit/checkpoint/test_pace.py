"""Micro-batches of the wanted length: small at low load, large at high load, never growing without end."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.checkpoint.inbox import AHEAD
from acktree.checkpoint.pace import FIRST, Pace


def run(pace, rounds, *, fixed_secs, per_message_secs, waiting=10**9, entry=1):
    """Micro-batches that take what they may of what waits, in whole entries; the secs of each."""
    took = []
    for _ in range(rounds):
        messages = min(waiting, max(1, -(-pace.allowance // entry)) * entry)
        secs = fixed_secs + messages * per_message_secs
        pace.ran(messages, secs)
        took.append(secs)
    return took


@given(st.floats(0.1, 10), st.floats(0, 0.5), st.floats(1e-7, 0.5))
def test_under_load_micro_batches_converge_to_the_interval(interval, fixed, per_message):
    pace = Pace(interval)
    *_, last = run(pace, 80, fixed_secs=fixed * interval, per_message_secs=per_message)
    one = fixed * interval + per_message
    assert last <= max(1.5 * interval, one)  # one message at least, however slow
    assert last >= 0.5 * interval or one > 0.5 * interval


@given(st.floats(0.1, 10), st.floats(1, 50), st.floats(1e-7, 1e-2))
def test_if_the_fixed_cost_takes_the_whole_interval_half_of_the_time_is_spent_on_messages(
    interval, fixed, per_message
):
    pace = Pace(interval)
    *_, last = run(pace, 80, fixed_secs=fixed * interval, per_message_secs=per_message)
    least = fixed * interval + per_message
    assert 1.1 * fixed * interval <= last <= max(2.5 * fixed * interval, 1.5 * interval, 1.1 * least)


@given(st.floats(0.03, 0.15), st.floats(1e-7, 1e-4))
def test_where_it_may_be_longer_a_tenth_of_it_is_fixed_cost(fixed, per_message):
    pace = Pace(0.25, longest_secs=2)
    *_, last = run(pace, 80, fixed_secs=fixed, per_message_secs=per_message)
    assert 7 * fixed <= last <= 14 * fixed


@given(st.floats(0, 1), st.floats(1e-7, 1e-4))
def test_it_is_never_longer_than_it_may_be(fixed, per_message):
    pace = Pace(0.25, longest_secs=2)
    took = run(pace, 80, fixed_secs=fixed, per_message_secs=per_message)[40:]
    assert statistics.median(took) <= 2.5


def test_with_a_small_fixed_cost_it_is_not_longer():
    pace = Pace(0.25, longest_secs=2)
    took = run(pace, 80, fixed_secs=0.02, per_message_secs=1e-6)[40:]
    assert 0.2 < statistics.median(took) < 0.3


def test_the_fixed_cost_is_found_where_each_micro_batch_has_one_entry():
    pace = Pace(2)
    run(pace, 1, fixed_secs=30, per_message_secs=1e-3, waiting=10, entry=10)
    assert pace.allowance < 10  # from now on each has one entry
    run(pace, 12, fixed_secs=30, per_message_secs=1e-3, entry=10)
    assert pace.allowance > 500


def run_filled(pace, rounds, *, fixed_secs, per_message_secs, entry):
    """Micro-batches whose entries spouts append while the one before runs, as far ahead as they may be then.

    The messages of each.
    """
    waiting, noted, took = 0, 1, []
    for _ in range(rounds):
        while waiting < AHEAD * noted:
            waiting += entry
        noted = pace.allowance
        messages = min(waiting, -(-noted // entry) * entry)
        waiting -= messages
        pace.ran(messages, fixed_secs + messages * per_message_secs)
        took.append(messages)
    return took


@pytest.mark.parametrize("entry", [1, 3, 10, 100])
def test_the_fixed_cost_is_found_where_spouts_are_ahead_by_one_entry(entry):
    """They have filled the next micro-batch before they know that a larger one is tried."""
    pace = Pace(2)
    run(pace, 10, fixed_secs=30, per_message_secs=1e-3, waiting=entry, entry=entry)
    assert pace.allowance <= max(1, entry // 2)
    took = run_filled(pace, 40, fixed_secs=30, per_message_secs=1e-3, entry=entry)
    assert took[0] == entry
    assert took[-1] > 10_000


def test_entries_that_are_slow_each_are_seldom_tried_together_where_spouts_are_ahead_by_one():
    took = run_filled(Pace(2), 300, fixed_secs=0.1, per_message_secs=1, entry=10)
    assert sum(messages > 10 for messages in took[20:]) <= 10


def test_entries_that_are_slow_each_are_seldom_tried_together():
    pace = Pace(2)
    took = run(pace, 300, fixed_secs=0.1, per_message_secs=1, waiting=20, entry=10)
    assert sum(secs > 15 for secs in took[1:]) <= 10


def run_unevenly(pace, rounds, seed, *, fixed_secs, per_message_secs):
    """Micro-batches whose fixed cost varies, and one in seven of which has a pause: (messages, secs) of each.

    The durations are those seen on a cluster with its checkpoint on HDFS. The first eight compile.
    """
    chance, took = random.Random(seed), []
    for number in range(rounds):
        messages = pace.allowance
        cold = 1 + 3 * max(0.0, 1 - number / 8)
        pause = chance.uniform(2, 6) if chance.random() < 1 / 7 else 0.0
        secs = cold * fixed_secs * chance.lognormvariate(0, 0.6) + pause + messages * per_message_secs
        pace.ran(messages, secs)
        took.append((messages, secs))
    return took


@pytest.mark.parametrize("fixed_secs", [1.2, 3.0])
def test_where_the_fixed_cost_varies_by_seconds_quick_messages_still_come_in_large_micro_batches(fixed_secs):
    shares = []
    for seed in range(20):
        took = run_unevenly(Pace(2), 100, seed, fixed_secs=fixed_secs, per_message_secs=3e-6)[50:]
        messages, secs = (sum(values) for values in zip(*took, strict=True))
        shares.append(messages * 3e-6 / secs)  # of the time; half is the most that is wanted
    assert statistics.median(shares) > 0.3
    assert min(shares) > 0.05


def test_where_the_fixed_cost_varies_by_seconds_slow_messages_still_come_in_small_ones():
    for seed in range(20):
        took = run_unevenly(Pace(2), 100, seed, fixed_secs=0.3, per_message_secs=0.01)[20:]
        assert statistics.median(secs for _, secs in took) < 3


def test_after_a_busy_time_micro_batches_take_the_interval_again():
    pace = Pace(2)
    run(pace, 30, fixed_secs=0.2, per_message_secs=1e-4)
    run(pace, 30, fixed_secs=12.0, per_message_secs=3e-3)
    assert pace.allowance > 500
    took = run(pace, 30, fixed_secs=0.2, per_message_secs=1e-4)
    assert 1 < took[-1] < 3


def test_the_slow_first_micro_batch_of_a_fresh_jvm_is_forgotten():
    pace = Pace(2)
    pace.ran(100, 9.0)
    pace.ran(8192, 1.5)
    took = run(pace, 100, fixed_secs=0.2, per_message_secs=1e-4)
    assert took[-1] < 2.5


def test_a_slow_bolt_does_not_make_them_grow_without_end():
    pace = Pace(2)
    run(pace, 20, fixed_secs=0.2, per_message_secs=1e-6)
    assert pace.allowance > 10**6
    took = run(pace, 30, fixed_secs=0.2, per_message_secs=0.1)
    assert pace.allowance <= 20
    assert took[-1] < 3


def test_one_pause_of_the_machine_says_little():
    pace = Pace(2)
    run(pace, 20, fixed_secs=0.2, per_message_secs=1e-6)
    before = pace.allowance
    pace.ran(before, 1000)
    assert pace.allowance >= before // 4


def test_at_low_load_the_allowance_waits_for_what_will_come():
    pace = Pace(2)
    run(pace, 50, fixed_secs=0.2, per_message_secs=1e-6, waiting=10)
    assert pace.allowance == FIRST
    pace.ran(0, 5)
    assert pace.allowance == FIRST


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 10**4))))
def test_there_is_always_room_for_one(batches):
    pace = Pace(1)
    for messages, secs in batches:
        pace.ran(messages, secs)
        assert pace.allowance >= 1
