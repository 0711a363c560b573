"""A topology that is changed between two runs on one checkpoint, on Spark: what docs/running.md promises."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, Topology, TopologyBuilder, streamparse, submit
from acktree.cli.main import main
from acktree.errors import CheckpointError
from acktree.testing import FeederSpout
from tests.spark.on_spark import await_commit, tuples_logged
from tests.spark.topologies import Hoard, Notebook, NotingIterableSpout, Tally, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [f"key {n}" for n in range(40)]
TWO = Config(partitions=2, message_timeout_secs=600)


class NegativeTally(Tally):
    """Other code, the same memory."""

    def execute(self, tup, collector):
        key = tup["key"]
        self.counts[key] = self.counts.get(key, 0) + 1
        collector.emit([key, -self.counts[key]])


class Relay(BasicBolt):
    """Passes on what it is given."""

    outputs = ["key"]

    def execute(self, tup, collector):
        collector.emit([tup["key"]])


class RememberingRelay(Relay):
    """Remembers too, where no bolt was."""

    remembers = ["seen"]

    def prepare(self, config, context):
        self.seen = 0

    def execute(self, tup, collector):
        self.seen += 1
        super().execute(tup, collector)


class Pairs(Hoard):
    """Joins two where its elder joined four."""

    def execute(self, tup):
        self.held.append(tup)
        if len(self.held) == 2:
            self.collector.emit([sum(held["n"] for held in self.held)], anchors=self.held)
            for held in self.held:
                self.collector.ack(held)
            self.held = []


def tallied(feeder: FeederSpout, place: Path, parallelism: int = 2) -> Topology:
    """keys -> a remembered count -> a notebook."""
    place.mkdir()
    builder = TopologyBuilder("tallied")
    builder.set_spout("keys", feeder)
    builder.set_bolt("tally", Tally(), parallelism).fields_grouping("keys", ["key"])
    builder.set_bolt("notes", Notebook(place), parallelism=2).fields_grouping("tally", ["key"])
    return builder.create_topology()


def run(topology: Topology, feeder: FeederSpout, spark: SparkSession, checkpoint: Path) -> set[int]:
    """Feed all keys once, to the end of each; returns the tasks that tallied."""
    with submit(topology, checkpoint=checkpoint, spark=spark, config=TWO) as running:
        for number, key in enumerate(KEYS):
            feeder.feed([key], message_id=number)
        assert running.await_idle(timeout_secs=240)
        assert sorted(feeder.acked) == list(range(len(KEYS)))
        return {task for task, numbers in running.stats()["tally"].tasks.items() if numbers.total.executed}


@pytest.mark.parametrize("relay", [Relay, RememberingRelay])
def test_changed_code_goes_on_with_its_memory_also_on_another_level(
    spark: SparkSession, tmp_path: Path, relay: type[Relay]
) -> None:
    feeder, checkpoint = FeederSpout(["key"]), tmp_path / "checkpoint"
    before = run(tallied(feeder, tmp_path / "first"), feeder, spark, checkpoint)
    feeder = FeederSpout(["key"])
    (tmp_path / "second").mkdir()
    builder = TopologyBuilder("tallied")
    builder.set_spout("keys", feeder)
    builder.set_bolt("a relay", relay(), parallelism=2).fields_grouping("keys", ["key"])
    builder.set_bolt("tally", NegativeTally(), parallelism=2).fields_grouping("a relay", ["key"])
    builder.set_bolt("notes", Notebook(tmp_path / "second")).fields_grouping("tally", ["key"])
    assert run(builder.create_topology(), feeder, spark, checkpoint) == before
    assert sorted(notes(tmp_path / "second", "notes")) == sorted([key, "-2"] for key in KEYS)


def test_a_count_is_kept_exactly_when_its_bolt_is_given_another_task_and_the_levels_another_partition(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feeder, checkpoint = FeederSpout(["key"]), tmp_path / "checkpoint"
    assert len(run(tallied(feeder, tmp_path / "two"), feeder, spark, checkpoint)) == 2
    feeder = FeederSpout(["key"])
    three = tallied(feeder, tmp_path / "three", parallelism=3)
    with pytest.raises(CheckpointError, match=r"rebalance .* --component tally --parallelism 3"):
        submit(three, checkpoint=checkpoint, spark=spark, config=TWO)
    command = ["rebalance", str(checkpoint), "--component", "tally", "--parallelism", "3"]
    assert main(command) == 1
    assert "--by-key counts" in capsys.readouterr().err
    assert main([*command, "--by-key", "counts", "--partitions", "3"]) == 0
    for times, folder in ((2, "three"), (3, "again")):  # what was moved, and what Spark kept of it since
        if times == 3:
            feeder = FeederSpout(["key"])
            three = tallied(feeder, tmp_path / folder, parallelism=3)
        assert len(run(three, feeder, spark, checkpoint)) == 3
        assert sorted(notes(tmp_path / folder, "notes")) == sorted([key, str(times)] for key in KEYS)


def test_a_reset_forgets_what_bolts_remember_and_loses_nothing_that_is_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, noted = tmp_path / "checkpoint", tmp_path / "noted"
    for bolt in (Hoard(), Pairs()):  # the first keeps two of six, and waits for more in vain
        builder = TopologyBuilder("hoarded")
        builder.set_spout("numbers", NotingIterableSpout(range(6), ["n"], noted))
        builder.set_bolt("hoard", bolt).global_grouping("numbers")
        with submit(builder.create_topology(), checkpoint=checkpoint, spark=spark, config=TWO) as running:
            if isinstance(bolt, Pairs):
                assert running.await_termination(timeout_secs=240)
            else:
                while running.stats()["numbers"].total.acked < 4:
                    assert not running.await_termination(timeout_secs=0.1)
                assert running.stats()["numbers"].open == 2
        if isinstance(bolt, Hoard) and not isinstance(bolt, Pairs):
            assert main(["reset-state", str(checkpoint)]) == 0
    assert sorted(noted.read_text().splitlines()) == [f"acked {n}" for n in range(6)]


class Words(streamparse.Spout):
    outputs = ["word"]


class CountWords(streamparse.Bolt):
    """Keeps its data in a plain attribute, as programs for Storm do, beside one that cannot be pickled."""

    outputs = ["word", "count"]

    def initialize(self, conf, ctx):
        self.counter: Counter[str] = Counter()
        self.lock = threading.Lock()

    def process(self, tup):
        with self.lock:
            self.counter[tup.values.word] += 1
        self.emit([tup.values.word, self.counter[tup.values.word]])


class WordCount(streamparse.Topology):
    words = Words.spec()
    count = CountWords.spec(inputs={words: streamparse.Grouping.fields("word")}, par=2)


def test_a_component_of_streamparse_counts_on_where_its_task_moves_and_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    counted: Counter[str] = Counter()
    for _ in range(2):
        feeder = FeederSpout(["word"])
        loaded = streamparse.load(WordCount, replace={"words": feeder})
        config = replace(TWO, debug=True)
        with (
            tuples_logged() as logged,
            submit(loaded.topology, checkpoint=tmp_path / "c", spark=spark, config=config) as running,
        ):
            for batch in range(6):
                for at, word in enumerate(["dog", "cat", "emu", "dog"]):
                    feeder.feed([word], message_id=4 * batch + at)
                await_commit(running, feeder)
            assert running.await_idle(60)
        assert sorted(feeder.acked) == [*range(24)]
        counted += Counter(
            {values: n for (component, _, values), n in logged.items() if component == "count"}
        )
    expected = [("dog", 24), ("cat", 12), ("emu", 12)]
    assert counted == Counter(repr((word, n)) for word, most in expected for n in range(1, most + 1))
