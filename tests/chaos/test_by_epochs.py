"""A short chaos in real time, with a fixed seed; longer ones are ``benchmarks/chaos.py --real-time``."""

from __future__ import annotations

import json

import pytest

from tests.chaos.chaos import perform
from tests.chaos.conductor import Settings
from tests.chaos.plan import Kind

SEED = 2
STRIKES = {Kind.WORKER: 3, Kind.DRIVER: 1, Kind.STOP: 1}


@pytest.mark.spark
@pytest.mark.timeout(1800)  # the conductor reports what hangs, not this
def test_by_epochs_nothing_is_lost_and_nothing_acked_in_vain_whatever_is_killed(tmp_path) -> None:
    settings = Settings(rate=40, message_timeout_secs=20, real_time=True)
    result = perform(SEED, STRIKES, settings, print, tmp_path / "chaos")
    assert result.is_clean, json.dumps(result.to_json(), indent=1)
    assert result.account.acked > 0
    assert result.story.starts > STRIKES[Kind.DRIVER]
