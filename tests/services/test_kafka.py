"""The Kafka connector against a real server."""

from __future__ import annotations

import time
from itertools import count

import pytest

confluent = pytest.importorskip("confluent_kafka")

from confluent_kafka import TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # noqa: E402

from acktree import Config, ConfigError, ConnectorError, TopologyBuilder  # noqa: E402
from acktree.connectors.kafka import KafkaSink, KafkaSpout  # noqa: E402
from acktree.connectors.kafka.progress import decode_done  # noqa: E402
from acktree.connectors.kafka.sink import _makes_topics  # noqa: E402
from acktree.testing import SPOUT_CHECKS, FeederSpout, LocalCluster, SpoutHarness, check_spout  # noqa: E402
from tests.services.kafka import Kafka  # noqa: E402
from tests.services.named import RAN, KeyedRun, digest, names_of, refused_before  # noqa: E402
from tests.services.proxied import ProxiedBroker  # noqa: E402

PARTITIONS = 2

_names = count(1)


class Topic(ProxiedBroker):
    """A topic of two partitions and a group, reached through a proxy that can be cut."""

    shortest_lease_secs = 2
    redelivery_secs = 3
    acks_belong_to_connection = False

    CONFIG = {
        "session.timeout.ms": 2000, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 2000,
        "reconnect.backoff.max.ms": 300, "topic.metadata.refresh.interval.ms": 1000,
    }  # fmt: skip

    def __init__(self, server: Kafka):
        super().__init__(server, server.proxy)
        self.name = self.group = ""
        self.admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        self.producer = confluent.Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})

    def make_spout(self, **settings) -> KafkaSpout:
        config = self.CONFIG | settings.pop("config", {})
        servers = settings.pop("servers", self.server.proxied)
        return KafkaSpout(servers, settings.pop("topics", self.name), self.group, config=config, **settings)

    def put(self, bodies, partition=None, topic=None, **settings):
        for number, body in enumerate(bodies):
            where = number % PARTITIONS if partition is None else partition
            self.producer.produce(topic or self.name, body, partition=where, **settings)
        assert self.producer.flush(20) == 0

    def body_of(self, values):
        return values[4]

    def committed(self):
        places = [TopicPartition(self.name, number) for number in range(PARTITIONS)]
        asking = confluent.Consumer({"bootstrap.servers": self.server.bootstrap, "group.id": self.group})
        try:
            found = asking.committed(places, timeout=10)
            ends = [asking.get_watermark_offsets(each, timeout=10)[1] for each in places]
        finally:
            asking.close()
        return [(max(each.offset, 0), each.metadata, end) for each, end in zip(found, ends, strict=True)]

    def count(self):
        return sum(
            end - offset - len(decode_done(offset, metadata)) for offset, metadata, end in self.committed()
        )

    def drop_queue(self):
        [deleted] = self.admin.delete_topics([self.name]).values()
        deleted.result(10)

    def make(self, name, partitions=PARTITIONS, **config):
        config = {"retention.ms": "-1"} | config
        [made] = self.admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
        made.result(10)

    def clear(self):
        number = next(_names)
        self.name, self.group = f"orders-{number}", f"totals-{number}"
        self.make(self.name)

    def misconfigured(self):
        def login(user, password):
            config = {
                "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": user,
                "sasl.password": password,
            }  # fmt: skip
            return lambda: self.make_spout(servers=self.server.login, config=config)

        tls = {"security.protocol": "ssl"}
        return {
            "a wrong password": (login("reader", self.secret), False),
            "no right to the topic": (login("stranger", "right"), False),
            "an absent topic": (lambda: self.make_spout(topics="nowhere"), False),
            "no server": (lambda: self.make_spout(servers="127.0.0.1:1"), True),
            "TLS on a plain port": (lambda: self.make_spout(config=tls), False),
        }


@pytest.fixture(scope="module")
def topic(kafka):
    return Topic(kafka)


def test_a_check_sees_whether_the_topic_is_there(topic: Topic) -> None:
    topic.clear()
    topic.make_spout().check(Config(), None)
    with pytest.raises(ConnectorError, match="no such topic"):
        topic.make_spout(topics="nowhere").check(Config(), None)


