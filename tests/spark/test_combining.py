"""From 16 partitions up deltas are added up in a stage of their own: the verdicts are those without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree.tasks.plan import COMBINED_FROM
from tests.generated import at_random
from tests.generated.running import run_locally
from tests.generated.tracker import Tracker
from tests.spark.test_agreement import CONFIG, run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 90


@pytest.mark.parametrize("seed", [6])
def test_with_a_combining_stage_spark_gives_the_verdicts_that_the_trees_deserve(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    drawn = at_random.topology(seed, largest=600)
    config = replace(CONFIG, partitions=COMBINED_FROM, message_timeout_secs=20)
    predicted = Tracker(drawn).outcome()
    assert {"ACKED", "FAILED", "TIMED_OUT"} <= set(predicted.verdicts.values())
    assert not predicted.differences(run_locally(drawn, config))
    assert not predicted.differences(run_on_spark(drawn, spark, tmp_path / "checkpoint", config))
