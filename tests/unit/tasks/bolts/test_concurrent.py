"""Bolts that execute several tuples at once keep every rule of a bolt that executes one after another."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections import Counter
from random import Random

import pytest

from acktree import BasicBolt, Bolt, Config, KeyValueState, MisuseError, TopologyBuilder, TopologyError, bolt
from acktree.core.tracking.verdicts import FailureCause
from acktree.tasks.bolts.concurrent.event_loop import host
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.tasks.bolts.bolt_harness import CallsByHand, bench, run_twice

HUNG = FailureCause.HUNG
QUICK = Config(execute_timeout_secs=0.2)
SEEN: list[object] = []
"""What bolts write down. A bolt is pickled with its globals; functions of this module go by name."""
AT_ONCE: Counter[int] = Counter()
"""Task -> how many of its calls run now."""
RELEASE = threading.Event()
"""Ends the calls that hang."""
MEETING = threading.Barrier(6)


def note(what: object) -> None:
    SEEN.append(what)


def hang() -> None:
    RELEASE.wait(120)


def meet() -> None:
    MEETING.wait(120)


def begin(task: int) -> None:
    AT_ONCE[task] += 1
    SEEN.append((task, AT_ONCE[task]))


def end(task: int) -> None:
    AT_ONCE[task] -= 1


@pytest.fixture(autouse=True)
def seen():
    SEEN.clear()
    RELEASE.clear()
    yield SEEN
    RELEASE.set()


async def jitter() -> None:
    """Let other coroutines go first, in another order each time."""
    for _ in range(Random().randrange(4)):  # no seed: the order must not matter
        await asyncio.sleep(0)


class Fan(BasicBolt):
    """Emits as many tuples as its value, on two streams; 7 raises after an emit."""

    outputs = {"default": ["value"], "odd": ["value"]}

    async def execute(self, tup, collector):
        for number in range(tup["value"] % 4):
            await jitter()
            collector.emit([tup["value"] * 10 + number], stream="odd" if number % 2 else "default")
        if tup["value"] == 7:
            raise ValueError("seven")


class FanOnThreads(BasicBolt):
    """The same on threads."""

    outputs = {"default": ["value"], "odd": ["value"]}
    threads = 8

    def execute(self, tup, collector):
        for number in range(tup["value"] % 4):
            time.sleep(Random().random() / 1000)
            collector.emit([tup["value"] * 10 + number], stream="odd" if number % 2 else "default")
        if tup["value"] == 7:
            raise ValueError("seven")


class FanByHand(Bolt):
    """The same by hand; 5 is failed, and anchors are given."""

    outputs = {"default": ["value"], "odd": ["value"]}
    max_concurrency = 5

    def prepare(self, config, context, collector):
        self.collector = collector

    async def execute(self, tup):
        for number in range(tup["value"] % 4):
            await jitter()
            stream = "odd" if number % 2 else "default"
            self.collector.emit([tup["value"] * 10 + number], stream=stream, anchors=tup)
        if tup["value"] == 7:
            raise ValueError("seven")
        await jitter()
        if tup["value"] == 5:
            self.collector.fail(tup, exception=RuntimeError("five"))
        else:
            self.collector.ack(tup)


@pytest.mark.parametrize("kind", [Fan, FanOnThreads, FanByHand])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_second_run_that_ends_in_another_order_makes_the_same_edges(kind, partitions):
    def build(builder):
        builder.set_bolt("fan", kind(), parallelism=3).shuffle_grouping("source")
        last = builder.set_bolt("last", FanOnThreads(), parallelism=3)
        last.fields_grouping("fan", ["value"]).shuffle_grouping("fan", "odd")

    with run_twice(Random(1)) as runs, bench(build=build, config=Config(partitions=partitions)) as running:
        for number in range(40):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert runs
        failed = {7, *({5} if kind is FanByHand else ())}
        assert set(running.acked) == set(range(40)) - failed
        assert set(running.failures) == failed
        assert Counter(running.tuples("fan") + running.tuples("fan", "odd")) == Counter(
            number * 10 + place for number in range(40) for place in range(number % 4)
        )


class AtTheSameTime(BasicBolt):
    """All of its tuples are executed at once."""

    outputs = ["value"]

    async def execute(self, tup, collector):
        await asyncio.sleep(0.02)


def test_the_time_of_a_level_is_on_the_clock_and_not_the_sum_of_calls_at_once():
    with bench(AtTheSameTime()) as running:
        running.feed(*range(50))
        stats = running.running.stats()
        assert stats.acker.phase_secs["level_0"] < 50 * stats["b0"].total.execute_ms / 1000


def test_what_is_emitted_comes_in_the_order_of_the_rows_whatever_ends_first():
    @bolt(outputs=["value"], max_concurrency=10)
    async def late_first(tup):
        await asyncio.sleep(0.05 - tup["value"] / 200)
        note(tup["value"])
        return [[tup["value"]]]

    with bench(late_first) as running:
        for number in range(10):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert running.tuples("b0") == [*range(10)]
        assert [*reversed(range(10))] == SEEN


@pytest.mark.parametrize("most", [1, 3, 50])
@pytest.mark.parametrize("is_async", [True, False])
def test_no_more_tuples_of_a_task_run_at_once_than_allowed_and_so_many_do(most, is_async):
    class Asynchronous(Fan):
        outputs = ()
        max_concurrency = most

        def prepare(self, config, context):
            self.task = context.task_id

        async def execute(self, tup, collector):
            begin(self.task)
            await asyncio.sleep(0.005)
            end(self.task)

    class OnThreads(FanOnThreads):
        outputs = ()
        threads = most

        def prepare(self, config, context):
            self.task = context.task_id

        def execute(self, tup, collector):
            begin(self.task)
            time.sleep(0.005)
            end(self.task)

    def build(builder):
        kind = Asynchronous() if is_async else OnThreads()
        builder.set_bolt("counts", kind, parallelism=2).shuffle_grouping("source")

    with bench(build=build) as running:
        for number in range(60):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert len(running.acked) == 60
    highest = {task: max(count for at, count in SEEN if at == task) for task in {at for at, _ in SEEN}}
    assert all(count <= most for count in highest.values())
    assert len(highest) == 2
    if most <= 3:
        assert set(highest.values()) == {most}


def test_tuples_of_all_tasks_and_streams_of_a_partition_run_at_once():
    class Meets(BasicBolt):
        outputs = ()
        threads = 3

        def execute(self, tup, collector):
            meet()  # returns when six calls are in it

    first, second = FeederSpout(["value"]), FeederSpout(["value"])
    builder = TopologyBuilder("meeting")
    builder.set_spout("first", first)
    builder.set_spout("second", second)
    builder.set_bolt("meets", Meets(), parallelism=2).all_grouping("first").all_grouping("second")
    for number in range(3):
        (first if number else second).feed([number], message_id=number)
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        cluster.advance()
        assert (first.acked, second.acked) == ([1, 2], [0])


@pytest.mark.parametrize("is_async", [True, False])
def test_a_tuple_that_hangs_fails_alone_and_later_words_of_it_do_not_count(is_async):
    class Hangs(BasicBolt):
        outputs = ["value"]
        max_concurrency = 2

        async def execute(self, tup, collector):
            collector.emit([tup["value"]])
            if tup["value"] == 3:
                try:
                    await asyncio.sleep(60)
                finally:
                    say_late(collector)

    class HangsOnAThread(BasicBolt):
        outputs = ["value"]
        threads = 2

        def execute(self, tup, collector):
            collector.emit([tup["value"]])
            if tup["value"] == 3:
                hang()
                say_late(collector)

    with bench(Hangs() if is_async else HangsOnAThread(), config=QUICK) as running:
        for number in range(8):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert running.acked == [0, 1, 2, 4, 5, 6, 7]
        assert running.failures[3].cause is HUNG
        RELEASE.set()
        running.feed(9)
        assert running.acked[-1] == 9
        assert 33 not in running.tuples("b0")
    if is_async:  # a thread that was interrupted ends where it runs again, and says nothing
        until(lambda: SEEN, "the late emit is refused")
        assert "after execute() had ended" in str(SEEN[0])


def say_late(collector) -> None:
    """Emit for a call that is over, and keep what is raised."""
    try:
        collector.emit([33])
    except MisuseError as error:
        SEEN.append(error)
        raise


def until(condition, what: str) -> None:
    """Wait for another thread, at most ten seconds."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def test_hung_threads_give_their_places_to_others():
    @bolt(threads=2)
    def hangs(tup):
        if tup["value"] < 4:
            hang()

    with bench(hangs, config=QUICK) as running:
        for number in range(10):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert running.acked == [4, 5, 6, 7, 8, 9]
        assert {failure.cause for failure in running.failures.values()} == {HUNG}


