"""Every sink beside hostile values, and beside servers that do not answer or refuse a message."""

from __future__ import annotations

import asyncio
import enum
import importlib
import inspect
import math
import pkgutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow.parquet as pq
import pytest

for client in ("boto3", "confluent_kafka", "nats", "pika", "psycopg", "redis", "sqlalchemy"):
    pytest.importorskip(client)

import boto3  # noqa: E402
import nats  # noqa: E402
import pika  # noqa: E402
import redis as redis_client  # noqa: E402
import sqlalchemy as sa  # noqa: E402
from confluent_kafka import Consumer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from acktree import Bolt, ConnectorError, TopologyBuilder, connectors  # noqa: E402
from acktree.arrow_arrays import is_same  # noqa: E402
from acktree.connectors import rabbitmq as rabbitmq_connector  # noqa: E402
from acktree.connectors import redis_client as redis_connector  # noqa: E402
from acktree.connectors.batch_sink import as_id  # noqa: E402
from acktree.connectors.files import ParquetSink  # noqa: E402
from acktree.connectors.kafka import KafkaSink  # noqa: E402
from acktree.connectors.nats import JetStreamSink  # noqa: E402
from acktree.connectors.rabbitmq import RabbitMQSink  # noqa: E402
from acktree.connectors.redis import RedisSink, RedisStreamSink  # noqa: E402
from acktree.connectors.sql import SqlSink  # noqa: E402
from acktree.connectors.sqs import SqsSink  # noqa: E402
from acktree.testing import FeederSpout, LocalCluster  # noqa: E402


