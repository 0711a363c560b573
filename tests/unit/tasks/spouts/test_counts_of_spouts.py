"""What spouts keep for their counts is bounded, and only dead letters that are stored are counted."""

from __future__ import annotations

import pytest

from acktree import BasicBolt, Config, DeadLetterLimitError, EndOfStream, Retry, Spout, TopologyBuilder
from acktree.tasks.spouts.chunks import sent_streams
from acktree.testing import FeederSpout, LocalCluster


class Alternating(Spout):
    """Emits to two streams in turn, one message at a time."""

    outputs = {"a": ["n"], "b": ["n"]}

    def open(self, config, context, collector):
        self.collector, self.n, self.is_open = collector, 0, False

    def next_tuple(self):
        if self.n == 200:
            raise EndOfStream
        if not self.is_open:
            self.is_open = True
            self.collector.emit([self.n], message_id=self.n, stream="ab"[self.n % 2])
            self.n += 1

    def ack(self, message_id):
        self.is_open = False


class Ends(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


class Raises(Ends):
    def execute(self, tup, collector):
        raise ValueError("no")


def test_of_a_spout_with_one_message_at_a_time_streams_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(sent_streams, "_MANY", 10)
    builder = TopologyBuilder("alternating")
    builder.set_spout("source", Alternating())
    builder.set_bolt("ends", Ends()).shuffle_grouping("source", "a").shuffle_grouping("source", "b")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for _ in range(20):
            cluster.advance()
        (task,) = running._tasks.values()
        assert running.stats()["source"].total.acked == 200
        assert len(task.sent._entries) < 30


def test_letters_that_the_limit_refuses_are_not_counted():
    feeder, builder = FeederSpout(["n"]), TopologyBuilder("limited")
    builder.set_spout("source", feeder, retry=Retry(max_attempts=1))
    builder.set_bolt("raises", Raises()).shuffle_grouping("source")
    config = Config(dead_letter_limit_count=3, dead_letter_limit_ratio=0.0)
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=config)
        for n in range(10):
            feeder.feed([n], message_id=n)
        with pytest.raises(DeadLetterLimitError):
            cluster.advance()
        assert running.stats()["source"].total.dead_lettered == len(list(running.dead_letters))