def test_a_call_that_blocks_the_loop_fails_no_other():
    @bolt(max_concurrency=5)
    async def blocks(tup):
        await asyncio.sleep(0.02)
        if tup["value"] == 2:
            time.sleep(0.5)  # noqa: ASYNC251  # the mistake
        await asyncio.sleep(0.02)

    with bench(blocks, config=QUICK) as running:
        for number in range(5):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert set(running.acked) >= {0, 1, 3, 4}


def test_a_call_that_begins_while_the_loop_is_blocked_has_the_full_timeout():
    @bolt(max_concurrency=1)
    async def blocks(tup):
        if tup["value"] == 0:
            time.sleep(0.5)  # noqa: ASYNC251  # the mistake
        await asyncio.sleep(0.001)

    with bench(blocks, config=QUICK) as running:
        for number in range(5):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert set(running.acked) >= {1, 2, 3, 4}
        assert running.running.stats()["b0"].total.execute_ms > 0


def test_threads_touch_memory_one_at_a_time_from_the_first_touch_to_the_end():
    class Counts(BasicBolt):
        outputs = ()
        remembers = ("counts",)
        threads = 8

        def prepare(self, config, context):
            self.counts = KeyValueState()

        def execute(self, tup, collector):
            before = self.counts.get("all", 0)
            time.sleep(0.001)
            self.counts["all"] = before + 1

        def flush(self, collector):
            note(self.counts["all"])

    with bench(Counts()) as running:
        for batch in range(2):
            for number in range(30):
                running.feeder.feed([number], message_id=(batch, number))
            running.cluster.advance()
        assert SEEN == [30, 60]
        assert len(running.acked) == 60


