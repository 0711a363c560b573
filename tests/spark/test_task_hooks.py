"""On Spark task hooks get the same calls as in a ``LocalCluster``, for every kind of component."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from acktree import ArrowBolt, BasicBolt, Bolt, Config, Retry, TopologyBuilder, WorkerHook, submit
from acktree.testing import FeederSpout, LocalCluster
from tests.generated.tallied import Tally, counted, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = pa.schema([("n", pa.int64())])


class Basic(BasicBolt):
    outputs = NUMBERS

    def prepare(self, config, context):
        assert context.resource("pid") == os.getpid()

    def execute(self, tup, collector):
        if tup["n"] % 10 == 3:
            raise ValueError("three")
        collector.emit([tup["n"]])
        collector.emit([-tup["n"]])


class Hand(Bolt):
    outputs = NUMBERS
    remembers = ["held"]

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        if tup["n"] == 7:
            self.collector.fail(tup, "seven")
        else:
            self.held.append(tup)
        if tup["n"] == -19:  # the last
            for each in self.held:
                self.collector.emit([each["n"]], anchors=each)
                self.collector.ack(each)
            self.held.clear()


class Arrow(ArrowBolt):
    outputs = NUMBERS

    def execute_batch(self, batch, collector):
        collector.emit_batch(batch, parents=range(batch.num_rows))
        collector.fail_rows([row for row, n in enumerate(batch["n"].to_pylist()) if n == 11], "eleven")


class Waiting(BasicBolt):
    outputs = []
    max_concurrency = 5

    async def execute(self, tup, collector):
        await asyncio.sleep(0)
        if tup["n"] == -5:
            raise ValueError("five")


def topology(feeder):
    builder = TopologyBuilder("hooked")
    builder.set_spout("numbers", feeder, retry=Retry(max_attempts=2, backoff_secs=(0.01, 0.01)))
    builder.set_bolt("basic", Basic(), parallelism=2).fields_grouping("numbers", ["n"])
    builder.set_bolt("hand", Hand()).global_grouping("basic")
    builder.set_bolt("arrow", Arrow(), parallelism=2).fields_grouping("basic", ["n"])
    builder.set_bolt("waiting", Waiting()).global_grouping("arrow")
    return builder.create_topology()


class Began(WorkerHook):
    """Writes down its process at the start and at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, config, context):
        self.note("start")
        context.set_resource("pid", os.getpid())

    def shutdown(self):
        self.note("shutdown")

    def note(self, what):
        with (self.folder / what).open("a") as file:
            file.write(f"{os.getpid()}\n")


def test_spark_and_local_cluster_call_hooks_alike(spark: SparkSession, tmp_path: Path) -> None:
    reported = {}
    for name in ("local", "spark"):
        feeder = FeederSpout(NUMBERS)
        (tmp_path / f"{name}-workers").mkdir()
        began = Began(tmp_path / f"{name}-workers")
        config = Config(partitions=2, task_hooks=[Tally(tmp_path / name)], worker_hooks=[began])
        for n in range(20):
            feeder.feed([n], message_id=n)
        feeder.end()
        if name == "local":
            with LocalCluster() as cluster:
                running = cluster.submit(topology(feeder), config=config)
                assert running.await_termination(60)
        else:
            with submit(
                topology(feeder), checkpoint=tmp_path / "checkpoint", spark=spark, config=config
            ) as running:
                assert running.await_termination(120), running.stats().table()
        reported[name] = read(tmp_path / name)
        whats = ("emitted", "executed", "acked", "failed", "timed_out")
        assert counted(reported[name], running.stats(), whats=whats) == {}
    assert reported["spark"] == reported["local"]
    assert (tmp_path / "local-workers" / "start").read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "local-workers" / "shutdown").read_text() == f"{os.getpid()}\n"
    workers = (tmp_path / "spark-workers" / "start").read_text().split()
    assert len(workers) == len(set(workers)) > 0  # once in each process
    assert str(os.getpid()) not in workers
    assert {what for component, what, *_ in reported["spark"] if component == "arrow"} == {
        "emitted", "executed", "acked", "failed",
    }  # fmt: skip
