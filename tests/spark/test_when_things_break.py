"""What happens when things break: the rows of the table in docs/guarantee.md, each a test of that name."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from acktree import BasicBolt, Bolt, Config, IterableSpout, Retry, Spout, TopologyBuilder, Unavailable, submit
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing import FeederSpout
from tests.spark.test_crashes import (
    KillsItsWorkerOnce,
    a_position_spout_loses_nothing_and_counts_exactly,
    a_queue_brings_back_what_was_open_and_nothing_else,
    killed_in_the_middle,
)
from tests.spark.test_running import wait_until
from tests.spark.topologies import Hoard, Notebook, PoisonedEvery, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def topology_of(spout, bolt, parallelism=1):
    builder = TopologyBuilder("breaking")
    builder.set_spout("numbers", spout)
    builder.set_bolt("bolt", bolt, parallelism=parallelism).shuffle_grouping("numbers")
    return builder.create_topology()


def test_a_bolt_raises(spark: SparkSession, tmp_path: Path) -> None:
    feeder = FeederSpout(["n"])
    topology = topology_of(feeder, PoisonedEvery(10), parallelism=2)
    for n in range(1, 101):
        feeder.feed([n], message_id=n)
    feeder.end()
    with submit(topology, checkpoint=tmp_path, spark=spark) as running:
        assert running.await_termination(timeout_secs=120)
    assert sorted(feeder.acked) == [n for n in range(1, 101) if n % 10]
    failures = dict(feeder.failed)
    assert sorted(failures) == list(range(10, 101, 10))
    assert (failures[10].kind, failures[10].reason) == ("FAILED", "ValueError: 10 is poison")
    assert "raise ValueError" in failures[10].traceback


class Forgetful(Bolt):
    """Acks what is even, and forgets the rest."""

    outputs = []

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        if tup["n"] % 2 == 0:
            self.collector.ack(tup)


def test_a_bolt_forgets_to_ack_or_a_tuple_is_dropped(spark: SparkSession, tmp_path: Path) -> None:
    feeder = FeederSpout(["n"])
    for n in range(6):
        feeder.feed([n], message_id=n)
    feeder.end()
    topology, config = topology_of(feeder, Forgetful()), Config(message_timeout_secs=1)
    with submit(topology, checkpoint=tmp_path, spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=120)
    assert sorted(feeder.acked) == [0, 2, 4]
    assert sorted((name, failure.kind) for name, failure in feeder.failed) == [
        (n, "TIMED_OUT") for n in (1, 3, 5)
    ]


class Lookup(BasicBolt):
    """Needs a file to be there, and notes the attempts that it sees then."""

    outputs = []

    def __init__(self, service: Path) -> None:
        self.service = service

    def execute(self, tup, collector):
        if not self.service.exists():
            raise Unavailable("prices")
        with self.service.open("a") as file:
            file.write(f"{tup['n']} {tup.attempt}\n")


def test_what_a_bolt_needs_is_away_also_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    builder = TopologyBuilder("breaking")
    builder.set_spout("numbers", IterableSpout(range(300), ["n"]), retry=Retry(1))
    builder.set_bolt("lookup", Lookup(tmp_path / "service"), parallelism=2).shuffle_grouping("numbers")
    topology = builder.create_topology()

    def is_away():
        outage = running.stats()["numbers"].outage
        return outage is not None and outage.dependency == "prices" and outage.tries > 1

    for _ in range(2):
        with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark) as running:
            wait_until(is_away)
            assert running.stats()["numbers"].total.acked == 0
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        wait_until(is_away)
        (tmp_path / "service").touch()
        assert running.await_termination(timeout_secs=120)
        assert len(running.dead_letters) == 0
    seen = Counter((tmp_path / "service").read_text().splitlines())
    assert seen == Counter(f"{n} 1" for n in range(300))


class NotesItsIds(KillsItsWorkerOnce):
    """Writes down by which roots and edges it knows a tuple, each time that it is executed."""

    def execute(self, tup, collector):
        with self.mark.with_name("ids").open("a") as file:
            file.write(f"{tup['n']} {tup.anchors}\n")
        super().execute(tup, collector)


def test_a_python_worker_dies(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    bolt = NotesItsIds(77, tmp_path / "seen" / "mark")
    topology = topology_of(IterableSpout(range(200), ["n"]), bolt, parallelism=2)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        assert running.await_termination(timeout_secs=120)
        totals = running.stats()["numbers"].total
    assert (totals.acked, totals.failed, totals.timed_out) == (200, 0, 0)
    seen = [line.split(" ", 1) for line in (tmp_path / "seen" / "ids").read_text().splitlines()]
    assert len(seen) > 200  # a Spark task was run again
    assert len({tuple(line) for line in seen}) == 200  # and said the same


@pytest.mark.parametrize("spout", ["queue", "position"])
def test_the_driver_dies(spark: SparkSession, tmp_path: Path, spout: str) -> None:
    killed_in_the_middle(spout, tmp_path)
    if spout == "queue":
        a_queue_brings_back_what_was_open_and_nothing_else(spark, tmp_path)
    else:
        a_position_spout_loses_nothing_and_counts_exactly(spark, tmp_path)


def test_the_acker_comes_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    """Four messages make one tree of four roots; the acker that judges them has seen three in another run."""
    (tmp_path / "notes").mkdir()

    def topology(spout):
        builder = TopologyBuilder("hoard")
        builder.set_spout("numbers", spout)
        builder.set_bolt("hoard", Hoard()).global_grouping("numbers")
        builder.set_bolt("notes", Notebook(tmp_path / "notes")).global_grouping("hoard")
        return builder.create_topology()

    before, after = (FeederSpout(["n"], redelivers=False) for _ in range(2))
    for n in (1, 2, 3):
        before.feed([n], message_id=n)
    with submit(topology(before), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        wait_until(lambda: running._run.results.progress.open_count == 3)
    assert before.acked == []
    with submit(topology(after), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        after.feed([4], message_id=4)
        wait_until(lambda: len(after.acked) == 4)
        assert running.await_idle(60)
        assert running.stats()["hoard"].total.executed == 1  # nothing was replayed
    assert sorted(after.acked) == [1, 2, 3, 4]
    assert notes(tmp_path / "notes", "notes") == [["10"]]


class AcksLate(Bolt):
    """Holds the first tuple, and acks it with the second."""

    outputs = []
    remembers = ["held"]

    def prepare(self, config, context, collector):
        self.collector = collector
        self.held = []

    def execute(self, tup):
        self.held.append(tup)
        if len(self.held) == 2:
            for held in self.held:
                self.collector.ack(held)
            self.held = []


def test_a_verdict_is_delivered_twice_and_an_ack_comes_after_the_verdict(
    spark: SparkSession, tmp_path: Path
) -> None:
    feeder = FeederSpout(["n"])
    topology, config = topology_of(feeder, AcksLate()), Config(message_timeout_secs=1)
    with submit(topology, checkpoint=tmp_path, spark=spark, config=config) as running:
        feeder.feed([1], message_id="late")
        wait_until(lambda: bool(feeder.failed))
        feeder.feed([2], message_id="in time")
        wait_until(lambda: bool(feeder.acked))
        [thread] = running._run.threads.by_task.values()
        first = running._run.checkpoint.first_sequence
        thread.dispatch(
            VerdictBatch(acked=np.array([first, first + 1])), running._run.results.progress.batch_id
        )
        wait_until(lambda: not thread.task.has_verdicts)
        assert running.await_idle(60)
        assert running._run.results.progress.open_count == 0
        totals = running.stats()["numbers"].total
    assert (feeder.acked, [name for name, _ in feeder.failed]) == (["in time"], ["late"])
    assert (totals.acked, totals.failed, totals.timed_out) == (1, 0, 1)


class Broker:
    """A queue whose connections drop: what was delivered over one and not acked waits again."""

    def __init__(self, count: int, drops: set[int]):
        self.ready, self.unacked = deque(range(count)), {}
        self.drops, self.deliveries, self.connection = drops, 0, 0
        self.decided: Counter[int] = Counter()

    def __deepcopy__(self, memo):
        return self  # the spout's task works on a copy of the spout, and on this very queue

    def connect(self) -> int:
        self.ready.extendleft(sorted(self.unacked.values(), reverse=True))
        self.unacked.clear()
        self.connection += 1
        return self.connection

    def get(self, connection: int) -> tuple[int, int] | None:
        self.check(connection)
        if not self.ready:
            return None
        self.deliveries += 1
        if self.deliveries in self.drops:
            self.connection += 1  # a user of the old one finds it closed
        self.check(connection)
        tag, number = self.deliveries, self.ready.popleft()
        self.unacked[tag] = number
        return tag, number

    def ack(self, connection: int, tag: int) -> None:
        self.check(connection)
        self.decided[self.unacked.pop(tag)] += 1

    def check(self, connection: int) -> None:
        if connection != self.connection:
            raise ConnectionResetError("the queue hung up")


class ReconnectingSpout(Spout):
    """Raises when its connection is gone, and opens another one the next time that it is asked."""

    outputs = ["n"]

    def __init__(self, broker: Broker):
        self.broker = broker
        self.connection = None

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.connection is None:
            self.connection = self.broker.connect()
        try:
            got = self.broker.get(self.connection)
        except ConnectionError:
            self.connection = None
            raise
        if got is not None:
            tag, number = got
            self.collector.emit([number], message_id=(self.connection, tag))

    def ack(self, message_id):
        connection, tag = message_id
        if connection == self.connection:  # else the tag means another message by now
            self.broker.ack(connection, tag)


def test_the_queue_connection_drops(spark: SparkSession, tmp_path: Path) -> None:
    broker = Broker(300, drops={100, 101, 350})
    topology = topology_of(ReconnectingSpout(broker), Notebook(tmp_path))
    config = Config(max_spout_pending=50)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        wait_until(lambda: not broker.ready and not broker.unacked)
        assert running.await_idle(60)
        stats = running.stats()
        assert stats["numbers"].total.failed == 0
        assert {error.reason for error in stats.errors} == {"ConnectionResetError: the queue hung up"}
    assert broker.decided == Counter(range(300))
    assert {int(n) for [n] in notes(tmp_path, "bolt")} == set(range(300))
