"""Users' metrics on Spark: exact where a worker is killed, and they go on in the next run."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from acktree import BasicBolt, Config, JsonLinesMetricsConsumer, TopologyBuilder, submit
from acktree.testing import FeederSpout
from acktree.ui.client import find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Counts(BasicBolt):
    """Counts what it executes, and once kills its process after it has counted."""

    outputs = []

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def prepare(self, config, context):
        self.executed = context.register_counter("executed")
        self.sizes = context.register_histogram("sizes")
        level = logging.getLogger("acktree_tests.worker").level
        context.register_gauge("level").set(level)

    def execute(self, tup, collector):
        self.executed.inc()
        self.sizes.update(tup["n"])
        if tup["n"] == 77 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Asked(FeederSpout):
    def open(self, config, context, collector):
        super().open(config, context, collector)
        context.register_counter("opened").inc()


def test_counters_are_the_tuples_of_committed_micro_batches_though_a_worker_is_killed_and_the_driver_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    for run in (1, 2):
        spout = Asked(["n"])
        builder = TopologyBuilder("counted")
        builder.set_spout("numbers", spout)
        builder.set_bolt("counts", Counts(tmp_path / "mark"), parallelism=2).shuffle_grouping("numbers")
        for n in range(100):
            spout.feed([n], message_id=n)
        file = tmp_path / f"{run}.jsonl"
        config = Config(partitions=2, metrics_consumers=[JsonLinesMetricsConsumer(file)])
        with submit(
            builder.create_topology(), checkpoint=tmp_path / "c", spark=spark, config=config
        ) as running:
            if run == 2:  # the spouts are not open yet
                levels = {"acktree_tests.worker": {"level": "ERROR"}}
                assert find(str(tmp_path / "c")).door.order("log-levels", {"set": levels})["workers"]
            assert running.await_idle(120), running.stats().table()
            stats = running.stats()
        points = [json.loads(line) for line in file.read_text().splitlines()]
        by_name = {(point["task_id"], point["name"]): point["value"] for point in points}
        assert sum(n for (_, name), n in by_name.items() if name == "__ack-count-numbers:default") == 100
        assert sum(n for (_, name), n in by_name.items() if name == "executed") == 100 * run
        assert sorted(spout.acked) == list(range(100))
        assert (tmp_path / "mark").exists()
        assert stats["counts"].total.executed == 100  # of this run
        metrics = stats["counts"].metrics
        assert metrics["executed"].count == 100 * run  # of the checkpoint
        assert (metrics["sizes"].count, metrics["sizes"].sum) == (100 * run, 4950 * run)
        assert sum(task.metrics["executed"].count for task in stats["counts"].tasks.values()) == 100 * run
        assert stats["numbers"].metrics["opened"].count == run
        levels = {task.metrics["level"].value for task in stats["counts"].tasks.values()}
        assert levels == ({logging.NOTSET} if run == 1 else {logging.ERROR})
