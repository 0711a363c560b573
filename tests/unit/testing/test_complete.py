"""``complete_topology``: fixed tuples in, a verdict for each out."""

from __future__ import annotations

import pytest

from acktree import Config, Retry, TopologyBuilder, bolt
from acktree.core.tracking.verdicts import Verdict
from acktree.errors import MisuseError, TopologyError
from acktree.testing import FeederSpout, complete_topology
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, in_a_row
from tests.unit.tasks.bolts.test_ticks import TicksByHand


def judges(bolt, tup):
    """Acks, fails, raises or forgets, as the value says."""
    bolt.collector.emit([tup["value"]], anchors=tup)
    if tup["value"] == "raise":
        raise ValueError("raised")
    if tup["value"] != "forget":
        getattr(bolt.collector, tup["value"])(tup)


def test_every_fixed_tuple_has_its_verdict_and_its_failure():
    topology = in_a_row(FeederSpout(["value"]), CallsByHand(judges))
    results = complete_topology(topology, {"source": [["ack"], ["fail"], ["raise"], ["forget"]]})
    assert results.verdicts.of("source") == [
        Verdict.ACKED,
        Verdict.FAILED,
        Verdict.FAILED,
        Verdict.TIMED_OUT,
    ]
    assert results.verdicts["source", 2] is Verdict.FAILED
    assert results.verdicts.count(Verdict.FAILED) == 2
    assert len(results.verdicts) == 4
    assert repr(results.verdicts) == "VerdictTable(1 ACKED, 2 FAILED, 1 TIMED_OUT)"
    assert results.failures["source", 2].reason == "ValueError: raised"
    assert results.tuples("b0") == [["ack"], ["fail"], ["raise"], ["forget"]]
    assert results.stats()["b0"].total.executed == 4
    assert list(results.dead_letters) == []


def test_several_spouts_and_streams_are_fixed_each_by_itself():
    builder = TopologyBuilder("t")
    builder.set_spout("a", FeederSpout({"default": ["value"], "side": ["value"]}), parallelism=3)
    builder.set_spout("b", FeederSpout(["value"]))
    judge = builder.set_bolt("judge", CallsByHand(judges))
    judge.global_grouping("a").global_grouping("a", "side").global_grouping("b")
    results = complete_topology(
        builder.create_topology(),
        {"a": {"default": [["ack"]], "side": [["fail"], ["ack"]]}, "b": []},
    )
    assert dict(results.verdicts) == {("a", 0): "ACKED", ("a", 1): "FAILED", ("a", 2): "ACKED"}
    assert results.tuples("a", "side") == [["fail"], ["ack"]]


def test_with_a_retry_the_last_attempt_decides_and_given_up_messages_are_listed():
    def second_time(bolt, tup, collector):
        if tup.attempt < tup["value"]:
            raise ValueError(tup.attempt)

    topology = in_a_row(FeederSpout(["value"]), Calls(second_time), retry=Retry(3, (1000, 9000)))
    results = complete_topology(topology, {"source": [[1], [2], [3], [4]]})
    assert results.verdicts.of("source") == ["ACKED", "ACKED", "ACKED", "FAILED"]
    assert results.failures.keys() == {("source", 3)}
    assert [(letter.values, letter.attempts) for letter in results.dead_letters] == [([4], 3)]


def test_a_name_that_is_no_spout_and_a_spout_left_out_are_refused():
    topology = in_a_row(FeederSpout(["value"]), Calls(print))
    for spouts in ({}, {"source": [], "b0": []}, {"sauce": []}):
        with pytest.raises(MisuseError, match="but the spouts are \\['source'\\]"):
            complete_topology(topology, spouts)


@pytest.mark.parametrize("fixed", [[[1, 2]], {"other": [[1]]}, [["fits"], [object]], [[(i for i in ())]]])
def test_a_tuple_that_does_not_fit_is_reported_and_not_left_out(fixed):
    topology = in_a_row(FeederSpout(["value"]), Calls(lambda bolt, tup, collector: None))
    if fixed == [["fits"], [object]]:
        assert len(complete_topology(topology, {"source": fixed}).verdicts) == 2  # a class travels
        return
    with pytest.raises(MisuseError):
        complete_topology(topology, {"source": fixed})


def test_without_ackers_everything_is_acked():
    topology = in_a_row(FeederSpout(["value"]), CallsByHand(judges))
    results = complete_topology(topology, {"source": [["fail"], ["forget"]]}, Config(acker_executors=0))
    assert results.verdicts.of("source") == ["ACKED", "ACKED"]


def test_a_message_that_cannot_be_finished_has_no_verdict_and_is_not_waited_for_forever():
    """Timeouts are off, a bolt forgot a tuple, and the ticks of another would go on for all time."""
    topology = in_a_row(FeederSpout(["value"]), CallsByHand(judges), TicksByHand())
    config = Config(enable_message_timeouts=False)
    results = complete_topology(topology, {"source": [["ack"], ["forget"]]}, config)
    assert dict(results.verdicts) == {("source", 0): "ACKED"}


def test_ticks_come_while_a_message_is_open():
    class AcksWhenItTicks(TicksByHand):
        """Holds what it gets for three ticks."""

        remembers = ("held", "ticks")

        def prepare(self, config, context, collector):
            self.collector, self.held, self.ticks = collector, None, 0

        def execute(self, tup):
            self.held = tup

        def tick(self, tup):
            self.ticks += 1
            if self.ticks == 3:
                self.collector.ack(self.held)

    for config in (Config(), Config(enable_message_timeouts=False)):
        topology = in_a_row(FeederSpout(["value"]), AcksWhenItTicks())
        assert complete_topology(topology, {"source": [["x"]]}, config).verdicts.of("source") == ["ACKED"]


def test_a_bolt_is_replaced_by_another_with_the_same_outputs():
    topology = in_a_row(FeederSpout(["value"]), Calls(lambda *_: 1 / 0))
    emits = Calls(lambda bolt, tup, collector: collector.emit([tup["value"] + 1]))
    results = complete_topology(topology, {"source": [[1]]}, bolts={"b0": emits})
    assert results.verdicts.of("source") == [Verdict.ACKED]
    assert results.tuples("b0") == [[2]]
    assert complete_topology(topology, {"source": [[1]]}).verdicts.of("source") == [Verdict.FAILED]


@pytest.mark.parametrize("at_once", [None, 4])
def test_what_replaces_a_bolt_brings_how_many_tuples_it_executes_at_once(at_once):
    @bolt(outputs=["value"], threads=at_once)
    def doubles(tup):
        yield [2 * tup["value"]]

    topology = in_a_row(FeederSpout(["value"]), Calls(lambda *_: 1 / 0))
    results = complete_topology(topology, {"source": [[1], [2]]}, bolts={"b0": doubles})
    assert results.tuples("b0") == [[2], [4]]


def test_what_replaces_a_bolt_must_be_one_and_have_its_outputs():
    topology = in_a_row(FeederSpout(["value"]), Calls(lambda *_: None))
    with pytest.raises(MisuseError, match=r"\['b9'\], which are not among the bolts"):
        complete_topology(topology, {"source": []}, bolts={"b9": Calls(lambda *_: None)})
    with pytest.raises(TopologyError, match="is a spout"):
        complete_topology(topology, {"source": []}, bolts={"b0": FeederSpout(["value"])})
    other = Calls(lambda *_: None)
    other.outputs = ["word"]
    with pytest.raises(TopologyError, match="has the outputs"):
        complete_topology(topology, {"source": []}, bolts={"b0": other})
