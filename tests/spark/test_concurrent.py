"""Bolts that execute several tuples at once, on Spark: 1 % raise, 1 % hang, and a worker is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from acktree import BasicBolt, Config, KeyValueState, TopologyBuilder, submit
from acktree.core.tracking.verdicts import FailureCause
from acktree.testing import FeederSpout
from tests.spark.on_spark import await_commit

MESSAGES = 200
RAISES, HANGS, KILLS = 1, 2, 50


def misbehave(number: int, flag: str) -> None:
    """Raise for some numbers; kill the worker once, between others."""
    if number % 100 == RAISES:
        raise ValueError(number)
    if number == KILLS and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Client:
    """Belongs to the loop that runs when it is made."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls = 0

    def call(self) -> int:
        assert asyncio.get_running_loop() is self.loop
        self.calls += 1
        return self.calls


class Asynchronous(BasicBolt):
    """Has a client that belongs to the loop, and emits how often this process has called it."""

    outputs = ["number", "used"]
    max_concurrency = 50

    def __init__(self, flag: str) -> None:
        self.flag = flag

    async def prepare(self, config, context):
        self.client = context.cached("client", Client)  # in every micro-batch the same

    async def execute(self, tup, collector):
        await asyncio.sleep(0.01)
        misbehave(tup["number"], self.flag)
        if tup["number"] % 100 == HANGS:
            await asyncio.sleep(3600)
        collector.emit([tup["number"], self.client.call()])


class OnThreads(BasicBolt):
    """The same with a client that blocks."""

    outputs = ["number", "used"]
    threads = 50

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def execute(self, tup, collector):
        time.sleep(0.01)
        misbehave(tup["number"], self.flag)
        if tup["number"] % 100 == HANGS:
            time.sleep(30)
        collector.emit([tup["number"], 0])


class Counts(BasicBolt):
    """Counts on threads, in a memory."""

    outputs = []
    remembers = ["counts"]
    threads = 8

    def prepare(self, config, context):
        self.counts = KeyValueState()

    def execute(self, tup, collector):
        self.counts["all"] = self.counts.get("all", 0) + 1

    def flush(self, collector):
        if self.counts["all"] > 2 * MESSAGES:
            raise AssertionError(self.counts["all"])


@pytest.mark.parametrize("kind", [Asynchronous, OnThreads])
def test_of_tuples_executed_at_once_each_gets_its_own_verdict(
    kind: type[BasicBolt], spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["number"])
    builder = TopologyBuilder(f"concurrent-{kind.__name__}")
    builder.set_spout("source", feeder)
    calls = builder.set_bolt("calls", kind(str(tmp_path / "killed")), parallelism=3)
    calls.set_execute_timeout_secs(1).shuffle_grouping("source")
    builder.set_bolt("counts", Counts()).global_grouping("calls")
    for number in range(MESSAGES):
        feeder.feed([number], message_id=number)
    config = Config(partitions=2)
    with submit(
        builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark, config=config
    ) as running:
        await_commit(running, feeder)
        assert running.await_idle(200)
        for number in range(MESSAGES, 2 * MESSAGES, 20):
            feeder.feed([number], message_id=number)  # the worker that was killed is another one now
        await_commit(running, feeder)
        assert running.await_idle(200)
    causes = {number: failure.cause for number, failure in feeder.failed}
    assert causes == {
        RAISES: FailureCause.EXCEPTION, 100 + RAISES: FailureCause.EXCEPTION,
        HANGS: FailureCause.HUNG, 100 + HANGS: FailureCause.HUNG,
    }  # fmt: skip
    expected = [*range(MESSAGES), *range(MESSAGES, 2 * MESSAGES, 20)]
    assert sorted(feeder.acked) == [number for number in expected if number not in causes]
    assert (tmp_path / "killed").exists()
