"""Whatever user code raises is data: its tuples fail with it, the query and the neighbours go on."""

from __future__ import annotations

import pickle
import threading

import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, Config, CustomGrouping, bolt
from acktree.core.stats.statistics import Stats
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.errors import MisuseError, ProtocolError
from acktree.tasks.bolts.bolt_tasks import bolt_task
from acktree.tasks.bolts.concurrent.concurrent_kinds import ConcurrentBasicTask, ConcurrentHandTask
from acktree.tasks.bolts.kinds import ArrowBoltTask, BasicBoltTask, HandBoltTask
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.testing import FeederSpout
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, Says, bench, in_a_row

FIRST_OF = 2


def emits_then_raises(kind):
    """A bolt that emits, at value 2 raises, and emits no more."""

    def basic(bolt, tup, collector):
        collector.emit([("before", tup["value"])])
        if tup["value"] == FIRST_OF:
            raise ValueError("two")
        collector.emit([("after", tup["value"])])

    def hand(bolt, tup):
        bolt.collector.emit([("before", tup["value"])], anchors=tup)
        bolt.collector.ack(tup)
        if tup["value"] == FIRST_OF:
            raise ValueError("two")

    @bolt(outputs=["value"])
    def generator(tup):
        yield [("before", tup["value"])]
        if tup["value"] == FIRST_OF:
            raise ValueError("two")
        yield [("after", tup["value"])]

    return {"basic": Calls(basic), "hand": CallsByHand(hand), "generator": generator}[kind]


