"""The Kafka connector against a real server."""

from __future__ import annotations

import time
from itertools import count

import pytest

confluent = pytest.importorskip("confluent_kafka")

from confluent_kafka import TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from acktree.connectors.kafka import KafkaSpout  # noqa: E402
from acktree.connectors.kafka.progress import decode_done  # noqa: E402
from acktree.testing import SPOUT_CHECKS, Broker, check_spout  # noqa: E402
from tests.services.kafka import Kafka  # noqa: E402

PARTITIONS = 2

_names = count(1)


class Topic(Broker):
    """A topic of two partitions and a group, reached through a proxy that can be cut."""

    shortest_lease_secs = 2
    redelivery_secs = 3
    acks_belong_to_connection = False
    secret = "S3cr3t"

    CONFIG = {
        "session.timeout.ms": 2000, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 2000,
        "reconnect.backoff.max.ms": 300, "topic.metadata.refresh.interval.ms": 1000,
    }  # fmt: skip

    def __init__(self, server: Kafka):
        self.server = server
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

    def cut(self):
        self.server.proxy.cut()

    def stop(self):
        self.server.stop()

    def kill(self):
        self.server.kill()

    def start(self):
        self.server.start()

    def drop_queue(self):
        [deleted] = self.admin.delete_topics([self.name]).values()
        deleted.result(10)

    def make(self, name, partitions=PARTITIONS, **config):
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


@pytest.mark.slow
@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_the_spout_keeps_the_contract(topic: Topic, check: str) -> None:
    check_spout(topic.make_spout, topic, only=[check])