@pytest.mark.parametrize("method", ["set_bolt", "set_sink"])
def test_a_check_of_the_sink_sees_topic_login_and_fields_and_produces_nothing(topic: Topic, method) -> None:
    topic.clear()

    def refused(servers=topic.server.bootstrap, name=topic.name, fields=("value", "n"), **config):
        return refused_before(KafkaSink(servers, name, config=config), fields, method)

    settings = {"compression.type": "gzip", "linger.ms": 9}
    assert refused(**settings) is None
    assert [end for *_, end in topic.committed()] == [0] * PARTITIONS
    absent = refused(name="nowhere")
    assert (absent.what.partition(":")[0], absent.can_retry) == ("there is no such topic", False)
    assert "nowhere" not in topic.admin.list_topics(timeout=10).topics
    assert "has a field 'value'" in refused(fields=["n"]).what
    assert refused("127.0.0.1:1").can_retry
    assert isinstance(refused(nonsense=1), ConfigError)
    login = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
    assert refused(topic.server.login, **login, **{"sasl.password": "right"}) is None
    wrong = refused(topic.server.login, **login, **{"sasl.password": topic.secret})
    assert not wrong.can_retry
    assert topic.secret not in str(wrong)


def test_a_sink_may_write_to_a_topic_that_the_servers_make_at_its_first_record(topic: Topic) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    [answer] = topic.admin.describe_configs([resource]).values()
    assert answer.result(10)["auto.create.topics.enable"].value == "false"
    assert not _makes_topics({"bootstrap.servers": topic.server.bootstrap})
    assert _makes_topics({"bootstrap.servers": "127.0.0.1:1"})  # nobody says no


@pytest.mark.slow
@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_the_spout_keeps_the_contract(topic: Topic, check: str) -> None:
    check_spout(topic.make_spout, topic, only=[check])


@pytest.fixture
def orders(topic):
    topic.clear()
    return topic


def arrive(harness, total):
    harness.until(lambda: len(harness.arrived) >= total, 15, f"{total} messages come")
    return [bytes(each.values[4]) for each in harness.arrived]


def test_records_are_emitted_as_they_are(orders) -> None:
    orders.producer.produce(orders.name, b"v", key=b"k", partition=1, timestamp=1234)
    orders.producer.flush(10)
    orders.producer.produce(orders.name, None, partition=1, timestamp=1235)
    orders.producer.flush(10)
    with SpoutHarness(orders.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 15, "two come")
    rows = [list(each.values) for each in harness.arrived]
    assert rows == [[orders.name, 1, 0, b"k", b"v", 1234], [orders.name, 1, 1, None, None, 1235]]


@pytest.mark.parametrize(
    ("place", "label", "key"),
    [
        ("header:order", "A-17", b"A-17"), ("body:n", "1", 1), ("key", "k", b"k"),
        ("offset", "{}-1-0", "{}-1-0"), (lambda record: record["headers"]["order"].decode(), "A-17", "A-17"),
    ],
)  # fmt: skip
def test_a_record_is_named_from_where_the_spout_says(orders, place, label, key) -> None:
    orders.put([b'{"n": 1}'], partition=1, key=b"k", headers=[("order", b"A-17")])
    key = key.format(orders.name) if isinstance(key, str) else key
    found = names_of(orders.make_spout(label=place, key=place), 1)
    assert found == [(label.format(orders.name), digest(key))]


def test_a_record_that_failed_keeps_its_name_in_its_next_attempt(orders) -> None:
    orders.put([b'{"n": 1}', b'{"n": 2}'], partition=0)
    with SpoutHarness(orders.make_spout(label="body:n", key="body:n")) as harness:
        arrive(harness, 2)
        # A producer may send them in any order.
        good, failed = sorted(harness.arrived, key=lambda each: each.label)
        assert (good.label, failed.label) == ("1", "2")
        harness.fail([failed])
        harness.until(lambda: len(harness.arrived) == 3, 15, "it comes again")
        assert harness.arrived[2].label == "2"
        harness.ack([good, harness.arrived[2]])


def test_names_need_tracked_records(orders) -> None:
    with pytest.raises(ConfigError, match="tracks none"):
        orders.make_spout(key="offset", guarantee="at_most_once")


def test_a_record_that_a_rebalance_brings_again_is_acked_and_does_not_run(orders) -> None:
    orders.put([b"a", b"b"])
    with KeyedRun(orders.make_spout(key="offset"), orders.count) as run:
        run.until_acked(2)
        other = confluent.Consumer({
            "bootstrap.servers": orders.server.bootstrap, "group.id": orders.group, **orders.CONFIG,
            "enable.auto.commit": False, "partition.assignment.strategy": "cooperative-sticky",
        })  # fmt: skip
        other.subscribe([orders.name])

        def has_a_partition():
            other.poll(0)
            return other.assignment()

        run.until(has_a_partition, "the other member has a partition")
        [mine] = other.assignment()
        other.commit(offsets=[TopicPartition(mine.topic, mine.partition, 0)], asynchronous=False)
        other.close()
        assert orders.count() == 1
        run.until_acked(3)
        assert len(RAN) == 2


