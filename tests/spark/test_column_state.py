"""Counts in columns are exact on Spark: a worker is killed after it counted, and the driver starts anew."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from acktree import ArrowBolt, ColumnState, Config, IterableSpout, TopologyBuilder, submit
from tests.spark.test_running import wait_until
from tests.spark.topologies import Notebook, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS, COUNT = 3000, 6000


class CountInColumns(ArrowBolt):
    """Counts by key, and emits every count; kills its worker once, when it has counted a certain number."""

    outputs = pa.schema([("key", pa.string()), ("count", pa.int64())])
    remembers = ["counts"]

    def __init__(self, fatal: int, mark: Path) -> None:
        self.fatal, self.mark = fatal, mark

    def prepare(self, config, context):
        self.counts = ColumnState(str, int)

    def execute_batch(self, batch, collector):
        keys = pc.cast(pc.subtract(batch["n"], pc.multiply(pc.divide(batch["n"], KEYS), KEYS)), pa.string())
        counts = self.counts.add_many(keys)
        if self.fatal in batch["n"].to_pylist() and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        collector.emit_batch(pa.record_batch({"key": keys, "count": counts}), range(batch.num_rows))


def test_counts_in_columns_are_exact_after_a_killed_worker_and_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    builder = TopologyBuilder("columns")
    builder.set_spout("numbers", IterableSpout(range(COUNT), ["n"]))
    builder.set_bolt("count", CountInColumns(700, tmp_path / "mark")).global_grouping("numbers")
    builder.set_bolt("notebook", Notebook(tmp_path / "notes")).global_grouping("count")
    topology, config = builder.create_topology(), Config(max_spout_pending=1500)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        wait_until(lambda: running.stats()["numbers"].total.acked > COUNT // 3, secs=120)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=120)
        totals = running.stats()["numbers"].total
    assert (totals.failed, totals.timed_out) == (0, 0)
    assert (tmp_path / "mark").exists()
    most: Counter[str] = Counter()
    for key, number in notes(tmp_path / "notes", "notebook"):
        most[key] = max(most[key], int(number))
    assert most == Counter(str(number % KEYS) for number in range(COUNT))