class Color(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    RED = "red"


class Old(str, enum.Enum):  # noqa: UP042  # its str() is another text
    RED = "red"


class Raises:
    """An object whose methods raise."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __str__ = __repr__
    __hash__ = None  # type: ignore[assignment]


LOOP: list[object] = []
LOOP.append(LOOP)
BERLIN = ZoneInfo("Europe/Berlin")
WEST, EAST = (timezone(timedelta(hours=hours)) for hours in (-12, 12))
NOON = datetime(2024, 7, 1, 12, tzinfo=UTC)
MIDNIGHT = datetime(2024, 7, 1, tzinfo=UTC)
LAST, FIRST = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
NUMBERS = [
    True, 0, 1, 2, -1, 2**53 + 1, 2**62 + 1, 2**63, 2**70, 10**400, 0.0, -0.0, 1.0, 1.5, 0.1 + 0.2,
    1e16 + 2, 1e22, 1e300, math.nan, math.inf, Decimal("1.10"), Decimal("1.005"),
    Decimal("12345678901234567.89"), Decimal("NaN"), Decimal("Infinity"), Decimal("1e-20"),
    Decimal("1e-17000"), Number.ONE, np.int64(5), np.float64(1.5), np.float32(0.1),
]  # fmt: skip
TEXTS = [
    "", "a", "red", "007", " 12 ", "1e3", "0x10", "nan", "1_0", "x" * 7, "a  ", "a\0b", "a\udcff", "\ud800",
    " blanks ", "two\r\nlines: 1", "\u00e4\u20ac\U0001f600", "\ufffe", "x" * 300_000, "x" * 1_100_000,
    "a.b", "*", "a b", b"", b"bytes", b"\xff\0", bytearray(b"array"), memoryview(b"view"), Word.RED,
    Old.RED, np.str_("text"), str(UUID(int=10)), str(UUID(int=10)).upper(),
]  # fmt: skip
ZONES = (None, UTC, BERLIN, WEST, EAST)
TIMES = [
    *(each.replace(tzinfo=zone) for each in (NOON, MIDNIGHT, LAST, FIRST) for zone in ZONES),
    NOON.replace(microsecond=5), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1), date(2024, 7, 1),
    date.max, time(1, 2, 3, 4), time(1, tzinfo=UTC), time(1, tzinfo=BERLIN),
    timedelta(days=1, microseconds=1), timedelta.max, timedelta.min,
]  # fmt: skip
CONTAINERS = [
    [], [1, None], [[]], [[1], [2]], ["x"], [1.5, math.nan], (1, "a"), (1, 2), {1, 2}, {}, {"a": 1},
    {"a": {}}, {"a": math.nan}, {"a": [1, {"b": (1, 2)}]}, {"a": "\udcff"}, {"a\r\nb": "c"}, {"a": None},
    {"a": 2**70}, {"a": 1e300}, {1: 2}, {None: 1}, {b"a": 1, "a": 2}, {"": "x"}, {"a": object}, {"a": "t"},
    {"a": b"b"}, {"a": True}, {"a" * 300: "b"}, {"a": NOON}, {"a": NOON.replace(tzinfo=None)},
    {"a": NOON.replace(microsecond=1)}, {"a": 1.5}, {"a": Decimal("1.5")}, {"a": "y" * 200_000}, LOOP,
    {"a": LOOP},
]  # fmt: skip
HOSTILE: list[Any] = [
    None, *NUMBERS, *TEXTS, *TIMES, *CONTAINERS, UUID(int=10), Color.RED, object, object(), Raises(),
]  # fmt: skip
LIES = ("is gone", "does not answer", "did not answer", "could be made again", "AssertionError")
"""What is said of a server that cannot be used: of a value it is false."""

_numbers = count()


class Place:
    """A part of what a sink writes, which gets hostile values.

    Attributes:
        field: The field; ``value`` is what the dict in the field ``holder`` has under that key.
    """

    holder = ""
    page = 3
    together = True
    """Whether what one row has changes nothing for others of its micro-batch."""

    def __init__(self, server: Any, field: str) -> None:
        self.server, self.field, self.name = server, field, f"sinks{next(_numbers)}"
        self.open()

    def open(self) -> None:
        """Make the queue or table."""

    def remove(self) -> None:
        """Close what was opened."""

    def sink(self) -> Any:
        raise NotImplementedError

    def row(self, number: int) -> dict[str, Any]:
        """A row that is written; one of its fields has the number."""
        raise NotImplementedError

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number and the parts of each row that was stored since the last call."""
        raise NotImplementedError

    @property
    def values(self) -> list[Any]:
        """Hostile values."""
        return HOSTILE

    def hostile_row(self, number: int, value: object) -> dict[str, Any]:
        row = self.row(number)
        if self.field == "value" and self.holder:
            row[self.holder]["value"] = value
        else:
            row[self.field] = value
        return row

    def is_same(self, value: Any, back: Any) -> bool:
        if isinstance(value, dict) and isinstance(back, dict):
            return value.keys() == back.keys() and all(
                self.is_same(value[name], back[name]) for name in value
            )
        if value is None:
            return not back
        if isinstance(back, str | bytes) and isinstance(
            value, float | int | np.number | Decimal | UUID | date
        ):
            return str(value) == (back if isinstance(back, str) else back.decode())
        return bool(value == back or (isinstance(back, bytes) and bytes(value, "utf-8") == back))


class Sqs(Place):
    holder = "attributes"
    page = 10  # a request has as many

    def open(self) -> None:
        self.client = boto3.client("sqs", endpoint_url=self.server.url, region_name="us-east-1")
        more = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if self.field == "group" else {}
        name = self.name + ".fifo" * bool(more)
        self.url = self.client.create_queue(QueueName=name, Attributes=more)["QueueUrl"]

    def remove(self) -> None:
        self.client.close()

    def sink(self) -> SqsSink:
        group_id = "group" if self.field == "group" else None
        return SqsSink(self.url, endpoint_url=self.server.url, group_id=group_id)

    def row(self, number: int) -> dict[str, Any]:
        return {"body": f"row {number}", "attributes": {"n": str(number)}, "group": "g"}

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        more = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
        while messages := self.client.receive_message(QueueUrl=self.url, **more).get("Messages"):
            for each in messages:
                given = each.get("MessageAttributes", {}).items()
                own = {name: value.get("BinaryValue", value.get("StringValue")) for name, value in given}
                row = {"body": each["Body"], "attributes": own, "value": own.get("value")}
                row["group"] = each["Attributes"].get("MessageGroupId")
                yield int(own.get("n") or each["Body"].split()[-1]), row
            done = [{"Id": each["MessageId"], "ReceiptHandle": each["ReceiptHandle"]} for each in messages]
            self.client.delete_message_batch(QueueUrl=self.url, Entries=done)


class JetStream(Place):
    holder = "headers"

    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self._make())

    async def _make(self) -> None:
        self.client = await nats.connect(self.server.url, allow_reconnect=False)
        self.js = self.client.jetstream()
        await self.js.add_stream(name=self.name, subjects=[f"{self.name}.>"])

    def remove(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()

    def sink(self) -> JetStreamSink:
        subject = (lambda tup: tup["subject"]) if self.field == "subject" else f"{self.name}.x"
        return JetStreamSink(self.server.url, subject, message_id="id" if self.field == "id" else None)

    @property
    def values(self) -> list[Any]:
        if self.field != "id":
            return HOSTILE
        once: dict[str, Any] = {}
        for value in HOSTILE:
            with suppress(ConnectorError):  # JetStream drops a second message with an id
                if once.setdefault(as_id("", value, ""), value) is not value:
                    continue
            once.setdefault(ascii_of(value), value)
        return [*{id(value): value for value in once.values()}.values()]

    def row(self, number: int) -> dict[str, Any]:
        data = f"row {number}"
        return {"data": data, "headers": {"n": str(number)}, "subject": f"{self.name}.x", "id": data}

    def hostile_row(self, number: int, value: object) -> dict[str, Any]:
        is_subject = self.field == "subject" and isinstance(value, str)
        return super().hostile_row(number, f"{self.name}." + value if is_subject else value)

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        left = self.runner.run(self.js.stream_info(self.name)).state.messages
        consumer = self.runner.run(self.js.pull_subscribe("", "reader", self.name))
        while left:
            for message in self.runner.run(consumer.fetch(left, timeout=20)):
                left -= 1
                headers = dict(message.headers or {})
                row = {"data": message.data, "headers": headers, "value": headers.get("value")}
                row |= {"subject": message.subject.partition(".")[2], "id": headers.get("Nats-Msg-Id")}
                yield int(headers.get("n") or message.data.split()[-1]), row


class Rabbit(Place):
    holder = "headers"

    def open(self) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(self.server.url + "?heartbeat=0"))
        self.channel = self.connection.channel()
        self.channel.queue_declare(self.name)
        self.channel.exchange_declare(self.name, "topic")
        self.channel.queue_bind(self.name, self.name, "#")

    def remove(self) -> None:
        self.connection.close()

    def sink(self) -> RabbitMQSink:
        return RabbitMQSink(self.server.url, exchange=self.name, routing_key=lambda tup: tup["key"])

    def row(self, number: int) -> dict[str, Any]:
        return {"body": f"row {number}", "headers": {"n": number}, "key": "key"}

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        while (got := self.channel.basic_get(self.name, auto_ack=True))[0] is not None:
            method, properties, body = got
            headers = properties.headers or {}
            row = {"body": body, "headers": headers, "value": headers.get("value"), "key": method.routing_key}
            yield int(headers["n"] if "n" in headers else body.split()[-1]), row

    def is_same(self, value: Any, back: Any) -> bool:
        return value == back if self.field == "value" else super().is_same(value, back)


