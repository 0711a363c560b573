"""The limit of dead letters, beside a naive one that remembers everything."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.dead_letters.limit import SLICES, LetterLimit

WINDOW_MS = 64_000
SLICE_MS = WINDOW_MS // SLICES

events = st.lists(
    st.tuples(
        st.sampled_from(["acked", "dead", "dead, not stored"]),
        st.integers(0, 30),
        st.integers(-SLICE_MS * 3, WINDOW_MS // 3)
        | st.integers(0, WINDOW_MS * 2)
        | st.integers(-WINDOW_MS * 3, -WINDOW_MS + SLICE_MS),
    ),
    max_size=40,
)
ratios = st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1)])


def begins_anew(now_ms, latest_ms):
    """Whether the clock has gone back by more than a window."""
    return now_ms // SLICE_MS < latest_ms // SLICE_MS - SLICES


class Naive:
    """Records each event, with the latest time given by then."""

    def __init__(self, count, ratio):
        self.count, self.ratio, self.now_ms, self.events = count, ratio, 0, []

    def in_window(self, what):
        first = self.now_ms // SLICE_MS - SLICES
        return sum(n for kind, n, at_ms in self.events if kind == what and at_ms // SLICE_MS >= first)

    def note(self, what, n, at_ms):
        if begins_anew(at_ms, self.now_ms):
            self.now_ms, self.events = 0, []
        self.now_ms = max(self.now_ms, at_ms)
        self.events.append((what, n, self.now_ms))

    def admits(self, n, at_ms):
        self.note("dead", 0, at_ms)
        dead, acked = self.in_window("dead") + n, self.in_window("acked")
        return not n or dead <= self.count or dead < self.ratio * (dead + acked)


def play(limit, events, beside=None):
    """Give a limit all events; returns (what, n, latest time given) of those counted or admitted.

    A window that begins anew has times of its own in what is returned: no other window reaches into it.
    """
    now_ms, latest_ms, apart_ms, happened = 0, 0, 0, []
    for what, n, step_ms in events:
        now_ms = max(0, now_ms + step_ms)
        if begins_anew(now_ms, latest_ms):
            latest_ms, apart_ms = 0, apart_ms + 1_000 * WINDOW_MS
        latest_ms = max(latest_ms, now_ms)
        if what == "acked":
            limit.acked(n, now_ms)
            happened.append((what, n, apart_ms + latest_ms))
            if beside:
                beside.note(what, n, now_ms)
            continue
        admitted = limit.admit(n, now_ms)
        if beside:
            assert (admitted is not None) == beside.admits(n, now_ms)
        if admitted is None:
            continue
        if what == "dead":
            happened.append((what, n, apart_ms + latest_ms))
            if beside:
                beside.note(what, n, now_ms)
        else:
            limit.withdraw(n, admitted)
    return happened


@given(st.integers(0, 60), ratios, events)
def test_it_says_what_one_that_remembers_everything_says(count, ratio, events):
    naive = Naive(count, ratio)
    limit = LetterLimit(count, ratio, WINDOW_MS)
    play(limit, events, naive)
    limit.acked(0, naive.now_ms)
    assert (limit.dead_count, limit.acked_count) == (naive.in_window("dead"), naive.in_window("acked"))


@given(st.integers(0, 60), events)
def test_with_no_ratio_no_window_holds_more_letters_than_the_count_wherever_it_begins(count, events):
    happened = play(LetterLimit(count, 0, WINDOW_MS), events)
    stored = [(at_ms, n) for what, n, at_ms in happened if what == "dead"]
    for begin_ms, _ in stored:
        assert sum(n for at_ms, n in stored if begin_ms <= at_ms <= begin_ms + WINDOW_MS) <= count


@given(st.integers(0, 60), ratios, events)
def test_as_many_as_the_count_are_never_too_many(count, ratio, events):
    letters = [event for event in events if event[0] == "dead"]
    if sum(n for _, n, _ in letters) <= count:
        assert len(play(LetterLimit(count, ratio, WINDOW_MS), letters)) == len(letters)


@given(st.integers(1, 100), st.integers(0, 1_000))
def test_a_share_of_letters_below_the_ratio_is_never_too_many(dead, count):
    limit = LetterLimit(count, Fraction(1, 2), WINDOW_MS)
    limit.acked(dead + 1, 0)
    assert limit.admit(dead, 0) is not None


@pytest.mark.parametrize(("letters", "admitted"), [(10, True), (11, False)])
def test_a_batch_is_admitted_whole_or_not_at_all(letters, admitted):
    limit = LetterLimit(10, 0, WINDOW_MS)
    assert (limit.admit(letters, 0) is not None) is admitted
    assert limit.dead_count == (letters if admitted else 0)
    assert limit.admit(10 - limit.dead_count, 0) is not None


def test_a_ratio_of_one_is_reached_while_nothing_is_acked():
    limit = LetterLimit(0, 1, WINDOW_MS)
    assert limit.admit(1, 0) is None
    limit.acked(1, 0)
    assert limit.admit(1, 0) is not None


def test_an_empty_batch_of_letters_is_always_admitted_even_above_the_limit():
    limit = LetterLimit(2, Fraction(1, 2), WINDOW_MS)
    limit.acked(10, 0)
    assert limit.admit(5, WINDOW_MS // 2) is not None
    after = WINDOW_MS + SLICE_MS  # what was acked has left the window, and the letters have not
    assert limit.admit(0, after) is not None
    assert (limit.dead_count, limit.acked_count) == (5, 0)
    assert limit.admit(1, after) is None


def test_a_letter_counts_for_a_whole_window_and_not_longer_than_a_slice_after_it():
    limit = LetterLimit(1, 0, WINDOW_MS)
    assert limit.admit(1, 0) is not None
    assert limit.admit(1, WINDOW_MS + SLICE_MS - 1) is None
    assert limit.admit(1, WINDOW_MS + SLICE_MS) is not None


def test_letters_that_were_not_stored_do_not_count_and_old_slices_are_dropped():
    limit = LetterLimit(10, 0, WINDOW_MS)
    early = limit.admit(10, 0)
    assert limit.admit(1, 5) is None
    limit.withdraw(10, early)
    assert limit.admit(10, 5) is not None
    assert limit.admit(10, 3 * WINDOW_MS) is not None
    limit.withdraw(10, early)
    assert limit.dead_count == 10


def test_a_clock_that_is_set_back_by_a_window_does_not_move():
    limit = LetterLimit(10, 0, WINDOW_MS)
    limit.admit(10, 2 * WINDOW_MS)
    assert limit.admit(1, WINDOW_MS) is None
    assert limit.admit(1, 4 * WINDOW_MS) is not None


def test_after_a_clock_was_ahead_letters_that_are_far_apart_are_not_too_many():
    limit = LetterLimit(10, 0, WINDOW_MS)
    limit.acked(1, 1000 * WINDOW_MS)
    assert all(limit.admit(1, n * 2 * WINDOW_MS) is not None for n in range(24))
    assert (limit.dead_count, limit.acked_count) == (1, 0)


def test_it_stays_small():
    limit = LetterLimit(10, 0, WINDOW_MS)
    for at_ms in range(0, 5 * WINDOW_MS, 100):
        limit.acked(1, at_ms)
    assert len(limit._slices) <= SLICES + 1
