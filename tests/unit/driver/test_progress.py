"""What the last micro-batch said, as the supervisor reads it."""

from __future__ import annotations

import pytest

from acktree.driver.batch import Progress


@pytest.mark.parametrize(
    ("deadline_ms", "now_ms", "wants"),
    [
        (None, 9_000, False),
        (9_000, 8_999, False),
        (9_000, 9_000, True),
        (9_000, 4_999, True),
        (None, 0, False),
    ],
)
def test_the_acker_is_asked_at_its_deadline_and_at_once_when_the_clock_was_set_back(
    deadline_ms, now_ms, wants
) -> None:
    assert Progress(clock_ms=5_000, next_deadline_ms=deadline_ms).wants_a_beat(now_ms) is wants