class Stream(Place):
    holder = "fields"

    def open(self) -> None:
        self.client = redis_client.Redis.from_url(self.server.url)

    def remove(self) -> None:
        self.client.close()

    def sink(self) -> RedisStreamSink:
        return RedisStreamSink(self.server.url, self.name)

    def row(self, number: int) -> dict[str, Any]:
        return {"fields": {"n": number}}

    def hostile_row(self, number: int, value: object) -> dict[str, Any]:
        is_fields = self.field == "fields" and isinstance(value, dict)
        return super().hostile_row(number, {"n": number, **value} if is_fields else value)

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for _, fields in self.client.xrange(self.name):
            yield int(fields.pop(b"n")), {"fields": fields, "value": fields.get(b"value")}

    def is_same(self, value: Any, back: Any) -> bool:
        if isinstance(back, dict):
            both = zip(value.items(), back.items(), strict=True)
            return all(
                super(Stream, self).is_same(*each) for pair in both for each in zip(*pair, strict=True)
            )
        if isinstance(value, float):
            return float(back) == value or (math.isnan(value) and math.isnan(float(back)))
        return super().is_same(value, back)


class Hashes(Stream):
    holder = ""

    def sink(self) -> RedisSink:
        return RedisSink(self.server.url, f"{self.name}:")

    def row(self, number: int) -> dict[str, Any]:
        return {"key": number, "n": number, "value": "good"}

    def hostile_row(self, number: int, value: object) -> dict[str, Any]:
        return self.row(number) | {"value": value}

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for name in self.client.scan_iter(f"{self.name}:*"):
            fields = self.client.hgetall(name)
            yield int(fields[b"n"]), {"value": fields[b"value"]}


