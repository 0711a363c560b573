"""On drawn topologies Spark agrees with LocalCluster, and both with trees of objects, which know no XOR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, submit
from tests.generated import at_random
from tests.generated.running import batches, build, feed, run_locally, seen
from tests.generated.scripted import Drawn
from tests.generated.tracker import Outcome, Tracker
from tests.spark.on_spark import tuples_logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = Config(message_timeout_secs=8, debug=True, partitions=2)
"""The timeout is longer than any of these takes: only what is forgotten times out."""


def run_on_spark(
    drawn: Drawn, spark: SparkSession | None, checkpoint: Path, config: Config = CONFIG
) -> Outcome:
    topology, spouts = build(drawn)
    with (
        tuples_logged() as logged,
        submit(topology, checkpoint=checkpoint, spark=spark, config=config) as running,
    ):
        for batch in batches(drawn):
            feed(drawn, spouts, batch)
        for spout in spouts.values():
            spout.end()
        assert running.await_termination(timeout_secs=180), running.stats().table()
        return seen(drawn, spouts, running.stats(), logged)


@pytest.mark.parametrize("seed", range(8))
def test_spark_and_local_cluster_give_the_verdicts_that_the_trees_deserve(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    drawn = at_random.topology(seed, largest=600)
    predicted = Tracker(drawn).outcome()
    assert not predicted.differences(run_locally(drawn, CONFIG))
    assert not predicted.differences(run_on_spark(drawn, spark, tmp_path / "checkpoint"))
