"""A short chaos on hosts that share nothing; a longer one is ``benchmarks shared_nothing``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.chaos import perform
from tests.chaos.conductor import Conductor, Settings
from tests.chaos.namespaces import missing
from tests.chaos.plan import Kind
from tests.chaos.shared_nothing import Apart, ApartConductor
from tests.services.hdfs import minicluster

SEED = 3
STRIKES = {Kind.EXECUTOR: 1, Kind.NETWORK: 1, Kind.DRIVER: 1}


@pytest.mark.spark
@pytest.mark.timeout(1800)  # the conductor reports what hangs, not this
def test_hosts_that_share_nothing_lose_nothing_whatever_is_killed_or_cut_off(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    try:
        minicluster()
    except OSError as error:
        pytest.skip(f"hadoop-client-minicluster cannot be fetched: {error}")
    settings = Apart(rate=30, message_timeout_secs=20, master="standalone[2]")

    def stage(folder: Path, _: Settings) -> Conductor:
        return ApartConductor(folder, settings)

    result = perform(SEED, STRIKES, settings, print, tmp_path / "chaos", stage=stage)
    assert result.is_clean, json.dumps(result.to_json(), indent=1)
    assert result.struck == STRIKES
    assert result.account.acked > 0
    assert result.story.starts == 2, "the second one is on another host"