class Topic(Place):
    holder = "headers"

    def open(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self.name, 1)])[self.name].result(20)

    def sink(self) -> KafkaSink:
        return KafkaSink(self.server.bootstrap, self.name)

    def row(self, number: int) -> dict[str, Any]:
        return {"value": f"row {number}", "key": "key", "headers": {"n": str(number)}}

    def hostile_row(self, number: int, value: object) -> dict[str, Any]:
        row = self.row(number)
        if self.field == "header":
            row["headers"]["value"] = value
        else:
            row[self.field] = value
        return row

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        settings = {"bootstrap.servers": self.server.bootstrap, "group.id": "sinks", "log_level": 0}
        consumer = Consumer(settings | {"enable.auto.commit": False})
        try:
            place = TopicPartition(self.name, 0, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=20)
            consumer.assign([place])
            offset = -1
            while offset + 1 < end:
                record = consumer.poll(20)
                assert record is not None
                offset = record.offset()
                headers = dict(record.headers() or [])
                row = {"value": record.value(), "key": record.key(), "headers": headers}
                number = headers.get("n") or record.value().split()[-1]
                yield int(number), row | {"header": headers.get("value")}
        finally:
            consumer.close()

    def is_same(self, value: Any, back: Any) -> bool:
        return value is back or super().is_same(value, back)


class Parquet(Place):
    together = False

    def open(self) -> None:
        self.folder = self.server / self.name

    def sink(self) -> ParquetSink:
        return ParquetSink(self.folder)

    def row(self, number: int) -> dict[str, Any]:
        return {"n": number, "value": None}

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for file in self.folder.glob("*.parquet"):
            for row in pq.read_table(file).to_pylist():
                yield row["n"], row

    def is_same(self, value: Any, back: Any) -> bool:
        return value is back or bool(value == back) or is_same(value, back)


