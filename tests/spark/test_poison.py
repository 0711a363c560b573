"""Messages that kill their worker or hold it: found, left out with their cause, and nobody in their place."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from acktree import (
    ArrowBolt,
    BasicBolt,
    Config,
    IterableSpout,
    KeyValueState,
    Retry,
    TopologyBuilder,
    submit,
)

MESSAGES = 10_000
EXITS = {17, 2_017, 4_017, 6_017, 8_017}
CRASHES = {117, 2_117, 4_117, 6_117, 8_117}
HANGS = {217, 2_217, 4_217, 6_217, 8_217}


def misbehave(n: int) -> None:
    if n in EXITS:
        os._exit(9)
    if n in CRASHES:
        ctypes.string_at(0)
    if n in HANGS:
        time.sleep(3600)


class Careless(BasicBolt):
    """Passes numbers on, as long as it lives."""

    outputs = ["n"]

    def execute(self, tup, collector):
        misbehave(tup["n"])
        collector.emit([tup["n"]])


class CarelessTally(BasicBolt):
    """The same, and remembers."""

    outputs = []
    remembers = ["seen"]

    def prepare(self, config, context):
        self.seen = KeyValueState()

    def execute(self, tup, collector):
        misbehave(tup["n"])
        self.seen[tup["n"]] = self.seen.get(tup["n"], 0) + 1


class CarelessBatches(ArrowBolt):
    """The same, a batch at a time."""

    outputs = pa.schema([("n", pa.int64())])

    def execute_batch(self, batch, collector):
        for n in batch["n"].to_pylist():
            if n in EXITS:
                os._exit(9)
        collector.emit_batch(batch, parents=range(batch.num_rows))


def causes(spark: SparkSession, tmp_path: Path, bolt, poison, **settings) -> Counter[str]:
    """Runs all messages through a bolt; every message but the poison is acked. The causes of the rest."""
    builder = TopologyBuilder("careless")
    builder.set_spout(
        "numbers",
        IterableSpout(range(MESSAGES), outputs=pa.schema([("n", pa.int64())])),
        retry=Retry(max_attempts=1),
    )
    builder.set_bolt("careless", bolt, parallelism=2).fields_grouping("numbers", ["n"])
    config = Config(**settings)
    topology = builder.create_topology()
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=240)
        totals = running.stats()["numbers"].total
        letters = list(running.dead_letters)
        assert sorted(letter.values[0] for letter in letters) == sorted(poison)
        assert {letter.component for letter in letters} == {"careless"}
        assert (totals.acked, totals.failed) == (MESSAGES - len(poison), len(poison))
        return Counter(letter.cause for letter in letters)


@pytest.mark.slow
@pytest.mark.parametrize("bolt", [Careless(), CarelessTally()], ids=["stateless", "remembering"])
def test_of_ten_thousand_messages_fifteen_are_poison_and_the_rest_is_acked(
    spark: SparkSession, tmp_path: Path, bolt: BasicBolt
) -> None:
    found = causes(spark, tmp_path, bolt, EXITS | CRASHES | HANGS, execute_timeout_secs=1)
    assert found == {"KILLED_WORKER": 10, "HUNG": 5}


def test_of_a_batch_that_kills_only_the_rows_that_do_are_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert causes(spark, tmp_path, CarelessBatches(), EXITS) == {"KILLED_WORKER": 5}


class Stopping(BasicBolt):
    """Stops its own process at one number: nothing in that process can end it."""

    outputs = []

    def execute(self, tup, collector):
        if tup["n"] == 17:
            os.kill(os.getpid(), signal.SIGSTOP)


def check_a_message_that_stops_its_worker(spark: SparkSession, tmp_path: Path, config: Config) -> None:
    """Twice 30 s."""
    builder = TopologyBuilder("stopping")
    builder.set_spout("numbers", IterableSpout(range(40), outputs=["n"]), retry=Retry(max_attempts=1))
    builder.set_bolt("stopping", Stopping(), parallelism=2).fields_grouping("numbers", ["n"])
    topology = builder.create_topology()
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=400)
        totals, (letter,) = running.stats()["numbers"].total, running.dead_letters
    assert (totals.acked, totals.failed) == (39, 1)
    assert (letter.values, letter.cause) == ([17], "KILLED_WORKER")
    assert "its worker was stopped for 30 s and killed, 2 times over this tuple" in letter.reason


def test_a_message_that_stops_its_worker_is_left_out_and_the_rest_is_acked(
    spark: SparkSession, tmp_path: Path
) -> None:
    check_a_message_that_stops_its_worker(spark, tmp_path, Config(partitions=2))


class Patient(BasicBolt):
    """Takes its time for one number, and notes them all."""

    outputs = []

    def __init__(self, file: Path):
        self.file = file

    def execute(self, tup, collector):
        if tup["n"] == 1:
            time.sleep(4)
        with self.file.open("a") as file:
            file.write(f"{tup['n']}\n")


def test_what_nothing_tracks_is_left_out_too_and_each_bolt_has_an_execute_timeout_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder("careless")
    builder.set_spout("numbers", IterableSpout([1, 17, 18, 217, 218], outputs=["n"]))
    careless = builder.set_bolt("careless", Careless(), parallelism=2).fields_grouping("numbers", ["n"])
    careless.set_execute_timeout_secs(3)
    builder.set_bolt("patient", Patient(tmp_path / "notes")).shuffle_grouping("careless")
    topology, config = builder.create_topology(), Config(acker_executors=0)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=240)
        totals, errors = running.stats(), running.stats().errors
    assert sorted(map(int, (tmp_path / "notes").read_text().split())) == [1, 18, 218]
    assert {error.component for error in errors} == {"careless"}
    hung, killed = sorted(error.reason.splitlines()[0] for error in errors)
    assert hung == "ExecuteTimeoutError: execute took longer than execute_timeout_secs=3"
    assert killed.startswith("KilledWorkerError: its worker exited with code 9, 2 times over this tuple")
    assert totals["careless"].total.failed == 2
    assert totals["numbers"].total.acked == 5  # without ackers, that says nothing about bolts


class Pooling(BasicBolt):
    """Has a process of its own, which outlives its worker; one number ends the worker."""

    outputs = []

    def prepare(self, config, context):
        context.cached("pool", a_process)

    def execute(self, tup, collector):
        if tup["n"] == 17:
            os.kill(os.getpid(), signal.SIGKILL)


def a_process() -> int:
    if child := os.fork():
        return child
    time.sleep(60)
    os._exit(0)


def test_a_worker_that_dies_is_seen_although_a_process_that_it_has_forked_lives(
    spark: SparkSession, tmp_path: Path
) -> None:
    """That process would keep the worker's connection to Spark, and what it writes to who isolates it."""
    builder = TopologyBuilder("pooling")
    builder.set_spout("numbers", IterableSpout(range(40), outputs=["n"]), retry=Retry(max_attempts=1))
    builder.set_bolt("pooling", Pooling(), parallelism=2).fields_grouping("numbers", ["n"])
    topology, config = builder.create_topology(), Config(partitions=2)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=240)
        totals, (letter,) = running.stats()["numbers"].total, running.dead_letters
    assert (totals.acked, totals.failed) == (39, 1)
    assert (letter.values, letter.cause) == ([17], "KILLED_WORKER")
