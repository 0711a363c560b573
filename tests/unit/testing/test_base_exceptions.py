"""Whatever user code raises fails what it worked on, as an ``Exception`` does, in any bolt or hook."""

from __future__ import annotations

import asyncio
import signal

import pyarrow.compute as pc
import pytest

from acktree import (
    ArrowBolt,
    BasicBolt,
    Bolt,
    Config,
    CustomGrouping,
    Spout,
    TaskHook,
    TopologyBuilder,
    bolt,
)
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.tasks.bolts.bolt_harness import bench


class LibraryTimeout(BaseException):
    """As ``gevent.Timeout``."""


ERRORS = {
    "library": LibraryTimeout("3 seconds"), "cancelled": asyncio.CancelledError("pool"),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt("mine"), "generator": GeneratorExit("closed"),
}  # fmt: skip
SHOWN = {
    "library": "LibraryTimeout: 3 seconds", "cancelled": "CancelledError: pool", "exit": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt: mine", "generator": "GeneratorExit: closed",
}  # fmt: skip
WORDS = ["a", *ERRORS, "z"]


def work(word):
    if word in ERRORS:
        raise ERRORS[word]


class Basic(BasicBolt):
    def execute(self, tup, collector):
        work(tup["value"])


class Manual(Bolt):
    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        work(tup["value"])
        self.collector.ack(tup)


class Awaits(BasicBolt):
    async def execute(self, tup, collector):
        await asyncio.sleep(0)
        work(tup["value"])


class ManualAwaits(Manual):
    async def execute(self, tup):
        await asyncio.sleep(0)
        work(tup["value"])
        self.collector.ack(tup)


class OnThreads(Basic):
    threads = 2


class Flushes(Basic):
    def flush(self, collector):
        pass


@bolt()
def function(tup):
    work(tup["value"])


@pytest.mark.parametrize(
    "kind", [Basic(), Manual(), Awaits(), ManualAwaits(), OnThreads(), Flushes(), function],
    ids=["basic", "by hand", "async", "async by hand", "threads", "flushes", "function"],
)  # fmt: skip
def test_what_execute_raises_fails_its_tuple_alone(kind):
    with bench(kind) as running:
        running.feed(*WORDS)
        assert sorted(running.acked) == ["a", "z"]
        assert running.failures.keys() == ERRORS.keys()
        for word, failure in running.failures.items():
            is_own = word != "cancelled" or not isinstance(kind, Awaits | ManualAwaits | OnThreads)
            assert (SHOWN[word] if is_own else "execute was cancelled") in failure.reason
            assert not is_own or "raise ERRORS[word]" in failure.traceback


class Batches(ArrowBolt):
    def execute_batch(self, batch, collector):
        for word in batch["value"].to_pylist():
            work(word)


@pytest.mark.parametrize("word", ERRORS)
def test_what_execute_batch_raises_fails_its_batch(word):
    with bench(Batches()) as running:
        running.feed("a", word)
        running.feed("z")
        assert running.acked == ["z"]
        assert {*running.failures} == {"a", word}
        assert SHOWN[word] in running.failures["a"].reason


class Hooks(BasicBolt):
    """Raises in one hook."""

    remembers = ("count",)
    tick_secs = 10

    def __init__(self, hook, word):
        self.hook, self.word = hook, word

    def _called(self, hook):
        if hook == self.hook:
            work(self.word)

    def prepare(self, config, context):
        self.count = Unsaved(self.word) if self.hook == "save" else 0
        self._called("prepare")

    def execute(self, tup, collector):
        pass

    def flush(self, collector):
        self._called("flush")

    def tick(self, tup, collector):
        self._called("tick")

    def cleanup(self):
        self._called("cleanup")


class Unsaved:
    def __init__(self, word):
        self.word = word

    def __reduce__(self):
        work(self.word)
        return Unsaved, ("",)


