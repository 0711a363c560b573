"""Finding traces, and drawing them."""

from __future__ import annotations

import pytest

from acktree import BasicBolt, Bolt, Config, Retry, TopologyBuilder
from acktree.errors import MisuseError
from acktree.testing import FeederSpout, LocalCluster
from acktree.traces.traces import Traces


class Split(BasicBolt):
    outputs = ["word"]

    def execute(self, tup, collector):
        for word in tup["line"].split():
            collector.emit([word])


class Picky(BasicBolt):
    outputs = ["word"]

    def execute(self, tup, collector):
        if tup["word"].startswith("bad"):
            raise ValueError(f"{tup['word']} is bad")
        collector.emit([tup["word"]])


class Forgetful(Bolt):
    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.collector, self.kept = collector, []

    def execute(self, tup):
        if tup["word"] == "hold":
            self.kept.append(tup)
        elif tup["word"] == "release":
            for each in [tup, *self.kept]:
                self.collector.ack(each)
            self.kept = []
        elif tup["word"] != "forget":
            self.collector.ack(tup)


@pytest.fixture
def feeder():
    return FeederSpout(["line"])


@pytest.fixture
def cluster():
    with LocalCluster() as cluster:
        yield cluster


def submit(cluster, feeder, rate=1.0, retry=None):
    builder = TopologyBuilder("words")
    builder.set_spout("source", feeder, retry=retry)
    builder.set_bolt("split", Split()).shuffle_grouping("source")
    builder.set_bolt("picky", Picky(), 2).fields_grouping("split", ["word"])
    builder.set_bolt("end", Forgetful()).global_grouping("picky")
    return cluster.submit(builder.create_topology(), config=Config(trace_sample_rate=rate, partitions=2))


def test_a_message_that_fails_three_levels_deep_is_found_by_its_id_with_its_traceback(cluster, feeder):
    running = submit(cluster, feeder)
    feeder.feed(["a bad1 b"], message_id="order-7")
    cluster.advance()
    (message,) = running.traces.find(message_id="order-7")
    trace = running.traces.get(message.root)
    assert (message.verdict, message.component) == ("FAILED", "picky")
    assert "bad1 is bad" in message.traceback
    (failed,) = trace.failed
    assert (failed.component, failed.values, failed.reason) == ("picky", ["bad1"], "ValueError: bad1 is bad")
    assert "picky" in str(trace)
    for found in (
        running.traces.find(reason="BAD1"),
        running.traces.find(component="picky"),
        running.traces.find(verdict="FAILED"),
        running.traces.find(message_id="'order-7'"),
        running.traces.find(root=message.root),
        running.traces.find(since_ms=0, before_ms=1),
    ):
        assert found == [message]


def test_a_message_that_times_out_names_the_bolt_that_never_acked(cluster, feeder):
    running = submit(cluster, feeder)
    feeder.feed(["a forget"], message_id=1)
    cluster.advance(40)
    (message,) = running.traces.find(verdict="TIMED_OUT")
    (late,) = running.traces.get(message.root).unacked
    assert (late.component, late.fate, late.values) == ("end", "open", ["forget"])
    assert "end task" in str(running.traces.get(message.root))


def test_a_tuple_that_is_held_is_said_to_be_so_until_it_is_acked(cluster, feeder):
    running = submit(cluster, feeder)
    feeder.feed(["hold"], message_id=1)
    cluster.advance()
    (message,) = running.traces.find(verdict="OPEN")
    assert [each.fate for each in running.traces.get(message.root).unacked] == ["held"]
    feeder.feed(["release"], message_id=2)
    cluster.advance()
    trace = running.traces.get(message.root)
    assert (trace.message.verdict, trace.unacked) == ("ACKED", [])


def test_alike_siblings_are_drawn_once_with_their_number(cluster, feeder):
    running = submit(cluster, feeder)
    feeder.feed([" ".join(["same"] * 30) + " bad"], message_id=1)
    cluster.advance()
    text = str(running.traces.get(running.traces.find()[0].root))
    assert "ValueError: bad is bad" in text
    assert len(text.splitlines()) < 100


def test_a_rate_of_0_records_nothing_and_an_attempt_after_the_first_is_traced_more_often(cluster, feeder):
    running = submit(cluster, feeder, rate=0.0)
    feeder.feed(["a"], message_id=1)
    cluster.advance()
    assert not running.traces.find()
    other = FeederSpout(["line"])
    retried = submit(cluster, other, rate=0.02, retry=Retry(max_attempts=2))
    for number in range(40):
        other.feed(["bad"], message_id=number)
    cluster.advance(60)
    second = [message for message in retried.traces.find(limit=1000) if message.attempt == 2]
    assert len(second) == 40
    assert {message.verdict for message in second} == {"FAILED"}
    assert all(message.retry_of is not None for message in second)


def test_the_rate_changes_while_it_runs(cluster, feeder):
    running = submit(cluster, feeder, rate=0.0)
    for number, rate in enumerate([1.0, 0.0, 1.0]):
        running.traces.rate = rate
        feeder.feed(["a forget"], message_id=number)
        cluster.advance()
    assert sorted(message.message_id for message in running.traces.find()) == ["0", "2"]
    running.traces.rate = 0
    cluster.advance(40)
    assert {message.verdict for message in running.traces.find()} == {"TIMED_OUT"}
    with pytest.raises(MisuseError, match="no share"):
        running.traces.rate = 2


def test_pages_follow_by_key_and_wrong_questions_are_refused(cluster, feeder):
    running = submit(cluster, feeder)
    for number in range(7):
        feeder.feed(["a"], message_id=number)
    cluster.advance()
    first = running.traces.find(limit=4)
    rest = running.traces.find(limit=4, after=(first[-1].emitted_ms, first[-1].root))
    assert len({message.root for message in first + rest}) == 7
    with pytest.raises(MisuseError, match="no verdict"):
        running.traces.find(verdict="LOST")
    assert running.traces.get(5) is None
    with pytest.raises(MisuseError, match="nobody runs"):
        Traces(None).rate = 0.5