class Table(Place):
    """A column of a table; the field is its type."""

    def __init__(self, url: str, kind: str) -> None:
        self.kind = kind
        super().__init__(url, "value")

    def open(self) -> None:
        self.engine = sa.create_engine(self.server)
        with self.engine.begin() as connection:
            connection.execute(
                sa.text(f"CREATE TABLE {self.name} (n integer PRIMARY KEY, value {self.kind})")
            )
            self.table = sa.Table(self.name, sa.MetaData(), autoload_with=connection)

    def remove(self) -> None:
        self.engine.dispose()

    def sink(self) -> SqlSink:
        return SqlSink(self.server, self.name, key="n", patience_secs=0, batch_rows=100)

    def row(self, number: int) -> dict[str, Any]:
        return {"n": number, "value": None}

    def stored(self) -> Iterator[tuple[int, dict[str, Any]]]:
        is_raw = self.engine.dialect.name == "sqlite" and self.kind in RAW
        with self.engine.begin() as connection:
            what = sa.text(f"SELECT n, value FROM {self.name}") if is_raw else sa.select(self.table)
            for number, value in connection.execute(what):
                yield number, {"value": value}

    def is_same(self, value: Any, back: Any) -> bool:
        if isinstance(value, datetime | date) and isinstance(back, datetime | date):
            midnights = [
                datetime.combine(each, time.min) if type(each) is date else each for each in (value, back)
            ]
            if value_has_zone := getattr(value, "tzinfo", None):
                return value_has_zone is not None and value.astimezone(UTC) == back.astimezone(UTC)
            return midnights[0] == midnights[1]
        if isinstance(value, list) and isinstance(back, list):
            return len(value) == len(back) and all(map(self.is_same, value, back))
        if isinstance(value, float | Decimal) and isinstance(back, float | Decimal):
            digits = [Decimal(str(each)) for each in (value, back)]
            is_single = self.kind == "real" and self.engine.dialect.name != "sqlite"
            is_near = is_single and isinstance(value, float) and math.isclose(value, back, rel_tol=1e-6)
            return digits[0] == digits[1] or all(map(math.isnan, digits)) or is_near
        if isinstance(back, UUID):
            return str(value) == str(back)
        return bool(value == back) or is_same(value, back)


RAW = ("integer", "bigint", "text", "varchar(5)", "real", "numeric(20, 2)", "blob", "")
OF_SQLITE = (*RAW, "timestamp", "date", "time", "json", "boolean")
OF_POSTGRESQL = (
    "integer", "bigint", "text", "varchar(5)", "char(3)", "real", "double precision", "numeric",
    "numeric(20, 2)", "bytea", "timestamp", "timestamptz", "timestamp(3)", "date", "time", "timetz",
    "interval", "interval(3)", "json", "jsonb", "boolean", "uuid", "integer[]", "text[]", "numeric(5, 2)[]",
)  # fmt: skip
PLACES = [
    *(("sqs", Sqs, field) for field in ("body", "attributes", "value", "group")),
    *(("nats_server", JetStream, field) for field in ("data", "headers", "value", "subject", "id")),
    *(("rabbitmq", Rabbit, field) for field in ("body", "headers", "value", "key")),
    *(("redis", Stream, field) for field in ("fields", "value")),
    ("redis", Hashes, "value"),
    *(("kafka", Topic, field) for field in ("value", "key", "headers", "header")),
    ("tmp_path", Parquet, "value"),
    *(("sqlite", Table, kind) for kind in OF_SQLITE),
    *(("postgresql", Table, kind) for kind in OF_POSTGRESQL),
]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Place]:
    name, make, field = request.param
    if name == "sqlite":
        server = f"sqlite:///{tmp_path}/shop.sqlite"
    elif name == "postgresql":
        server = request.getfixturevalue("postgresql").url(request.getfixturevalue("schema"))
    else:
        server = request.getfixturevalue(name)
    made = make(server, field)
    yield made
    made.remove()


class Run:
    """A topology of a feeder and a sink, whose pages are small unless it writes all at once."""

    def __init__(self, cluster: LocalCluster, place: Place, sink: Any = None) -> None:
        self.place, self.cluster, self.feeder = place, cluster, FeederSpout([*place.row(0)])
        sink = sink or place.sink()
        if getattr(sink, "page", None):
            sink.page = place.page
        builder = TopologyBuilder("sink")
        builder.set_spout("feeder", self.feeder)
        builder.set_bolt("sink", sink).shuffle_grouping("feeder")
        self.running = cluster.submit(builder.create_topology())

    def write(self, *rows: Mapping[str, object]) -> None:
        """As one micro-batch; messages are numbered from 0, and go on where the last call ended."""
        first = len(self.feeder.acked) + len(self.feeder.failed)
        for number, row in enumerate(rows, first):
            self.feeder.feed([*row.values()], message_id=number)
        self.cluster.advance()

    @property
    def reasons(self) -> dict[int, str]:
        return {number: failure.reason for number, failure in self.feeder.failed}


