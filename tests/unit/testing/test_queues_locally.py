"""Spouts for queues in ``LocalCluster``: its clock says when they are kept alive, and how long they pause."""

from __future__ import annotations

import pytest

from acktree import BasicBolt, Bolt, Config, EndOfStream, Spout, TopologyBuilder
from acktree.core.tracking.verdicts import FailureKind
from acktree.errors import ConnectorError
from acktree.testing import FeederSpout, LocalCluster, complete_topology

GONE = ConnectorError("the connection is gone", "queue 'q'", "see whether the server runs", can_retry=True)
REFUSED = ConnectorError("access refused", "queue 'q'", "give the user the right to read it")


class Swallow(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


class Forget(Bolt):
    outputs = []

    def prepare(self, config, context, collector):
        pass

    def execute(self, tup):
        pass


class Queue(Spout):
    outputs = ["n"]
    keep_alive_secs = 10

    def __init__(self, count=0):
        self.count, self.beats, self.clock, self.errors = count, [], None, []

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector = collector
        if self.errors:
            raise self.errors.pop()

    def next_tuple(self):
        if self.errors:
            raise self.errors.pop()
        if self.count:
            self.count -= 1
            self.collector.emit([self.count], message_id=self.count)
        else:
            raise EndOfStream

    def keep_alive(self, open_messages):
        self.beats.append((self.clock(), open_messages.count))


def topology_of(spout, bolt=None, **settings):
    builder = TopologyBuilder("queues")
    builder.set_spout("queue", spout, **settings)
    builder.set_bolt("sink", bolt or Swallow()).shuffle_grouping("queue")
    return builder.create_topology()


def test_keep_alive_comes_by_the_clusters_clock_in_every_state():
    spout = Queue(3)
    with LocalCluster() as cluster:
        spout.clock = lambda: cluster.now_ms
        running = cluster.submit(topology_of(spout, Forget(), max_spout_pending=2))
        cluster.advance(25)
        running.deactivate()
        cluster.advance(20)
        running.activate()
    assert [(at_ms // 1000, count) for at_ms, count in spout.beats] == [(10, 2), (20, 2), (30, 2), (40, 0)]


def test_an_outage_is_tried_again_by_the_clusters_clock():
    spout = Queue(1)
    spout.errors = [GONE, GONE, GONE]
    with LocalCluster() as cluster:
        running = cluster.submit(topology_of(spout))
        cluster.advance(0)
        assert len(running.errors) == 1
        cluster.advance(1)
        assert running.stats()["queue"].total.acked == 1
        assert len(running.errors) == 1


@pytest.mark.parametrize("errors", [[REFUSED], [REFUSED, GONE]])
def test_what_cannot_pass_stops_the_topology_at_open_or_later(errors):
    spout = Queue(1)
    spout.errors = list(errors)
    with LocalCluster() as cluster, pytest.raises(ConnectorError, match="access refused"):  # noqa: PT012
        cluster.submit(topology_of(spout))
        cluster.advance(1)


def test_a_run_to_the_end_does_not_wait_for_keep_alive():
    completed = complete_topology(topology_of(Queue()), {"queue": [[1]]})
    assert completed.stats()["queue"].total.acked == 1


def test_the_lag_is_in_the_stats():
    class Lagging(Queue):
        def lag(self):
            return 42

    spout = Lagging()
    with LocalCluster() as cluster:
        spout.clock = lambda: cluster.now_ms
        running = cluster.submit(topology_of(spout, parallelism=2))
        assert running.stats()["queue"].lag is None
        cluster.advance(10)
        assert running.stats()["queue"].lag == 84


def test_each_spout_may_have_a_message_timeout_of_its_own():
    builder = TopologyBuilder("timeouts")
    feeders = {name: FeederSpout(["n"]) for name in ("common", "long", "short")}
    builder.set_spout("common", feeders["common"])
    builder.set_spout("long", feeders["long"], message_timeout_secs=100)
    builder.set_spout("short", feeders["short"], message_timeout_secs=5)
    forget = builder.set_bolt("forget", Forget())
    for name in feeders:
        forget.shuffle_grouping(name)
    late_ms = {}
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology(), config=Config(message_timeout_secs=30))
        for feeder in feeders.values():
            feeder.feed([1], message_id=1)
        for _ in range(1200):
            cluster.advance(0.1)
            for name, feeder in feeders.items():
                if feeder.failed:
                    late_ms.setdefault(name, cluster.now_ms)
    for name, secs in (("short", 5), ("common", 30), ("long", 100)):
        assert secs * 1000 <= late_ms[name] <= secs * 1125 + 100, name
        [(_, failure)] = feeders[name].failed
        assert failure.kind is FailureKind.TIMED_OUT
        assert failure.reason == (
            f"no verdict within message_timeout_secs={secs}: "
            "bolt 'forget' neither acked, failed nor kept a tuple"
        )


def test_stats_say_what_a_spout_waits_for():
    spout = Queue()
    builder = TopologyBuilder("away")
    builder.set_spout("queue", spout)
    builder.set_bolt("swallow", Swallow()).shuffle_grouping("queue")
    with LocalCluster() as cluster:
        spout.clock, spout.errors = (lambda: 0), [GONE, GONE]
        running = cluster.submit(builder.create_topology())
        cluster.advance()
        outage = running.stats()["queue"].outage
        assert (outage.tries, outage.fix) == (1, "see whether the server runs")
        assert "outage component=queue since=" in running.stats().table()
        assert "outage component=queue" in running.stats()._repr_html_()
        cluster.advance(60)
        assert running.stats()["queue"].outage is None
