"""A short chaos with a fixed seed, on Spark itself; longer ones are ``benchmarks/chaos.py``."""

from __future__ import annotations

import json

import pytest

from tests.chaos.chaos import perform
from tests.chaos.conductor import Settings
from tests.chaos.plan import Kind

SEED = 11
STRIKES = {Kind.WORKER: 3, Kind.DRIVER: 2, Kind.STOP: 1}


@pytest.mark.spark
@pytest.mark.timeout(1800)  # a minute or two on two quiet cores; the conductor reports what hangs, not this
def test_nothing_is_lost_and_nothing_acked_in_vain_whatever_is_killed(tmp_path) -> None:
    settings = Settings(rate=80, message_timeout_secs=10)
    result = perform(SEED, STRIKES, settings, print, tmp_path / "chaos")
    assert result.is_clean, json.dumps(result.to_json(), indent=1)
    assert result.account.acked > 0
    assert result.story.starts > STRIKES[Kind.DRIVER]