def test_the_lag_is_that_of_each_topic_and_partition(orders) -> None:
    other = f"{orders.name}-other"
    orders.make(other)
    orders.put([b"%d" % n for n in range(20)])
    with SpoutHarness(orders.make_spout(topics=[orders.name, other])) as harness:
        arrive(harness, 20)
        places = {f"{topic}-{number}" for topic in (orders.name, other) for number in range(PARTITIONS)}
        harness.until(lambda: (harness.spout.lag() or {}).keys() == places, 15, "all partitions are known")
        assert set(harness.spout.lag().values()) == {0}
        orders.put([b"%d" % n for n in range(8)])
        harness.until(lambda: len(harness.arrived) == 28, 15, "the others come")
        assert sum(harness.spout.lag().values()) == 0


def test_done_records_above_the_frontier_are_not_emitted_by_another_member_and_open_ones_are_lost_here(
    orders,
) -> None:
    orders.put([b"%d" % n for n in range(20)])
    with SpoutHarness(orders.make_spout(), max_spout_pending=20) as first:
        arrive(first, 20)
        first.ack(first.arrived[1::2])
        with SpoutHarness(orders.make_spout()) as second:

            def is_shared():
                first.step()
                return first.task.open_count == 5 and len(second.arrived) == 5

            second.until(is_shared, 20, "the partitions are shared")
            mine = {each.values[1] for each in second.arrived}
            assert len(mine) == 1
            assert {bytes(each.values[4]) for each in second.arrived} == {
                bytes(each.values[4]) for each in first.arrived[0::2] if each.values[1] in mine
            }
            first.ack(first.arrived[0::2])  # what was lost changes nothing
        assert not first.reports + second.reports
    assert sorted(len(decode_done(at, metadata)) for at, metadata, _ in orders.committed()) == [0, 5]


def test_gaps_of_aborted_transactions_and_compaction_do_not_hold_the_frontier(orders) -> None:
    name = f"{orders.name}-compacted"
    small = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    orders.make(name, partitions=1, **small, **{"min.compaction.lag.ms": "0"})
    orders.name = name
    for _ in range(5):
        orders.put([b"a", b"b"], partition=0, key=b"same")
        time.sleep(0.15)  # a segment is closed by the first record after its time
    writer = confluent.Producer({"bootstrap.servers": orders.server.bootstrap, "transactional.id": name})
    writer.init_transactions(10)
    for finish in (writer.abort_transaction, writer.commit_transaction):
        writer.begin_transaction()
        writer.produce(name, finish.__name__.encode(), key=finish.__name__.encode())
        writer.flush(10)
        finish(10)

    def is_compacted():
        return 0 < len(read_all(orders, name)) < 11

    wait_for(is_compacted, 20)
    with SpoutHarness(orders.make_spout()) as harness:
        came = arrive(harness, 2)
        member = harness.spout._member
        harness.until(lambda: member.partitions[name, 0].position == 14, 15, "the end is seen")
        came = arrive(harness, 2)
        assert (came[-1], b"abort_transaction" in came) == (b"commit_transaction", False)
        assert len(came) < 11
        harness.ack(harness.arrived)
    places = [TopicPartition(name, 0)]
    asking = confluent.Consumer({"bootstrap.servers": orders.server.bootstrap, "group.id": orders.group})
    [found] = asking.committed(places, timeout=10)
    end = asking.get_watermark_offsets(places[0], timeout=10)[1]
    asking.close()
    assert found.offset == end == 14  # 10 records, two of transactions, two control records


def read_all(orders, name):
    asking = confluent.Consumer(
        {"bootstrap.servers": orders.server.bootstrap, "group.id": "look", "enable.partition.eof": True}
    )
    asking.assign([TopicPartition(name, 0, 0)])
    found = []
    while True:
        message = asking.poll(10)
        if message is None or message.error():
            break
        found.append(message.value())
    asking.close()
    return found


