"""Misuse by a bolt is refused at the call, with component, stream, tuple and fix. Nothing is emitted."""

from __future__ import annotations

import inspect

import pytest

from acktree import BasicOutputCollector, Config, KeyValueState, OutputCollector, Tuple
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import MisuseError
from acktree.tasks.bolts.collectors import BasicCollector, HandCollector
from acktree.tasks.spouts.collector import SpoutCollector
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench

BAD = {
    "an undeclared stream": (
        lambda c, t: c.emit([1], stream="x"),
        ["stream 'x', which is not declared (declared: 'default', 'direct')", 'outputs = {"x": [fields]}'],
    ),
    "no stream": (lambda c, t: c.emit([1], stream=None), ["stream None, which is not declared"]),
    "too many values": (
        lambda c, t: c.emit([1, 2]),
        ["emitted [1, 2] on stream 'default', which has the fields ['value']", "emit a list of 1 values"],
    ),
    "too few values": (lambda c, t: c.emit([]), ["emitted [] on stream 'default'"]),
    "a string": (lambda c, t: c.emit("v"), ["emitted 'v'", "in the order of the fields"]),
    "bytes": (lambda c, t: c.emit(b"v"), ["emitted b'v'"]),
    "a dict": (lambda c, t: c.emit({"value": 1}), ["emitted {'value': 1}"]),
    "a number": (lambda c, t: c.emit(1), ["emitted 1 on stream"]),
    "emit where somebody reads directly": (
        lambda c, t: c.emit([1], stream="direct"),
        ["read by 'reads' directly", "emit_direct(task_id, values, stream=...)"],
    ),
    "a task that does not read it directly": (
        lambda c, t: c.emit_direct(t, [1], stream="direct"),
        ["does not read stream 'direct' by direct grouping", "direct_grouping('b', stream='direct')"],
    ),
    "a task that does not exist": (lambda c, t: c.emit_direct(99, [1], stream="direct"), ["task 99"]),
    "a stream that nobody reads directly": (lambda c, t: c.emit_direct(t, [1]), ["stream 'default'"]),
    "too many values directly": (
        lambda c, t: c.emit_direct(t + 1, [1, 2], stream="direct"),
        ["emitted [1, 2] on stream 'direct'"],
    ),
}


def running_with(bolt):
    """A bolt "b" with a stream that is read directly, by the task after the first of "a_reads"."""
    bolt.outputs = {"default": ["value"], "direct": ["value"]}

    def build(builder):
        builder.set_bolt("b", bolt).global_grouping("source")
        builder.set_bolt("reads", Calls(lambda bolt, tup, collector: None)).direct_grouping("b", "direct")
        builder.set_bolt("other", Calls(lambda bolt, tup, collector: None)).global_grouping("b")

    return bench(build=build, config=Config(enable_message_timeouts=False))


