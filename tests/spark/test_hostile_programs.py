"""Programs with ``async def process`` that misbehave on Spark: verdicts, and data when a worker is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from acktree import Config, FailureCause, submit
from acktree.streamparse import Bolt, Grouping, Spout, Topology, load
from acktree.testing import FeederSpout
from tests.spark.on_spark import await_commit, tuples_logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Words(Spout):
    outputs = ["word"]


class Misbehaving(Bolt):
    """What becomes of a word is its name."""

    outputs = ["word"]

    async def process(self, tup):
        word = tup.values.word
        await asyncio.sleep(0)
        if word == "exits":
            os._exit(3)
        if word == "blocks":
            while True:
                pass
        if word == "blocks in a task":
            await asyncio.gather(self.block())
        if word == "hangs":
            await asyncio.Event().wait()
        if word == "is deaf":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.emit(["ghost"])
        if word == "stops":
            asyncio.get_running_loop().stop()
        if word == "leaves":
            self.left = asyncio.get_running_loop().create_task(self.late(tup))
        await asyncio.sleep(0.01)
        self.emit([word])

    async def block(self):
        while True:
            pass

    async def late(self, tup):
        await asyncio.sleep(0)
        self.fail(tup)
        self.emit(["after a fail"], anchors=[tup])


class MisbehavingTopology(Topology):
    words = Words.spec()
    count = Misbehaving.spec(inputs=[words])


HUNG, KILLED = FailureCause.HUNG, FailureCause.KILLED_WORKER
CAUSES = {
    "exits": KILLED,
    "blocks": HUNG,
    "blocks in a task": HUNG,
    "hangs": HUNG,
    "is deaf": HUNG,
    "leaves": FailureCause.FAILED_BY_BOLT,
}


def test_each_tuple_of_a_misbehaving_program_has_its_own_verdict(spark: SparkSession, tmp_path: Path) -> None:
    feeder = FeederSpout(["word"])
    loaded = load(MisbehavingTopology, replace={"words": feeder})
    config = Config(partitions=2, execute_timeout_secs=1)
    words = ["a", "exits", "b", "blocks", "stops", "hangs", "c", "is deaf", "blocks in a task", "leaves", "d"]
    with submit(loaded.topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        for word in words:
            feeder.feed([word], message_id=word)
        assert running.await_idle(240)
        held = [task.held for task in running.stats()["count"].tasks.values()]
    assert {word: failure.cause for word, failure in feeder.failed} == CAUSES
    assert sorted(feeder.acked) == sorted({*words} - CAUSES.keys())
    assert held == [0]


class Killed(Bolt):
    """Counts words. It kills its process once, while other words wait; and has what is no data."""

    outputs = ["word", "count"]

    def initialize(self, conf, context):
        self.counter: Counter[str] = Counter()
        self.lock = asyncio.Lock()
        self.flag = Path(conf["flag"])

    async def process(self, tup):
        word = tup.values.word
        async with self.lock:
            self.counter[word] += 1
            count = self.counter[word]
        await asyncio.sleep(0.01)
        if word == "kill" and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.emit([word, count])


class KilledTopology(Topology):
    words = Words.spec()
    count = Killed.spec(inputs={words: Grouping.fields("word")}, par=2)


BATCHES = [["dog", "cat", "dog"], ["kill", *["dog", "cat"] * 10], ["kill", "dog"]]


def test_data_are_as_committed_where_a_worker_is_killed_amid_calls_and_over_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    most: Counter[str] = Counter()
    for run in (1, 2):
        feeder = FeederSpout(["word"])
        options = {"flag": str(tmp_path / "flag")}
        loaded = load(KilledTopology, replace={"words": feeder}, options=options)
        config = Config(partitions=2, debug=True)
        folder = tmp_path / "checkpoint"
        with (
            tuples_logged() as logged,
            submit(loaded.topology, checkpoint=folder, spark=spark, config=config) as running,
        ):
            given = 0
            for batch in BATCHES:
                for word in batch:
                    feeder.feed([word], message_id=given)
                    given += 1
                await_commit(running, feeder)
            assert running.await_idle(240)
        assert sorted(feeder.acked) == [*range(given)]
        counted = Counter(eval(values) for component, _, values in logged.elements() if component == "count")
        of_run = Counter(word for batch in BATCHES for word in batch)
        assert counted == Counter(
            (word, most[word] + n) for word, many in of_run.items() for n in range(1, many + 1)
        ), run
        most += of_run
    assert (tmp_path / "flag").exists()
