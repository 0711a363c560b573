"""How long a spout task waits when it has nothing to do."""

from __future__ import annotations

import pytest

from acktree import Config
from acktree.driver.spouts.spout_waits import idle_secs, not_asked_secs


def test_the_wait_strategies_wait_as_storms_do() -> None:
    progressive = Config(
        spout_wait_progressive_level1_count=2,
        spout_wait_progressive_level2_count=3,
        spout_wait_progressive_level3_sleep_millis=4,
    )
    waits = [idle_secs(progressive, calls) for calls in range(1, 9)]
    assert waits == [0, 0, 1e-6, 1e-6, 1e-6, 0.004, 0.004, 0.004]
    assert idle_secs(Config(), 1) == 0.001
    long_idle = [idle_secs(Config(), calls) for calls in (99, 100, 200, 500, 800, 1_000_000)]
    assert long_idle == pytest.approx([0.001, 0.002, 0.004, 0.032, 0.256, 0.5])
    short = Config(spout_wait_progressive_level3_sleep_millis=0.05)
    assert [idle_secs(short, calls) for calls in (99, 100, 1_000_000)] == [0.00005, 0.0001, 0.5]
    slow = Config(spout_wait_progressive_level3_sleep_millis=1000)
    assert {idle_secs(slow, calls) for calls in (1, 1_000_000)} == {1}
    park = Config(spout_wait_strategy="park", spout_wait_park_microsec=250)
    assert {idle_secs(park, calls) for calls in (1, 100)} == {0.00025}
    assert idle_secs(Config(spout_wait_strategy="park", spout_wait_park_microsec=0), 1) == 0


def test_a_spout_that_may_not_emit_waits_longer_and_longer() -> None:
    assert [not_asked_secs(None, calls) for calls in (1, 19, 20, 40, 100, 10**9)] == [
        0.05,
        0.05,
        0.1,
        0.2,
        1,
        1,
    ]
