"""``async def process`` of components of pystorm's kind: many tuples at once, each with its own verdict."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import sys
from collections import Counter

import pytest

from acktree import Config, ConfigError, FailureCause, Verdict
from acktree.core.data import context as contexts
from acktree.pystorm import Bolt as PystormBolt
from acktree.pystorm import run
from acktree.streamparse import BatchingBolt, Bolt, Grouping, Spout, TicklessBatchingBolt, Topology, load
from acktree.streamparse.testing import run_bolt, run_topology
from tests.unit.pystorm.one_task import lines
from tests.unit.pystorm.word_count import BATCHES, COUNTS, Picky, Words, fed

TICKS = {"topology.tick.tuple.freq.secs": 1}


class Meeting(Bolt):
    """None of its tuples is done before all of a batch have begun: it ends only if they run at once."""

    outputs = ["word"]

    def initialize(self, conf, context):
        self.size = conf.get("size", 4)
        self.begun = 0
        self.all_there = asyncio.Event()

    async def process(self, tup):
        self.begun += 1
        if self.begun == self.size:
            self.all_there.set()
        await self.all_there.wait()
        if tup.values[0] == "bad":
            raise ValueError("a bad word")
        self.emit([tup.values[0]])


class MeetingTopology(Topology):
    words = Words.spec()
    count = Meeting.spec(inputs=[words])


def test_tuples_of_a_task_are_processed_at_once_and_one_that_raises_fails_alone():
    results = run_topology(MeetingTopology, {"words": [["a"], ["bad"], ["b"], ["c"]]})
    assert results.tuples("count") == [["a"], ["b"], ["c"]]
    assert [verdict.name for verdict in results.verdicts.of("words")] == ["ACKED", "FAILED", "ACKED", "ACKED"]
    failure = results.failures["words", 1]
    assert isinstance(failure.exception, ValueError)
    assert 'raise ValueError("a bad word")' in (failure.traceback or "")


@pytest.mark.parametrize("runs_a_loop", [False, True])
def test_run_bolt_processes_tuples_at_once_and_tells_of_them_in_their_order(runs_a_loop):
    def ran():
        return run_bolt(Meeting, [["a"], ["bad"], ["b"]], config={"size": 3})

    async def within():
        return ran()

    did = asyncio.run(within()) if runs_a_loop else ran()
    assert (did.emitted, did.acked, did.failed) == ([["a"], ["b"]], [["a"], ["b"]], [["bad"]])
    assert [str(error) for error in did.errors] == ["a bad word"]


def test_run_bolt_keeps_max_concurrency_and_a_tuple_that_cannot_be_read_fails_alone():
    did = run_bolt(CountAtOnce, [{"word": "a"}, {"word": "b", "more": 1}, {"word": "a"}, {"word": "a"}])
    assert (did.emitted, did.failed) == ([["a", 1], ["a", 2], ["a", 3]], [["b", 1]])


class Backwards(Bolt):
    """The first tuple ends last."""

    outputs = ["word"]

    def initialize(self, conf, context):
        self.gates = {}

    async def process(self, tup):
        number = int(tup.values[0])
        gate = self.gates.setdefault(number, asyncio.Event())
        if number < 5:
            await gate.wait()
        self.emit([number])
        self.gates.setdefault(number - 1, asyncio.Event()).set()


def test_what_tuples_emit_takes_effect_in_the_order_in_which_they_began():
    assert run_bolt(Backwards, [[number] for number in range(6)]).emitted == [[n] for n in range(6)]

    class BackwardsTopology(Topology):
        words = Words.spec()
        count = Backwards.spec(inputs=[words])

    results = run_topology(BackwardsTopology, {"words": [[str(number)] for number in range(6)]})
    assert results.tuples("count") == [[n] for n in range(6)]


class PickyAtOnce(Picky):
    async def process(self, tup):
        await asyncio.sleep(0)
        super().process(tup)


class PickyTopology(Topology):
    words = Words.spec()
    count = Picky.spec(inputs=[words])


class PickyAtOnceTopology(Topology):
    words = Words.spec()
    count = PickyAtOnce.spec(inputs=[words])


PICKED = ["good", "raise", "fail", "report", "twice", "unknown", "late", "undeclared", "wide", "good"]


def test_each_verdict_and_reason_is_that_of_a_plain_process():
    plain, at_once = (
        run_topology(topology, {"words": [[word] for word in PICKED]})
        for topology in (PickyTopology, PickyAtOnceTopology)
    )
    assert at_once.verdicts.of("words") == plain.verdicts.of("words")
    assert {at: each.reason for at, each in at_once.failures.items()} == {
        at: each.reason for at, each in plain.failures.items()
    }
    assert at_once.tuples("count") == plain.tuples("count")


@pytest.mark.parametrize("name", ["auto_ack", "auto_fail", "auto_anchor"])
def test_what_happens_by_itself_can_be_turned_off(name):
    class Saying(Bolt):
        outputs = ["word"]

        async def process(self, tup):
            await asyncio.sleep(0)
            if tup.values.word == "raise":
                raise ValueError("no such word")
            self.emit([tup.values.word])

    class Judge(Bolt):
        outputs = ["word"]

        def process(self, tup):
            if tup.values.word == "judged":
                raise ValueError(tup.values.word)

    setattr(Saying, name, False)

    class Off(Topology):
        words = Words.spec()
        count = Saying.spec(inputs=[words])
        judge = Judge.spec(inputs=[count])

    results = run_topology(Off, {"words": [["judged"], ["raise"], ["good"]]})
    expected = {
        "auto_ack": ["FAILED", "FAILED", "TIMED_OUT"],
        "auto_fail": ["FAILED", "TIMED_OUT", "ACKED"],
        "auto_anchor": ["ACKED", "FAILED", "ACKED"],
    }
    assert [verdict.name for verdict in results.verdicts.of("words")] == expected[name]


class Helped(Bolt):
    """Emits in tasks and threads that the call starts."""

    outputs = ["word"]

    async def process(self, tup):
        word = tup.values.word
        await asyncio.gather(
            self.say(f"{word} task"),
            asyncio.to_thread(self.emit, [f"{word} thread"]),
            asyncio.to_thread(lambda: self.emit([f"{word} ids"], need_task_ids=True)),
        )

    async def say(self, word):
        await asyncio.sleep(0)
        self.emit([word])


class Refusing(Bolt):
    outputs = ["word"]

    def process(self, tup):
        if tup.values.word in {"a task", "b thread", "c ids"}:
            raise ValueError(tup.values.word)


class HelpedTopology(Topology):
    words = Words.spec()
    count = Helped.spec(inputs=[words])
    refuse = Refusing.spec(inputs=[count])


def test_emits_of_tasks_and_threads_are_anchored_to_the_tuple_of_the_call_that_started_them():
    results = run_topology(HelpedTopology, {"words": [["a"], ["b"], ["c"], ["d"]]})
    reasons = {at: str(failure.exception) for (_, at), failure in results.failures.items()}
    assert reasons == {0: "a task", 1: "b thread", 2: "c ids"}
    assert results.verdicts.of("words")[3] is Verdict.ACKED
    assert len(results.tuples("count")) == 12


class CountAtOnce(Bolt):
    outputs = ["word", "count"]
    max_concurrency = 2

    def initialize(self, conf, context):
        self.counter = Counter()
        self.shared = self.counter
        self.limit = asyncio.Semaphore(1)
        self.running = self.most = 0

    async def process(self, tup):
        word = tup.values.word
        self.running += 1
        self.most = max(self.most, self.running)
        async with self.limit:
            await asyncio.sleep(0)
        self.counter[word] += 1
        self.emit([word, self.counter[word]])
        self.running -= 1
        assert self.shared is self.counter
        assert self.most <= 2


class CountTopology(Topology):
    words = Words.spec()
    count = CountAtOnce.spec(inputs={words: Grouping.fields("word")}, par=2)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("after_each", [lambda: None, contexts._cached.clear], ids=["stays", "moves"])
def test_data_go_with_the_task_and_no_more_than_max_concurrency_run_at_once(partitions, after_each, caplog):
    config = Config(partitions=partitions)
    feeder, counted, _, errors = fed(CountTopology, batches=BATCHES, config=config, after_each=after_each)
    assert sorted(counted) == sorted(COUNTS)
    assert len(feeder.acked) == len(COUNTS)
    assert not errors
    assert not lines(caplog)  # a semaphore is no data, and nobody is told so


class Holding(Bolt):
    """Acks a tuple when the next one comes, which may be in another micro-batch."""

    auto_ack = False
    outputs = ["word"]

    def initialize(self, conf, context):
        self.held = []

    async def process(self, tup):
        await asyncio.sleep(0)
        for each in self.held:
            self.emit([each.values.word], anchors=[each])
            self.ack(each)
        self.held = [tup]


def test_a_tuple_is_held_over_micro_batches_and_acked_by_the_call_of_another():
    class HoldingTopology(Topology):
        words = Words.spec()
        count = Holding.spec(inputs=[words])

    feeder, emitted, _, errors = fed(
        HoldingTopology, batches=[["a"], ["b"], ["c", "d"]], after_each=contexts._cached.clear
    )
    assert (emitted, feeder.acked, errors) == ([["a"], ["b"], ["c"]], [0, 1, 2], ())


class PlainTick(Bolt):
    outputs = ["word"]

    async def process(self, tup):
        await asyncio.sleep(0)
        self.emit([tup.values.word])

    def process_tick(self, tup):
        self.emit(["tick"])


class AsyncTick(PlainTick):
    async def process_tick(self, tup):
        await asyncio.sleep(0)
        self.emit(["tick"])
        raise RuntimeError("at a tick")


@pytest.mark.parametrize("kind", [PlainTick, AsyncTick])
def test_a_tick_is_plain_or_a_coroutine_too(kind):
    class Ticked(Topology):
        words = Words.spec()
        count = kind.spec(inputs=[words], config=TICKS)

    feeder, emitted, _, errors = fed(Ticked, batches=[["a"], ["b"]], clock_secs=1)
    assert (emitted, feeder.acked) == ([["a"], ["tick"], ["b"], ["tick"]], [0, 1])
    assert {error.reason for error in errors} == ({"RuntimeError: at a tick"} if kind is AsyncTick else set())
    assert run_bolt(kind, [{"word": "a"}], ticks=2).emitted == [["a"], ["tick"], ["tick"]]


class Hanging(Bolt):
    outputs = ["word", "count"]

    def initialize(self, conf, context):
        self.seen = 0
        self.again = asyncio.Event()

    async def process(self, tup):
        word = tup.values.word
        if word == "goes on":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await self.again.wait()
            self.seen += 100
            self.emit(["goes on", 0], anchors=[])
        elif word == "hangs":
            await asyncio.Event().wait()
        self.again.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.seen += 1
        self.emit([word, self.seen])


class HangingTopology(Topology):
    words = Words.spec()
    count = Hanging.spec(inputs=[words])


def test_a_call_that_takes_too_long_fails_alone_and_what_it_does_later_is_not_remembered():
    config = Config(execute_timeout_secs=0.2)
    batches = [["goes on", "hangs"], ["a"], ["b"]]
    feeder, emitted, stats, _ = fed(HangingTopology, batches=batches, config=config)
    assert emitted == [["a", 1], ["b", 2]]
    assert feeder.acked == [2, 3]
    assert {message: failure.cause for message, failure in feeder.failed} == dict.fromkeys(
        [0, 1], FailureCause.HUNG
    )
    assert stats["count"].tasks[1].held == 0


def test_an_initialize_that_raises_fails_all_tuples_and_is_logged_once(caplog):
    class Broken(Meeting):
        def initialize(self, conf, context):
            raise OSError("no database")

    class BrokenTopology(Topology):
        words = Words.spec()
        count = Broken.spec(inputs=[words])

    results = run_topology(BrokenTopology, {"words": [["a"], ["b"]]})
    assert [str(each.exception) for each in results.failures.values()] == ["no database"] * 2
    assert len([line for line in lines(caplog) if "cannot begin" in line]) == 1
    with pytest.raises(OSError, match="no database"):
        run_bolt(Broken, [["a"], ["b"]])


# --- what is refused ---------------------------------------------------------------------------------------


class Process:
    async def process(self, tup):
        raise AssertionError


class Batch:
    async def process_batch(self, key, tups):
        raise AssertionError


class Tick:
    def process(self, tup):
        raise AssertionError

    async def process_tick(self, tup):
        raise AssertionError


class Initialize:
    async def initialize(self, conf, context):
        raise AssertionError


class Yielding:
    async def process(self, tup):
        yield tup


class YieldingBatch:
    def process_batch(self, key, tups):
        yield key


class Ack:
    async def ack(self, tup):
        raise AssertionError


class Handle(Process):
    async def _handle_run_exception(self, exception):
        raise AssertionError


class Key:
    async def group_key(self, tup):
        raise AssertionError

    def process_batch(self, key, tups):
        raise AssertionError


class OwnRun(Process):
    def _run(self):
        raise AssertionError


REFUSED = [
    (BatchingBolt, Process, r"process\(\) of Kind is a coroutine, and a BatchingBolt awaits none"),
    (TicklessBatchingBolt, Process, r"process\(\) of Kind is a coroutine, and a BatchingBolt awaits none"),
    (TicklessBatchingBolt, Tick, r"process_tick\(\) of Kind is a coroutine, and a BatchingBolt awaits none"),
    (BatchingBolt, Batch, r"process_batch\(\) of Kind is a coroutine, and nobody awaits it"),
    (BatchingBolt, YieldingBatch, r"process_batch\(\) of Kind is a generator"),
    (Bolt, Tick, r"process_tick\(\) of Kind is a coroutine, and its process\(\) is not"),
    (Bolt, Initialize, r"initialize\(\) of Kind is a coroutine, and nobody awaits it"),
    (Bolt, Yielding, r"process\(\) of Kind is a generator"),
    (Bolt, Ack, r"ack\(\) of Kind is a coroutine, and nobody awaits it"),
    (Bolt, Handle, r"_handle_run_exception\(\) of Kind is a coroutine, and nobody awaits it"),
    (BatchingBolt, Key, r"group_key\(\) of Kind is a coroutine, and nobody awaits it"),
    (Bolt, OwnRun, r"_run\(\) of Kind is its own"),
]


@pytest.mark.parametrize(("base", "body", "says"), REFUSED)
def test_what_would_not_run_is_refused_before_anything_does(base, body, says):
    kind = type("Kind", (body, base), {"outputs": ["word"], "__module__": __name__})
    with pytest.raises(ConfigError, match=says):
        run_bolt(kind, [["a"]])
    bodies = {"words": Words.spec(), "__module__": __name__}
    bodies["count"] = kind.spec(inputs=[bodies["words"]], config=TICKS)
    with pytest.raises(ConfigError, match=says):
        load(type(Topology)("Refused", (Topology,), bodies))


@pytest.mark.parametrize("given", [0, True, "many"])
def test_a_wrong_max_concurrency_is_refused(given):
    with pytest.raises(ConfigError, match=f"max_concurrency is {given!r}"):
        run_bolt(type("Kind", (Meeting,), {"max_concurrency": given}), [["a"]])


def test_a_name_of_a_program_with_a_plain_process_is_its_own():
    kind = type("Kind", (Picky,), {"max_concurrency": "its own"})
    assert run_bolt(kind, [["good"]]).acked == [["good"]]


def test_a_child_process_is_refused_since_it_is_given_one_tuple_after_another(monkeypatch):
    class InChild(Topology):
        words = Words.spec()
        count = PickyAtOnce.spec(inputs=[words], config={"acktree.process": True})

    with pytest.raises(ConfigError, match="a child process is given one tuple after another") as refused:
        load(InChild)
    assert 'without "acktree.process"' in refused.value.fix
    monkeypatch.setattr(sys, "argv", ["run", f"{__name__}.PickyAtOnce"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match="a child process is given one tuple after another"):
        run.main()


class AsyncSpout(Spout):
    outputs = ["word"]

    async def next_tuple(self):
        raise AssertionError


@pytest.mark.parametrize("config", [{}, {"acktree.process": True}])
def test_a_spout_with_a_coroutine_is_refused_also_as_a_child_process(config):
    class Spouting(Topology):
        words = AsyncSpout.spec(config=config)
        count = Picky.spec(inputs=[words])

    with pytest.raises(ConfigError, match=r"next_tuple\(\) of AsyncSpout is a coroutine"):
        load(Spouting)


def logged(function):
    """A decorator as programs have them: what it makes is no ``async def``."""

    @functools.wraps(function)
    def call(*given):
        return function(*given)

    return call


class Decorated(Bolt):
    outputs = ["word"]

    @logged
    async def process(self, tup):
        raise AssertionError


class DecoratedBatches(BatchingBolt):
    outputs = ["word"]
    tuples_between_batches = 1

    @logged
    async def process_batch(self, key, tups):
        raise AssertionError


@pytest.mark.parametrize("kind", [Decorated, DecoratedBatches])
def test_a_coroutine_that_only_its_call_shows_fails_its_tuple(kind):
    did = run_bolt(kind, [["a"]])
    assert (did.acked, did.failed) == ([], [["a"]])
    assert "is a coroutine, and nobody awaits it" in str(did.errors[0])


def test_in_a_child_process_a_coroutine_fails_its_tuple_too():
    class Child(PystormBolt):
        process = PickyAtOnce.process

    message = {"id": "7", "comp": "words", "stream": "default", "task": 2, "tuple": ["a"]}
    written = io.BytesIO()
    bolt = Child(io.BytesIO(f"{json.dumps(message)}\nend\n".encode()), written)
    bolt._setup_component({}, {})
    with pytest.raises(TypeError, match="nobody awaits it") as raised:
        bolt._run()
    bolt._handle_run_exception(raised.value)
    assert '{"command": "fail", "id": "7"}' in written.getvalue().decode()
