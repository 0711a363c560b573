"""Programs with ``async def process`` that misbehave: each harms its own tuple and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from contextlib import suppress

import pytest

from acktree import Config, FailureCause
from acktree.core.data import context as contexts
from acktree.pystorm.forms import pickled_and_read
from acktree.pystorm.holders import may_be_data
from acktree.streamparse import Bolt, Topology
from acktree.streamparse.testing import run_bolt
from tests.unit.pystorm.one_task import lines
from tests.unit.pystorm.test_async import TICKS, logged
from tests.unit.pystorm.word_count import Words, fed


def ran(kind, *batches, secs=5.0, **more):
    """Run a bolt class over batches of words: the feeder, what it emitted, its stats, the errors' reasons."""
    bodies = {"words": Words.spec(), "__module__": __name__}
    bodies["count"] = kind.spec(inputs=[bodies["words"]], config=more.pop("conf", None))
    topology = type(Topology)("Hostile", (Topology,), bodies)
    config = Config(execute_timeout_secs=secs)
    feeder, emitted, stats, errors = fed(topology, batches=batches, config=config, **more)
    assert {at for at, _ in feeder.failed}.isdisjoint(feeder.acked)
    return feeder, [word for (word,) in emitted], stats["count"], [error.reason for error in errors]


class Word(Bolt):
    """Emits each word, unless it is the bad one."""

    outputs = ["word"]

    async def process(self, tup):
        word = tup.values.word
        await asyncio.sleep(0)
        if word == "bad":
            await self.misbehave(tup)
        self.emit([word])


class RaisesAfterEmit(Word):
    async def misbehave(self, tup):
        self.emit(["too early"])
        await asyncio.sleep(0)
        raise ValueError("after an emit")


class RaisesNoException(Word):
    async def misbehave(self, tup):
        raise type("Odd", (BaseException,), {})("odd")


class IsCancelled(Word):
    async def misbehave(self, tup):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)


class EndsItsGenerator(Word):
    async def misbehave(self, tup):
        raise GeneratorExit


class Stops(Word):
    async def misbehave(self, tup):
        raise StopIteration


class AwaitsWhatIsNoFuture(Word):
    async def misbehave(self, tup):
        class Odd:
            def __await__(self):
                yield 5

        await Odd()


class RunsALoopWithin(Word):
    async def misbehave(self, tup):
        within = asyncio.sleep(0)
        try:
            asyncio.run(within)
        finally:
            within.close()


class ClosesTheLoop(Word):
    async def misbehave(self, tup):
        asyncio.get_running_loop().close()


class FailsInAGroup(Word):
    async def misbehave(self, tup):
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(RaisesAfterEmit.misbehave(self, tup))


class TakesTooLong(Word):
    async def misbehave(self, tup):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()


class Fails(Word):
    async def misbehave(self, tup):
        self.fail(tup)
        await asyncio.sleep(0)
        raise ValueError("after a fail")


HARMED = {
    RaisesAfterEmit: "ValueError: after an emit",
    RaisesNoException: "Odd: odd",
    IsCancelled: "BoltError: execute was cancelled",
    EndsItsGenerator: "GeneratorExit",
    Stops: "RuntimeError: coroutine raised StopIteration",
    AwaitsWhatIsNoFuture: "RuntimeError: Task got bad yield: 5",
    RunsALoopWithin: "RuntimeError: asyncio.run() cannot be called from a running event loop",
    ClosesTheLoop: "RuntimeError: Cannot close a running event loop",
    FailsInAGroup: "ExceptionGroup: unhandled errors in a TaskGroup",
    TakesTooLong: "TimeoutError",
    Fails: "component 'count' failed it",
}


@pytest.mark.parametrize("kind", HARMED)
def test_what_a_call_does_fails_its_own_tuple(kind):
    feeder, emitted, stats, errors = ran(kind, ["a", "bad", "b"], ["c"])
    assert feeder.acked == [0, 2, 3]
    ((at, failure),) = feeder.failed
    assert at == 1
    assert failure.reason.startswith(HARMED[kind])
    assert [word for word in emitted if word != "too early"] == ["a", "b", "c"]
    assert stats.tasks[1].held == 0
    assert len(errors) == 1


class StopsTheLoop(Word):
    async def misbehave(self, tup):
        asyncio.get_running_loop().stop()


class CancelsItselfAndReturns(Word):
    async def misbehave(self, tup):
        asyncio.current_task().cancel()


