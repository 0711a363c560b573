"""Task hooks: they are called for what the counters count, and one that raises fails nothing."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import pyarrow as pa
import pytest

from acktree import (
    ArrowBolt,
    BasicBolt,
    Bolt,
    Config,
    ConfigError,
    MisuseError,
    Retry,
    TaskContext,
    TaskHook,
    TopologyBuilder,
)
from acktree.tasks.observers.bolt_hooks import BoltHooks
from acktree.tasks.own_metrics import task_services
from acktree.testing import FeederSpout, LocalCluster
from tests.generated import at_random
from tests.generated.running import batches, build, feed
from tests.generated.tallied import Tally, counted, read

WHATS = ("emitted", "executed", "acked", "failed", "timed_out")


class Split(BasicBolt):
    outputs = ["word"]

    def execute(self, tup, collector):
        for word in tup["line"].split():
            if word == "bad":
                raise ValueError("bad")
            collector.emit([word])


class Pairs(Bolt):
    """Acks two at a time, and fails what is called `no`."""

    outputs = []
    remembers = ["held"]

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        if tup["word"] == "no":
            self.collector.fail(tup, "no")
            return
        self.held.append(tup)
        if len(self.held) == 2:
            for each in self.held:
                self.collector.ack(each)
            self.held.clear()


def run(topology, feeder, lines, config):
    with LocalCluster() as cluster:
        running = cluster.submit(topology, config=config)
        for number, line in enumerate(lines):
            feeder.feed([line], message_id=number)
            cluster.advance()
        return running.stats(), running.errors


def words(bolt=None, hooks=(), **settings):
    builder, feeder = TopologyBuilder("words"), FeederSpout(["line"])
    builder.set_spout("lines", feeder)
    builder.set_bolt("split", bolt or Split(), parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("pairs", Pairs()).global_grouping("split")
    return builder.create_topology(), feeder, Config(task_hooks=list(hooks), **settings)


def test_hooks_are_called_once_for_each_tuple(tmp_path):
    topology, feeder, config = words(hooks=[Tally(tmp_path / "noted")])
    stats, errors = run(topology, feeder, ["a b", "c bad", "no d", "e"], config)
    assert read(tmp_path / "noted") == {
        ("lines", "emitted", "default", "('a b',)"): 1,
        ("lines", "emitted", "default", "('c bad',)"): 1,
        ("lines", "emitted", "default", "('no d',)"): 1,
        ("lines", "emitted", "default", "('e',)"): 1,
        ("lines", "acked", "0"): 1,
        ("lines", "failed", "1"): 1,
        ("lines", "failed", "2"): 1,
        ("split", "executed", "('a b',)"): 1,
        ("split", "executed", "('c bad',)"): 1,
        ("split", "executed", "('no d',)"): 1,
        ("split", "executed", "('e',)"): 1,
        ("split", "acked", "('a b',)"): 1,
        ("split", "acked", "('no d',)"): 1,
        ("split", "acked", "('e',)"): 1,
        ("split", "failed", "('c bad',)"): 1,
        **{("split", "emitted", "default", f"('{word}',)"): 1 for word in ("a", "b", "c", "no", "d", "e")},
        ("split", "transferred", "default"): 6,
        **{("pairs", "executed", f"('{word}',)"): 1 for word in ("a", "b", "c", "no", "d", "e")},
        **{("pairs", "acked", f"('{word}',)"): 1 for word in ("a", "b", "c", "d")},
        ("pairs", "failed", "('no',)"): 1,
    }
    assert counted(read(tmp_path / "noted"), stats, whats=WHATS) == {}
    assert [error.reason for error in errors] == ["ValueError: bad"]


@pytest.mark.parametrize("seed", range(12))
def test_hooks_are_called_for_what_is_counted(tmp_path, seed):
    drawn = at_random.topology(seed, largest=60)
    topology, spouts = build(drawn)
    config = Config(message_timeout_secs=8, partitions=2, task_hooks=[Tally(tmp_path / "noted")])
    with LocalCluster() as cluster:
        running = cluster.submit(topology, config=config)
        for batch in batches(drawn):
            feed(drawn, spouts, batch)
            cluster.advance()
        cluster.advance(20)
    assert counted(read(tmp_path / "noted"), running.stats(), whats=WHATS) == {}


class Twice(ArrowBolt):
    outputs = pa.schema([("n", pa.int64())])

    def execute_batch(self, batch, collector):
        collector.emit_batch(batch, parents=range(batch.num_rows))
        collector.fail_rows([1], "the second")


class Slow(BasicBolt):
    outputs = ["n"]
    max_concurrency = 5

    async def execute(self, tup, collector):
        await asyncio.sleep(0)
        if tup["n"] == 3:
            raise ValueError("three")
        collector.emit([tup["n"]])


class Late(BasicBolt):
    """Its engine acks after `flush`, which fails what is open in the second micro-batch."""

    outputs = ["n"]

    def execute(self, tup, collector):
        collector.emit([tup["n"]])

    def flush(self, collector):
        raise ValueError("late")


class Plain(BasicBolt):
    outputs = ["n"]
    broken = False

    def prepare(self, config, context):
        if self.broken:
            raise ValueError("broken")

    def execute(self, tup, collector):
        collector.emit([tup["n"]])


class Broken(Plain):
    broken = True


@pytest.mark.parametrize(
    "bolt", [Twice(), Slow(), Late(), Plain(), Broken()], ids=lambda bolt: type(bolt).__name__
)
def test_every_kind_of_bolt_reports_the_same(tmp_path, bolt):
    builder, feeder = TopologyBuilder("kinds"), FeederSpout(pa.schema([("n", pa.int64())]))
    builder.set_spout("numbers", feeder)
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    for n in range(5):
        feeder.feed([n], message_id=n)
    with LocalCluster() as cluster:
        config = Config(task_hooks=[Tally(tmp_path / "noted")])
        running = cluster.submit(builder.create_topology(), config=config)
        cluster.advance()
    reported, stats = read(tmp_path / "noted"), running.stats()
    was_called = not isinstance(bolt, Broken)
    assert counted(reported, stats, whats=WHATS if was_called else WHATS[2:]) == {}
    assert stats["bolt"].total.acked + stats["bolt"].total.failed == 5


class Raises(TaskHook):
    def bolt_execute(self, info):
        raise ValueError("hooked")

    def spout_ack(self, info):
        raise ValueError("hooked")


def test_a_hook_that_raises_is_reported_once_for_each_method_and_fails_nothing():
    topology, feeder, config = words(hooks=[Raises()])
    stats, errors = run(topology, feeder, ["a b"] * 20, config)
    assert sorted(feeder.acked) == list(range(20))
    assert stats["split"].total.failed == 0
    said = [(error.component, error.reason.partition("\n")[0]) for error in errors]
    of_split = "HookError: task hook Raises raised in bolt_execute(): ValueError: hooked"
    assert said.count(("split", of_split)) == 2  # one for each task that executes
    assert [reason for component, reason in said if component == "lines"] == [
        "HookError: task hook Raises raised in spout_ack(): ValueError: hooked"
    ]


class Exits(TaskHook):
    def bolt_ack(self, info):
        sys.exit(3)

    def spout_ack(self, info):
        sys.exit(4)


def test_a_hook_that_calls_sys_exit_is_reported_and_fails_nothing():
    topology, feeder, config = words(hooks=[Exits()])
    stats, errors = run(topology, feeder, ["a b", "c d"], config)
    assert sorted(feeder.acked) == [0, 1]
    assert stats["split"].total.failed == 0
    assert {(error.component, error.reason.partition("\n")[0]) for error in errors} == {
        ("split", "HookError: task hook Exits raised in bolt_ack(): SystemExit: 3"),
        ("pairs", "HookError: task hook Exits raised in bolt_ack(): SystemExit: 3"),
        ("lines", "HookError: task hook Exits raised in spout_ack(): SystemExit: 4"),
    }


class ExitsWhenCopied(TaskHook):
    def __reduce__(self):
        return sys.exit, (5,)


def test_hooks_that_call_sys_exit_when_a_bolt_gets_its_copy_fail_nothing():
    plan = SimpleNamespace(task_hooks=lambda: pickle.loads(pickle.dumps(ExitsWhenCopied())))
    context, reported = TaskContext("words", "split", 1, 0, {"split": (1,)}), []
    task = SimpleNamespace(
        plan=plan, context=context, services=SimpleNamespace(), observers=[], report=reported.append
    )
    BoltHooks().task_begun(task)
    assert task.observers == []
    assert "the task hooks cannot be unpickled here: SystemExit: 5" in str(reported[0])


def test_it_is_reported_again_after_a_minute():
    topology, feeder, config = words(hooks=[Raises()])
    with LocalCluster() as cluster:
        running = cluster.submit(topology, config=config)
        for secs in (0, 59, 2):
            cluster.advance(secs)
            feeder.feed(["a b"], message_id=secs)
            cluster.advance()
        assert [error.at_ms for error in running.errors if error.component == "lines"] == [0, 61_000]


class Ticks(TaskHook):
    def bolt_execute(self, info):
        pass


def test_a_hook_that_does_not_return_soon_is_reported_as_one_that_raises(monkeypatch):
    monkeypatch.setattr("acktree.tasks.hook_calls.BLOCKED_SECS", -1.0)
    topology, feeder, config = words(hooks=[Ticks()])
    _, errors = run(topology, feeder, ["a b"] * 20, config)
    assert sorted(feeder.acked) == list(range(20))
    told = "task hook Ticks did not return from bolt_execute() for"
    tasks = [error.task_id for error in errors if error.component == "split" and told in error.reason]
    assert len(tasks) == len({*tasks}) > 0  # once for each task that executes
    monkeypatch.undo()
    topology, feeder, config = words(hooks=[Ticks()])
    assert run(topology, feeder, ["a b"], config)[1] == ()


class AddsItsOwn(Split):
    def __init__(self, file: Path) -> None:
        self.file = file

    def prepare(self, config, context):
        context.add_task_hook(Tally(self.file))
        self.context = context


def test_a_bolt_adds_a_hook_in_prepare_which_sees_that_task_alone(tmp_path):
    topology, feeder, config = words(AddsItsOwn(tmp_path / "noted"))
    run(topology, feeder, ["a b"], config)
    reported = read(tmp_path / "noted")
    assert {component for component, *_ in reported} == {"split"}
    assert reported["split", "acked", "('a b',)"] == 1


class AddsLate(AddsItsOwn):
    def execute(self, tup, collector):
        self.context.add_task_hook(Tally(self.file))


class AddsNone(Split):
    def prepare(self, config, context):
        context.add_task_hook("hook")


@pytest.mark.parametrize(
    ("bolt", "why"),
    [(AddsLate, "too late"), (lambda _: AddsNone(), "is not a task hook")],
    ids=["late", "none"],
)
def test_a_hook_that_is_added_too_late_or_is_none_is_refused(tmp_path, bolt, why):
    topology, feeder, config = words(bolt(tmp_path / "noted"))
    run(topology, feeder, ["a b"], config)
    (failed,) = feeder.failed
    assert why in failed[1].reason


def test_a_spout_adds_a_hook_in_open(tmp_path):
    class Adds(FeederSpout):
        def open(self, config, context, collector):
            context.add_task_hook(Tally(tmp_path / "noted"))
            super().open(config, context, collector)

    builder, feeder = TopologyBuilder("adds"), Adds(["line"])
    builder.set_spout("lines", feeder, retry=Retry(max_attempts=2, backoff_secs=(0.1, 0.1)))
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        feeder.feed(["bad"], message_id=7)
        cluster.advance(1)
    assert read(tmp_path / "noted") == {
        ("lines", "emitted", "default", "('bad',)"): 2,  # each attempt is emitted, and fails
        ("lines", "failed", "7"): 2,
    }


def test_without_ackers_messages_are_acked_without_a_latency(tmp_path):
    class Untimed(Tally):
        def spout_ack(self, info):
            self.note("acked", info.message_id, info.complete_latency_ms)

    topology, feeder, config = words(hooks=[Untimed(tmp_path / "noted")], acker_executors=0)
    run(topology, feeder, ["a"], config)
    assert read(tmp_path / "noted")["lines", "acked", "0", "None"] == 1


def test_a_mapping_names_hooks_by_their_class_as_storm_does():
    config = Config.from_mapping({"topology.auto.task.hooks": ["acktree.TaskHook"]})
    assert [type(hook) for hook in config.task_hooks] == [TaskHook]
    assert config.to_mapping()["topology.auto.task.hooks"] == [f"{TaskHook.__module__}.TaskHook"]
    again = Config.from_mapping(config.to_mapping())
    assert [type(hook) for hook in again.task_hooks] == [TaskHook]
    named = Config.from_mapping({"topology.auto.task.hooks": "acktree.TaskHook, acktree.TaskHook"})
    assert len(named.task_hooks) == 2
    assert Config.from_mapping({"topology.auto.task.hooks": None}) == Config()
    json.dumps(config.to_mapping())


@pytest.mark.parametrize("wrong", ["acktree.Nothing", ["nothing.at.all"], "x", 7, [TaskHook]], ids=str)
def test_a_hook_that_is_none_is_refused_before_anything_runs(wrong):
    with pytest.raises(ConfigError):
        Config.from_mapping({"topology.auto.task.hooks": wrong})


def test_a_hook_that_cannot_be_pickled_is_refused_before_anything_runs():
    hook = TaskHook()
    hook.lock = Lock()
    topology, _, config = words(hooks=[hook])
    with LocalCluster() as cluster, pytest.raises(ConfigError, match="cannot be pickled"):
        cluster.submit(topology, config=config)


def test_a_context_that_stands_alone_refuses_hooks():
    context = TaskContext("words", "split", 1, 0, {"split": (1,)})
    with pytest.raises(MisuseError, match="there is no task"):
        context.add_task_hook(TaskHook())
    services = task_services()
    copied = pickle.loads(pickle.dumps(replace(context, _services=services)))
    assert copied == context
    assert copied._services is not services


class Forgets(Bolt):
    """Holds the first tuple of two, fails it with the second, and forgets the second."""

    outputs = []
    remembers = ["held"]

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, None

    def execute(self, tup):
        if self.held is None:
            self.held = tup
        else:
            self.collector.fail(self.held, "the second came")
            self.held = None


def test_a_tuple_that_fails_late_or_is_forgotten_is_reported_once(tmp_path):
    builder, feeder = TopologyBuilder("late"), FeederSpout(["n"])
    builder.set_spout("numbers", feeder)
    builder.set_bolt("bolt", Forgets()).shuffle_grouping("numbers")
    with LocalCluster() as cluster:
        config = Config(task_hooks=[Tally(tmp_path / "noted")], fail_forgotten=True)
        running = cluster.submit(builder.create_topology(), config=config)
        for n in range(4):
            feeder.feed([n], message_id=n)
            cluster.advance(1)
    reported = read(tmp_path / "noted")
    assert counted(reported, running.stats(), whats=WHATS) == {}
    assert {n for n in range(4) if reported["bolt", "failed", f"({n},)"] == 1} == {0, 1, 2, 3}