@pytest.mark.parametrize("kind", ["basic", "hand", "generator"])
def test_a_raise_after_emits_or_after_the_ack_fails_the_tuple_and_what_was_emitted_stands(kind):
    with bench(emits_then_raises(kind), Calls(lambda bolt, tup, collector: None)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        failure = running.failures[2]
        assert (failure.kind, failure.cause) == (FailureKind.FAILED, FailureCause.EXCEPTION)
        assert (failure.reason, failure.component) == ("ValueError: two", "b0")
        assert failure.exception_types[0] == "builtins.ValueError"
        assert "two" in failure.traceback
        assert ("before", 2) in running.tuples("b0")
        assert running.running.stats()["b1"].total.executed == len(running.tuples("b0"))
        assert running.reasons("b0") == ["ValueError: two"]


# ---- values that do not travel ---------------------------------------------------------------------------


class TypedBasic(BasicBolt):
    """Emits its input on a stream of whole numbers, twice."""

    outputs = pa.schema([("value", pa.int64())])

    def execute(self, tup, collector):
        collector.emit([1])
        collector.emit([tup["value"]])
        collector.emit([2])


def test_a_value_that_does_not_fit_its_declared_type_fails_its_anchor_and_nothing_else():
    with bench(TypedBasic(), Calls(lambda bolt, tup, collector: None)) as running:
        running.feed(10, "eleven", 12)
        assert running.acked == [10, 12]
        failure = running.failures["eleven"]
        assert failure.cause is FailureCause.MISUSE
        assert "'eleven' (str) does not fit field 'value', declared as int64" in failure.reason
        assert running.tuples("b0") == [1, 10, 2, 1, 2, 1, 12, 2]


@pytest.mark.parametrize("anchored", ["one", "held", "several", "none", "direct"])
def test_a_value_that_cannot_be_pickled_fails_whatever_it_was_anchored_to(anchored):
    def execute(bolt, tup):
        if tup["value"] == "hold":
            bolt.held = tup
            return
        value = threading.Lock() if tup["value"] == "bad" else "good"
        anchors = {"one": tup, "held": bolt.held, "several": [bolt.held, tup], "none": None, "direct": tup}
        if anchored == "direct":
            task = bolt.context.task_ids("reads")[0]
            bolt.collector.emit_direct(task, [value], anchors=anchors[anchored])
        else:
            bolt.collector.emit([value], anchors=anchors[anchored])
        if tup["value"] == "last":
            bolt.collector.ack(bolt.held) if anchored != "held" else None
        bolt.collector.ack(tup)

    def build(builder):
        hold = CallsByHand(execute, remembers=("held",), held=None)
        builder.set_bolt("hold", hold).global_grouping("source")
        reads = builder.set_bolt("reads", Calls(lambda bolt, tup, collector: None))
        (reads.direct_grouping if anchored == "direct" else reads.shuffle_grouping)("hold")

    with bench(build=build, config=Config(enable_message_timeouts=False)) as running:
        running.feed("hold")
        running.feed("good", "bad", "fine")
        failed = {
            "one": {"bad"},
            "direct": {"bad"},
            "held": {"hold"},
            "several": {"hold", "bad"},
            "none": set(),
        }
        assert set(running.failures) == failed[anchored]
        assert {"good", "fine"} <= set(running.acked) | set(running.failures)
        assert running.tuples("hold") == ["good", "good"]
        assert running.reasons("hold")[0].startswith("MisuseError: <unlocked _thread.lock")


class CannotBeRead:
    """Pickles, and does not unpickle."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return _raise, (self.value,)


def _raise(value):
    raise RuntimeError(f"{value} cannot be read")


@pytest.mark.parametrize("reader", ["basic", "hand", "arrow"])
def test_a_value_that_cannot_be_unpickled_fails_its_tuple_and_not_its_neighbours(reader):
    emits = Calls(lambda bolt, tup, collector: CannotBeRead(2) if tup["value"] == 2 else tup["value"])
    readers = {
        "basic": Calls(lambda bolt, tup, collector: tup["value"]),
        "hand": CallsByHand(lambda bolt, tup: bolt.collector.ack(tup)),
        "arrow": Says(lambda batch, collector: None),
    }
    with bench(emits, readers[reader]) as running:
        running.feed(1, 2, 3)
        assert running.acked == [1, 3]
        assert "a value cannot be unpickled in this process" in running.failures[2].reason
        assert running.failures[2].component == "b1"


# ---- groupings that raise --------------------------------------------------------------------------------


class Picky(CustomGrouping):
    """Raises on some values, or chooses strange tasks."""

    def __init__(self, at="choose"):
        self.at = at

    def prepare(self, context, stream, target_task_ids):
        if self.at == "prepare":
            raise RuntimeError("not prepared")
        self.targets = target_task_ids

    def choose_tasks(self, task_id, values):
        if values[0] == 2:
            raise LookupError("no task for 2")
        return [999] if values[0] == 3 else self.targets


@pytest.mark.parametrize("source", ["spout", "bolt", "held"])
def test_a_custom_grouping_that_raises_fails_the_tuple_that_it_raised_on(source):
    def execute(bolt, tup):
        if bolt.held is not None:
            bolt.collector.emit([bolt.held["value"]], anchors=bolt.held)
            bolt.collector.ack(bolt.held)
        bolt.held = tup

    def build(builder):
        emits = Calls(lambda bolt, tup, collector: tup["value"])
        if source == "held":
            emits = CallsByHand(execute, remembers=("held",), held=None)
        builder.set_bolt("b", emits).global_grouping("source")
        reads = "source" if source == "spout" else "b"
        builder.set_bolt("picky", Calls(lambda bolt, tup, collector: None)).custom_grouping(reads, Picky())
        builder.set_bolt("easy", Calls(lambda bolt, tup, collector: None)).global_grouping(reads)

    with bench(build=build, config=Config(enable_message_timeouts=False)) as running:
        for value in (1, 2, 3, 4, 5):
            running.feed(value)
        assert set(running.acked) >= {1, 4}
        assert running.failures[2].reason == "LookupError: no task for 2"
        assert "chose [999], which are not tasks of the subscriber" in running.failures[3].reason
        where = "source" if source == "spout" else "b"
        assert {running.failures[n].component for n in (2, 3)} == {where}
        total = running.running.stats()[where].total
        if source == "held":
            assert (total.failed, total.acked) == (2, 2)


def test_a_custom_grouping_that_cannot_be_prepared_fails_what_goes_through_it():
    def build(builder):
        builder.set_bolt("b", Calls(lambda bolt, tup, collector: None)).custom_grouping(
            "source", Picky("prepare")
        )
        builder.set_bolt("easy", Calls(lambda bolt, tup, collector: None)).global_grouping("source")

    with bench(build=build) as running:
        running.feed(1)
        assert running.failures[1].reason == "RuntimeError: not prepared"
        assert running.running.stats()["easy"].total.executed == 1


def test_a_value_that_a_custom_grouping_cannot_be_shown_fails_its_tuple_alone():
    emits = Calls(lambda bolt, tup, collector: CannotBeRead(2) if tup["value"] == 0 else tup["value"])

    def build(builder):
        builder.set_bolt("b", emits).global_grouping("source")
        builder.set_bolt("picky", Calls(lambda bolt, tup, collector: None)).custom_grouping("b", Picky())

    with bench(build=build) as running:
        running.feed(0, 1, 2, 4)
        assert running.acked == [1, 4]
        assert "cannot be unpickled" in running.failures[0].reason
        assert running.failures[2].reason == "LookupError: no task for 2"


def test_a_key_that_has_no_hash_fails_its_tuple_alone():
    def build(builder):
        builder.set_bolt("b", Calls(lambda bolt, tup, collector: None)).fields_grouping("source", ["value"])

    with bench(build=build) as running:
        running.feed(([1], 1), ([object], 2), ([(3,)], 3))
        assert running.acked == [1, 3]
        assert running.failures[2].cause is FailureCause.MISUSE
        assert "type" in running.failures[2].reason


# ---- before and after the tuples --------------------------------------------------------------------------


class Unprepared(Calls):
    """Its prepare raises, at first."""

    is_broken = True

    def prepare(self, config, context):
        if Unprepared.is_broken:
            raise ConnectionError("no broker")


def test_a_prepare_that_raises_fails_the_tuples_of_its_micro_batch_and_is_tried_again_in_the_next():
    Unprepared.is_broken = True
    with bench(Unprepared(lambda bolt, tup, collector: None)) as running:
        running.feed(1, 2)
        assert {key: f.reason for key, f in running.failures.items()} == dict.fromkeys(
            [1, 2], "ConnectionError: no broker"
        )
        assert running.reasons("b0") == [
            "BoltError: bolt 'b0' raised in prepare(): ConnectionError: no broker"
        ]
        Unprepared.is_broken = False
        running.feed(3)
        assert running.acked == [3]


def test_a_bolt_that_cannot_be_unpickled_here_fails_its_tuples():
    topology = in_a_row(FeederSpout(["value"]), Calls(print))
    plan = Plan.of(topology, Config(), 1, 0)
    plan.pickles["b0"] = pickle.dumps(CannotBeRead("bolt"))
    task = bolt_task(topology.components["b0"], 1, Outputs(plan, 0, 1, 0), None)
    assert str(task.broken) == "bolt cannot be read"
    task.tick(1.0)
    task.finish()  # nothing to save, nothing to let go of


class Waits(Bolt):
    async def execute(self, tup):
        self.collector.ack(tup)


class WaitsByItself(BasicBolt):
    async def execute(self, tup, collector):
        pass


@pytest.mark.parametrize(
    ("user_object", "kind"),
    [
        (Calls(print), BasicBoltTask),
        (CallsByHand(print), HandBoltTask),
        (Says(print), ArrowBoltTask),
        (Waits(), ConcurrentHandTask),
        (WaitsByItself(), ConcurrentBasicTask),
    ],
)
def test_the_base_class_of_a_bolt_names_the_kind_of_its_tasks(user_object, kind):
    topology = in_a_row(FeederSpout(["value"]), user_object)
    task = bolt_task(topology.components["b0"], 1, Outputs(Plan.of(topology, Config(), 1, 0), 0, 1, 0), None)
    assert type(task) is kind


def test_a_remembering_bolt_on_a_level_without_state_is_our_bug():
    topology = in_a_row(FeederSpout(["value"]), Calls(print, remembers=("a",)))
    plan = Plan.of(topology, Config(), 1, 0)
    with pytest.raises(ProtocolError, match="remembers, and is on a level without state"):
        bolt_task(topology.components["b0"], 1, Outputs(plan, 0, 1, 0), None)


class Cleans(Calls):
    def cleanup(self):
        raise OSError("cannot let go")


def test_a_cleanup_that_raises_is_reported_and_fails_nothing():
    with bench(Cleans(lambda bolt, tup, collector: None)) as running:
        running.feed(1)
        assert running.acked == [1]
        assert running.reasons("b0") == ["BoltError: bolt 'b0' raised in cleanup(): OSError: cannot let go"]


KEPT = []


class SaysInCleanup(CallsByHand):
    def cleanup(self):
        self.say(self)


@pytest.mark.parametrize(
    "say",
    [
        lambda bolt: bolt.collector.emit(["late"]),
        lambda bolt: bolt.collector.emit_direct(1, ["late"]),
        lambda bolt: bolt.collector.ack(bolt.kept),
        lambda bolt: bolt.collector.fail(bolt.kept),
        lambda bolt: bolt.collector.reset_timeout(bolt.kept),
    ],
)
def test_what_a_bolt_says_in_cleanup_is_refused_and_reported_since_it_could_not_count_any_more(say):
    def execute(bolt, tup):
        bolt.collector.emit(["in time"], anchors=tup)
        bolt.kept, bolt.say = tup, say

    with bench(SaysInCleanup(execute, remembers=("kept", "say"))) as running:
        running.feed(1)
        assert running.acked == []
        assert running.failures == {}
        assert running.tuples("b0") == ["in time"]
        (reason,) = running.reasons("b0")
        assert reason.startswith("MisuseError: ")
        assert "in cleanup(), when the task's micro-batch is over" in reason


def test_what_a_basic_bolt_or_an_arrow_bolt_says_in_cleanup_is_refused_too():
    class Basic(Calls):
        def cleanup(self):
            for say in (lambda: KEPT[0].emit([1]), KEPT[0].reset_timeout):
                with pytest.raises(MisuseError, match=r"in cleanup\(\)"):
                    say()

    class Batches(ArrowBolt):
        outputs = ("value",)

        def execute_batch(self, batch, collector):
            KEPT[:] = [collector]

        def cleanup(self):
            batch = pa.record_batch({"value": [1]})
            for say in (lambda: KEPT[0].emit_batch(batch, None), lambda: KEPT[0].fail_rows([])):
                with pytest.raises(MisuseError, match=r"in cleanup\(\)"):
                    say()

    def keep(bolt, tup, collector):
        KEPT[:] = [collector]

    for one in (Basic(keep), Batches()):
        with bench(one) as running:
            running.feed(1)
            assert (running.acked, running.reasons("b0"), running.tuples("b0")) == ([1], [], [])


def test_a_report_in_cleanup_is_shown():
    class Reports(CallsByHand):
        def cleanup(self):
            self.collector.report_error(OSError("left open"))

    with bench(Reports(lambda bolt, tup: bolt.collector.ack(tup))) as running:
        running.feed(1)
        assert running.reasons("b0") == ["OSError: left open"]


def test_the_copies_of_a_bolt_share_nothing_and_the_users_own_is_never_run():
    mine = Calls(lambda bolt, tup, collector: bolt.attributes.setdefault("seen", 0))
    mine.remembers = ("attributes",)

    def build(builder):
        builder.set_bolt("b", mine, parallelism=2).all_grouping("source")

    with bench(build=build) as running:
        running.feed(1)
    assert mine.attributes == {}


class TellsBadlyError(Exception):
    """An exception whose __str__ raises."""

    def __str__(self):
        raise RuntimeError("not even this")


def test_an_exception_whose_own_text_raises_fails_its_tuple_like_any_other():
    def execute(bolt, tup, collector):
        raise TellsBadlyError

    with bench(Calls(execute)) as running:
        running.feed(1)
        assert running.failures[1].reason == "TellsBadlyError: its __str__ raises"


@pytest.mark.parametrize("reason", ["", "for this reason"])
def test_a_bolt_may_fail_a_tuple_with_the_exception_that_it_caught(reason):
    def execute(bolt, tup):
        try:
            int("seven")
        except ValueError as error:
            bolt.collector.fail(tup, reason, exception=error)

    with bench(CallsByHand(execute)) as running:
        running.feed(1)
        failure = running.failures[1]
    assert failure.reason == (reason or "ValueError: invalid literal for int() with base 10: 'seven'")
    assert isinstance(failure.exception, ValueError)
    assert failure.cause is FailureCause.EXCEPTION
    assert 'int("seven")' in failure.traceback


def test_an_exception_without_words_is_called_by_its_name():
    assert failure_of(KeyError(), "b").reason == "KeyError"
    assert failure_of(None, "b", "said").reason == "said"
    assert failure_of(None, "b").traceback is None


def test_a_reason_may_be_anything_and_is_reported_as_text():
    def execute(bolt, tup):
        bolt.collector.fail(tup, ValueError("an object"))

    with bench(CallsByHand(execute)) as running:
        running.feed(1)
        assert running.failures[1].reason == "an object"
    with bench(Says(lambda b, c: c.fail_rows([0], {"a": 1}))) as running:
        running.feed(1)
        assert running.failures[1].reason == "{'a': 1}"


# ---- counts ------------------------------------------------------------------------------------------------


def test_every_tuple_and_error_is_counted_exactly():
    def execute(bolt, tup):
        if tup["value"] == "hold":
            bolt.held = tup
        elif tup["value"] == "fail held":
            bolt.collector.fail(bolt.held)
            bolt.collector.ack(tup)
        elif tup["value"] == "raise":
            raise ValueError("x")
        else:
            bolt.collector.ack(tup)

    config = Config(max_error_report_per_interval=2, stats_sample_rate=1.0)
    with bench(CallsByHand(execute, remembers=("held",), held=None), config=config) as running:
        running.feed("hold", *("raise" for _ in range(7)))
        running.feed("fail held", "ack")
        stats: Stats = running.running.stats()
        total = stats["b0"].total
        assert (total.executed, total.acked, total.failed, total.errors) == (10, 2, 8, 7)
        assert len(running.reasons("b0")) == 2  # all are counted, a few are kept
        assert total.execute_ms is not None
        assert stats["b0"].streams["source:default"].executed == 10
        source = stats["source"].total
        assert (source.emitted, source.transferred, source.acked, source.failed) == (10, 10, 2, 8)


def test_bolts_and_spouts_read_the_time_and_a_local_cluster_moves_it():
    class Times(Bolt):
        outputs = ["value"]

        def prepare(self, config, context, collector):
            self.context, self.collector = context, collector

        def execute(self, tup):
            self.collector.emit([self.context.now_ms()], anchors=tup)
            self.collector.ack(tup)

    expected: list[int] = []

    class Feeds(FeederSpout):
        def open(self, config, context, collector):
            super().open(config, context, collector)
            self.context = context

        def next_tuple(self):
            super().next_tuple()
            expected.append(self.context.now_ms())

    feeder = Feeds(["value"])
    with bench(Times(), feeder=feeder) as running:
        running.feed(1)
        running.cluster.advance(90)
        running.feed(2)
        assert running.tuples("b0") == [0, 90_000]
        assert {*expected} == {0, 90_000}