@pytest.mark.parametrize("place", PLACES, indirect=True, ids=lambda each: f"{each[0]}-{each[2]}")
def test_a_hostile_value_fails_alone_or_reads_back_equal_and_nothing_is_written_twice(place: Place) -> None:
    step = 2 if place.together else 5  # with good rows before it, behind it and between
    hostile = {step * number + 1: value for number, value in enumerate(place.values)}
    rows = [
        place.hostile_row(number, hostile[number]) if number in hostile else place.row(number)
        for number in range(step * len(place.values) + 1)
    ]
    with LocalCluster() as cluster:
        run = Run(cluster, place)
        for first in range(0, len(rows), len(rows) if place.together else step):
            run.write(*rows[first : first + (len(rows) if place.together else step)])
        stored = [*place.stored()]
    reasons = {ascii_of(hostile.get(number)): reason for number, reason in run.reasons.items()}
    assert set(run.reasons) <= hostile.keys()
    assert sorted([*run.feeder.acked, *run.reasons]) == [*range(len(rows))]
    assert sorted(number for number, _ in stored) == sorted(run.feeder.acked)
    changed = {
        ascii_of(hostile[number]): ascii_of(row[place.field])
        for number, row in stored
        if number in hostile and not place.is_same(hostile[number], row[place.field])
    }
    assert changed == {}
    assert [
        each for each in reasons.items() if "fix:" not in each[1] or any(lie in each[1] for lie in LIES)
    ] == []


def test_each_sink_is_given_hostile_values() -> None:
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.walk_packages(connectors.__path__, "acktree.connectors.")
        if not each.ispkg
    ]
    sinks = {
        name
        for module in modules
        for name, made in vars(module).items()
        if isinstance(made, type) and issubclass(made, Bolt) and not inspect.isabstract(made)
    }
    assert {make.sink.__annotations__["return"] for _, make, _ in PLACES} == sinks - {"Bolt"}


