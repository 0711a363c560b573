"""What passes a gate, in a LocalCluster: beside a naive reader of the verdicts."""

from __future__ import annotations

from acktree import BasicBolt, Bolt, Config, Retry, TopologyBuilder
from acktree.testing import FeederSpout, LocalCluster

QUICK = Retry(max_attempts=2, backoff_secs=(0.01, 0.01))


class Pairs(Bolt):
    """Emits a tuple for each two, anchored to both; acks and fails them as the second says."""

    outputs = ["pair"]
    remembers = ["first"]
    first = None

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        if self.first is None:
            self.first = tup
            return
        self.collector.emit([f"{self.first['name']}{tup['name']}"], anchors=[self.first, tup])
        for one in (self.first, tup):
            if one["fate"] == "ack":
                self.collector.ack(one)
            elif one["fate"] == "fail":
                self.collector.fail(one)
        self.first = None


class Passes(BasicBolt):
    outputs = ["pair"]

    def execute(self, tup, collector):
        collector.emit([tup["pair"]])
        if tup["pair"] == "raises":
            raise ValueError("a pair that raises")


def run(*rows, secs=200):
    feeder = FeederSpout(["name", "fate"])
    builder = TopologyBuilder("pairs")
    builder.set_spout("rows", feeder)
    builder.set_bolt("pairs", Pairs()).global_grouping("rows")
    builder.set_bolt("passes", Passes(), exactly_once=True, retry=QUICK).global_grouping("pairs")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(message_timeout_secs=30))
        for number, row in enumerate(rows):
            feeder.feed([*row], message_id=number)
        cluster.advance(secs=secs)
        waiting = running._gates.waiting("__gate/passes/pairs/default")
        passed = [pair for [pair] in running.tuples("passes")]
        return passed, waiting, [(letter.spout, letter.values) for letter in running.dead_letters]


def test_a_tuple_of_several_messages_passes_when_all_are_acked_and_goes_with_the_first_that_is_not():
    acked, failed, late = "ack", "fail", "never"
    assert run(("a", acked), ("b", acked))[:2] == (["ab"], 0)
    for fates in (
        (acked, failed),
        (failed, acked),
        (acked, late),
        (late, acked),
        (late, failed),
        (late, late),
    ):
        assert run(*zip("ab", fates, strict=True))[:2] == ([], 0)


def test_a_tuple_waits_as_long_as_one_of_its_messages_is_open():
    assert run(("a", "ack"), ("b", "never"), secs=1)[:2] == ([], 1)


def test_a_tuple_that_is_given_up_behind_a_gate_is_a_letter_of_the_gate_and_leaves_no_trace():
    passed, waiting, letters = run(("rai", "ack"), ("ses", "ack"), ("c", "ack"), ("d", "ack"))
    assert (passed, waiting) == (["cd"], 0)
    assert letters == [("__gate/passes/pairs/default", ["raises"])]