def test_coroutines_touch_memory_one_at_a_time_between_two_awaits():
    class Counts(BasicBolt):
        outputs = ()
        remembers = ("counts",)

        def prepare(self, config, context):
            self.counts = {}

        async def execute(self, tup, collector):
            await jitter()
            self.counts["all"] = self.counts.get("all", 0) + 1

        async def flush(self, collector):
            await asyncio.sleep(0)
            note(self.counts["all"])

    with bench(Counts()) as running:
        for number in range(30):
            running.feeder.feed([number], message_id=number)
        running.cluster.advance()
        assert SEEN == [30]
        assert len(running.acked) == 30


def test_a_thread_that_hangs_with_the_memory_does_not_spoil_it():
    """On Spark its process ends; a LocalCluster has only one, so the memory stays as it was."""

    class Hangs(BasicBolt):
        outputs = ()
        remembers = ("counts",)
        threads = 2

        def prepare(self, config, context):
            self.counts = {}

        def execute(self, tup, collector):
            counts = self.counts
            counts["all"] = counts.get("all", 0) + 1
            if tup["value"] == 3:
                hang()

        def flush(self, collector):
            note(dict(self.counts))

    with bench(Hangs(), config=QUICK) as running:
        for batch in ([1, 2], [3, 4], [5]):
            for number in batch:
                running.feeder.feed([number], message_id=number)
            running.cluster.advance()
        assert running.acked == [1, 2, 5]
        assert set(running.failures) == {3, 4}
        assert SEEN[-1] == {"all": 3}


def test_held_tuples_of_an_asynchronous_join_are_acked_in_a_later_micro_batch():
    class Pairs(Bolt):
        outputs = ["value"]
        remembers = ("waiting",)

        def prepare(self, config, context, collector):
            self.collector, self.waiting = collector, []

        async def execute(self, tup):
            await jitter()
            self.waiting.append(tup)
            if len(self.waiting) == 2:
                first, second = self.waiting
                self.collector.emit([first["value"] + second["value"]], anchors=[first, second])
                self.collector.ack(first)
                self.collector.ack(second)
                self.waiting = []

    with bench(Pairs(), FanOnThreads()) as running:
        running.feed(1, 2, 4)
        assert len(running.acked) == 2
        running.feed(8)
        assert sorted(running.acked) == [1, 2, 4, 8]
        assert sum(running.tuples("b0")) == 15


