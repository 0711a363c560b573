"""What ``context.cached`` returns: it may be changed, and ends with its topology in a ``LocalCluster``."""

from __future__ import annotations

import pytest

from acktree import BasicBolt, Config, TopologyBuilder
from acktree.core.data.context import Clock, TaskContext
from acktree.testing import FeederSpout, LocalCluster

MADE = []


class LimitedDict(dict):
    """A cache with a method of its own."""


class Cache(BasicBolt):
    outputs = ["value", "calls"]
    kind = dict

    def prepare(self, config, context):
        self.cache = context.cached("prices", self.make)

    def make(self):
        MADE.append(self.kind())
        return MADE[-1]

    def execute(self, tup, collector):
        self.cache[tup[0]] = self.cache.get(tup[0], 0) + 1
        collector.emit([tup[0], self.cache[tup[0]]])


class Flushing(Cache):
    def flush(self, collector):
        pass


class Limited(Cache):
    kind = LimitedDict


def run(bolt, values):
    builder, feeder = TopologyBuilder("t"), FeederSpout(["value"])
    builder.set_spout("source", feeder)
    builder.set_bolt("lookup", bolt).shuffle_grouping("source")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology(), config=Config(partitions=1))
        for number, value in enumerate(values):
            feeder.feed([value], message_id=number)
            cluster.advance()
        assert feeder.failed == []
        return cluster.tuples("lookup")


@pytest.mark.parametrize("bolt", [Cache, Flushing, Limited])
def test_what_is_cached_may_be_changed_and_is_kept_over_micro_batches(bolt):
    assert run(bolt(), ["a", "b", "a"]) == [["a", 1], ["b", 1], ["a", 2]]


def test_the_next_cluster_begins_without_what_the_last_one_cached():
    MADE.clear()
    assert run(Cache(), ["a"]) == run(Cache(), ["a"]) == [["a", 1]]
    assert len(MADE) == 2


def test_each_checkpoint_has_its_own():
    first, second = (
        TaskContext("t", "b", 1, 0, {"b": (1,)}, checkpoint_id=name, _clock=Clock())
        for name in ("one", "two")
    )
    assert first.cached("key", list) is first.cached("key", list)
    assert first.cached("key", list) is not second.cached("key", list)


class Uncached(BasicBolt):
    outputs = []

    def prepare(self, config, context):
        self.cache = {}

    def execute(self, tup, collector):
        self.cache[tup[0]] = 1


def test_any_other_dict_is_still_refused():
    with pytest.raises(AssertionError):
        run(Uncached(), ["a"])
