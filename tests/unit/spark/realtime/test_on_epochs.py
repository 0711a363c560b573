"""Whole topologies by epochs, without Spark: Storm's acker rules, and topologies drawn at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.generated import at_random
from tests.generated.tracker import Tracker
from tests.spark import test_acker_rules as rules
from tests.spark import test_agreement as agreement
from tests.spark.on_spark import SparkRunner
from tests.unit.spark.realtime.test_drive import ThreadedRun
from tests.unit.spark.realtime.test_drive import run as threads  # noqa: F401  # a fixture

CONFIG = replace(agreement.CONFIG, real_time=True, message_timeout_secs=20)
"""The timeout is longer than any of these takes: only what is forgotten times out."""


@pytest.fixture
def run(threads: ThreadedRun, tmp_path: Path):  # noqa: F811
    """What the rules are given to run a scenario with."""
    return SparkRunner(None, tmp_path / "scenarios", real_time=True).run


globals().update({name: rule for name, rule in vars(rules).items() if name.startswith("test_")})


@pytest.mark.parametrize("seed", range(12))
def test_drawn_topologies_get_the_verdicts_that_their_trees_deserve(threads: ThreadedRun, seed: int) -> None:  # noqa: F811
    drawn = at_random.topology(seed, largest=300)
    found = agreement.run_on_spark(drawn, None, threads.checkpoint, CONFIG)
    assert not Tracker(drawn).outcome().differences(found)