class Silent:
    """A listener that accepts connections and never answers."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]

    def connections(self) -> int:
        """How many were made since the last call."""
        self.socket.settimeout(0)
        made = 0
        with suppress(BlockingIOError):
            while True:
                self.socket.accept()[0].close()
                made += 1
        return made


@pytest.mark.parametrize("make", [Rabbit, Stream])
def test_a_server_that_does_not_answer_is_waited_for_once_in_a_micro_batch(
    make: Any, monkeypatch: Any
) -> None:
    silent = Silent()
    monkeypatch.setattr(rabbitmq_connector, "_CONNECT_SECS", 0.5)
    monkeypatch.setattr(redis_connector, "_CONNECT_SECS", 0.5)
    place = make.__new__(make)
    place.server, place.name, place.field = silent, "orders", ""
    silent.url = f"{'amqp' if make is Rabbit else 'redis'}://127.0.0.1:{silent.port}/0"
    with LocalCluster() as cluster, closing(silent.socket):
        run = Run(cluster, place)
        run.write(*[place.row(number) for number in range(10)])
        assert silent.connections() == 1
        cluster.advance(0.5)  # the first pause: a few of them are tried again
        assert silent.connections() == 1
        assert run.feeder.failed == run.feeder.acked == []


def rabbitmqctl(server: Any, *arguments: str) -> None:
    program = "/usr/lib/rabbitmq/bin/rabbitmqctl"
    subprocess.run(
        [program, *arguments], env=server.environment(), check=True, capture_output=True, timeout=60
    )


def test_under_an_alarm_of_rabbitmq_one_message_is_sent_in_a_micro_batch(
    rabbitmq: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(rabbitmq_connector, "_ANSWER_SECS", 1.0)
    place = Rabbit(rabbitmq, "")
    with LocalCluster() as cluster:
        run = Run(cluster, place)
        run.write(place.row(0))
        rabbitmqctl(rabbitmq, "set_vm_memory_high_watermark", "0.00001")
        try:
            run.write(*[place.row(number) for number in range(1, 7)])
            assert run.feeder.acked == [0]
            assert "RabbitMQ takes no messages" in run.running.stats()["feeder"].outage.reason
        finally:
            rabbitmqctl(rabbitmq, "set_vm_memory_high_watermark", "absolute", "512MB")
        cluster.advance(60)
    assert run.feeder.acked == [*range(7)]
    stored = Counter(number for number, _ in place.stored())
    # The server had the one that was waited for.
    assert stored in (Counter(range(7)), Counter([1, *range(7)]))
    place.remove()


def test_a_message_over_which_the_server_closes_the_channel_fails_alone(rabbitmq: Any) -> None:
    place = Rabbit(rabbitmq, "key")
    rabbitmqctl(rabbitmq, "set_topic_permissions", "guest", place.name, "^key$", ".*")
    try:
        with LocalCluster() as cluster:
            run = Run(cluster, place)
            run.write(place.row(0), place.hostile_row(1, "forbidden"), place.row(2))
    finally:
        rabbitmqctl(rabbitmq, "clear_topic_permissions", "guest", place.name)
    assert run.feeder.acked == [0, 2]
    assert "RabbitMQ refused the message: ACCESS_REFUSED" in run.reasons[1]
    assert sorted(number for number, _ in place.stored()) == [0, 2]
    place.remove()


def test_an_entry_over_which_the_server_closes_the_connection_fails_alone(redis: Any) -> None:
    place = Stream(redis, "value")
    place.client.config_set("proto-max-bulk-len", 1 << 20)
    try:
        with LocalCluster() as cluster:
            run = Run(cluster, place)
            run.write(place.row(0), place.hostile_row(1, "x" * 2_000_000), place.row(2))
    finally:
        place.client.config_set("proto-max-bulk-len", 512 << 20)
    assert run.feeder.acked == [0, 2]
    assert "broke while this message was sent, and could be made again" in run.reasons[1]
    assert sorted(number for number, _ in place.stored()) == [0, 2]
    place.remove()


def test_a_subject_that_the_user_may_not_publish_to_fails_alone_and_at_once(nats_server: Any) -> None:
    place = JetStream(nats_server, "subject")
    place.runner.run(place.js.add_stream(name=f"{place.name}B", subjects=["nothing"]))
    sink = JetStreamSink(nats_server.url.replace("reader", "stranger"), lambda tup: tup["subject"])
    with LocalCluster() as cluster:
        run = Run(cluster, place, sink)
        run.write(
            *[place.row(number) | {"subject": "nothing" if number != 1 else "secret"} for number in range(3)]
        )
    assert sorted(run.feeder.acked) == [0, 2]
    assert "NATS refused the message" in run.reasons[1]
    assert "give the user the right to publish" in run.reasons[1]
    place.runner.run(place.js.delete_stream(f"{place.name}B"))
    place.remove()


class Counting(KafkaSink):
    """A KafkaSink that counts the records of which the client has said something."""

    heard = 0

    def _delivered(self, *what: Any) -> None:
        Counting.heard += 1
        super()._delivered(*what)


def test_records_behind_one_that_was_given_up_are_not_sent() -> None:
    settings = {"queue.buffering.max.messages": 1, "delivery.timeout.ms": 1000, "log_level": 0}
    place = Topic.__new__(Topic)
    place.field = ""
    with LocalCluster() as cluster:
        run = Run(cluster, place, Counting("127.0.0.1:1", "orders", config=settings))
        run.write(*[place.row(number) for number in range(5)])
        assert run.running.stats()["feeder"].awaiting_retry == 5
    assert run.reasons == {}
    assert Counting.heard == 1


def ascii_of(value: object) -> str:
    """A value for a message of this test."""
    return "Raises" if isinstance(value, Raises) else f"{type(value).__name__} {value!a:.80}"
