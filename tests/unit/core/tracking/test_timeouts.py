"""When a root is too old: by the clock, in buckets, and only for time in which the topology ran."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.packing import unpack
from acktree.core.tracking.ledger import BUCKETS
from tests.unit.core.tracking.ledgers import ACKED, FAILED, TIMED_OUT, Acker, T

timeouts = st.sampled_from([16, 100, 1000, 30_000, 3_600_000])


@given(timeouts, st.integers(0, 10**13), st.lists(st.floats(0, 1.3), min_size=1, max_size=30))
def test_a_root_is_never_timed_out_before_t_and_at_the_latest_an_eighth_later(timeout_ms, start_ms, steps):
    acker = Acker(timeout_ms)
    acker.hears(("init", 1, 5), now_ms=start_ms)
    now_ms = began_ms = start_ms + int(steps[0] * timeout_ms)  # an age begins when the next micro-batch does
    verdict = acker.hears(now_ms=now_ms)
    for step in [*steps[1:], 2]:
        assert verdict == {}
        assert now_ms - began_ms < timeout_ms + timeout_ms / 8
        now_ms += int(step * timeout_ms)
        verdict = acker.hears(now_ms=now_ms)
        if verdict:
            break
    assert verdict == {1: TIMED_OUT}
    assert now_ms - began_ms >= timeout_ms


@given(timeouts, st.integers(0, 10**13), st.integers(0, 10**6))
def test_where_nothing_else_happens_the_deadlines_keep_the_bound_from_the_end_of_the_admitting_micro_batch(
    timeout_ms, start_ms, lasted_ms
):
    acker = Acker(timeout_ms)
    acker.hears(("init", 1, 5), now_ms=start_ms)
    end_ms = start_ms + lasted_ms
    beats = 0
    verdict = {}
    while not verdict:
        now_ms = max(end_ms, acker.said.next_deadline_ms)
        verdict = acker.hears(now_ms=now_ms)
        beats += 1
    assert verdict == {1: TIMED_OUT}
    assert beats == 2  # one that begins the age, one that ends it
    assert timeout_ms <= now_ms - end_ms <= timeout_ms + timeout_ms / 8
    assert acker.said.next_deadline_ms is None


@given(timeouts, timeouts, timeouts, st.integers(0, 10**13), st.sampled_from([(7, 8, 9), (8, 9), (8,), (7,)]))
def test_each_owner_keeps_the_bound_of_its_own_timeout(common_ms, one_ms, other_ms, start_ms, owners):
    acker = Acker(common_ms, {8: one_ms, 9: other_ms})
    acker.hears(*(("init", owner, 5, owner) for owner in owners), now_ms=start_ms)
    late_ms = {}
    while acker.said.next_deadline_ms is not None:
        now_ms = max(start_ms, acker.said.next_deadline_ms)
        if acker.open_count and len(acker.changes) % 3:
            acker.becomes_whole()
        late_ms |= dict.fromkeys(acker.hears(now_ms=now_ms), now_ms)
    # As above: one beat begins the ages, after at most a sixteenth of the shortest, others end them.
    shortest_ms = min({7: common_ms, 8: one_ms, 9: other_ms}[owner] for owner in owners)
    for owner in owners:
        own_ms = {7: common_ms, 8: one_ms, 9: other_ms}[owner]
        assert own_ms <= late_ms[owner] - start_ms <= own_ms + own_ms / BUCKETS + shortest_ms / BUCKETS


def test_without_timeouts_nobody_has_one_of_its_own():
    acker = Acker(None, {8: 16})
    acker.hears(("init", 1, 5, 8))
    acker.hears(now_ms=10**6)
    assert acker.hears(now_ms=10**9) == {}


def test_slow_is_not_lost_however_long_the_admitting_micro_batch_took(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    assert acker.hears(("ack", 1, 1), now_ms=100 * T) == {}
    assert acker.hears(("ack", 1, 4), now_ms=101 * T - 1) == {1: ACKED}


def test_what_arrives_with_the_deadline_is_in_time(acker):
    acker.hears(*[("init", root, 5) for root in range(4)])
    acker.hears()
    said = (("ack", 0, 5), ("fail", 1, b"why"), ("reset", 2))
    assert acker.hears(*said, now_ms=T) == {0: ACKED, 1: FAILED, 3: TIMED_OUT}
    assert acker.open_count == 1


def test_an_ack_does_not_refresh_an_age_as_todays_storm(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    for now_ms in range(0, T, T // 10):
        assert acker.hears(("ack", 1, now_ms), now_ms=now_ms) == {}
    assert acker.hears(("ack", 1, 1), now_ms=T) == {1: TIMED_OUT}


def test_a_reset_again_and_again_keeps_a_root_open_for_ever(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    for now_ms in range(0, 10 * T, T - 1):
        assert acker.hears(("reset", 1), now_ms=now_ms) == {}
    assert acker.hears(("ack", 1, 5), now_ms=10 * T) == {1: ACKED}


def test_with_timeouts_off_nothing_ever_expires():
    acker = Acker(None)
    acker.hears(("init", 1, 5))
    for now_ms in (0, 1, 10**13):
        assert acker.hears(("reset", 1), now_ms=now_ms) == {}
        assert (acker.said.next_deadline_ms, acker.said.oldest_ms) == (None, None)
    assert acker.hears(("ack", 1, 5)) == {1: ACKED}


def test_timeouts_that_are_switched_on_begin_to_count_then():
    acker = Acker(None)
    acker.hears(("init", 1, 5), now_ms=10**12)
    acker.hears(now_ms=10**12)
    acker.timeout_ms = T
    assert acker.hears(now_ms=2 * 10**12) == {}
    assert acker.hears(now_ms=2 * 10**12 + T - 1) == {}
    assert acker.hears(now_ms=2 * 10**12 + T + T // 8) == {1: TIMED_OUT}


def test_the_oldest_age_is_that_of_the_oldest_open_root(acker):
    acker.hears(("init", 1, 5))
    assert acker.said.oldest_ms is None
    acker.hears(("init", 2, 5), now_ms=T // 2)
    oldest = acker.said.oldest_ms
    assert T // 2 <= oldest <= T // 2 + T // 16
    acker.hears(now_ms=T)
    assert acker.said.oldest_ms == oldest
    acker.hears(("ack", 1, 5), now_ms=T)
    assert T <= acker.said.oldest_ms <= T + T // 16


# ---- Storm's rotating map, which our buckets are (N-6) --------------------------------------------------


def test_an_entry_dies_at_the_nth_rotation_after_its_last_put_and_a_get_does_not_move_it(acker):
    width = T // BUCKETS
    acker.hears(("init", 1, 5), ("init", 2, 5), ("init", 3, 5), now_ms=0)
    for rotation in range(BUCKETS):
        now_ms = rotation * width
        said = [("ack", 2, rotation)]  # a get: looked up and changed where it is
        if rotation == 5:
            said.append(("reset", 3))  # a put: into the newest
        assert acker.hears(*said, now_ms=now_ms) == {}
    assert acker.hears(now_ms=BUCKETS * width) == {1: TIMED_OUT, 2: TIMED_OUT}
    # Put in the sixth micro-batch, so that its age began with the seventh, at 6 widths.
    assert acker.hears(now_ms=(BUCKETS + 6) * width - 1) == {}
    assert acker.hears(now_ms=(BUCKETS + 6) * width) == {3: TIMED_OUT}


def test_rotation_comes_from_the_clock_and_not_from_the_number_of_micro_batches(acker):
    acker.hears(("init", 1, 5), now_ms=1)
    for _ in range(100):
        assert acker.hears(now_ms=2) == {}
    assert acker.hears(now_ms=10 * T) == {1: TIMED_OUT}


def test_roots_of_one_width_share_an_age_and_those_of_others_do_not(acker):
    width = T // BUCKETS
    acker.hears(now_ms=0)
    for number in range(40):
        acker.hears(("init", number, 5), now_ms=1 + number * width // 10)
    _, _, *runs = unpack(acker.ledger().to_bytes())
    ages = {age for run in runs for age in bytes(unpack(run)[3])}
    assert len(ages) == 5  # four widths, and what is fresh


def test_a_clock_that_was_set_back_times_nothing_out_early(acker):
    acker.hears(("init", 1, 5), now_ms=5 * T)
    acker.hears(now_ms=5 * T)
    for now_ms in (5 * T + T // 2, 0, T // 2 - 1):
        assert acker.hears(now_ms=now_ms) == {}
    assert acker.hears(now_ms=T // 2) == {1: TIMED_OUT}


@pytest.mark.parametrize("is_first", [False, True])
def test_after_a_clock_was_set_back_ages_go_on_at_once(acker, is_first):
    acker.hears(("init", 1, 5), now_ms=500 * T)
    acker.hears(now_ms=500 * T)
    assert acker.hears(("init", 2, 5), now_ms=0, is_first=is_first) == {}
    assert acker.said.next_deadline_ms <= T
    assert acker.hears(now_ms=T - 1) == {}
    assert acker.hears(now_ms=T) == {1: TIMED_OUT}
    assert acker.hears(now_ms=2 * T) == {2: TIMED_OUT}


def test_time_during_which_the_topology_was_not_running_adds_to_no_age(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.hears(now_ms=0)
    assert acker.hears(now_ms=T // 2) == {}
    assert acker.hears(now_ms=100 * T, is_first=True) == {}
    assert acker.said.oldest_ms == 100 * T - T // 2
    assert acker.said.next_deadline_ms == 100 * T + T // 2
    assert acker.hears(now_ms=100 * T + T // 2 - 1) == {}
    assert acker.hears(now_ms=100 * T + T // 2) == {1: TIMED_OUT}


def test_time_in_which_it_ran_and_nothing_changed_does(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    for now_ms in range(0, T, T // 10):
        acker.hears(now_ms=now_ms)
    # Without a change for each micro-batch, a restarted driver would not count this time.
    assert acker.hears(now_ms=T, is_first=True) == {}
    assert acker.hears(now_ms=T + T // 10 - 1) == {}
    assert acker.hears(now_ms=T + T // 10) == {1: TIMED_OUT}


def test_a_root_that_a_driver_left_behind_fresh_begins_its_age_with_the_next(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    assert acker.hears(now_ms=100 * T, is_first=True) == {}
    assert acker.hears(now_ms=101 * T - 1) == {}
    assert T <= acker.said.next_deadline_ms - 100 * T <= T + T // 16
    assert acker.hears(now_ms=101 * T + T // 16) == {1: TIMED_OUT}


def test_many_restarts_put_a_timeout_off_by_no_more_than_the_time_away(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.hears(now_ms=0)
    now_ms = ran_ms = 0
    verdict = {}
    while not verdict:
        now_ms += 10 * T
        verdict = acker.hears(now_ms=now_ms, is_first=True)
        now_ms, ran_ms = now_ms + T // 100, ran_ms + T // 100
        verdict = verdict or acker.hears(now_ms=now_ms)
    assert verdict == {1: TIMED_OUT}
    assert T <= ran_ms <= T + T // 16


def test_while_timeouts_are_off_no_age_counts_and_switched_on_again_it_begins(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.hears(now_ms=0)
    acker.hears(now_ms=T - 1)
    acker.timeout_ms = None
    assert acker.hears(now_ms=T, is_first=True) == {}
    assert (acker.said.oldest_ms, acker.said.next_deadline_ms) == (None, None)
    acker.hears(now_ms=50 * T)
    acker.timeout_ms = T
    assert acker.hears(now_ms=50 * T, is_first=True) == {}
    assert acker.hears(now_ms=51 * T - 1) == {}
    assert acker.hears(now_ms=51 * T + T // 16) == {1: TIMED_OUT}
