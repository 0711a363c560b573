"""From 16 partitions up deltas are added up in a stage of their own: the verdicts are those without it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Bolt, Config
from acktree.spark.query.ladder import ladder
from acktree.spark.query.operators import Places
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.plan import COMBINED_FROM, Plan
from tests.generated import at_random
from tests.generated.running import build, run_locally
from tests.generated.tracker import Tracker
from tests.scenarios.runner import SOURCE, LocalRunner, Message, Pause
from tests.spark.on_spark import SparkRunner
from tests.spark.test_agreement import CONFIG, run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, FATAL = 240, 100


def test_with_a_combining_stage_spark_gives_the_verdicts_that_the_trees_deserve(
    spark: SparkSession, tmp_path: Path
) -> None:
    drawn = at_random.topology(6, largest=600)
    config = replace(CONFIG, partitions=COMBINED_FROM)
    predicted = Tracker(drawn).outcome()
    assert set(predicted.verdicts.values()) == {"ACKED", "FAILED", "TIMED_OUT"}
    assert not predicted.differences(run_locally(drawn, config))
    assert not predicted.differences(run_on_spark(drawn, spark, tmp_path / "checkpoint", config))


class Halves(Bolt):
    """Emits two tuples for each; kills its worker once, when it executes a certain number."""

    outputs = ["n", "half"]

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        n = tup[0]
        if n == FATAL and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for half in "ab":
            self.collector.emit([n, half], anchors=tup)
        self.collector.ack(tup)


class Judges(Bolt):
    """Acks most; some it fails, some it holds and acks with a later one, some it forgets."""

    outputs = ()
    remembers = ["held"]

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        n, half = tup["n"], tup["half"]
        if n >= COUNT:  # what comes in a later micro-batch
            for held in self.held:
                self.collector.ack(held)
            self.held = []
        if n % 7 == 3 and half == "b":
            raise ValueError(f"{n} is bad")
        if n % 40 == 5 and half == "a":
            return
        if n % 10 == 1 and n < COUNT:
            self.held.append(tup)
        else:
            self.collector.ack(tup)


def test_failures_timeouts_and_a_killed_worker_have_the_verdicts_of_a_local_cluster_without_the_stage(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, later = range(COUNT), range(COUNT, COUNT + 40)
    steps = [*(Message([n], n) for n in first), Pause(), *(Message([n], n) for n in later)]
    marks = {name: tmp_path / name for name in ("local", "spark")}
    marks["local"].touch()

    def topology(mark):
        def build_it(builder):
            builder.set_bolt("halves", Halves(mark), parallelism=4).shuffle_grouping(SOURCE)
            builder.set_bolt("judges", Judges(), parallelism=4).fields_grouping("halves", ["half"])

        return build_it

    config = Config(message_timeout_secs=6)
    local = LocalRunner(2).run(topology(marks["local"]), steps, config=config)
    real = SparkRunner(spark, tmp_path, COMBINED_FROM).run(topology(marks["spark"]), steps, config=config)
    assert marks["spark"].exists()
    assert real.has_ended
    assert real.verdicts == local.verdicts
    assert {each: [(f.kind, f.reason) for f in real.failures.get(each, ())] for each in real.verdicts} == {
        each: [(f.kind, f.reason) for f in local.failures.get(each, ())] for each in local.verdicts
    }
    kinds = Counter(f.kind.value for failures in real.failures.values() for f in failures)
    assert len(real.verdicts) == COUNT + 40
    assert kinds.keys() == {"FAILED", "TIMED_OUT"}


@pytest.mark.parametrize("partitions", [COMBINED_FROM - 1, COMBINED_FROM])
def test_fewer_than_sixteen_partitions_are_planned_without_the_stage(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    topology, _ = build(at_random.topology(6, largest=600))
    plan = Plan.of(topology, CONFIG, partitions, 5)
    (tmp_path / "inbox").mkdir()
    shared = SharedPlan.write(plan, tmp_path / "plan")
    frame = ladder(spark, plan, shared, Places(str(tmp_path / "inbox"), str(tmp_path / "marks"), None), {})
    planned = frame._jdf.queryExecution().logical().toString()
    stateless = [level for level in plan.levels if not level.stateful]
    is_combined = partitions >= COMBINED_FROM
    assert planned.count("MapInArrow ") == len(stateless) + is_combined
    shuffled = [level for level in stateless if level.index > 0]
    assert planned.count("RepartitionByExpression ") == len(shuffled) + is_combined
