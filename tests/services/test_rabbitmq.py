"""The RabbitMQ connector against a real server."""

from __future__ import annotations

import copy
import pickle
import socket
import struct
import threading
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

import pytest

pika = pytest.importorskip("pika")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from acktree import ConfigError, ConnectorError, Retry, TopologyBuilder  # noqa: E402
from acktree.connectors import rabbitmq as connector  # noqa: E402
from acktree.connectors.rabbitmq import RabbitMQSink, RabbitMQSpout  # noqa: E402
from acktree.system.readable import is_readable  # noqa: E402
from acktree.testing import SPOUT_CHECKS, FeederSpout, LocalCluster, SpoutHarness, check_spout  # noqa: E402
from tests.services.named import check_that_a_key_runs_once  # noqa: E402
from tests.services.proxied import (  # noqa: E402
    ProxiedBroker,
    check_that_a_hang_is_reported,
    check_that_what_cannot_be_emitted_goes_back,
)
from tests.services.servers import RabbitMQ  # noqa: E402

QUEUE, DEAD = "orders", "orders.dead"


class Queue(ProxiedBroker):
    """A queue of one kind, reached through a proxy that can be cut."""

    shortest_lease_secs = 4
    redelivery_secs = 3

    def __init__(self, server: RabbitMQ, kind: str, given_up: str = "dead_letter"):
        super().__init__(server)
        self.kind, self.given_up = kind, given_up
        self.counts_attempts = kind == "quorum"
        self._connect()

    def url(self, login: str = "guest:guest", scheme: str = "amqp") -> str:
        return f"{scheme}://{login}@127.0.0.1:{self.proxy.port}/?heartbeat=4"

    def make_spout(self) -> RabbitMQSpout:
        return RabbitMQSpout(self.url(), QUEUE, prefetch=20, given_up=self.given_up)

    def _connect(self):
        self.connection = pika.BlockingConnection(pika.URLParameters(self.server.url + "?heartbeat=0"))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def put(self, bodies):
        for body in bodies:
            self.channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2), mandatory=True)

    def count(self):
        return self._count(QUEUE)

    def _count(self, queue):
        return self.channel.queue_declare(queue, passive=True).method.message_count

    def start(self):
        super().start()
        with suppress(pika.exceptions.AMQPError):
            self.connection.close()
        self._connect()

    def drop_queue(self):
        self.channel.queue_delete(QUEUE)

    def clear(self):
        self.channel.queue_declare(DEAD, durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
        self.channel.queue_declare(QUEUE, durable=True, arguments=arguments | {"x-queue-type": self.kind})
        for queue in (QUEUE, DEAD):
            self.channel.queue_purge(queue)

    def dead_letters(self):
        found = []
        while True:
            _, properties, body = self.channel.basic_get(DEAD)
            if properties is None:
                break
            found.append(body)
        self.channel.basic_recover(requeue=True)
        return found

    def misconfigured(self):
        nowhere = f"amqp://guest:{self.secret}@127.0.0.1:1/"
        return {
            "a wrong password": (lambda: RabbitMQSpout(self.url(f"guest:{self.secret}"), QUEUE), False),
            "an absent queue": (lambda: RabbitMQSpout(self.url(), "nowhere"), False),
            "no server": (lambda: RabbitMQSpout(nowhere, QUEUE), True),
            "TLS on a plain port": (lambda: RabbitMQSpout(self.url(scheme="amqps"), QUEUE), False),
            "an absent virtual host": (lambda: RabbitMQSpout(self.url().replace("/?", "/x?"), QUEUE), False),
        }


@pytest.fixture(scope="module", params=["classic", "quorum", "classic, rejecting"])
def queue(request, rabbitmq):
    kind, _, rejects = request.param.partition(", ")
    made = Queue(rabbitmq, kind, "reject" if rejects else "dead_letter")
    if kind == "quorum":
        # A quorum queue that is killed moments after its declaration does not come back (RabbitMQ 3.10):
        # after a restart it is on disk.
        made.clear()
        made.stop()
        made.start()
    yield made
    made.drop_queue()
    made.connection.close()
    made.proxy.remove()


@pytest.mark.slow
@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_the_spout_keeps_the_contract(queue: Queue, check: str) -> None:
    check_spout(queue.make_spout, queue, only=[check])


@pytest.mark.parametrize("prefetch", [0, -1, 65_536, True, 1.5])
def test_the_prefetch_is_what_the_protocol_can_say(prefetch) -> None:
    with pytest.raises(ConfigError, match="prefetch"):
        RabbitMQSpout("amqp://guest:guest@127.0.0.1/", QUEUE, prefetch=prefetch)


def test_a_url_that_is_none_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        RabbitMQSpout("amqp://guest:S3cr3t@host:port/", QUEUE)
    assert "S3cr3t" not in str(refused.value)


def test_a_message_that_is_given_up_is_acknowledged_or_rejected() -> None:
    with pytest.raises(ConfigError, match="given_up"):
        RabbitMQSpout("amqp://guest:guest@127.0.0.1/", QUEUE, given_up="drop")


@given(st.data())
def test_each_tag_is_answered_once_however_they_come(data) -> None:
    most = 30
    unanswered, tags = set(range(1, most + 1)), connector._Tags()  # the server's, and ours
    order = data.draw(st.permutations(range(1, most + 1)) | st.just(range(1, most + 1)))
    while order:
        size, alone = data.draw(st.tuples(st.integers(1, 8), st.booleans()))
        batch, order = order[:size], order[size:]
        top, each = tags.answer(batch, alone=alone)
        if alone:
            assert (top, each) == (0, [])
            each = batch
        if top:
            assert top in unanswered
            unanswered -= set(range(1, top + 1))
        assert unanswered.issuperset(each)
        unanswered.difference_update(each)
        assert unanswered == set(order)


def test_while_one_message_is_open_no_tag_of_a_later_one_is_kept() -> None:
    tags = connector._Tags()
    for first in range(2, 2002, 100):
        assert tags.answer(range(first, first + 100)) == (0, [*range(first, first + 100)])
    assert len(pickle.dumps(tags)) < 500  # bytes
    assert tags.answer([1]) == (1, [])
    assert tags.answer([2002]) == (2002, [])


def test_the_sink_acks_what_was_confirmed_and_a_message_that_no_queue_takes_fails_alone(rabbitmq) -> None:
    made = Queue(rabbitmq, "classic")
    made.clear()
    feeder = FeederSpout(["body", "headers", "key"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    sink = RabbitMQSink(rabbitmq.url, routing_key=lambda tup: tup["key"])
    builder.set_bolt("sink", sink).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for n in range(5):
            feeder.feed([b"%d" % n, {"n": n}, QUEUE if n != 2 else "nowhere"], message_id=n)
        cluster.advance()
    assert feeder.acked == [0, 1, 3, 4]
    [(message_id, failure)] = feeder.failed
    assert (message_id, "bind a queue" in failure.reason) == (2, True)
    assert made.count() == 4
    _, properties, body = made.channel.basic_get(QUEUE)
    assert (body, properties.headers, properties.delivery_mode) == (b"0", {"n": 0}, 2)
    made.connection.close()
    made.proxy.remove()


def test_a_connection_that_breaks_before_the_login_may_pass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept_and_close():
            listener.accept()[0].close()

        breaks = threading.Thread(target=accept_and_close)
        breaks.start()
        spout = RabbitMQSpout(f"amqp://guest:S3cr3t@127.0.0.1:{listener.getsockname()[1]}/", QUEUE)
        harness = SpoutHarness(spout)
        breaks.join()
    [failure] = harness.reports
    assert failure.exception.can_retry
    assert "S3cr3t" not in failure.reason


def test_an_error_shows_what_the_client_said_as_a_whole() -> None:
    words = "Stream connection lost: ConnectionResetError(104, 'Connection reset by peer')"
    error = connector.connector_error(pika.exceptions.StreamLostError(words), "queue 'orders'", QUEUE)
    assert words in error.what
    closed = pika.exceptions.ConnectionClosed(0, "the connection is closed")
    assert "gone: the connection is closed" in connector.connector_error(closed, "", QUEUE).what
    nameless = connector.connector_error(pika.exceptions.AMQPConnectionError(), "", QUEUE)
    assert "gone: AMQPConnectionError" in nameless.what


def test_a_spout_with_tls_can_be_copied_for_its_tasks() -> None:
    copy.deepcopy(RabbitMQSpout("amqps://guest:guest@127.0.0.1/", QUEUE))


def test_a_server_that_stops_answering_is_an_outage_also_without_heartbeats(rabbitmq, monkeypatch) -> None:
    monkeypatch.setattr(connector, "_ANSWER_SECS", 0.5)
    monkeypatch.setattr(connector, "_CONNECT_SECS", 0.5)
    made = Queue(rabbitmq, "classic")
    url = f"amqp://guest:guest@127.0.0.1:{made.proxy.port}/?heartbeat=0"
    try:
        check_that_a_hang_is_reported(made, lambda: RabbitMQSpout(url, QUEUE))
    finally:
        made.connection.close()
        made.proxy.remove()


def test_a_message_that_pika_read_while_it_acknowledged_another_is_emitted_at_the_next_call(rabbitmq) -> None:
    made = Queue(rabbitmq, "classic")
    made.clear()
    try:
        with SpoutHarness(made.make_spout()) as harness:
            spout = harness.spout
            made.put([b"first"])
            harness.until(lambda: len(harness.arrived) == 1, 10, "the first message")
            made.put([b"second"])
            assert is_readable(spout._connection._impl._transport._sock, 10)  # it has come
            spout.ack_batch([harness.arrived[0].message_id])
            assert not spout._can_read()  # pika holds it
            spout.next_tuple()
            assert harness.task.buffered_count == 1
    finally:
        made.drop_queue()
        made.connection.close()
        made.proxy.remove()


def test_what_is_not_confirmed_in_time_waits_and_is_sent_again(rabbitmq, monkeypatch) -> None:
    monkeypatch.setattr(connector, "_ANSWER_SECS", 0.5)
    made = Queue(rabbitmq, "classic")
    made.clear()
    feeder = FeederSpout(["body"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    sink = RabbitMQSink(made.url().replace("heartbeat=4", "heartbeat=0"), routing_key=QUEUE)
    builder.set_bolt("sink", sink).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for n in range(3):
            (made.proxy.hold if n == 1 else made.proxy.cut)()
            feeder.feed([b"%d" % n], message_id=n)
            cluster.advance()
            if n == 1:
                outage = running.stats()["feeder"].outage
        cluster.advance(60)
    assert (sorted(feeder.acked), feeder.failed) == ([0, 1, 2], [])
    assert "no answer" in outage.reason
    made.connection.close()
    made.proxy.remove()


@pytest.fixture
def plain(rabbitmq):
    made = Queue(rabbitmq, "classic")
    made.clear()
    yield made
    made.drop_queue()
    made.connection.close()
    made.proxy.remove()


def publish(queue: Queue, body: bytes, headers: object) -> None:
    queue.channel.basic_publish("", QUEUE, body, pika.BasicProperties(headers=headers, delivery_mode=2))


COUNTS = [5, "three", None, -1, True, 2.5, b"3", [4], {"n": 4}, 1 << 62]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_count_of_deliveries_that_a_publisher_wrote_is_not_believed(rabbitmq, kind: str) -> None:
    queue = Queue(rabbitmq, kind)
    try:
        queue.clear()
        for n, count in enumerate(COUNTS):
            if count != 2.5:  # pika writes no fractions
                publish(queue, b"%d" % n, {"x-delivery-count": count})
        expected = len(COUNTS) - 1
        spout = RabbitMQSpout(queue.url(), QUEUE, prefetch=2)
        with SpoutHarness(spout, retry=Retry(max_attempts=3)) as harness:
            done = 0
            while done < expected:  # two at a time: none keeps its place in the prefetch
                harness.until(lambda: len(harness.arrived) > done, 10, "they come")  # noqa: B023
                fresh = harness.arrived[done:]
                done += len(fresh)
                harness.ack(fresh)
            assert [each.attempt for each in harness.arrived] == [1] * expected
            assert not harness.letters
        assert queue.count() == 0
    finally:
        queue.drop_queue()
        queue.connection.close()
        queue.proxy.remove()


def test_a_quorum_queues_own_count_replaces_a_publishers(rabbitmq) -> None:
    queue = Queue(rabbitmq, "quorum")
    try:
        queue.clear()
        publish(queue, b"0", {"x-delivery-count": 7})
        with SpoutHarness(RabbitMQSpout(queue.url(), QUEUE)) as harness:
            harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
            harness.fail(harness.arrived)
            harness.until(lambda: len(harness.arrived) == 2, 10, "it comes again")
            assert [each.attempt for each in harness.arrived] == [1, 2]
            harness.ack(harness.arrived[1:])
    finally:
        queue.drop_queue()
        queue.connection.close()
        queue.proxy.remove()


class Raw:
    """A field of AMQP as bytes: pika does not write all that the server takes."""

    def __init__(self, kind: bytes, content: bytes):
        self.bytes = kind + content


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value] if depth % 2 else {"a": value}
    return value


VALUES = {
    "milliseconds for a date": (Raw(b"T", struct.pack(">Q", 1_700_000_000_000)), 1_700_000_000_000),
    "a date": (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    "the largest date": (Raw(b"T", b"\xff" * 8), (1 << 64) - 1),
    "a fraction": (Raw(b"d", struct.pack(">d", 2.5)), 2.5),
    "a small number": (Raw(b"b", b"\xff"), -1),
    "a long number": (Raw(b"l", struct.pack(">q", -(1 << 62))), -(1 << 62)),
    "an amount": (Decimal("-12.50"), Decimal("-12.5")),
    "no UTF-8": (Raw(b"S", struct.pack(">I", 2) + b"\xff\xfe"), b"\xff\xfe"),
    "bytes": (b"\x00\x01", b"\x00\x01"),
    "a list": ([1, "a", None, True, {"b": []}], [1, "a", None, True, {"b": []}]),
}


@pytest.fixture
def raw_fields(monkeypatch):
    encode = pika.data.encode_value

    def encoded(pieces, value):
        if not isinstance(value, Raw):
            return encode(pieces, value)
        pieces.append(value.bytes)
        return len(value.bytes)

    monkeypatch.setattr(pika.data, "encode_value", encoded)


@pytest.mark.usefixtures("raw_fields")
def test_headers_come_as_they_were_sent(plain: Queue) -> None:
    sent = {name: value for name, (value, _) in VALUES.items()}
    publish(plain, b"0", sent)
    plain.channel.basic_publish(
        "", QUEUE, b"1", pika.BasicProperties("text/plain", "gzip", {"k": "v"}, message_id="7", timestamp=5)
    )
    plain.put([b"2"])
    with SpoutHarness(plain.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 3, 10, "they come")
        harness.ack(harness.arrived)
        assert not harness.reports
    first, second, third = (each.values[2] for each in harness.arrived)
    assert first == {name: expected for name, (_, expected) in VALUES.items()}
    assert {name: type(value) for name, value in first.items()} == {
        name: type(expected) for name, (_, expected) in VALUES.items()
    }
    assert (second, third) == ({"k": "v"}, {})


@pytest.mark.parametrize("key", ["header:order", "message_id", lambda message: message["headers"]["order"]])
def test_a_message_that_comes_again_with_its_key_waits_for_the_first_and_one_without_a_key_does_not(
    plain: Queue, key: object
) -> None:
    properties = pika.BasicProperties(headers={"order": "A-17"}, message_id="m-1")
    for _ in range(2):
        plain.channel.basic_publish("", QUEUE, b"keyed", properties)
        plain.put([b"plain"])
    with SpoutHarness(RabbitMQSpout(plain.url(), QUEUE, key=key)) as harness:
        harness.until(lambda: harness.task.open_count == 4, 10, "they come")
        assert sorted(each.values[0] for each in harness.arrived) == [b"keyed", b"plain", b"plain"]
        harness.fail([each for each in harness.arrived if each.values[0] == b"keyed"])
        harness.until(lambda: len(harness.arrived) == 4, 10, "the other one takes its place")
    with pytest.raises(ConfigError, match="key is 'order'"):
        RabbitMQSpout(plain.url(), QUEUE, key="order")


def test_a_message_with_a_key_that_was_acked_does_not_run_again(plain: Queue) -> None:
    properties = pika.BasicProperties(message_id="m-1")
    spout = RabbitMQSpout(plain.url(), QUEUE, key="message_id")
    check_that_a_key_runs_once(
        spout, lambda: plain.channel.basic_publish("", QUEUE, b"m", properties), plain.count
    )


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("header:order", ["A-17", None]), ("body:n", ["1", None]), ("message_id", ["m-1", None]),
        (lambda message: f"{message['routing_key']}-{message['headers']['order']}", [f"{QUEUE}-A-17", None]),
    ],
)  # fmt: skip
def test_a_message_is_labelled_from_where_the_spout_says_or_goes_on_without(
    plain: Queue, label: object, expected: list[object]
) -> None:
    others = {
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "delivery_mode": 2,
    }
    properties = pika.BasicProperties(headers={"order": "A-17"}, message_id="m-1", **others)
    plain.channel.basic_publish("", QUEUE, b'{"n": 1}', properties)
    plain.put([b"no JSON"])
    with SpoutHarness(RabbitMQSpout(plain.url(), QUEUE, label=label)) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 10, "they come")
        assert [each.label for each in harness.arrived] == expected
        harness.fail(harness.arrived[:1])
        harness.until(lambda: len(harness.arrived) == 3, 10, "it comes again")
        assert harness.arrived[2].label == expected[0]
        harness.ack(harness.arrived[1:])
        assert len(harness.reports) == callable(label)
    assert plain.count() == 0


@pytest.mark.parametrize("depth", [120, 121])
def test_headers_that_cannot_be_read_are_reported_and_hold_nothing_up(plain: Queue, depth: int) -> None:
    publish(plain, b"odd", {"deep": nested(depth)})
    plain.put([b"good"])
    with SpoutHarness(RabbitMQSpout(plain.url(), QUEUE, prefetch=1)) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        harness.ack(harness.arrived)
        harness.until(lambda: len(harness.arrived) == 2, 10, "the next one comes")
        [report] = harness.reports
    assert [each.values[2] for each in harness.arrived] == [None, {}]
    assert "headers of a message cannot be read" in report.reason


def test_what_cannot_be_emitted_goes_back(plain: Queue) -> None:
    check_that_what_cannot_be_emitted_goes_back(plain)


def test_a_stream_is_refused(plain: Queue) -> None:
    arguments = {"x-queue-type": "stream"}
    plain.channel.queue_declare("clicks", durable=True, arguments=arguments)
    try:
        with pytest.raises(ConnectorError, match="'clicks' is a stream") as refused:
            SpoutHarness(RabbitMQSpout(plain.url(), "clicks"))
    finally:
        plain.channel.queue_delete("clicks")
    assert not refused.value.can_retry
