"""Attempts after the first are traced, and messages that an operator watches, with their whole trees."""

from __future__ import annotations

import pytest

from acktree import BasicBolt, Bolt, Config, MisuseError, Retry, TopologyBuilder, Traces
from acktree.testing import FeederSpout, LocalCluster

RATE = 1e-9  # no message of these tests by itself


class Split(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        for _ in range(3):
            collector.emit([tup["n"]])


class Check(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        if tup["n"].startswith("bad"):
            raise ValueError("bad")


class Later(Bolt):
    """Holds each tuple until the next one comes."""

    outputs = ["n"]
    remembers = ["held"]

    def prepare(self, config, context, collector):
        self.collector = collector
        if not hasattr(self, "held"):
            self.held = []

    def execute(self, tup):
        for held in self.held:
            self.collector.emit([held["n"]], anchors=[held])
            self.collector.ack(held)
        self.held = [tup]


class Running:
    """A topology in a LocalCluster: a spout that is fed, and two bolts."""

    def __init__(self, cluster, rate=RATE, retry=None, first=Split, **settings):
        self.feeder, self.cluster = FeederSpout(["n"]), cluster
        builder = TopologyBuilder("watched")
        builder.set_spout("source", self.feeder, retry=retry)
        builder.set_bolt("first", first(), 2).shuffle_grouping("source")
        builder.set_bolt("check", Check(), 2).shuffle_grouping("first")
        config = Config(trace_sample_rate=rate, partitions=2, **settings)
        self.running = cluster.submit(builder.create_topology(), config=config)

    def feed(self, *ids, advance=0):
        for each in ids:
            self.feeder.feed([str(each)], message_id=each)
        self.cluster.advance(advance)

    def found(self):
        """Message id and attempt -> its trace."""
        traces = self.running.traces
        each = {f"{one.message_id} {one.attempt}": traces.get(one.root) for one in traces.find(limit=1000)}
        assert all(len(trace.tuples) > 1 for trace in each.values())
        return each


def test_every_attempt_after_the_first_is_traced_with_its_whole_tree():
    with LocalCluster() as cluster:
        topology = Running(cluster, retry=Retry(max_attempts=3))
        topology.feed(*(f"bad {n}" for n in range(50)), "good", advance=600)
        found = topology.found()
        assert found.keys() == {f"'bad {n}' {attempt}" for n in range(50) for attempt in (2, 3)}
        for trace in found.values():
            assert [each.component for each in trace.tuples] == ["source", "first", *["check"] * 3]
            assert trace.message.verdict == "FAILED"
            assert [each.fate for each in trace.tuples[2:]] == ["failed"] * 3
        assert topology.running.stats().traces.dropped["bounds"] == 0


def test_where_tracing_is_off_no_attempt_is_traced():
    with LocalCluster() as cluster:
        topology = Running(cluster, rate=0, retry=Retry(max_attempts=3))
        topology.feed("bad", advance=600)
        assert topology.found() == {}


@pytest.mark.parametrize("rate", [0, RATE])
def test_a_watched_message_is_traced_whatever_the_rate_is_and_no_other(rate):
    with LocalCluster() as cluster:
        topology = Running(cluster, rate=rate, max_traces_per_sec=1e-6)
        topology.running.traces.watch(["b", 7, "'c'"], secs=10)
        assert topology.running.traces.watched == {"b": 10.0, "7": 10.0, "'c'": 10.0}
        topology.feed("a", "b", "c", 7, "7", "d")
        found = topology.found()
        assert found.keys() == {"'b' 1", "'c' 1", "7 1"}
        for trace in found.values():
            assert [each.component for each in trace.tuples] == ["source", "first", *["check"] * 3]
            assert trace.message.verdict == "ACKED"


def test_the_attempts_of_a_watched_message_are_traced_until_its_time_is_over():
    with LocalCluster() as cluster:
        topology = Running(cluster, rate=0, retry=Retry(max_attempts=5, backoff_secs=(1, 1), jitter=False))
        topology.running.traces.watch(["bad b"], secs=2.5)
        topology.feed("bad a", "bad b")
        cluster.advance(2)
        assert topology.found().keys() == {"'bad b' 1", "'bad b' 2", "'bad b' 3"}
        cluster.advance(60)
        assert topology.found().keys() == {"'bad b' 1", "'bad b' 2", "'bad b' 3"}
        assert topology.running.traces.watched == {}
        assert len(topology.running.dead_letters) == 2


def test_what_is_emitted_in_time_is_traced_to_its_end_at_a_rate_of_0():
    """A tuple that a bolt holds until later, at a time when nothing is watched any more."""
    with LocalCluster() as cluster:
        topology = Running(cluster, rate=0, first=Later)
        topology.running.traces.watch(["b"], secs=1)
        topology.feed("b")
        cluster.advance(5)
        topology.feed("x", "y", "z")
        (trace,) = topology.found().values()
        assert trace.message.verdict == "ACKED"
        assert [(each.component, each.fate) for each in trace.tuples] == [
            ("source", "emitted"), ("first", "acked"), ("check", "acked")
        ]  # fmt: skip


def test_a_dead_letter_that_is_sent_again_can_be_watched():
    with LocalCluster() as cluster:
        topology = Running(cluster, rate=0, retry=Retry(max_attempts=1))
        topology.feed("bad")
        (letter,) = topology.running.dead_letters
        topology.running.traces.watch([f"Redriven(letter_id={letter.id})"])
        topology.running.dead_letters.redrive(ids=[letter.id])
        cluster.advance()
        assert [each.attempt for each in topology.running.traces.find()] == [1]


def test_what_cannot_be_watched_is_refused():
    with LocalCluster() as cluster:
        topology = Running(cluster, acker_executors=0)
        with pytest.raises(MisuseError, match="no ackers"):
            topology.running.traces.watch(["a"])
    with pytest.raises(MisuseError, match="nobody runs"):
        Traces(None).watch(["a"])
    assert Traces(None).watched == {}
