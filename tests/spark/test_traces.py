"""Spark records the trees that a tracker of objects builds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from acktree import BasicBolt, Config, TopologyBuilder, submit
from acktree.errors import CheckpointError
from acktree.testing import FeederSpout
from acktree.traces.spans import span_id_of
from acktree.traces.traces import Traces
from tests.generated import at_random
from tests.generated import running as generated
from tests.generated.running import batches, build, feed
from tests.generated.scripted import BoltSpec
from tests.generated.trees import differences
from tests.spark.fast_driver import CONFIG as CONFIG_OF_FAST
from tests.spark.fast_driver import fast
from tests.spark.test_running import wait_until
from tests.unit.traces.collector import Collector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = Config(message_timeout_secs=8, partitions=2, trace_sample_rate=0)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("order", ["rate", "watch"])
def test_from_the_order_on_every_tree_of_a_drawn_topology_is_recorded_and_exported(
    spark: SparkSession, tmp_path: Path, order: str
) -> None:
    drawn = at_random.topology(3, largest=600)
    topology, spouts = build(drawn)
    with Collector() as collector:
        config = replace(CONFIG, otlp_endpoint=collector.url)
        with submit(topology, checkpoint=tmp_path / "cp", spark=spark, config=config) as running:
            if order == "rate":
                running.traces.rate = 1
            else:  # at a rate of 0
                running.traces.watch(range(len(drawn.messages)))
            for batch in batches(drawn):
                feed(drawn, spouts, batch)
            for spout in spouts.values():
                spout.end()
            assert running.await_termination(timeout_secs=180), running.stats().table()
            assert not differences(drawn, running.traces)
            judged = [each for each in running.traces.find(limit=1000) if each.verdict is not None]
        roots = {span_id_of(each.root) for each in judged}
        exported = {
            int(span.span_id.hex(), 16) for span in collector.spans if span.kind == Span.SPAN_KIND_CONSUMER
        }
        assert roots
        assert exported == roots
    assert not differences(drawn, Traces.of_checkpoint(tmp_path / "cp"))


def dies_once(bolt, mark: Path):
    """The same bolt, which kills its process once, after the second call that a process makes of it."""

    class Dying(type(bolt)):
        calls = 0

        def die_at_second(self) -> None:
            type(self).calls += 1
            if self.calls > 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def execute(self, *given):
            super().execute(*given)
            self.die_at_second()

    bolt.__class__ = Dying
    return bolt


def test_where_workers_are_killed_while_they_work_the_recorded_trees_are_those_that_there_were(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = generated._bolt

    def make_dying(drawn, spec: BoltSpec, expected):
        bolt = make(drawn, spec, expected)
        return bolt if spec.kind == "arrow" else dies_once(bolt, tmp_path / f"killed-{spec.id}")

    monkeypatch.setattr(generated, "_bolt", make_dying)
    drawn = at_random.topology(6, largest=600)
    topology, spouts = build(drawn)
    config = replace(CONFIG, trace_sample_rate=1)
    with submit(topology, checkpoint=tmp_path / "cp", spark=spark, config=config) as running:
        for batch in batches(drawn):
            feed(drawn, spouts, batch)
        for spout in spouts.values():
            spout.end()
        assert running.await_termination(timeout_secs=300), running.stats().table()
        assert not differences(drawn, running.traces)
    assert len(list(tmp_path.glob("killed-*"))) > 1
    assert not differences(drawn, Traces.of_checkpoint(tmp_path / "cp"))


class Passes(BasicBolt):
    outputs = ["order"]

    def execute(self, tup, collector):
        collector.emit([tup["order"]])


class Refuses(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        if tup["order"] == "bad":
            raise LookupError("no such article")


TOLD = Event()


class Telling(FeederSpout):
    """Says when it is told of a failure."""

    def fail(self, message_id, failure):
        super().fail(message_id, failure)
        TOLD.set()


def test_a_message_that_fails_three_levels_deep_is_found_by_its_id_within_5_s_with_its_traceback(
    spark: SparkSession, tmp_path: Path
) -> None:
    spout, builder = Telling(["order"]), TopologyBuilder("deep")
    builder.set_spout("orders", spout)
    builder.set_bolt("first", Passes()).shuffle_grouping("orders")
    builder.set_bolt("second", Passes()).shuffle_grouping("first")
    builder.set_bolt("third", Refuses()).shuffle_grouping("second")
    for number in range(200):
        spout.feed(["bad" if number == 77 else "good"], message_id=f"order-{number}")
    config = replace(CONFIG, trace_sample_rate=1)
    with submit(builder.create_topology(), checkpoint=tmp_path, spark=spark, config=config) as running:
        assert TOLD.wait(120), running.stats().table()
        found = running.traces.find(message_id="order-77", verdict="FAILED")
        while not found:
            found = running.traces.find(message_id="order-77", verdict="FAILED")
        (message,) = found
        trace = running.traces.get(message.root)
        assert [message_id for message_id, _ in spout.failed] == ["order-77"]
    assert (message.verdict, message.component) == ("FAILED", "third")
    assert "LookupError: no such article" in message.traceback
    assert 'raise LookupError("no such article")' in message.traceback
    path = [each.component for each in trace.tuples]
    assert path == ["orders", "first", "second", "third"]
    assert [each.component for each in trace.failed] == ["third"]


def test_no_more_are_traced_than_the_bound_allows_and_each_whole_also_after_a_kill(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The messages that the first driver had open are traced as its spout decided."""
    checkpoint, began = tmp_path / "cp", time.monotonic()
    with (tmp_path / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.fast_driver", str(checkpoint)],
            cwd=ROOT, start_new_session=True, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            wait_until(lambda: driver.poll() is not None or _acked(checkpoint) > 20, secs=200)
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-2000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    with submit(fast(), checkpoint=checkpoint, spark=spark, config=CONFIG_OF_FAST) as running:
        assert running.await_termination(timeout_secs=200), running.stats().table()
        traced = running.traces.find(limit=1000)
        paths = Counter(
            tuple(each.component for each in running.traces.get(message.root).tuples) for message in traced
        )
        numbers = running.stats().traces
    secs = time.monotonic() - began
    assert {message.verdict for message in traced} == {"ACKED"}
    assert {*paths} == {("numbers", "doubles", "ends", "ends")}
    assert 20 < len(traced) <= CONFIG_OF_FAST.max_traces_per_sec * (secs + 2)
    assert not any(numbers.dropped.values())


def _acked(checkpoint: Path) -> int:
    try:
        return len(Traces.of_checkpoint(checkpoint).find(verdict="ACKED", limit=1000))
    except CheckpointError:
        return 0
