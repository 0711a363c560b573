"""A message with more tuples than are recorded: its further tuples are counted, and nothing is logged."""

from __future__ import annotations

from acktree import BasicBolt, Config, TopologyBuilder
from acktree.testing import FeederSpout, LocalCluster


class Copies(BasicBolt):
    outputs = ["n"]

    def __init__(self, count):
        self.count = count

    def execute(self, tup, collector):
        for n in range(self.count):
            collector.emit([n])


class Ends(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


def test_frames_whose_tuples_are_all_surplus_are_counted(caplog):
    feeder, builder = FeederSpout(["n"]), TopologyBuilder("surplus")
    builder.set_spout("source", feeder)
    builder.set_bolt("many", Copies(1200)).shuffle_grouping("source")
    for name in ("left", "right"):
        builder.set_bolt(name, Copies(1)).shuffle_grouping("many")
    builder.set_bolt("ends", Ends()).shuffle_grouping("left").shuffle_grouping("right")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(trace_sample_rate=1))
        feeder.feed([1], message_id=1)
        cluster.advance()
        (message,) = running.traces.find()
        trace = running.traces.get(message.root)
        assert message.verdict == "ACKED"
    assert len(trace.tuples) <= 1000
    assert sum(trace.more.values()) > 2000
    assert not [record for record in caplog.records if "recorded less" in record.getMessage()]
