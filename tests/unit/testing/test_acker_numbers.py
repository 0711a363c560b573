"""What ``__acker`` was sent and decided, as Storm counts it, beside what a bolt's own hooks saw."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import BasicBolt, Bolt, Config, Retry, TopologyBuilder
from acktree.testing import FeederSpout, LocalCluster
from tests.drawn import drawn


class Words(BasicBolt):
    outputs = ["word"]

    def execute(self, tup, collector):
        for word in tup["line"]:
            collector.emit([word])


class Pairs(Bolt):
    """Anchors what it emits to the last two tuples, and acks them then."""

    outputs = ["pair"]
    remembers = ["first"]

    def prepare(self, config, context, collector):
        self.collector, self.first = collector, None

    def execute(self, tup):
        if tup["word"] == "fails":
            self.collector.fail(tup)
        elif tup["word"] == "resets":
            self.collector.reset_timeout(tup)
            self.collector.ack(tup)
        elif self.first is None:
            self.first = tup
        else:
            self.collector.emit([1], anchors=[self.first, tup])
            self.collector.ack(self.first)
            self.collector.ack(tup)
            self.first = None


class End(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


LINES = st.lists(st.lists(st.sampled_from(["a", "a", "a", "fails", "resets"]), max_size=4), max_size=6)


@settings(max_examples=drawn(60))
@given(st.lists(LINES, max_size=4))
def test_each_ack_fail_and_reset_is_counted_once_for_each_message(batches):
    """The model: one task a bolt and one after the other, so that its order is that of the lines."""
    feeder, builder = FeederSpout(["line"]), TopologyBuilder("acks")
    builder.set_spout("source", feeder)
    builder.set_bolt("words", Words()).shuffle_grouping("source")
    builder.set_bolt("pairs", Pairs()).shuffle_grouping("words")
    builder.set_bolt("end", End()).shuffle_grouping("pairs")
    inits = acks = of_end = fails = resets = late = 0
    first, failed = None, set()
    with LocalCluster() as cluster:
        running = cluster.submit(
            builder.create_topology(), config=Config(enable_message_timeouts=False, partitions=1)
        )
        for lines in batches:
            before, heard = set(failed), set()
            for line in lines:
                inits += 1
                message = inits
                feeder.feed([line], message_id=message)
                for word in line:
                    if word == "fails":
                        fails += 1
                        failed.add(message)
                    elif word == "resets":
                        resets, acks = resets + 1, acks + 1
                    elif first is None:
                        first = message
                    else:
                        acks += 2
                        of_end += len({first, message})
                        heard.add(first)
                        first = None
            late += len(heard & before)  # failed by an earlier micro-batch, and acked in this one
            cluster.advance()
        acker = running.stats().acker
        received = {
            "source:__ack_init": inits, "words:__ack_ack": inits, "pairs:__ack_ack": acks,
            "end:__ack_ack": of_end, "pairs:__ack_fail": fails, "pairs:__ack_reset_timeout": resets,
        }  # fmt: skip
        assert dict(acker.received) == {name: count for name, count in received.items() if count}
        assert (acker.inits, acker.acks) == (inits, inits + acks + of_end)
        assert (acker.fails, acker.resets, acker.late) == (fails, resets, late)
        assert (acker.acked, acker.failed) == (len(feeder.acked), len(failed))
        assert acker.open_roots == inits - acker.acked - acker.failed
        assert sum(acker.settle_spread.values()) == acker.micro_batches
        assert "__acker" not in running.stats().components


def test_retries_dead_letters_and_what_waits_are_counted_by_spout():
    class Fails(Bolt):
        outputs = []

        def prepare(self, config, context, collector):
            self.collector = collector

        def execute(self, tup):
            self.collector.fail(tup)

    feeder, builder = FeederSpout(["line"]), TopologyBuilder("retries")
    builder.set_spout("source", feeder, retry=Retry(max_attempts=3, backoff_secs=(10, 10)))
    builder.set_bolt("fails", Fails()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        feeder.feed([1], message_id=1)
        cluster.advance()
        waiting = running.stats()["source"]
        assert (waiting.awaiting_retry, waiting.open, waiting.total.retried) == (1, 1, 0)
        cluster.advance(1000)
        given_up = running.stats()["source"]
        assert (given_up.awaiting_retry, given_up.open) == (0, 0)
        assert (given_up.total.retried, given_up.total.dead_lettered) == (2, 1)
        assert given_up.streams["default"].dead_lettered == len(running.dead_letters)


class FailsInItsWay(Bolt):
    """Acks, fails or raises as the tuple says; what says "keeps" it forgets."""

    outputs = []

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        match tup["way"]:
            case "acks":
                self.collector.ack(tup)
            case "fails":
                self.collector.fail(tup)
            case "raises":
                raise ValueError


CAUSES = {"fails": "FAILED_BY_BOLT", "raises": "EXCEPTION"}


@settings(max_examples=drawn(40))
@given(st.lists(st.sampled_from(["acks", "fails", "raises", "keeps"]), max_size=30), st.booleans())
def test_messages_that_fail_are_counted_by_their_cause(ways, has_retry):
    """Those that time out are not among them. Each attempt counts, as everywhere."""
    feeder, builder = FeederSpout(["way"]), TopologyBuilder("causes")
    retry = Retry(max_attempts=2, backoff_secs=(0, 0)) if has_retry else None
    builder.set_spout("source", feeder, retry=retry)
    builder.set_bolt("bolt", FailsInItsWay()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(message_timeout_secs=5))
        for number, way in enumerate(ways):
            feeder.feed([way], message_id=number)
        cluster.advance(1)
        cluster.advance(60)
        cluster.advance(60)
        source = running.stats()["source"]
        attempts = 2 if has_retry else 1
        wanted = {cause: attempts * ways.count(way) for way, cause in CAUSES.items() if way in ways}
        assert source.failed_by == ({"default": wanted} if wanted else {})
        assert source.total.failed == sum(wanted.values())
        assert source.total.timed_out == attempts * ways.count("keeps")
