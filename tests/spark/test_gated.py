"""On drawn topologies with gates Spark leaves what a model says that replays nothing, as LocalCluster does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, submit
from tests.generated.gated import BATCHES, DUMP, Model, build, feed, found, topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("seed", range(100, 106))
def test_each_acked_message_is_remembered_and_written_once_and_no_other(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    drawn = topology(seed)
    built, spouts = build(drawn, tmp_path)
    config = Config(partitions=2)
    with submit(built, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        for batch in range(BATCHES):
            feed(drawn, spouts, batch)
        fed = sum(message.times for message in drawn.messages)
        while sum(running.stats()[name].total.emitted for name in drawn.spouts) < fed:
            assert not running.await_termination(0.1)
        assert running.await_idle(300), running.stats().table()
        spouts[DUMP].feed([DUMP, "a"], message_id=0)
        for spout in spouts.values():
            spout.end()
        assert running.await_termination(timeout_secs=180), running.stats().table()
    assert spouts[DUMP].acked == [0]
    assert not Model(drawn).left.differences(found(drawn, tmp_path, spouts)), drawn
