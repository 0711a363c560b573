"""The share of messages that is traced: lowered while very many are recorded, and never without need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.traces.pace import LOOK_SECS, MOST_PER_SEC, SMALL, TracePace


def paced(
    pace: TracePace, offered_per_sec: float, looks: int, start: tuple[int, float] = (0, 0.0)
) -> tuple[int, float]:
    """Let messages come at a steady rate, and look as often as they are counted."""
    recorded, now = start
    pace.look(recorded, now)
    for _ in range(looks):
        recorded += round(offered_per_sec * pace.rate * LOOK_SECS)
        now += LOOK_SECS
        pace.look(recorded, now)
    return recorded, now


@given(st.floats(1e-4, SMALL), st.floats(1, 1e8))
def test_no_more_are_recorded_than_anybody_looks_at_and_a_fair_part_of_that(wanted, offered_per_sec):
    pace = TracePace(wanted)
    start = paced(pace, offered_per_sec, 40)
    per_sec = offered_per_sec * pace.rate
    assert per_sec <= MOST_PER_SEC + 1, "a message more or less, as they are whole"
    assert pace.divisor == 1 or per_sec >= MOST_PER_SEC / 4 - 1
    settled = pace.rate
    start = paced(pace, offered_per_sec, 5, start)
    assert pace.rate == settled
    paced(pace, 0, 40, start)
    assert pace.rate == wanted, "nothing comes: the next message counts as any"


@given(st.floats(SMALL, 1, exclude_min=True), st.floats(1, 1e8))
def test_who_asks_for_a_large_share_gets_it(wanted, offered_per_sec):
    pace = TracePace(wanted)
    paced(pace, offered_per_sec, 5)
    assert pace.rate == wanted


def test_no_share_stays_none():
    pace = TracePace(0.0)
    paced(pace, 1e6, 5)
    assert pace.rate == 0


@pytest.mark.parametrize("secs", [0.0, LOOK_SECS - 0.1])
def test_a_moment_with_many_messages_lowers_nothing(secs):
    pace = TracePace(0.001)
    assert not pace.look(0, 100.0)
    assert not pace.look(100_000, 100.0 + secs)
    assert pace.divisor == 1
