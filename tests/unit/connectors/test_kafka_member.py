"""A group's member and the sink beside a client that does what servers do seldom."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

pytest.importorskip("confluent_kafka")

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree import TopologyBuilder
from acktree.connectors.kafka import KafkaSink, KafkaSpout
from acktree.connectors.kafka import member as members
from acktree.connectors.kafka import sink as sinks
from acktree.connectors.kafka.progress import decode_done, encode_done, is_marked
from acktree.testing import FeederSpout, LocalCluster, SpoutHarness

TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Record:
    """As ``confluent_kafka.Message`` answers, which cannot be made with an error."""

    def __init__(self, offset, partition=0, error=None):
        self._offset, self._partition, self._error = offset, partition, error

    topic = lambda self: "t"  # noqa: E731
    partition = lambda self: self._partition  # noqa: E731
    offset = lambda self: self._offset  # noqa: E731
    error = lambda self: self._error  # noqa: E731
    key = lambda self: None  # noqa: E731
    value = lambda self: b"%d" % self._offset  # noqa: E731
    timestamp = lambda self: (1, 5)  # noqa: E731


class Group:
    """What the server knows: commits, and where partitions begin and end."""

    def __init__(self, ends):
        self.ends, self.commits = ends, {}


class Client:
    """A consumer whose partitions the test assigns."""

    group: Group

    def __init__(self, settings, logger):
        self.queue, self.away, self.broken = deque(), False, set()
        type(self).last = self

    def subscribe(self, topics, on_assign, on_revoke, on_lost):
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def list_topics(self, topic, timeout):
        return SimpleNamespace(topics={})

    def assign_these(self, *numbers):
        self.on_assign(self, [TopicPartition("t", number) for number in numbers])

    def revoke_these(self, *numbers):
        self.on_revoke(self, [TopicPartition("t", number) for number in numbers])

    def committed(self, places, timeout):
        found = []
        for place in places:
            offset, metadata = self.group.commits.get(place.partition, (-1001, ""))
            found.append(TopicPartition("t", place.partition, offset, metadata))
        return found

    def get_watermark_offsets(self, place, timeout):
        if self.away:
            raise TIMED_OUT
        return self.group.ends[place.partition]

    def commit(self, offsets, asynchronous):
        for each in offsets:
            if each.partition not in self.broken:
                self.group.commits[each.partition] = each.offset, each.metadata or ""
        refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        answer = SimpleNamespace
        return [
            answer(
                topic="t", partition=each.partition, error=refused if each.partition in self.broken else None
            )
            for each in offsets
        ]

    def consume(self, most, timeout):
        found, self.queue = list(self.queue), deque()
        return found

    def incremental_assign(self, places):
        pass

    incremental_unassign = pause = resume = incremental_assign

    def close(self):
        pass


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(members, "Consumer", Client)
    Client.group = Group({0: (0, 10), 1: (0, 10)})
    return Client.group


def make_spout(**settings):
    return KafkaSpout("h:1", "t", "g", **settings)


def gone():
    return Record(0, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))


def test_records_beside_an_offset_that_is_gone_are_emitted_also_if_the_server_does_not_answer(group):
    with SpoutHarness(make_spout()) as harness:
        client = Client.last
        client.assign_these(0, 1)
        client.away = True
        client.queue += [gone(), Record(0, partition=1), Record(1, partition=1)]
        harness.step()
        client.away = False
        group.ends[0] = 5, 10
        harness.until(lambda: len(harness.arrived) == 2, 5, "the records come")
        assert [each.values[2] for each in harness.arrived] == [0, 1]
        harness.until(lambda: len(harness.reports) == 2, 5, "lost records are reported")
        assert "from 0 to 4" in harness.reports[1].reason
        client.queue.append(Record(5))
        harness.until(lambda: len(harness.arrived) == 3, 5, "reading goes on")


def test_a_log_that_a_new_leader_has_cut_is_reported_and_read_on(group):
    with SpoutHarness(make_spout()) as harness:
        client = Client.last
        client.assign_these(0)
        client.queue += [Record(0), Record(1), Record(2)]
        harness.until(lambda: len(harness.arrived) == 3, 5, "three come")
        client.queue.append(Record(3, error=KafkaError(KafkaError._LOG_TRUNCATION)))
        harness.until(lambda: bool(harness.reports), 5, "it is reported")
        assert "does not have all records that were confirmed" in harness.reports[0].reason
        client.queue.append(Record(3))
        harness.until(lambda: len(harness.arrived) == 4, 5, "reading goes on")


def test_records_whose_emit_raises_are_emitted_by_the_next_try_and_no_commit_passes_them(group):
    with SpoutHarness(make_spout()) as harness:
        client = Client.last
        client.assign_these(0, 1)
        emit, raised = harness.spout._collector.emit_batch, [MemoryError("no room")]

        def emit_batch(*given, **named):
            if raised:
                raise raised.pop()
            emit(*given, **named)

        harness.spout._collector.emit_batch = emit_batch
        client.queue += [Record(0), Record(1), Record(0, partition=1)]
        harness.step()
        client.queue += [Record(2), Record(1, partition=1)]
        harness.until(lambda: len(harness.arrived) == 5, 5, "all come")
        assert [each.values[1:3] for each in harness.arrived] == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
        harness.spout._member.close()
        assert [offset for offset, _ in group.commits.values()] == [0, 0]
        harness.ack(harness.arrived)
        harness.spout._member.close()
        assert [offset for offset, _ in group.commits.values()] == [3, 2]


@pytest.mark.parametrize("first_poll", ["latest", "earliest"])
@pytest.mark.parametrize("has_read", [True, False])
def test_a_partition_resumes_at_its_commit_in_another_task_of_the_checkpoint(group, first_poll, has_read):
    with (
        SpoutHarness(make_spout(first_poll=first_poll)) as one,
        SpoutHarness(make_spout(first_poll=first_poll)) as two,
    ):
        other, client = Client.last, one.spout._member._consumer
        client.assign_these(0)
        begin = 10 if first_poll == "latest" else 0
        if has_read:
            client.queue += [Record(begin), Record(begin + 1)]
            one.until(lambda: len(one.arrived) == 2, 5, "two come")
            one.ack(one.arrived[:1])
        client.revoke_these(0)
        group.ends[0] = 0, 20
        other.assign_these(0)
        assert two.spout._member.partitions["t", 0].position == begin + has_read


def test_a_partition_begins_anew_for_another_checkpoint(group):
    group.commits[0] = 4, encode_done(4, np.array([6]), "another")
    with SpoutHarness(make_spout(first_poll="latest")) as harness:
        Client.last.assign_these(0)
        assert harness.spout._member.partitions["t", 0].position == 10


@pytest.mark.parametrize("done", [[], [9, 12]])
def test_metadata_says_what_is_done_and_who_committed(done):
    text = encode_done(7, np.array(done, dtype=np.int64), "me")
    assert decode_done(7, text).tolist() == done
    others = [(text, "you"), (encode_done(7, np.array([9])), ""), (None, "me")]
    assert [is_marked(*each) for each in [(text, "me"), *others]] == [True, False, False, False]


def test_a_commit_that_is_refused_for_one_partition_is_made_up_for(group):
    with SpoutHarness(make_spout()) as harness:
        client = Client.last
        client.broken = {1}
        client.assign_these(0, 1)
        client.broken = set()
        harness.until(lambda: 1 in group.commits, 5, "it is committed")


# --- the sink -------------------------------------------------------------------------------------------


class Producer:
    """A producer whose delivery reports the test decides."""

    made: list[Producer] = []

    def __init__(self, settings, logger):
        self.settings, self.held, self.fate = settings, [], None
        self.made.append(self)

    def produce(self, topic, *, on_delivery, **record):
        self.held.append(on_delivery)

    def flush(self):
        if isinstance(self.fate, Exception):
            fate, self.fate = self.fate, None
            raise fate
        while self.held:
            self.held.pop(0)(self.fate, None)


def write(config=None, fates=(None,)):
    feeder = FeederSpout(["value"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    builder.set_bolt("sink", KafkaSink("h:1", "t", config=config)).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for number, fate in enumerate(fates):
            feeder.feed([b"x"], message_id=number)
            if Producer.made:
                Producer.made[-1].fate = fate
            cluster.advance()
    return feeder


@pytest.fixture
def producers(monkeypatch):
    monkeypatch.setattr(sinks, "Producer", Producer)
    monkeypatch.setattr("acktree.core.data.context._cached", {})
    monkeypatch.setattr(Producer, "made", [])
    return Producer.made


def test_what_an_interrupted_flush_left_in_the_client_fails_no_later_tuple(producers):
    feeder = write(fates=[None, TimeoutError("too long"), None])
    assert (feeder.acked, [each for each, _ in feeder.failed]) == ([0, 2], [1])


def test_a_client_that_can_do_nothing_more_is_replaced(producers):
    feeder = write(fates=[None, KafkaError(KafkaError._FATAL), None])
    assert len(producers) == 2
    assert (feeder.acked, [each for each, _ in feeder.failed]) == ([0, 2], [1])
    assert "cannot go on" in feeder.failed[0][1].reason


def test_changed_settings_make_another_client(producers):
    for password in ("wrong", "right"):
        write({"sasl.password": password})
    assert [each.settings["sasl.password"] for each in producers] == ["wrong", "right"]


def test_settings_that_the_client_does_not_take_are_reported_without_their_values(monkeypatch):
    monkeypatch.setattr("acktree.core.data.context._cached", {})
    feeder = write({"sasl.pasword": "S3cr3t"}, fates=[None])
    [(_, failure)] = feeder.failed
    assert "refuses its settings" in failure.reason
    assert "S3cr3t" not in failure.reason
