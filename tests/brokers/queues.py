"""Queues on servers of a run's own: what is put, what is left, and a spout that reads it.

A queue is made in the process that strikes. ``settings`` goes to the driver as JSON, and :func:`spout_of`
makes the spout there. A body is the number of its message, as decimal digits.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from acktree import Spout
from tests.services.kafka import Kafka, missing_jars
from tests.services.proxy import Proxy
from tests.services.servers import Moto, RabbitMQ, Redis, Server

NAME: Final = "orders"
DEAD: Final = "orders-dead"
PARTITIONS: Final = 2
_PREFETCH: Final = 2000

PutError = ConnectionError
"""Raised by ``put`` if the queue did not confirm: it may have the messages or not."""


class Queue(ABC):
    """A queue on a server that can be killed.

    Attributes:
        rejects: Whether messages that are given up are the broker's dead letters, and not acktree's.
        lease_secs: Heartbeat, lease or poll limit of the spout; None: its own default.
    """

    kind: ClassVar[type[Server]]
    can_reject: ClassVar[bool] = False
    connections_stay: ClassVar[bool] = True
    """Whether the spout holds its connections for as long as it is open."""

    def __init__(self, *, rejects: bool = False, lease_secs: int | None = None) -> None:
        """Start the server and make the queue."""
        if missing := self.missing():
            raise SystemExit(missing)
        self.rejects, self.lease_secs = rejects, lease_secs
        self.server: Any = self.kind()
        try:
            self.proxy = self.make_proxy()
            self.make()
        except BaseException:
            self.remove()
            raise

    @classmethod
    def missing(cls) -> str:
        """What has to be installed; empty if nothing has."""
        return cls.kind.missing()

    def make_proxy(self) -> Any:
        """The proxy through which the spout is connected where connections are cut."""
        return Proxy(self.server.port)

    @abstractmethod
    def make(self) -> None:
        """Make the queue, empty."""

    @abstractmethod
    def settings(self, *, proxied: bool = False) -> dict[str, Any]:
        """What :func:`spout_of` needs."""

    @abstractmethod
    def put(self, numbers: Sequence[int]) -> None:
        """Add messages; returns when the queue has confirmed them. Called on one thread.

        Raises:
            PutError: It did not.
        """

    @abstractmethod
    def left(self) -> tuple[int, frozenset[int] | None]:
        """How many messages are not acknowledged, and which, while no driver runs."""

    def rejected(self) -> int:
        """How many messages are in the broker's own dead letters."""
        return 0

    def await_members(self, count: int) -> None:
        """Wait until this number of tasks share the queue, if its messages move to one that comes later."""

    def kill(self) -> None:
        """Kill the server."""
        self.server.kill()

    def start(self) -> None:
        """Start it again, on its port with what it had."""
        self.server.start()

    def server_port(self) -> int:
        """The port to which the spout of ``settings()`` connects."""
        return int(self.server.port)

    def remove(self) -> None:
        """End the server, and leave nothing."""
        proxy = getattr(self, "proxy", None)
        if proxy is not None and proxy is not getattr(self.server, "proxy", None):
            proxy.remove()
        self.server.remove()