@pytest.mark.parametrize(("say", "expected"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("kind", ["basic", "hand"])
def test_misuse_names_the_component_and_the_mend_and_fails_the_tuple_alone(kind, say, expected):
    def basic(bolt, tup, collector):
        if tup["value"] == "bad":
            say(collector, bolt.tasks["other"][0])

    def hand(bolt, tup):
        if tup["value"] == "bad":
            say(bolt.collector, bolt.context.task_ids("other")[0])
        bolt.collector.ack(tup)

    class KnowsTasks(Calls):
        def prepare(self, config, context):
            self.tasks = context.tasks

    bolt = KnowsTasks(basic) if kind == "basic" else CallsByHand(hand)
    with running_with(bolt) as running:
        running.feed("good", "bad", "fine")
        assert running.acked == ["good", "fine"]
        failure = running.failures["bad"]
        assert failure.cause is FailureCause.MISUSE
        for words in (
            *expected,
            "component 'b'",
            "executing Tuple(source:default task 4: value='bad')",
            "fix:",
        ):
            assert words in failure.reason
        assert running.tuples("b") == running.tuples("b", "direct") == []


def test_a_changed_attribute_names_the_tuple_that_changed_it():
    def execute(bolt, tup, collector):
        if tup["value"] == "bad":
            bolt.last = 7

    with bench(Calls(execute)) as running:
        running.feed("good", "bad")
        (misuse,) = running.running.errors
        assert "bolt 'b0' changed its attribute 'last'" in misuse.reason
        assert "executing Tuple(source:default task 2: value='bad')" in misuse.reason


def test_each_error_names_its_own_tuple_once_whatever_object_is_raised():
    class OwnError(MisuseError):
        """Of the user, who says all that is to be said."""

    plain, own = MisuseError("no such order"), OwnError("no such order")

    def execute(bolt, tup):
        if tup["value"] == "twice":
            bolt.collector.ack(tup)
            bolt.collector.ack(tup)
        raise own if tup["value"] == "own" else plain

    with bench(CallsByHand(execute)) as running:
        running.feed(1, 2, "own", "twice")
        first, second, of_user, twice = (error.reason for error in running.running.errors)
        assert "where: executing Tuple(source:default task 2: value=1)" in first
        assert "where: executing Tuple(source:default task 2: value=2)" in second
        assert of_user == "OwnError: no such order"
        assert twice.count("Tuple(") == 1
    assert str(plain) == "no such order"


def test_an_emit_that_was_refused_leaves_those_around_it_whole():
    def execute(bolt, tup):
        for values in ([1], [1, 2], [3]):
            try:
                bolt.collector.emit(values, anchors=[tup])
            except MisuseError:
                bolt.collector.emit(["refused"], anchors=tup)
        bolt.collector.ack(tup)

    with bench(CallsByHand(execute), Calls(lambda bolt, tup, collector: None)) as running:
        running.feed("x")
        assert running.tuples("b0") == [1, "refused", 3]
        assert running.acked == ["x"]


def test_emit_direct_reaches_the_task_that_was_named_and_no_other():
    def execute(bolt, tup):
        for task in bolt.context.task_ids("reads"):
            bolt.collector.emit_direct(task, [task], stream="direct", anchors=tup)
        bolt.collector.ack(tup)

    class Shows(Calls):
        def prepare(self, config, context):
            self.task = context.task_id

    bolt = CallsByHand(execute)
    bolt.outputs = {"direct": ["value"]}

    def build(builder):
        builder.set_bolt("b", bolt).global_grouping("source")
        shows = Shows(lambda bolt, tup, collector: (bolt.task, tup["value"]))
        builder.set_bolt("reads", shows, parallelism=3).direct_grouping("b", "direct")

    for partitions in (1, 2):
        with bench(build=build, config=Config(partitions=partitions)) as running:
            running.feed(1)
            assert running.acked == [1]
            assert sorted(running.tuples("reads")) == [
                (task, task) for task in running.running.plan.topology.tasks["reads"]
            ]


@pytest.mark.parametrize("action", ["ack", "fail", "reset_timeout", "emit"])
@pytest.mark.parametrize("before", ["ack", "fail"])
def test_a_tuple_that_is_done_is_done(before, action):
    def execute(bolt, tup):
        getattr(bolt.collector, before)(tup)
        if action == "emit":
            bolt.collector.emit([1], anchors=[tup])
        else:
            getattr(bolt.collector, action)(tup)

    with bench(CallsByHand(execute)) as running:
        running.feed("x")
        (misuse,) = running.running.errors
        was = {"ack": "acked", "fail": "failed"}[before]
        assert f"a tuple that was {was} before" in misuse.reason
        assert "Tuple(source:default task" in misuse.reason
        assert running.tuples("b0") == []
        assert running.acked == []


LEAKED: list = []


def leak(bolt, tup, collector):
    LEAKED.append(tup)
    return "x"


def steal(bolt, tup):
    bolt.collector.ack(LEAKED[0])


def test_a_tuple_of_a_basic_bolt_cannot_be_acked_by_a_bolt():
    LEAKED.clear()
    with bench(Calls(leak), CallsByHand(steal)) as running:
        running.feed(1)
        assert "that this task was not given" in running.failures[1].reason


@pytest.mark.parametrize("public", [OutputCollector, BasicOutputCollector])
def test_after_the_values_a_bolt_emits_by_keyword_and_in_both_ways_alike(public):
    after = {}
    for name, before in (("emit", 2), ("emit_direct", 3)):
        parameters = [*inspect.signature(getattr(public, name)).parameters.values()][before:]
        assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
        after[name] = [(parameter.name, parameter.default) for parameter in parameters]
    assert after["emit"] == after["emit_direct"]


class Strange:
    """Rows that acktree did not make."""

    columns = {}


def test_a_tuple_that_the_bolt_made_itself_is_refused_and_stops_nothing():
    def execute(bolt, tup):
        bolt.collector.ack(Tuple(Strange(), 0))

    with bench(CallsByHand(execute)) as running:
        running.feed(1)
        assert running.failures[1].cause is FailureCause.MISUSE
        assert "acktree did not make" in running.failures[1].reason


@pytest.mark.parametrize("kind", [BasicCollector, HandCollector, SpoutCollector, Tuple, KeyValueState])
def test_what_is_called_for_each_tuple_has_attributes_that_python_looks_up_in_a_cache(kind):
    assert not hasattr(kind, "__getattr__")
    assert kind.__getattribute__ is object.__getattribute__


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_a_value_whose_repr_raises_fails_its_tuple_alone(raised):
    class Shy:
        def __repr__(self):
            raise raised("not shown")

    with bench(Calls(lambda bolt, tup, collector: collector.emit([1], stream="x"))) as running:
        running.feed(Shy())
        (error,) = running.running.errors
    assert "which is not declared" in error.reason
    assert f"value=<{raised.__name__}>" in error.reason
