"""A dependency of a bolt is away: messages wait, use up no attempt and no age, and few are sent meanwhile."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, ConnectorError, Retry, TopologyBuilder, Unavailable
from acktree.errors import ConfigError
from acktree.testing import FeederSpout, LocalCluster

SERVICE = {"is_away": True, "calls": Counter(), "poison": (), "broken": ()}
"""What the bolts of this module need. They are copied, and a module is not."""


@pytest.fixture(autouse=True)
def service():
    SERVICE.update(is_away=True, calls=Counter(), poison=(), broken=())
    return SERVICE


def ask(value):
    SERVICE["calls"][value] += 1
    if SERVICE["is_away"] or value in SERVICE["poison"]:
        raise Unavailable("prices") from TimeoutError("no answer")
    if value in SERVICE["broken"]:
        raise ValueError(value)


class Basic(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        ask(tup[0])


class ByHand(Bolt):
    outputs = []

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        ask(tup[0])
        self.collector.ack(tup)


class Flushing(BasicBolt):
    outputs = []

    def prepare(self, config, context):
        self.values = []

    def execute(self, tup, collector):
        self.values.append(tup[0])

    def flush(self, collector):
        values, self.values = self.values, []
        for value in values:
            ask(value)


class Preparing(BasicBolt):
    outputs = []

    def prepare(self, config, context):
        ask("prepare")

    def execute(self, tup, collector):
        SERVICE["calls"][tup[0]] += 1


class Waiting(BasicBolt):
    outputs = []

    async def execute(self, tup, collector):
        ask(tup[0])


class Arrow(ArrowBolt):
    outputs = []

    def execute_batch(self, batch, collector):
        if SERVICE["is_away"]:
            return Unavailable("prices")
        SERVICE["calls"].update(batch["n"].to_pylist())
        return None


class Connected(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        try:
            ask(tup[0])
        except Unavailable as error:
            raise ConnectorError("no connection", "a server", "start it", can_retry=True) from error


def topology_of(bolt, retry=None):
    builder = TopologyBuilder("t")
    feeder = FeederSpout(pa.schema([("n", pa.int64())]))
    builder.set_spout("source", feeder, retry=retry)
    builder.set_bolt("lookup", bolt).shuffle_grouping("source")
    return feeder, builder.create_topology()


ALL = [Basic, ByHand, Flushing, Preparing, Waiting, Arrow, Connected]


@pytest.mark.parametrize(
    "retry", [None, Retry(1), Retry(3, (0, 0), max_age_secs=5)], ids=["none", "one", "three"]
)
@pytest.mark.parametrize("bolt", ALL)
def test_messages_wait_for_minutes_and_are_acked_when_it_works_again(bolt, retry):
    feeder, topology = topology_of(bolt(), retry)
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        for n in range(50):
            feeder.feed([n], message_id=n)
        cluster.advance(600)
        assert feeder.acked == feeder.failed == []
        outage = running.stats()["source"].outage
        name = "lookup" if bolt is Connected else "prices"
        assert outage.dependency == name
        assert outage.tries > 20
        assert running.stats()["source"].awaiting_retry == 50
        SERVICE["is_away"] = False
        cluster.advance(60)
        assert sorted(feeder.acked) == list(range(50))
        assert feeder.failed == []
        assert running.stats()["source"].outage is None
        assert len(running.dead_letters) == 0


def test_few_calls_are_made_while_it_is_away_and_the_spout_is_held_back():
    feeder, topology = topology_of(Basic())
    with LocalCluster() as cluster:
        cluster.submit(topology)
        for n in range(100):
            feeder.feed([n], message_id=n)
        cluster.advance(0)
        assert sum(SERVICE["calls"].values()) == 100
        for n in range(100, 200):
            feeder.feed([n], message_id=n)
        cluster.advance(300)  # 7 pauses of up to 30 s together, then one each 30 s
        assert sum(SERVICE["calls"].values()) <= 100 + 8 * 16
        assert len(SERVICE["calls"]) <= 100 + 4 * 16  # half of those sent after a pause are new
        SERVICE["is_away"] = False
        cluster.advance(60)
        assert sorted(feeder.acked) == list(range(200))


def test_attempts_count_from_when_it_works_again_and_so_does_the_age():
    feeder, topology = topology_of(Basic(), Retry(2, (1, 1), jitter=False, max_age_secs=10))
    with LocalCluster() as cluster:
        cluster.submit(topology)
        feeder.feed([1], message_id=1)
        cluster.advance(60)
        SERVICE.update(is_away=False, broken=(1,))
        cluster.advance(60)
        ((_, failure),) = feeder.failed
        assert failure.attempt == 2
        assert failure.exception_types[0] == "builtins.ValueError"


def test_a_message_that_alone_cannot_be_looked_up_waits_and_the_rest_goes_on():
    SERVICE.update(is_away=False, poison=(0, 7))
    feeder, topology = topology_of(Basic(), Retry(1))
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        for n in range(600):
            feeder.feed([n], message_id=n)
            cluster.advance(1)
            assert len(feeder.acked) > n - 3
        assert sorted(feeder.acked) == [n for n in range(600) if n not in SERVICE["poison"]]
        assert feeder.failed == []
        assert running.stats()["source"].outage.dependency == "prices"
        assert SERVICE["calls"][7] < 40
        SERVICE["poison"] = ()
        cluster.advance(60)
        assert sorted(feeder.acked) == list(range(600))


def test_an_ordinary_retry_that_waits_while_the_spout_is_held_back_does_not_age():
    SERVICE.update(is_away=False, broken=(0,))
    feeder, topology = topology_of(Basic(), Retry(5, (1, 1), jitter=False, max_age_secs=30))
    with LocalCluster() as cluster:
        cluster.submit(topology)
        feeder.feed([0], message_id=0)
        cluster.advance(0)
        SERVICE["is_away"] = True
        for minute in range(10):
            for n in range(9):
                feeder.feed([n], message_id=10 * minute + n + 1)
            cluster.advance(60)
        assert feeder.failed == []
        SERVICE["is_away"] = False
        cluster.advance(120)
        (failure,) = (failure for message, failure in feeder.failed if message == 0)
        assert failure.attempt == 5


def test_a_redriven_letter_waits_too():
    SERVICE.update(is_away=False, broken=(7,))
    feeder, topology = topology_of(Basic(), Retry(1))
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        for n in range(60):
            feeder.feed([n], message_id=n)
            cluster.advance(1)
        assert len(running.dead_letters) == 1
        SERVICE.update(is_away=True, poison=(), broken=())
        running.dead_letters.redrive([1])
        cluster.advance(300)
        assert len(running.dead_letters) == 1
        SERVICE["is_away"] = False
        cluster.advance(60)
        assert len(running.dead_letters) == 1
        assert next(iter(running.dead_letters)).settled_ms is not None


@pytest.mark.parametrize("secs", [-1, float("nan"), float("inf"), "5"])
def test_an_impossible_pause_is_refused(secs):
    with pytest.raises(ConfigError, match="retry_after_secs"):
        Unavailable("prices", secs)


def test_a_dozen_messages_that_cannot_be_looked_up_hold_nobody_back():
    SERVICE.update(is_away=False, poison=range(12))
    feeder, topology = topology_of(Basic(), Retry(2, (1, 1)))
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        for n in range(12):
            feeder.feed([n], message_id=n)
        cluster.advance(60)
        for n in range(12, 200):
            feeder.feed([n], message_id=n)
            cluster.advance(2)
        assert sorted(feeder.acked) == list(range(12, 200))
        assert feeder.failed == []
        assert running.stats()["source"].awaiting_retry == 12


class Two(BasicBolt):
    """Needs two things, each for one half of the messages."""

    outputs = []

    def execute(self, tup, collector):
        if SERVICE["is_away"]:
            raise Unavailable("prices" if tup[0] % 2 else "stock")


def test_each_dependency_that_is_away_is_shown_and_forgotten_alone():
    feeder, topology = topology_of(Two())
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        for n in range(40):
            feeder.feed([n], message_id=n)
        cluster.advance(60)
        stats = running.stats()["source"]
        assert {outage.dependency for outage in stats.outages} == {"prices", "stock"}
        assert stats.outage == stats.outages[0]
        table = running.stats().table()
        assert "outage component=source dependency=prices since=" in table
        assert "outage component=source dependency=stock since=" in table
        SERVICE["is_away"] = False
        cluster.advance(60)
        assert running.stats()["source"].outages == ()
