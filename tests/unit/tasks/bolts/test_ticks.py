"""Ticks: when they come, what they hang on, and what a tick that raises does."""

from __future__ import annotations

import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, Config
from acktree.errors import ProtocolError
from acktree.tasks.bolts.bolt_tasks import bolt_task
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.rows.frame_rows import InboundRows
from acktree.tasks.plan import Plan
from acktree.testing import FeederSpout
from tests.unit.tasks.bolts.bolt_harness import Calls, bench, in_a_row

# ---- ticks -----------------------------------------------------------------------------------------------


class Ticks(BasicBolt):
    """Emits the seconds of each tick."""

    outputs = ["value"]
    tick_secs = 5

    def execute(self, tup, collector):
        collector.emit([("tuple", tup["value"])])

    def tick(self, tup, collector):
        collector.reset_timeout()
        collector.emit([("tick", tup["rate_secs"], tup.is_tick, tup.anchors, tup.attempt)])


class TicksByHand(Bolt):
    """The same by hand; acks its ticks, and one of them later."""

    outputs = ["value"]
    tick_secs = 5
    remembers = ["last"]

    def prepare(self, config, context, collector):
        self.collector, self.last = collector, None

    def execute(self, tup):
        self.collector.emit([("tuple", tup["value"])], anchors=[tup, self.last] if self.last else tup)
        if self.last:
            self.collector.ack(self.last)
            self.last = None
        self.collector.ack(tup)

    def tick(self, tup):
        self.collector.emit([("tick", tup["rate_secs"], tup.is_tick, tup.anchors, tup.attempt)], anchors=tup)
        if self.last is None:
            self.last = tup
        else:
            self.collector.ack(tup)


@pytest.mark.parametrize("kind", [Ticks, TicksByHand])
def test_a_tick_comes_after_each_interval_hangs_on_nothing_and_may_be_acked_or_kept(kind):
    with bench(kind()) as running:
        running.cluster.advance(4.9)
        assert running.tuples("b0") == []
        running.feed(1)
        running.cluster.advance(5.2)
        tick = ("tick", 5.0, True, {}, 1)
        assert running.tuples("b0") == [("tuple", 1), tick, tick]
        running.feed(2)
        assert running.tuples("b0")[3:] == [("tuple", 2)]
        assert running.acked == [1, 2]
        assert running.reasons("b0") == []
        assert running.running.stats()["b0"].total.acked == 2  # ticks are not counted


def test_a_tick_comes_before_the_tuples_of_its_micro_batch():
    with bench(Ticks()) as running:
        running.cluster.advance(4)
        running.feeder.feed([1], message_id=1)
        running.cluster.now_ms = 5_000
        running.running.beat()
        running.cluster.advance()
        assert [value[0] for value in running.tuples("b0")] == ["tick", "tuple"]


def test_ticks_that_were_missed_are_missed_and_come_once_a_micro_batch():
    with bench(Ticks()) as running:
        running.cluster.now_ms = 23_000
        running.running.beat()
        running.cluster.advance()
        assert len(running.tuples("b0")) == 1
        running.cluster.advance(2)  # 25 s: in step again
        assert len(running.tuples("b0")) == 2


def test_every_task_of_a_bolt_is_ticked_in_its_partition_and_no_other_bolt():
    def build(builder):
        builder.set_bolt("ticks", Ticks(), parallelism=5).shuffle_grouping("source")
        builder.set_bolt("quiet", Calls(lambda bolt, tup, collector: None)).global_grouping("ticks")

    for partitions in (1, 2, 3):
        with bench(build=build, config=Config(partitions=partitions, tick_tuple_freq_secs=1)) as running:
            running.cluster.advance(5)
            assert len(running.tuples("ticks")) == 5  # its own interval, not the topology's
            assert running.running.stats()["quiet"].total.executed == 5


class TicksWhenTold(Ticks):
    tick_secs = None


def test_the_topologys_interval_holds_for_bolts_that_have_a_tick_and_none_of_their_own():
    for config, ticks in ((Config(tick_tuple_freq_secs=2), 5), (Config(), 0)):
        with bench(TicksWhenTold(), config=config) as running:
            running.cluster.advance(10)
            assert len(running.tuples("b0")) == ticks


class TicksAndRaises(Ticks):
    def tick(self, tup, collector):
        collector.emit(["before"])
        raise ValueError("tock")


def test_a_tick_that_raises_is_reported_and_fails_nothing_and_what_it_emitted_stands():
    with bench(TicksAndRaises()) as running:
        running.cluster.advance(5)
        running.feed(1)
        assert running.acked == [1]
        assert running.reasons("b0") == ["BoltError: bolt 'b0' raised in tick(): ValueError: tock"]
        assert running.tuples("b0") == ["before", ("tuple", 1)]


class Batches(ArrowBolt):
    def execute_batch(self, batch, collector):
        pass


def test_an_arrow_bolt_has_no_ticks():
    topology = in_a_row(FeederSpout(["value"]), Batches())
    task = bolt_task(topology.components["b0"], 1, Outputs(Plan.of(topology, Config(), 1, 0), 0, 1, 0), None)
    with pytest.raises(ProtocolError, match="which has none"):
        task.call_tick(InboundRows.of_clock(1))