@pytest.mark.parametrize("word", ERRORS)
@pytest.mark.parametrize("hook", ["prepare", "flush", "save", "tick", "cleanup"])
def test_what_another_hook_of_a_bolt_raises_is_as_an_exception_there(hook, word):
    with bench(Hooks(hook, word)) as running:
        running.feed("a")
        running.cluster.advance(11)
        reasons = [error.reason for error in running.running.errors]
        assert any(SHOWN[word] in reason for reason in reasons)
        if hook in ("tick", "cleanup"):
            assert running.acked == ["a"]
        else:
            assert SHOWN[word] in running.failures["a"].reason


class Chooses(CustomGrouping):
    def __init__(self, at_prepare):
        self.at_prepare = at_prepare

    def prepare(self, context, stream, target_task_ids):
        self.tasks = target_task_ids
        work(self.at_prepare)

    def choose_tasks(self, task_id, values):
        work(values[0])
        return [self.tasks[0]]


@pytest.mark.parametrize("word", ERRORS)
@pytest.mark.parametrize("at_prepare", [True, False])
def test_what_a_grouping_raises_fails_its_tuple(word, at_prepare):
    feeder, builder = FeederSpout(["value"]), TopologyBuilder("t")
    builder.set_spout("in", feeder)
    builder.set_bolt("b", Basic()).custom_grouping("in", Chooses(word if at_prepare else ""))
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        feeder.feed(["a"], message_id="a")
        feeder.feed([word], message_id=word)
        cluster.advance()
        assert feeder.acked == ([] if at_prepare else ["a"])
        assert SHOWN[word] in dict(feeder.failed)[word].reason


class Raises(TaskHook):
    def bolt_execute(self, info):
        work("library")

    def spout_ack(self, info):
        work("cancelled")

    def prepare(self, config, context):
        work("interrupt")


def test_what_a_task_hook_raises_is_reported_and_fails_nothing():
    with bench(Basic(), config=Config(task_hooks=[Raises()])) as running:
        running.feed("a")
        assert running.acked == ["a"]
        reasons = " ".join(error.reason for error in running.running.errors)
        assert all(SHOWN[word] in reasons for word in ("library", "cancelled", "interrupt"))


class ASpout(Spout):
    outputs = ["value"]

    def __init__(self, hook, word):
        self.hook, self.word, self.sent, self.asked = hook, word, False, 0

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        self.asked += 1
        if self.hook == "next_tuple" and self.asked == 1:
            work(self.word)
        if not self.sent:
            self.sent = True
            self.collector.emit(["a"], message_id="a")
            self.collector.emit(["library"], message_id="b")

    def ack(self, message_id):
        if self.hook == "ack":
            work(self.word)

    def fail(self, message_id, failure):
        if self.hook == "fail":
            work(self.word)

    def close(self):
        if self.hook == "close":
            work(self.word)


@pytest.mark.parametrize("word", [word for word in ERRORS if word != "exit"])
@pytest.mark.parametrize("hook", ["next_tuple", "ack", "fail", "close"])
def test_what_a_hook_of_a_spout_raises_is_reported_and_it_goes_on(hook, word):
    builder = TopologyBuilder("t")
    builder.set_spout("in", ASpout(hook, word))
    builder.set_bolt("b", Basic()).shuffle_grouping("in")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        cluster.advance()
        running.kill(0)
        total = running.stats()["in"].total
        assert (total.acked, total.failed) == (1, 1)
        assert any(SHOWN[word] in error.reason for error in running.errors if error.component == "in")


def test_a_spout_that_calls_sys_exit_stops_the_test():
    builder = TopologyBuilder("t")
    builder.set_spout("in", ASpout("next_tuple", "exit"))
    builder.set_bolt("b", Basic()).shuffle_grouping("in")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        with pytest.raises(SystemExit):
            cluster.advance()


@pytest.mark.parametrize("kind", [BasicBolt, ArrowBolt])
def test_ctrl_c_ends_advance_and_fails_nothing(kind):
    def interrupt(self, given, collector):
        pc.add(1, 1)
        signal.raise_signal(signal.SIGINT)

    name = "execute" if kind is BasicBolt else "execute_batch"
    with bench(type("Interrupted", (kind,), {name: interrupt})()) as running:
        with pytest.raises(KeyboardInterrupt):
            running.feed("a")
        assert not running.acked
        assert not running.failures
