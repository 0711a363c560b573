"""RabbitMQ and Redis: messages a second through their spouts, compared with a loop over the same client.

::

    python -m benchmarks queues --messages 500000 --rounds 5 rabbitmq redis

One server on this machine, one queue or stream, messages of six words. The topology has one spout task; a
bolt of two tasks splits each message and counts its words, in a memory that survives a restart. The loop
does the same with the same client, and acknowledges each message by itself; its counts do not survive. In
each round both run in turn in one session. *Overall* includes the start of the query, *steady* begins with
the second quarter of the messages. CPU is that of all processes but the server, in the steady part.
"""

from __future__ import annotations

import argparse
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from acktree import (
    BasicBolt,
    BasicOutputCollector,
    Config,
    Spout,
    TaskContext,
    TopologyBuilder,
    Tuple,
    submit,
)
from benchmarks.record_rates import Meter, Rates, compare
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.work import sentences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.servers import RabbitMQ, Redis

_QUEUE: Final = "sentences"
_FIELD: Final = b"sentence"
_PAGE: Final = 10_000
_PREFETCH: Final = 2000
"""Of the loop; RabbitMQ's own recommendation is some hundreds, and more made it no faster."""


class Words(BasicBolt):
    """Splits and counts."""

    outputs = []
    remembers = ["counts"]

    def __init__(self, field: str) -> None:
        """Read this field: bytes, or a dict of bytes that has the sentence."""
        self.field = field

    def prepare(self, config: Config, context: TaskContext) -> None:
        """Begin to count."""
        self.counts: Counter[bytes] = Counter()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count the words of one sentence."""
        given = tup[self.field]
        self.counts.update((given if isinstance(given, bytes) else given[_FIELD]).split())


class _Queue(ABC):
    """A server with one queue."""

    def __init__(self, server: RabbitMQ | Redis) -> None:
        self.server = server

    @abstractmethod
    def fill(self, bodies: list[bytes]) -> None:
        """Put these messages into the queue, for one reader more."""

    @abstractmethod
    def spout(self) -> Spout:
        """A spout that reads them."""

    @abstractmethod
    def loop(self, meter: Meter, count: int) -> Rates:
        """Read them without acktree: split, count, acknowledge each message."""


class Rabbit(_Queue):
    """A durable classic queue."""

    field = "body"

    def fill(self, bodies: list[bytes]) -> None:
        import pika  # noqa: PLC0415  # an extra

        with pika.BlockingConnection(pika.URLParameters(self.server.url)) as connection:
            channel = connection.channel()
            channel.queue_declare(_QUEUE, durable=True)
            channel.tx_select()
            for number, body in enumerate(bodies, 1):
                channel.basic_publish("", _QUEUE, body, pika.BasicProperties(delivery_mode=2))
                if number % _PAGE == 0:
                    channel.tx_commit()
            channel.tx_commit()

    def spout(self) -> Spout:
        from acktree.connectors.rabbitmq import RabbitMQSpout  # noqa: PLC0415  # an extra

        return RabbitMQSpout(self.server.url, _QUEUE)

    def loop(self, meter: Meter, count: int) -> Rates:
        import pika  # noqa: PLC0415  # an extra

        counts: Counter[bytes] = Counter()
        with pika.BlockingConnection(pika.URLParameters(self.server.url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=_PREFETCH)
            for done, (method, _, body) in enumerate(channel.consume(_QUEUE), 1):
                counts.update(body.split())
                channel.basic_ack(method.delivery_tag)
                if done % 1000 == 0:
                    meter.note(done)
                if done == count:
                    break
            channel.cancel()
            return meter.rates()


class RedisStream(_Queue):
    """A stream, filled once; each reader has a group of its own."""

    field = "fields"

    def __init__(self, server: Redis) -> None:
        import redis  # noqa: PLC0415  # an extra

        super().__init__(server)
        self._client: Any = redis.Redis.from_url(server.url)
        self._client.config_set("appendfsync", "everysec")  # Redis's default: one write each second
        self._groups = 0

    def fill(self, bodies: list[bytes]) -> None:
        if not self._client.exists(_QUEUE):
            for first in range(0, len(bodies), _PAGE):
                with self._client.pipeline(transaction=False) as pipeline:
                    for body in bodies[first : first + _PAGE]:
                        pipeline.xadd(_QUEUE, {_FIELD: body})
                    pipeline.execute()
        self._groups += 1
        self._client.xgroup_create(_QUEUE, self._group, id="0")

    @property
    def _group(self) -> str:
        return f"group-{self._groups}"

    def spout(self) -> Spout:
        from acktree.connectors.redis import RedisStreamSpout  # noqa: PLC0415  # an extra

        return RedisStreamSpout(self.server.url, _QUEUE, self._group)

    def loop(self, meter: Meter, count: int) -> Rates:
        counts: Counter[bytes] = Counter()
        done = 0
        while done < count:
            [[_, entries]] = self._client.xreadgroup(self._group, "loop", {_QUEUE: ">"}, count=1000)
            for entry_id, fields in entries:
                counts.update(fields[_FIELD].split())
                self._client.xack(_QUEUE, self._group, entry_id)
            done += len(entries)
            meter.note(done)
        return meter.rates()


_QUEUES: Final[dict[str, tuple[str, type[Rabbit | RedisStream]]]] = {
    "rabbitmq": ("RabbitMQ", Rabbit),
    "redis": ("Redis", RedisStream),
}


def topology_rates(spark: SparkSession, queue: Rabbit | RedisStream, count: int) -> Rates:
    """Run a topology over all messages."""
    builder = TopologyBuilder("queue-benchmark")
    builder.set_spout("messages", queue.spout())
    builder.set_bolt("words", Words(queue.field), parallelism=2).shuffle_grouping("messages")
    meter = Meter(count, queue.server)
    with (
        tempfile.TemporaryDirectory() as folder,
        submit(builder.create_topology(), checkpoint=folder, spark=spark, config=Config()) as running,
    ):

        def acked() -> int:
            total = running.stats()["messages"].total
            assert not total.failed, total
            return total.acked

        meter.wait(acked)
        return meter.rates()


def main(arguments: list[str]) -> None:
    """Run the pairs, and print each round and the median ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks queues", description=__doc__)
    parser.add_argument("brokers", nargs="*", default=[*_QUEUES], help=", ".join(_QUEUES))
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    from acktree.spark.session.settings import start_session  # noqa: PLC0415  # so that --help does not wait

    bodies = [sentence.encode() for sentence in sentences(given.messages, seed=1)]
    spark = start_session("queue-benchmark")
    try:
        for name in given.brokers:
            report = Report("queues", {"broker": name, "messages": given.messages})
            found = _pair(spark, name, bodies, given.rounds)
            print_line(report.line(found), keep=given.keep)
    finally:
        spark.stop()


def _pair(spark: SparkSession, name: str, bodies: list[bytes], rounds: int) -> dict[str, Any]:
    kind, queue_of = _QUEUES[name]
    server_of = getattr(import_module("tests.services.servers"), kind)
    if missing := server_of.missing():
        raise SystemExit(missing)
    server = server_of()
    try:
        queue = queue_of(server)

        def ours() -> Rates:
            queue.fill(bodies)
            return topology_rates(spark, queue, len(bodies))

        def plain() -> Rates:
            queue.fill(bodies)
            return queue.loop(Meter(len(bodies), server), len(bodies))

        return compare(name, ours, plain, rounds)
    finally:
        server.remove()