def wait_for(is_so, secs):
    deadline = time.monotonic() + secs
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("first_poll", "wanted"),
    [("uncommitted_earliest", {0, 1, 2, 3}), ("uncommitted_latest", {3}), ("uncommitted_timestamp", {2, 3})],
)
def test_a_partition_without_a_commit_begins_where_the_first_poll_says(orders, first_poll, wanted) -> None:
    for number in range(3):
        orders.put([b"%d" % number], partition=0, timestamp=1000 + number)
    start = 1002 if first_poll.endswith("timestamp") else None
    spout = orders.make_spout(first_poll=first_poll, start_timestamp_ms=start)
    with SpoutHarness(spout) as harness:
        harness.until(lambda: len(harness.spout._member.partitions) == PARTITIONS, 15, "it is assigned")
        orders.put([b"3"], partition=0)
        assert set(map(int, arrive(harness, len(wanted)))) == wanted
    # Nothing was acked: the group's commit is where it began, whatever the latest is now.
    with SpoutHarness(orders.make_spout(first_poll="uncommitted_latest")) as harness:
        assert set(map(int, arrive(harness, len(wanted)))) == wanted


def test_without_uncommitted_a_commit_counts_only_once_this_checkpoint_has_read(orders) -> None:
    # A member that the group gives up, because its machine is busy, commits nothing.
    patient = {"session.timeout.ms": 30_000, "max.poll.interval.ms": 60_000}
    orders.put([b"0", b"1"], partition=0)
    with SpoutHarness(orders.make_spout(config=patient)) as harness:
        arrive(harness, 2)
        harness.ack(harness.arrived)
    with SpoutHarness(orders.make_spout(first_poll="earliest", config=patient)) as harness:
        arrive(harness, 2)
        harness.ack(harness.arrived[:1])
        begun = harness.spout.begun
    spout = orders.make_spout(first_poll="earliest", config=patient)
    spout.begun = begun
    with SpoutHarness(spout) as harness:
        assert arrive(harness, 1) == [b"1"]


class _LosesCommits:
    """A consumer whose commits are sent, and get no answer; those that wait for one are as usual."""

    def __init__(self, consumer):
        self._consumer = consumer

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def commit(self, *, offsets, asynchronous):
        return None if asynchronous else self._consumer.commit(offsets=offsets, asynchronous=False)


def test_what_was_acked_is_committed_at_the_end_also_if_a_commit_had_no_answer(orders) -> None:
    orders.put([b"0", b"1"], partition=0)
    with SpoutHarness(orders.make_spout()) as harness:
        arrive(harness, 2)
        member = harness.spout._member
        member._consumer = _LosesCommits(member._consumer)
        member._commit_after = 0.0
        harness.ack(harness.arrived[:1])
        harness.until(lambda: member._unanswered, 15, "a commit is sent")
    assert orders.committed()[0][0] == 1


def test_a_partition_that_moves_to_another_task_of_the_checkpoint_resumes_at_its_commit(orders) -> None:
    orders.put([b"%d" % n for n in range(20)])
    with SpoutHarness(orders.make_spout(first_poll="earliest")) as first:
        arrive(first, 20)
        first.ack(first.arrived[1:])
        with SpoutHarness(orders.make_spout(first_poll="earliest")) as second:

            def is_shared():
                first.step()
                return len(second.spout._member.partitions) == 1 == len(first.spout._member.partitions)

            second.until(is_shared, 20, "the partitions are shared")
            second.rest(0.5)
            assert len(second.arrived) <= 1


@pytest.mark.parametrize("guarantee", ["at_most_once", "no_guarantee"])
def test_without_a_guarantee_records_are_untracked_and_committed_without_their_verdicts(
    orders, guarantee
) -> None:
    orders.put([b"%d" % n for n in range(6)])
    with SpoutHarness(orders.make_spout(guarantee=guarantee)) as harness:
        arrive(harness, 6)
        assert harness.task.open_count == 0
    assert orders.count() == 0


def test_max_uncommitted_offsets_bounds_the_records_above_the_frontier(orders) -> None:
    orders.put([b"%d" % n for n in range(200)], partition=0)
    spout = orders.make_spout(max_uncommitted_offsets=20)
    with SpoutHarness(spout, max_spout_pending=10) as harness:
        arrive(harness, 10)
        first, at = harness.arrived[0], 1
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            at = ack_from(harness, at)
            harness.rest(0.05)
        assert 20 <= len(harness.arrived) < 40  # it stopped reading, and not at once
        harness.ack([first])
        while len(harness.arrived) < 200:
            at = ack_from(harness, at)
        ack_from(harness, at)
    assert orders.count() == 0


def ack_from(harness, at):
    fresh = harness.arrived[at:]
    harness.ack(fresh)
    harness.step()
    return at + len(fresh)