class HasALoopOfItsOwn(Word):
    def initialize(self, conf, context):
        self.own = asyncio.new_event_loop()
        threading.Thread(target=self.own.run_forever, daemon=True).start()

    async def misbehave(self, tup):
        said = asyncio.run_coroutine_threadsafe(self.say(), self.own)
        await asyncio.wrap_future(said)

    async def say(self):
        self.emit(["from another loop"])


@pytest.mark.parametrize("kind", [StopsTheLoop, CancelsItselfAndReturns, HasALoopOfItsOwn])
def test_what_does_no_harm_is_acked(kind):
    feeder, emitted, _, errors = ran(kind, ["a", "bad", "b"], ["c"])
    assert feeder.acked == [0, 1, 2, 3]
    assert [word for word in emitted if word != "from another loop"] == ["a", "bad", "b", "c"]
    assert ("from another loop" in emitted) == (kind is HasALoopOfItsOwn)
    assert not errors


class Deaf(Word):
    """Goes on when it is cancelled, and then says something or nothing."""

    auto_ack = False

    def initialize(self, conf, context):
        self.says = conf["says"]

    async def misbehave(self, tup):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if self.says == "raise":
            raise ValueError("after it was given up")
        if self.says != "nothing":
            getattr(self, self.says)(*([["ghost"]] if self.says == "emit" else [tup]))

    async def process(self, tup):
        await super().process(tup)
        if tup.values.word != "bad":
            self.ack(tup)


@pytest.mark.parametrize("says", ["nothing", "emit", "ack", "fail", "raise"])
def test_a_tuple_of_a_call_that_was_given_up_is_not_kept_whatever_the_call_says_later(says):
    feeder, emitted, stats, _ = ran(Deaf, ["bad", "a"], ["b"], secs=0.1, conf={"says": says})
    assert (feeder.acked, [at for at, _ in feeder.failed]) == ([1, 2], [0])
    assert feeder.failed[0][1].cause is FailureCause.HUNG
    assert [word for word in emitted if word != "bad"] == ["a", "b"]
    assert stats.tasks[1].held == 0


class Leaving(Bolt):
    """What it leaves behind speaks when the call has ended."""

    outputs = ["word"]
    auto_ack = False

    def initialize(self, conf, context):
        self.says, self.held = conf["says"], []

    async def process(self, tup):
        word = tup.values.word
        if word == "leaves":
            self.held.append(tup)
            self.left = asyncio.get_running_loop().create_task(self.later(tup))
            return
        await asyncio.wait({self.left})
        for each in (*self.held, tup):
            self.ack(each)
        self.held = []

    async def later(self, tup):
        await asyncio.sleep(0)
        self.ack(tup) if self.says == "ack" else self.emit(["late"], anchors=[tup])


@pytest.mark.parametrize("says", ["ack", "emit"])
def test_a_task_that_is_left_behind_is_refused_with_a_warning_and_its_tuple_can_still_be_acked(says, caplog):
    feeder, emitted, stats, _ = ran(Leaving, ["leaves", "a"], ["b"], conf={"says": says})
    assert (feeder.acked, feeder.failed, emitted) == ([0, 1, 2], [], [])
    assert stats.tasks[1].held == 0
    (line,) = lines(caplog)
    assert "component 'count' has a task or a thread that goes on after process(): " in line
    assert "after execute() had ended for this tuple" in line


class Locked(Bolt):
    """A task of its own has the lock whenever a micro-batch ends."""

    outputs = ["word"]

    def initialize(self, conf, context):
        self.counter = Counter()
        self.lock = asyncio.Lock()
        self.has_begun, self.is_locked = asyncio.Event(), asyncio.Event()
        self.refreshes = asyncio.get_running_loop().create_task(self.refresh())

    async def refresh(self):
        await self.has_begun.wait()
        async with self.lock:
            self.is_locked.set()
            await asyncio.Event().wait()

    async def process(self, tup):
        async with self.lock:
            self.counter[tup.values.word] += 1
        self.has_begun.set()
        await self.is_locked.wait()
        self.emit([f"{tup.values.word} {self.counter[tup.values.word]}"])


def test_a_lock_that_is_held_in_one_process_is_free_in_another(caplog):
    feeder, emitted, _, errors = ran(Locked, ["a"], ["a"], ["a"], secs=2, after_each=contexts._cached.clear)
    assert (feeder.acked, emitted, errors) == ([0, 1, 2], ["a 1", "a 2", "a 3"], [])
    assert not [line for line in lines(caplog) if "component" in line]


