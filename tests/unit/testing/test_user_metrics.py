"""Users' metrics in a ``LocalCluster``: every kind of component, gauges that raise, the snapshot's JSON."""

from __future__ import annotations

from acktree import BasicBolt, Bolt, Config, TaskHook, TopologyBuilder
from acktree.testing import FeederSpout, LocalCluster
from acktree.ui.snapshot import Window, plain
from acktree.ui.snapshot import _stats as read_stats


class Threads(BasicBolt):
    outputs = ["n"]
    threads = 8

    def prepare(self, config, context):
        self.executed = context.register_counter("executed")
        self.took = context.register_timer("took")

    def execute(self, tup, collector):
        with self.took.time():
            self.executed.inc()
            collector.emit([tup["n"]])


class Raises(Bolt):
    outputs = []

    def prepare(self, config, context, collector):
        self.collector = collector
        self.last = context.register_gauge("last")
        context.register_gauge("broken", lambda: 1 / 0)

    def execute(self, tup):
        self.last.set(tup["n"])
        self.collector.ack(tup)


class Hook(TaskHook):
    def prepare(self, config, context):
        self.acks = context.register_meter("acks")

    def bolt_ack(self, info):
        self.acks.mark(info.count)


def test_metrics_of_bolts_threads_hooks_and_gauges_are_in_the_stats_and_their_json():
    builder, feeder = TopologyBuilder("metrics"), FeederSpout(["n"])
    builder.set_spout("numbers", feeder)
    builder.set_bolt("threads", Threads(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("raises", Raises()).global_grouping("threads")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(task_hooks=[Hook()]))
        for n in range(50):
            feeder.feed([n], message_id=n)
            if n % 10 == 9:
                cluster.advance(1)
        stats = running.stats()
    assert len(feeder.acked) == 50
    metrics = {name: component.metrics for name, component in stats.components.items()}
    assert metrics["threads"]["executed"].count == metrics["threads"]["took"].count == 50
    assert metrics["threads"]["acks"].count == metrics["raises"]["acks"].count == 50
    assert metrics["raises"]["last"].value == 49
    assert metrics["raises"]["broken"].value is None
    assert "read of gauge 'broken' raised: ZeroDivisionError" in running.errors[0].reason
    assert "threads executed" in stats.table()
    assert max(map(len, stats.table().split("\nerror")[0].splitlines())) <= 100
    again = read_stats(plain(Window(1.0, stats))["stats"])
    assert {name: component.metrics for name, component in again.components.items()} == metrics
    assert again["threads"].tasks == stats["threads"].tasks