def test_removed_records_are_reported_and_reading_continues(orders) -> None:
    orders.put([b"%d" % n for n in range(10)], partition=0)
    with SpoutHarness(orders.make_spout()) as harness:
        arrive(harness, 10)
        harness.ack(harness.arrived[:5])
    orders.put([b"10"], partition=0)
    [removed] = orders.admin.delete_records([TopicPartition(orders.name, 0, 8)]).values()
    removed.result(10)
    with SpoutHarness(orders.make_spout()) as harness:
        assert arrive(harness, 3) == [b"8", b"9", b"10"]
        [report] = harness.reports
        assert "retention removed the records from 5 to 7" in report.reason


@pytest.mark.parametrize("event", ["retention", "made anew"])
def test_a_failed_record_is_tried_again_although_the_topic_no_longer_has_it(orders, event) -> None:
    orders.put([b"0", b"1", b"2"], partition=0)
    with SpoutHarness(orders.make_spout(max_uncommitted_offsets=3)) as harness:
        arrive(harness, 3)
        first = list(harness.arrived)
        harness.rest(0.5)  # it reads nothing: three are open
        if event == "retention":
            orders.put([b"%d" % n for n in range(3, 10)], partition=0)
            [removed] = orders.admin.delete_records([TopicPartition(orders.name, 0, 8)]).values()
            removed.result(10)
            fresh = [b"8", b"9"]
        else:
            orders.drop_queue()
            orders.make(orders.name)
            fresh = [b"new"]
            orders.put(fresh, partition=0)
        harness.fail(first[:1])
        harness.ack(first[1:])
        # Not always b"0": the client may put messages into a fresh topic in another order.
        failed = first[0].values
        again = lambda: [each for each in harness.arrived[3:] if each.values == failed]  # noqa: E731
        harness.until(again, 15, "what failed comes again")  # perhaps after a fresh one
        count = len(harness.arrived)
        harness.ack(harness.arrived[3:count])
        harness.until(lambda: len(harness.arrived) >= 4 + len(fresh), 30, "reading goes on")
        assert len(again()) == 1
        assert [each.values[4] for each in harness.arrived[3:] if each.values != failed] == fresh
        harness.ack(harness.arrived[count:])
        harness.rest(0.5)
        assert harness.task.open_count == 0
    assert orders.count() == 0


def test_the_sink_acks_what_is_confirmed_and_a_row_that_is_refused_fails_alone(orders) -> None:
    feeder = FeederSpout(["key", "value", "headers"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    sink = KafkaSink(orders.server.bootstrap, orders.name, config={"message.max.bytes": 5000})
    builder.set_bolt("sink", sink).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for n, value in enumerate([b"0", b"x" * 9000, "2", 3, None]):
            feeder.feed([b"key", value, {"n": b"%d" % n}], message_id=n)
        cluster.advance()
    assert sorted(feeder.acked) == [0, 2, 4]
    assert sorted(message_id for message_id, _ in feeder.failed) == [1, 3]
    with SpoutHarness(orders.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 3, 15, "three come")
        assert [each.values[4] for each in harness.arrived] == [b"0", b"2", None]


@pytest.mark.parametrize(
    "settings",
    [
        {"guarantee": "exactly_once"}, {"first_poll": "middle"}, {"first_poll": "timestamp"},
        {"start_timestamp_ms": 1}, {"max_uncommitted_offsets": 0}, {"topics": []}, {"servers": ""},
    ],
    ids=lambda each: next(iter(each)),
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings) -> None:
    settings = {"servers": "127.0.0.1:9092", "topics": "orders"} | settings
    with pytest.raises(ConfigError):
        KafkaSpout(settings.pop("servers"), settings.pop("topics"), "totals", **settings)


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("group.id", "others", "group_id="),
        ("auto.offset.reset", "latest", "first_poll="),
        ("enable.auto.commit", True, "guarantee="),
        ("enable.auto.offset.store", "true", "guarantee="),
    ],
)
def test_what_the_spout_sets_itself_is_refused_with_another_value(name, value, fix) -> None:
    with pytest.raises(ConfigError, match=name) as refused:
        KafkaSpout("127.0.0.1:9092", "orders", "totals", config={name: value})
    assert fix in refused.value.fix
    same = {"group.id": "totals", "enable.auto.commit": "false"}
    assert KafkaSpout("127.0.0.1:9092", "orders", "totals", config=same).group_id == "totals"