def test_a_second_ack_an_emit_after_the_ack_and_a_foreign_thread_are_refused_at_once():
    class Wrong(Bolt):
        outputs = ["value"]

        def prepare(self, config, context, collector):
            self.collector = collector

        async def execute(self, tup):
            match tup["value"]:
                case "twice":
                    self.collector.ack(tup)
                    self.collector.ack(tup)
                case "after":
                    self.collector.ack(tup)
                    self.collector.emit([1], anchors=tup)
                case "foreign":
                    raised: list[BaseException] = []
                    thread = threading.Thread(target=lambda: self.foreign(raised))
                    thread.start()
                    thread.join()
                    raise raised[0]
                case "ours":
                    await asyncio.to_thread(self.collector.emit, [2], anchors=tup)
                    context = contextvars.copy_context()
                    thread = threading.Thread(target=lambda: context.run(self.collector.ack, tup))
                    thread.start()
                    thread.join()

        def foreign(self, raised):
            try:
                self.collector.emit([1])
            except MisuseError as error:
                raised.append(error)

    with bench(Wrong()) as running:
        running.feed("twice", "after", "foreign", "ours")
        assert running.acked == ["ours"]
        reasons = {value: failure.reason for value, failure in running.failures.items()}
        assert "acked a tuple that was acked" in reasons["twice"]
        assert "emitted anchored to a tuple that was" in reasons["after"]
        assert "a thread that does not belong to a tuple" in reasons["foreign"]
        assert {failure.cause for failure in running.failures.values()} == {FailureCause.MISUSE}
        assert running.tuples("b0") == [2]


def test_an_attribute_that_is_not_remembered_is_found_with_the_tuple_that_changed_it():
    class Forgets(BasicBolt):
        outputs = ()

        def prepare(self, config, context):
            self.cache = {}

        async def execute(self, tup, collector):
            await jitter()
            if tup["value"] == 3:
                self.cache[3] = 3
            await jitter()

    with bench(Forgets()) as running:
        running.feed(*range(8))
        assert set(running.failures) == {3}
        assert "does not remember" in running.failures[3].reason


def test_the_loop_is_kept_so_a_client_works_in_the_next_micro_batch():
    class Client:
        def __init__(self):
            self.loop = asyncio.get_running_loop()
            self.answers: asyncio.Queue[int] = asyncio.Queue()
            self.task = self.loop.create_task(self.serve())

        async def serve(self):
            for number in range(100):
                await self.answers.put(number)
                await asyncio.sleep(0)

    class Asks(BasicBolt):
        outputs = ["value"]

        async def prepare(self, config, context):
            await asyncio.sleep(0)
            self.client = context.cached("client", Client)

        async def execute(self, tup, collector):
            assert asyncio.get_running_loop() is self.client.loop
            collector.emit([await self.client.answers.get()])

        async def cleanup(self):
            await asyncio.sleep(0)
            note("cleaned")

    with bench(Asks()) as running:
        for number in range(3):
            running.feed(number)
        assert running.tuples("b0") == [0, 1, 2]
        assert SEEN == ["cleaned"] * 3


def test_a_local_cluster_works_where_a_loop_runs_already():
    @bolt(outputs=["value"])
    async def double(tup):
        await asyncio.sleep(0)
        yield [tup["value"] * 2]

    async def notebook():
        with bench(double) as running:
            running.feed(1, 2)
            return running.tuples("b0"), running.acked

    assert asyncio.run(notebook()) == ([2, 4], [1, 2])


def test_a_forked_child_has_a_loop_of_its_own():
    mine = host()
    child = os.fork()
    if child == 0:
        os._exit(0 if host() is not mine and host().run(asyncio.sleep(0, "ran")) == "ran" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"max_concurrency": 5}, "its execute is not async"),
        ({"threads": 0}, "threads of bolt 'b0'"),
        ({"threads": True}, "threads of bolt 'b0'"),
    ],
)
def test_a_wrong_number_is_refused_when_the_topology_is_created(attributes, words):
    kind = type("Wrong", (CallsByHand,), attributes)
    with pytest.raises(TopologyError, match=words), bench(kind(lambda *_: None)):
        pass


@pytest.mark.parametrize("name", ["threads", "max_concurrency"])
def test_a_wrong_number_of_a_function_is_refused_with_what_to_write_in_its_decorator(name):
    def plain(tup):
        pass

    async def waits(tup):
        pass

    made = bolt(**{name: 0})(plain if name == "threads" else waits)
    with pytest.raises(TopologyError) as refused, bench(made):
        pass
    assert refused.value.fix == f"give a whole number: @bolt({name}=10)"


def test_threads_of_an_async_execute_are_refused():
    @bolt(threads=5)
    async def both(tup):
        pass

    with pytest.raises(TopologyError, match="write max_concurrency instead"), bench(both):
        pass


def test_an_async_hook_beside_a_plain_execute_is_refused():
    class Half(BasicBolt):
        outputs = ()

        async def prepare(self, config, context):
            pass

        def execute(self, tup, collector):
            pass

    with pytest.raises(TopologyError, match="is never awaited"), bench(Half()):
        pass
