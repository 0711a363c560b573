"""How a topology stops: by its own spout, from outside, by a failing sink; and that it never stalls."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, IterableSpout, TopologyBuilder, submit
from acktree.errors import AcktreeError
from acktree.spark.query.sink import QuerySink
from acktree.testing import FeederSpout
from tests.spark.test_running import wait_until
from tests.spark.topologies import PoisonedEvery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def topology_of(spout):
    builder = TopologyBuilder("stopping")
    builder.set_spout("numbers", spout)
    builder.set_bolt("poisoned", PoisonedEvery(1000)).shuffle_grouping("numbers")
    return builder.create_topology()


class KillsItsTopology(FeederSpout):
    """Asks for the end at its first verdict."""

    def __init__(self):
        super().__init__(["n"])
        self.running: list = []
        self.closed: list[bool] = []

    def ack(self, message_id):
        super().ack(message_id)
        self.running[0].kill()

    def close(self):
        self.closed.append(True)


def test_a_full_inbox_empties_at_the_commit_and_a_spout_may_kill_its_topology(
    spark: SparkSession, tmp_path: Path
) -> None:
    # With room for one byte each micro-batch takes one chunk, and only its commit lets the next one come.
    config = Config(inbox_max_bytes=1, max_spout_pending=10)
    topology = topology_of(IterableSpout(range(30), ["n"]))
    with submit(topology, checkpoint=tmp_path / "full", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=120)
        assert running.stats()["numbers"].total.acked == 29
    spout = KillsItsTopology()
    running = submit(topology_of(spout), checkpoint=tmp_path / "killed", spark=spark)
    spout.running.append(running)
    spout.feed([1], message_id=1)
    assert running.await_termination(timeout_secs=120)
    assert (spout.acked, spout.closed) == ([1], [True])


def test_verdicts_of_a_failing_sink_are_delivered_after_a_restart_and_a_stop_from_outside_is_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: QuerySink, batch_id: int, end: int, *_: object) -> None:
        raise OSError(28, "No space left on device")

    feeder = FeederSpout(["n"], redelivers=False)
    with monkeypatch.context() as patched:
        patched.setattr("acktree.checkpoint.logs.journal.Journal.write", full)
        running = submit(topology_of(feeder), checkpoint=tmp_path / "checkpoint", spark=spark)
        feeder.feed([1], message_id=1)
        with pytest.raises(Exception, match="No space left"):
            running.await_termination(timeout_secs=120)
    assert feeder.acked == []
    running = submit(topology_of(feeder), checkpoint=tmp_path / "checkpoint", spark=spark)
    wait_until(lambda: feeder.acked == [1])
    running._supervisor._query._query.stop()
    with pytest.raises(AcktreeError, match="stopped from outside"):
        running.await_termination(timeout_secs=60)
    running.kill()  # it is over: nothing to do


class Blocks(FeederSpout):
    """Emits two messages, one a call; then its next_tuple does not return."""

    def __init__(self):
        super().__init__(["n"])
        self.go_on, self.is_blocked, self.calls = Event(), Event(), 0

    def __deepcopy__(self, memo):
        return self

    def next_tuple(self):
        self.calls += 1
        if self.calls <= 2:
            self._collector.emit([self.calls], message_id=self.calls)
        else:
            self.is_blocked.set()
            self.go_on.wait()


def test_a_next_tuple_that_does_not_return_holds_up_neither_its_messages_nor_kill(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acktree.driver.supervisor._BLOCKED_SECS", 0.0)
    monkeypatch.setattr("acktree.driver.supervisor._BLOCKED_WAIT_SECS", 0.0)
    spout = Blocks()
    running = submit(topology_of(spout), checkpoint=tmp_path / "checkpoint", spark=spark)
    assert spout.is_blocked.wait(120)
    wait_until(lambda: running.stats()["poisoned"].total.executed == 2)
    wait_until(lambda: bool(running.stats().errors))
    stats = running.stats()
    assert stats["numbers"].outage is not None
    assert stats["numbers"].open == 2
    assert spout.acked == []
    running.kill(0)
    told = [error.reason for error in running.stats().errors if error.component == "numbers"]
    assert "next_tuple of task 1 has not returned: acks and fails of this task wait for it" in told[0]
    assert "next_tuple of the spout has not returned since" in told[-1]
    spout.go_on.set()


STOPS_ITS_SESSION = """
import sys, tempfile
from pyspark.sql import SparkSession
from acktree import submit
from acktree.errors import MisuseError
from acktree.testing import FeederSpout
from tests.spark.test_stops import topology_of
from tests.spark.test_running import wait_until

feeder = FeederSpout(["n"])
running = submit(topology_of(feeder), checkpoint=sys.argv[1])
feeder.feed([1], message_id=1)
wait_until(lambda: feeder.acked == [1])
SparkSession.active().stop()
try:
    running.await_termination(timeout_secs=60)
except MisuseError as error:
    print(error.what)
"""


def test_a_session_that_is_stopped_while_its_topology_is_at_rest_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPS_ITS_SESSION, str(tmp_path / "checkpoint")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "its Spark session was stopped while the topology ran", done.stderr[-3000:]


class SlowBesideTicks(BasicBolt):
    """Its micro-batches take longer than the pause between two ticks."""

    outputs = []
    tick_secs = 1

    def execute(self, tup, collector):
        pass

    def tick(self, tick, collector):
        pass

    def flush(self, collector):
        time.sleep(2)


def test_ticks_that_come_faster_than_micro_batches_hold_up_neither_the_end_nor_kill(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder("ticking")
    builder.set_spout("numbers", IterableSpout(range(5), ["n"]))
    builder.set_bolt("slow", SlowBesideTicks()).shuffle_grouping("numbers")
    with submit(builder.create_topology(), checkpoint=tmp_path / "ends", spark=spark) as running:
        assert running.await_termination(timeout_secs=60)
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("ticking")
    builder.set_spout("numbers", feeder)
    builder.set_bolt("slow", SlowBesideTicks()).shuffle_grouping("numbers")
    running = submit(builder.create_topology(), checkpoint=tmp_path / "killed", spark=spark)
    feeder.feed([1], message_id=1)
    wait_until(lambda: feeder.acked == [1])
    running.kill(wait_secs=3600)  # longer than a test may take


class Blocking(FeederSpout):
    """Its ``next_tuple`` returns when it is let go."""

    def __init__(self):
        super().__init__(["n"])
        self.blocks, self.lets_go = Event(), Event()

    def next_tuple(self):
        self.blocks.set()
        self.lets_go.wait(60)


class LetsGo(logging.Handler):
    """Lets a spout go once its topology has said that it waits for it."""

    def __init__(self, spout: Blocking):
        super().__init__()
        self.spout = spout

    def emit(self, record):
        if "a call of the spout has not returned" in record.getMessage():
            self.spout.lets_go.set()


def test_a_stop_says_that_it_waits_for_a_call_of_a_spout(spark: SparkSession, tmp_path: Path) -> None:
    spout = Blocking()
    handler = LetsGo(spout)
    logging.getLogger("acktree").addHandler(handler)
    try:
        running = submit(topology_of(spout), checkpoint=tmp_path / "checkpoint", spark=spark)
        assert spout.blocks.wait(120)
        running.kill(wait_secs=0)
        assert running.await_termination(30)
    finally:
        logging.getLogger("acktree").removeHandler(handler)
    assert spout.lets_go.is_set()