class RabbitQueue(Queue):
    """A classic queue; a page of messages is one transaction."""

    kind = RabbitMQ
    can_reject = True
    queue_type: ClassVar[str] = "classic"

    def make(self) -> None:
        self._channel: Any = None
        channel = self._connected()
        channel.queue_declare(DEAD, durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
        channel.queue_declare(NAME, durable=True, arguments={"x-queue-type": self.queue_type, **dead})
        if self.queue_type == "quorum":
            # A quorum queue that is killed moments after its declaration does not come back (RabbitMQ 3.10):
            # after a restart it is on disk.
            self._disconnect()
            self.server.restart()

    def settings(self, *, proxied: bool = False) -> dict[str, Any]:
        port = self.proxy.port if proxied else self.server.port
        heartbeat = f"?heartbeat={self.lease_secs}" if self.lease_secs else ""
        return {
            "spout": "rabbitmq", "url": f"amqp://guest:guest@127.0.0.1:{port}/{heartbeat}",
            "given_up": "reject" if self.rejects else "dead_letter",
        }  # fmt: skip

    def put(self, numbers: Sequence[int]) -> None:
        import pika  # noqa: PLC0415  # an extra

        durable = pika.BasicProperties(delivery_mode=2)
        try:
            channel = self._connected()
            channel.tx_select()
            for number in numbers:
                channel.basic_publish("", NAME, b"%d" % number, durable)
            channel.tx_commit()
        except (pika.exceptions.AMQPError, OSError, ValueError) as error:
            self._disconnect()
            raise PutError(str(error)) from error

    def left(self) -> tuple[int, frozenset[int] | None]:
        found = self._lying_in(NAME)
        return len(found), frozenset(found)

    def rejected(self) -> int:
        return len(self._lying_in(DEAD))

    def _lying_in(self, queue: str) -> list[int]:
        """What is in a queue, once the server has noticed that its consumer is gone."""
        import pika  # noqa: PLC0415  # an extra

        with pika.BlockingConnection(pika.URLParameters(self.server.url)) as connection:
            channel, found = connection.channel(), list[int]()
            deadline = time.monotonic() + 10
            while channel.queue_declare(queue, passive=True).method.consumer_count:
                assert time.monotonic() < deadline, "the dead driver's consumer is still there"
                time.sleep(0.05)
            while (answer := channel.basic_get(queue))[0] is not None:
                found.append(int(answer[2]))
            return found

    def _connected(self) -> Any:
        if self._channel is None:
            import pika  # noqa: PLC0415  # an extra

            parameters = pika.URLParameters(f"{self.server.url}?heartbeat=0&connection_attempts=1")
            self._channel = pika.BlockingConnection(parameters).channel()
        return self._channel

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(Exception):
                channel.connection.close()


class QuorumQueue(RabbitQueue):
    """A quorum queue."""

    queue_type = "quorum"


class RedisQueue(Queue):
    """A stream with a group; Redis writes each command to disk before it answers."""

    kind = Redis

    def make(self) -> None:
        import redis  # noqa: PLC0415  # an extra

        self.client = redis.Redis.from_url(self.server.url)
        self.client.xgroup_create(NAME, "totals", id="0", mkstream=True)

    def settings(self, *, proxied: bool = False) -> dict[str, Any]:
        port = self.proxy.port if proxied else self.server.port
        return {
            "spout": "redis",
            "url": f"redis://127.0.0.1:{port}/0",
            "claim_idle_secs": self.lease_secs or 60,
        }

    def put(self, numbers: Sequence[int]) -> None:
        import redis  # noqa: PLC0415  # an extra

        try:
            with self.client.pipeline(transaction=True) as pipeline:
                for number in numbers:
                    pipeline.xadd(NAME, {"n": number})
                pipeline.execute()
        except (redis.exceptions.RedisError, OSError) as error:
            raise PutError(str(error)) from error

    def left(self) -> tuple[int, frozenset[int] | None]:
        [group] = self.client.xinfo_groups(NAME)
        last = group["last-delivered-id"]
        fresh = {int(fields[b"n"]) for _, fields in self.client.xrange(NAME, b"(" + last)}
        pending = {each["message_id"] for each in self.client.xpending_range(NAME, "totals", "-", "+", 10**6)}
        open_ = {int(fields[b"n"]) for entry, fields in self.client.xrange(NAME) if entry in pending}
        return len(fresh | open_), frozenset(fresh | open_)

    def remove(self) -> None:
        if hasattr(self, "client"):
            self.client.close()
        super().remove()


class KafkaQueue(Queue):
    """A topic of two partitions, read in the driver."""

    kind = Kafka
    spout: ClassVar[str] = "kafka"

    def make_proxy(self) -> Any:
        return self.server.proxy

    def make(self) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415  # an extra
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

        servers = {"bootstrap.servers": self.server.bootstrap, "log_level": 0}
        admin = AdminClient(servers)
        admin.create_topics([NewTopic(NAME, PARTITIONS, 1)])[NAME].result(10)
        quick = {"linger.ms": 0, "message.timeout.ms": 5000, "reconnect.backoff.max.ms": 300}
        self._producer = Producer(servers | quick)
        self._places: dict[tuple[int, int], int] = {}

    def settings(self, *, proxied: bool = False) -> dict[str, Any]:
        servers = self.server.proxied if proxied else self.server.bootstrap
        config: dict[str, Any] = {"reconnect.backoff.max.ms": 1000, "session.timeout.ms": 10_000}
        if self.lease_secs:
            lease = self.lease_secs * 1000
            config |= {
                "session.timeout.ms": lease,
                "max.poll.interval.ms": lease,
                "heartbeat.interval.ms": lease // 4,
            }
        return {"spout": self.spout, "servers": servers, "config": config}

    def put(self, numbers: Sequence[int]) -> None:
        failed = []

        def note(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(str(error))
            else:
                self._places[message.partition(), message.offset()] = int(message.value())

        for number in numbers:
            self._producer.produce(NAME, b"%d" % number, partition=number % PARTITIONS, on_delivery=note)
        if self._producer.flush(10) or failed:
            raise PutError(failed[0] if failed else "no answer")

    def await_members(self, count: int) -> None:
        from confluent_kafka import ConsumerGroupState, KafkaException  # noqa: PLC0415  # an extra
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        admin = AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})
        deadline, found = time.monotonic() + 30, "nothing known"
        while time.monotonic() < deadline:
            with suppress(KafkaException):  # its coordinator is still loading
                group = admin.describe_consumer_groups(["totals"])["totals"].result(10)
                if group.state == ConsumerGroupState.STABLE and len(group.members) == count:
                    return
                found = f"{group.state} with {len(group.members)} members"
            time.sleep(0.1)
        raise AssertionError(f"the group did not settle: {found}")

    def left(self) -> tuple[int, frozenset[int] | None]:
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415  # an extra

        from acktree.connectors.kafka.progress import decode_done  # noqa: PLC0415

        places = [TopicPartition(NAME, number) for number in range(PARTITIONS)]
        asking = Consumer({"bootstrap.servers": self.server.bootstrap, "group.id": "totals", "log_level": 0})
        found: list[tuple[int, int]] = []
        try:
            for each in asking.committed(places, timeout=20):
                _, end = asking.get_watermark_offsets(each, timeout=20)
                start = max(each.offset, 0)
                done = set(map(int, decode_done(start, each.metadata or "")))
                found += [(each.partition, at) for at in range(start, end) if at not in done]
        finally:
            asking.close()
        return len(found), frozenset(self._places[each] for each in found if each in self._places)


