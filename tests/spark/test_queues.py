"""The contract of spouts for queues, on Spark: what the spout's thread does while a micro-batch runs."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Bolt, Config, Retry, Spout, TopologyBuilder, submit
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.errors import ConnectorError
from acktree.testing import FeederSpout
from tests.spark.test_running import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Shared(Spout):
    """A queue in this process, shared by all copies of the spout."""

    outputs = ["n"]
    keep_alive_secs = 0.2

    def __init__(self, *messages):
        self.messages = deque(messages)
        self.beats, self.acked, self.failed = [], [], []

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.messages:
            value, message_id, attempt = self.messages.popleft()
            self.collector.emit([value], message_id=message_id, attempt=attempt)

    def keep_alive(self, open_messages):
        self.beats.append((time.monotonic(), open_messages.count, threading.current_thread().name))

    def ack(self, message_id):
        self.acked.append(message_id)

    def fail(self, message_id, failure):
        self.failed.append((message_id, failure))


class Slow(BasicBolt):
    outputs = ["attempt"]

    def execute(self, tup, collector):
        if tup["n"] == "slow":
            time.sleep(3)
        if tup["n"] == "poison":
            raise ValueError("poison")
        collector.emit([tup.attempt])


class Forget(Bolt):
    outputs = []

    def prepare(self, config, context, collector):
        pass

    def execute(self, tup):
        pass


def topology_of(spout, bolt, **settings):
    builder = TopologyBuilder("queues")
    builder.set_spout("queue", spout, **settings)
    builder.set_bolt("bolt", bolt).shuffle_grouping("queue")
    return builder.create_topology()


def test_a_spout_is_kept_alive_while_a_micro_batch_runs_and_while_deactivated(
    spark: SparkSession, tmp_path: Path
) -> None:
    spout = Shared(("slow", 1, 1), ("more", 2, 1))
    with submit(topology_of(spout, Slow(), max_spout_pending=1), checkpoint=tmp_path, spark=spark) as running:
        wait_until(lambda: spout.acked == [1, 2])
        while_open = [at for at, count, _ in spout.beats if count]
        running.deactivate()
        before = len(spout.beats)
        wait_until(lambda: len(spout.beats) >= before + 5)
    assert len(while_open) >= 10  # three seconds of work
    assert max(later - at for at, later in pairwise(while_open)) < 1
    assert {name for _, _, name in spout.beats} == {"spout queue task 2"}


def test_what_is_lost_while_a_micro_batch_runs_gets_no_verdict_and_attempts_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Loses(Shared):
        def keep_alive(self, open_messages):
            super().keep_alive(open_messages)
            if "slow" in open_messages.older_than(0):
                self.collector.lost(["slow"])
                self.messages.extend([("again", "again", 2), ("poison", "poison", 3), ("x", "spent", 4)])

    spout = Loses(("slow", "slow", 1))
    topology = topology_of(spout, Slow(), retry=Retry(max_attempts=3))
    with submit(topology, checkpoint=tmp_path, spark=spark) as running:
        wait_until(lambda: len(spout.acked) + len(spout.failed) == 3)
        assert running.await_idle(60)
        letters = {letter.message_id_repr: letter for letter in running.dead_letters}
    assert spout.acked == ["again"]
    assert {message_id for message_id, _ in spout.failed} == {"poison", "spent"}
    assert {name: letter.attempts for name, letter in letters.items()} == {"'poison'": 3, "'spent'": 3}
    assert letters["'spent'"].cause == FailureCause.GAVE_UP


def test_a_spouts_own_message_timeout_counts(spark: SparkSession, tmp_path: Path) -> None:
    feeders = {"short": FeederSpout(["n"]), "common": FeederSpout(["n"])}
    builder = TopologyBuilder("timeouts")
    builder.set_spout("short", feeders["short"], message_timeout_secs=1)
    builder.set_spout("common", feeders["common"])
    builder.set_bolt("forget", Forget()).shuffle_grouping("short").shuffle_grouping("common")
    for feeder in feeders.values():
        feeder.feed([1], message_id=1)
    config = Config(message_timeout_secs=600)
    with submit(builder.create_topology(), checkpoint=tmp_path, spark=spark, config=config):
        wait_until(lambda: feeders["short"].failed)
    [(_, failure)] = feeders["short"].failed
    assert (failure.kind, failure.reason) == (
        FailureKind.TIMED_OUT,
        "no verdict within message_timeout_secs=1: bolt 'forget' neither acked, failed nor kept a tuple",
    )
    assert feeders["common"].failed == []


def test_an_error_that_cannot_pass_stops_the_topology_and_one_that_may_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    gone = ConnectorError("the connection is gone", "queue", "see whether it runs", can_retry=True)
    refused = ConnectorError("access refused", "queue 'q'", "give the user the right to read it")

    class Away(Shared):
        errors = [refused, gone, gone]

        def next_tuple(self):
            super().next_tuple()
            if not self.messages and self.errors:
                raise self.errors.pop()

    spout = Away(("x", 1, 1))
    running = submit(topology_of(spout, Slow()), checkpoint=tmp_path, spark=spark)
    with pytest.raises(ConnectorError, match="give the user the right"):
        running.await_termination(timeout_secs=60)
    assert len(running.stats().errors) == 1
