"""Spark records the trees that a tracker of objects builds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from acktree import Config, submit
from acktree.traces.traces import Traces
from tests.generated import at_random
from tests.generated.running import batches, build, feed
from tests.generated.trees import differences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = Config(message_timeout_secs=8, partitions=2, trace_sample_rate=0)


def test_from_the_order_on_every_tree_of_a_drawn_topology_is_recorded(
    spark: SparkSession, tmp_path: Path
) -> None:
    drawn = at_random.topology(3, largest=600)
    topology, spouts = build(drawn)
    with submit(topology, checkpoint=tmp_path / "cp", spark=spark, config=CONFIG) as running:
        running.traces.rate = 1
        for batch in batches(drawn):
            feed(drawn, spouts, batch)
        for spout in spouts.values():
            spout.end()
        assert running.await_termination(timeout_secs=180), running.stats().table()
        assert not differences(drawn, running.traces)
    assert not differences(drawn, Traces.of_checkpoint(tmp_path / "cp"))