OF_A_LOOP = [asyncio.Lock, asyncio.Event, asyncio.Condition, asyncio.Semaphore, asyncio.BoundedSemaphore]
OF_A_LOOP += [asyncio.Queue, asyncio.PriorityQueue, lambda: asyncio.Barrier(2)]


@pytest.mark.parametrize("make", OF_A_LOOP)
def test_what_belongs_to_a_loop_is_no_data_wherever_it_is(make):
    for value in (make(), [make()], {"a": make()}):
        with pytest.raises(Exception, match="belongs to the event loop of one process"):
            pickled_and_read(value, None)


class Client:
    async def aclose(self):
        """As those of httpx have it."""


Client.__module__ = "httpx._client"


def test_only_what_may_hold_data_is_warned_of():
    async def found():
        loop = asyncio.get_running_loop()
        task = loop.create_task(asyncio.sleep(0))
        await task
        timer = loop.call_later(9, print)
        timer.cancel()
        values = [each() for each in OF_A_LOOP] + [task, loop.create_future(), loop, timer]
        return {type(value).__name__ for value in values if may_be_data(value, None)}

    assert asyncio.run(found()) == {"Queue", "PriorityQueue"}


class Warming(Bolt):
    """Each process has to find out for itself that its connection is there."""

    outputs = ["word"]

    def initialize(self, conf, context):
        self.is_warm = asyncio.Event()

    async def process(self, tup):
        was_warm = self.is_warm.is_set()
        self.is_warm.set()
        self.emit([f"{tup.values.word} {was_warm}"])


def test_an_event_is_that_of_the_process():
    moved = ran(Warming, ["a", "b"], ["c", "d"], after_each=contexts._cached.clear)
    stayed = ran(Warming, ["a", "b"], ["c", "d"])
    assert moved[1] == ["a False", "b True", "c False", "d True"]
    assert stayed[1] == ["a False", "b True", "c True", "d True"]


class Ticked(Word):
    async def process_tick(self, tup):
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()


def test_a_tick_that_raises_harms_no_tuple():
    feeder, emitted, _, errors = ran(Ticked, ["a"], ["b"], conf=TICKS, clock_secs=1)
    assert (feeder.acked, emitted, {*errors}) == ([0, 1], ["a", "b"], {"TimeoutError"})


# --- what does not run -------------------------------------------------------------------------------------


class Lazy(Bolt):
    outputs = ["word"]

    def process(self, tup):
        return (self.emit([word]) for word in tup.values)


class Yields(Bolt):
    outputs = ["word"]

    @logged
    def process(self, tup):
        yield tup


class YieldsAtOnce(Yields):
    @logged
    async def process(self, tup):
        yield tup


class AwaitableOnly(Bolt):
    outputs = ["word"]

    def process(self, tup):
        class Later:
            def __await__(self):
                yield

        return Later()


class LazyTick(Word):
    @logged
    def process_tick(self, tup):
        yield tup


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Lazy, "is a generator: a call does not run its body"),
        (Yields, "Yields.process() is a generator: a call does not run its body"),
        (YieldsAtOnce, "is an asynchronous generator: a call does not run its body"),
        (AwaitableOnly, "Later() is a coroutine, and nobody awaits it"),
    ],
)
def test_a_call_that_returns_what_has_not_run_fails_its_tuple(kind, says):
    did = run_bolt(kind, [["a"]])
    assert (did.acked, did.failed, did.emitted) == ([], [["a"]], [])
    assert says in str(did.errors[0])


def test_a_tick_that_has_not_run_is_an_error():
    did = run_bolt(LazyTick, [{"word": "a"}], ticks=1)
    assert did.acked == [["a"]]
    assert "LazyTick.process_tick() is a generator" in str(did.errors[0])


class Half(Bolt):
    """A generator that somebody has begun to read is a value as any other."""

    outputs = ["word"]

    def process(self, tup):
        words = (self.emit([word]) for word in ("one", "two"))
        next(words)
        return words


def test_what_was_begun_is_not_refused():
    did = run_bolt(Half, [["a"]])
    assert (did.acked, did.emitted) == ([["a"]], [["one"]])
    assert inspect.isgeneratorfunction(YieldsAtOnce.process) is False