class NativeKafkaQueue(KafkaQueue):
    """The same, received by Spark's own source."""

    spout = "kafka-native"
    connections_stay = False

    def await_members(self, count: int) -> None:
        """Spark's source is no member of a group."""

    @classmethod
    def missing(cls) -> str:
        return missing_jars()


class SqsQueue(Queue):
    """A queue of moto, which keeps it in memory. What is killed is the way to it: a proxy."""

    kind = Moto
    can_reject = True
    connections_stay = False

    def make(self) -> None:
        import boto3  # noqa: PLC0415  # an extra

        os.environ |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nobody"}
        self._port = self.proxy.port
        self.client = boto3.client("sqs", region_name="us-east-1", endpoint_url=self.server.url)
        self.client.create_queue(QueueName=DEAD)
        settings = {"VisibilityTimeout": str(self.lease_secs or 10)}
        if self.rejects:
            dead = f"arn:aws:sqs:us-east-1:123456789012:{DEAD}"
            settings["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": "1"})
        self.client.create_queue(QueueName=NAME, Attributes=settings)

    def settings(self, *, proxied: bool = False) -> dict[str, Any]:
        endpoint = f"http://127.0.0.1:{self._port}"
        return {
            "spout": "sqs", "queue_url": f"{endpoint}/123456789012/{NAME}", "endpoint_url": endpoint,
            "given_up": "reject" if self.rejects else "dead_letter",
        }  # fmt: skip

    def put(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), 10):
            page = numbers[first : first + 10]
            entries = [{"Id": str(each), "MessageBody": str(each)} for each in page]
            self.client.send_message_batch(QueueUrl=self._url(NAME), Entries=entries)

    def left(self) -> tuple[int, frozenset[int] | None]:
        if self.rejects:  # the redrive policy is applied when somebody asks for messages
            self.client.receive_message(QueueUrl=self._url(NAME), VisibilityTimeout=0)
        return self._count(NAME), None

    def rejected(self) -> int:
        return self._count(DEAD)

    def kill(self) -> None:
        self.proxy.remove()

    def start(self) -> None:
        self.proxy = Proxy(self.server.port, self._port)

    def server_port(self) -> int:
        return self._port

    def remove(self) -> None:
        if hasattr(self, "client"):
            self.client.close()
        super().remove()

    def _url(self, queue: str) -> str:
        return f"{self.server.url}/123456789012/{queue}"

    def _count(self, queue: str) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.client.get_queue_attributes(QueueUrl=self._url(queue), AttributeNames=names)
        return sum(map(int, answer["Attributes"].values()))


QUEUES: Final[dict[str, type[Queue]]] = {
    "rabbitmq": RabbitQueue,
    "rabbitmq-quorum": QuorumQueue,
    "kafka": KafkaQueue,
    "kafka-native": NativeKafkaQueue,
    "redis": RedisQueue,
    "sqs": SqsQueue,
}
"""By the name that the command takes."""


def spout_of(settings: dict[str, Any], session: Any) -> Spout:
    """The spout of a queue, from what :meth:`Queue.settings` gave."""
    given = dict(settings)
    match given.pop("spout"):
        case "rabbitmq":
            from acktree.connectors.rabbitmq import RabbitMQSpout  # noqa: PLC0415  # an extra each

            return RabbitMQSpout(given.pop("url"), NAME, prefetch=_PREFETCH, **given)
        case "redis":
            from acktree.connectors.redis import RedisStreamSpout  # noqa: PLC0415

            return RedisStreamSpout(given.pop("url"), NAME, "totals", **given)
        case "kafka":
            from acktree.connectors.kafka import KafkaSpout  # noqa: PLC0415

            return KafkaSpout(given.pop("servers"), NAME, "totals", **given)
        case "kafka-native":
            from acktree.connectors.kafka import kafka_dataframe_spout  # noqa: PLC0415

            return kafka_dataframe_spout(session, given["servers"], NAME, group_id="totals")
        case _:
            from acktree.connectors.sqs import SqsSpout  # noqa: PLC0415

            os.environ |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nobody"}
            return SqsSpout(given.pop("queue_url"), **given)


def number_in(values: Sequence[Any]) -> int:
    """The number of a message, from what any of the spouts emits."""
    match len(values):
        case 6:
            return int(values[4])  # Kafka's record
        case 3:
            return int(values[0])  # RabbitMQ's body
        case _:  # Redis's fields, or SQS's body
            return int(values[1][b"n"]) if b"n" in values[1] else int(values[0])
