"""The connector of NATS JetStream against a real server."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import deque
from contextlib import suppress
from functools import partial

import pytest

nats = pytest.importorskip("nats")

from nats.js.api import AckPolicy, ConsumerConfig, StreamSource  # noqa: E402

from acktree import Config, ConfigError, ConnectorError, TopologyBuilder  # noqa: E402
from acktree.connectors import nats_client as connector  # noqa: E402
from acktree.connectors.nats import JetStreamSink, JetStreamSpout  # noqa: E402
from acktree.testing import SPOUT_CHECKS, FeederSpout, LocalCluster, SpoutHarness, check_spout  # noqa: E402
from tests.services.named import check_that_a_key_runs_once, digest, names_of, refused_before  # noqa: E402
from tests.services.proxied import (  # noqa: E402
    ProxiedBroker,
    check_that_a_hang_is_reported,
    check_that_leases_are_kept,
    check_that_what_cannot_be_emitted_goes_back,
)
from tests.services.servers import Nats  # noqa: E402

STREAM, SUBJECT, CONSUMER, ACK_WAIT_SECS = "ORDERS", "orders.new", "totals", 0.6
TERMINATED = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{STREAM}.{CONSUMER}"


class Stream(ProxiedBroker):
    """A stream with one pull consumer."""

    shortest_lease_secs = ACK_WAIT_SECS
    redelivery_secs = 1.2
    acks_belong_to_connection = False
    counts_attempts = True

    def __init__(self, server: Nats, given_up: str = "dead_letter"):
        super().__init__(server)
        self.given_up = given_up
        self.runner = asyncio.Runner()
        self.terminated: deque[int] = deque()
        self.client = None
        self.do(self._connect())

    def do(self, coroutine):
        return self.runner.run(coroutine)

    async def _connect(self):
        if self.client is not None:
            await self.client.close()
        self.client = await nats.connect(self.server.url, allow_reconnect=False, ping_interval=3600)
        self.js = self.client.jetstream()
        await self.client.subscribe(TERMINATED, cb=self._note)
        await self.client.flush()

    async def _note(self, message):
        self.terminated.append(json.loads(message.data)["stream_seq"])

    def url(self, login: str = "reader:right@", scheme: str = "nats") -> str:
        return f"{scheme}://{login}127.0.0.1:{self.proxy.port}"

    def make_spout(self, url: str | None = None, stream=STREAM, consumer=CONSUMER, **more) -> JetStreamSpout:
        return JetStreamSpout(url or self.url(), stream, consumer, given_up=self.given_up, **more)

    def put(self, bodies):
        async def publish():
            await asyncio.gather(*(self.js.publish(SUBJECT, body) for body in bodies))

        self.do(publish())

    def body_of(self, values):
        return values[1]

    def info(self):
        return self.do(self.js.consumer_info(STREAM, CONSUMER))

    def count(self):
        info = self.info()
        return info.num_pending + info.num_ack_pending

    def start(self):
        super().start()
        self.do(self._connect())

    def drop_queue(self):
        self.do(self.js.delete_stream(STREAM))

    def clear(self, **settings):
        async def make():
            with suppress(nats.js.errors.NotFoundError):
                await self.js.delete_stream(STREAM)
            await self.js.add_stream(name=STREAM, subjects=[SUBJECT])
            config = {"durable_name": CONSUMER, "ack_policy": AckPolicy.EXPLICIT, "ack_wait": ACK_WAIT_SECS}
            await self.js.add_consumer(STREAM, ConsumerConfig(**(config | settings)))
            await self.client.flush()

        self.do(make())
        self.terminated.clear()

    def dead_letters(self):
        async def look():
            await self.client.flush()
            return [(await self.js.get_msg(STREAM, sequence)).data for sequence in self.terminated]

        return self.do(look())

    def remove(self):
        self.do(self.client.close())
        self.runner.close()
        self.proxy.remove()

    def misconfigured(self):
        nowhere = f"nats://reader:{self.secret}@127.0.0.1:1"
        # Not through the proxy: its reset may overtake the server's last word.
        refused = self.server.url.replace("right", self.secret)
        return {
            "a wrong password": (lambda: self.make_spout(refused), False),
            "no right to the consumer": (lambda: self.make_spout(self.url("stranger:right@")), False),
            "an absent stream": (lambda: self.make_spout(stream="NOWHERE"), False),
            "an absent consumer": (lambda: self.make_spout(consumer="nobody"), False),
            "no server": (lambda: self.make_spout(nowhere), True),
            "TLS on a plain port": (lambda: self.make_spout(self.url(scheme="tls")), False),
        }


@pytest.fixture(scope="module")
def stream(nats_server):
    made = Stream(nats_server)
    yield made
    made.remove()


@pytest.mark.slow
@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_the_spout_keeps_the_contract(stream: Stream, check: str) -> None:
    check_spout(stream.make_spout, stream, only=[check])


def test_a_check_sees_what_is_missing_and_takes_no_message(stream: Stream) -> None:
    stream.clear()
    stream.put([b"one"])
    stream.make_spout().check(Config(), None)
    assert (stream.info().num_pending, stream.info().num_ack_pending) == (1, 0)
    with pytest.raises(ConnectorError) as raised:
        stream.make_spout(consumer="nobody").check(Config(), None)
    assert not raised.value.can_retry
    with pytest.raises(ConnectorError) as raised:
        stream.make_spout("nats://127.0.0.1:1").check(Config(), None)
    assert raised.value.can_retry


def test_a_check_of_the_sink_sees_server_subject_and_fields_and_publishes_nothing(stream: Stream) -> None:
    stream.clear()
    fields = ("data", "n")

    def refused(url=None, subject=SUBJECT, fields=fields, **more):
        return refused_before(JetStreamSink(url or stream.url(), subject, **more), fields)

    assert refused() is None
    assert refused(subject=lambda tup: tup["n"]) is None
    assert refused(message_id="n") is None
    assert refused(stream.url("poor:right@")) is None
    assert stream.info().num_pending == 0
    absent = refused(subject="nowhere.at.all")
    assert (absent.what, absent.can_retry) == ("JetStream has no stream that takes this subject", False)
    assert "nats stream add --subjects" in absent.fix
    assert "is not a subject" in refused(subject="orders.*").what
    for field, given in (("data", {"fields": ["n"]}), ("key", {"message_id": "key"})):
        error = refused(**given)
        assert isinstance(error, ConfigError)
        assert f"no field {field!r}" in error.what or f"has a field {field!r}" in error.what
    away = refused("nats://127.0.0.1:1")
    assert away.can_retry
    wrong = refused(stream.server.url.replace("right", stream.secret))
    assert not wrong.can_retry
    assert stream.secret not in str(wrong)
    # This user may publish nothing to $JS.API: whether it may publish to the subject is not known.
    assert refused(stream.url("stranger:right@")) is None


def test_a_rejected_message_is_terminated_and_only_jetstream_reports_it(nats_server) -> None:
    stream = Stream(nats_server, "reject")
    try:
        check_spout(stream.make_spout, stream, only=["what is given up has one copy"])
    finally:
        stream.remove()


def test_the_limit_of_a_consumer_that_allows_few_open_messages_is_raised_unless_it_is_none(
    stream: Stream,
) -> None:
    stream.clear(max_ack_pending=5)
    stream.put([b"%d" % n for n in range(20)])
    with SpoutHarness(stream.make_spout(max_ack_pending=None)) as harness:
        harness.until(lambda: len(harness.arrived) == 5, 10, "5 messages come")
        harness.rest(0.3)
        assert len(harness.arrived) == 5
        assert harness.task.spout.lag() == 15
    with SpoutHarness(stream.make_spout(max_ack_pending=100)) as harness:
        harness.until(lambda: len(harness.arrived) == 20, 10, "20 messages come")
        assert stream.info().config.max_ack_pending == 100


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"ack_policy": AckPolicy.ALL}, "ack policy"), ({"deliver_subject": "elsewhere"}, "push consumer")],
)
def test_a_consumer_whose_acks_mean_something_else_is_refused(stream: Stream, settings, reason: str) -> None:
    stream.clear(**settings)
    with pytest.raises(ConnectorError, match=reason):
        SpoutHarness(stream.make_spout())


def test_what_the_consumer_gives_up_by_itself_is_reported(stream: Stream) -> None:
    stream.clear(max_deliver=2)
    stream.put([b"poison"])
    with SpoutHarness(stream.make_spout(nak_delay_secs=0.2)) as harness:
        for attempt in (1, 2):
            harness.until(lambda: len(harness.arrived) == attempt, 10, "it comes")  # noqa: B023
            began = time.monotonic()
            harness.fail(harness.arrived[-1:])
        harness.until(lambda: bool(harness.reports), 10, "it is reported")
        assert time.monotonic() - began >= 0.2
        assert [each.attempt for each in harness.arrived] == [1, 2]
        assert "gave up message 1" in harness.reports[0].reason


def test_what_an_earlier_run_left_open_is_kept_and_not_emitted_again(stream: Stream) -> None:
    stream.clear()
    stream.put([b"0", b"1"])
    emitted = []

    class Collector:
        def emit(self, values, message_id=None, attempt=1, label=None, key=None):
            emitted.append((values[1], message_id, attempt))

        report_error = pytest.fail

        def wake(self):
            pass

    class Context:
        open_message_ids = ()
        max_spout_pending = None

    class Open:
        def older_than(self, secs):
            return Context.open_message_ids

    def run(spout, secs):
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline:
            spout.next_tuple()
            spout.keep_alive(Open())
            time.sleep(0.05)

    first, second = stream.make_spout(), stream.make_spout()
    first.open(None, Context, Collector())
    run(first, 0.5)
    first.close()
    assert [body for body, _, _ in emitted] == [b"0", b"1"]
    Context.open_message_ids = (emitted[0][1],)
    del emitted[:]
    second.open(None, Context, Collector())
    run(second, 2.5 * ACK_WAIT_SECS)
    assert [(body, attempt) for body, _, attempt in emitted[:1]] == [(b"1", 2)]
    assert {body for body, _, _ in emitted} == {b"1"}
    second.ack_batch([Context.open_message_ids[0], emitted[-1][1]])
    second.close()
    assert stream.count() == 0


class Bare:
    """A spout without a harness: its open messages are what the test says."""

    max_spout_pending = None
    report_error = staticmethod(pytest.fail)

    def __init__(self, spout: JetStreamSpout, open_message_ids=()):
        self.open_message_ids, self.emitted = tuple(open_message_ids), []
        self.spout = spout
        spout.open(None, self, self)

    def emit(self, values, message_id=None, attempt=1, label=None, key=None):
        self.emitted.append((values[1], message_id, attempt))

    def wake(self):
        pass

    def until(self, count, secs=10.0):
        """Until that many are emitted. A consumer that is not there yet is no failure."""
        deadline = time.monotonic() + secs
        while len(self.emitted) < count:
            assert time.monotonic() < deadline, self.emitted
            with suppress(ConnectorError):
                self.spout.next_tuple()
            time.sleep(0.01)

    @property
    def bodies(self):
        return [body for body, _, _ in self.emitted]

    @property
    def ids(self):
        return [message_id for _, message_id, _ in self.emitted]


def test_a_message_of_a_mirror_which_has_the_time_of_its_origin_is_acknowledged(stream: Stream) -> None:
    stream.clear()
    stream.put([b"0", b"1"])
    settings = ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT)
    stream.do(stream.js.add_stream(name="COPY", mirror=StreamSource(name=STREAM)))
    try:
        stream.do(stream.js.add_consumer("COPY", settings))
        run = Bare(stream.make_spout(stream="COPY"))
        run.until(2)
        run.spout.ack_batch(run.ids[:1])
        run.spout.close()
        again = Bare(stream.make_spout(stream="COPY"), run.ids[1:])
        again.spout.ack_batch(run.ids[1:])
        again.spout.close()
        info = stream.do(stream.js.consumer_info("COPY", CONSUMER))
    finally:
        stream.do(stream.js.delete_stream("COPY"))
    assert (info.num_pending, info.num_ack_pending) == (0, 0)


def test_a_message_whose_server_is_behind_the_one_that_made_the_stream_is_acknowledged(
    stream: Stream,
) -> None:
    stream.clear()
    run = Bare(stream.make_spout())
    run.spout._session.made_ns = time.time_ns() + 10**9
    stream.put([b"0"])
    run.until(1)
    run.spout.ack_batch(run.ids)
    run.spout.close()
    assert stream.count() == 0


def test_the_sink_acks_what_was_stored_and_a_refused_message_fails_alone(stream: Stream) -> None:
    stream.clear()
    feeder = FeederSpout(["data", "headers", "subject"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    sink = JetStreamSink(stream.server.url, lambda tup: tup["subject"], message_id="data")
    builder.set_bolt("sink", sink).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for round_ in range(2):
            for n in range(4):
                subject = SUBJECT if n != 2 else "nowhere"
                feeder.feed([str(n), {"n": str(n)}, subject], message_id=(round_, n))
            cluster.advance()
    assert sorted(feeder.acked) == [(round_, n) for round_ in range(2) for n in (0, 1, 3)]
    assert [message_id for message_id, _ in feeder.failed] == [(0, 2), (1, 2)]
    assert "no stream that takes this subject" in feeder.failed[0][1].reason
    assert stream.count() == 3  # the second round was known by its ids
    first = stream.do(stream.js.get_msg(STREAM, 1))
    assert (first.data, first.headers["n"]) == (b"0", "0")


def test_what_the_sink_cannot_send_waits_until_the_server_is_back(stream: Stream) -> None:
    stream.clear()
    feeder = FeederSpout(["data"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    builder.set_bolt("sink", JetStreamSink(stream.server.url, SUBJECT)).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for n in range(3):
            if n == 1:
                stream.stop()
            feeder.feed([b"%d" % n], message_id=n)
            cluster.advance()
            if n == 1:
                outage = running.stats()["feeder"].outage
                stream.start()
        cluster.advance(60)
    assert (sorted(feeder.acked), feeder.failed) == ([0, 1, 2], [])
    assert "connection to NATS is gone" in outage.reason
    assert "right" not in outage.reason


@pytest.mark.parametrize("url", ["http://me:S3cr3t@host", "nats://me:S3cr3t@host:port", "nats://", "S3cr3t"])
def test_a_url_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        JetStreamSpout(url, STREAM, CONSUMER)
    assert "S3cr3t" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"given_up": "drop"}, {"nak_delay_secs": -1}, {"max_ack_pending": 0}])
def test_a_setting_that_cannot_be_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        JetStreamSpout("nats://127.0.0.1", STREAM, CONSUMER, **wrong)


def test_a_server_that_answers_no_more_is_an_outage(stream: Stream, monkeypatch) -> None:
    monkeypatch.setattr(connector, "CONNECT_SECS", 1.0)
    check_that_a_hang_is_reported(stream)


def test_no_other_consumer_gets_open_or_waiting_messages(stream: Stream) -> None:
    check_that_leases_are_kept(stream)


def test_what_comes_again_while_it_is_open_is_not_emitted_again(stream: Stream) -> None:
    stream.clear()
    stream.put([b"0"])
    with SpoutHarness(stream.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        [(sequence, reply)] = harness.spout._replies.items()
        stream.do(stream.client.publish(reply, b"-NAK"))
        stream.do(stream.client.flush())
        harness.until(lambda: harness.spout._replies[sequence] != reply, 10, "it comes again")
        assert len(harness.arrived) == 1
        harness.ack(harness.arrived)
    assert stream.count() == 0


def publish_raw(stream: Stream, header: bytes, data: bytes) -> None:
    """Publish a message whose header block is these bytes, which no client sends, and the server takes."""
    with socket.create_connection(("127.0.0.1", stream.server.port), 10) as connection:
        connection.recv(4096)
        connection.sendall(b'CONNECT {"user":"reader","pass":"right","headers":true,"verbose":false}\r\n')
        sizes = len(header), len(header) + len(data)
        connection.sendall(b"HPUB %s %d %d\r\n%s%s\r\nPING\r\n" % (SUBJECT.encode(), *sizes, header, data))
        answer = b""
        while not answer.endswith(b"PONG\r\n"):
            answer += connection.recv(4096)


HEADERS = {
    "status 408": (
        b"NATS/1.0 408 Request Timeout\r\n\r\n",
        {"Status": "408", "Description": "Request Timeout"},
    ),
    "no colon": (b"NATS/1.0\r\nabc\r\n\r\n", {}),
    "no UTF-8": (b"NATS/1.0\r\na: \xff\r\n\r\n", {"a": "\ufffd"}),
    "too short": (b"\r\n\r\n", None),
    "no version": (b"JUNK\r\n\r\n", None),
}


@pytest.mark.parametrize("name", HEADERS)
def test_no_header_keeps_a_message_or_the_next_one_from_coming(stream: Stream, name: str) -> None:
    raw, expected = HEADERS[name]
    stream.clear()
    publish_raw(stream, raw, b"odd")
    stream.put([b"good"])
    with SpoutHarness(stream.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 10, "both come")
        harness.ack(harness.arrived)
    found = {each.values[1]: each.values[2] for each in harness.arrived}
    assert found == {b"odd": expected, b"good": {}}
    assert [type(key) for key in found[b"odd"] or {}] == [str] * len(expected or {})
    assert ["cannot be read" in each.reason for each in harness.reports] == [True] * (expected is None)
    assert stream.count() == 0


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("header:order", ["A-17", None]), ("body:n", ["1", None]),
        (lambda message: message["subject"], [SUBJECT, SUBJECT]),
    ],
)  # fmt: skip
def test_a_message_is_labelled_from_where_the_spout_says_or_goes_on_without(
    stream: Stream, label: object, expected: list[object]
) -> None:
    stream.clear()
    publish_raw(stream, b"NATS/1.0\r\norder: A-17\r\n\r\n", b'{"n": 1}')
    stream.put([b"no JSON"])
    spout = stream.make_spout()
    labelled = JetStreamSpout(spout._url, spout.stream, spout.consumer, label=label)
    with SpoutHarness(labelled) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 10, "they come")
        assert [each.label for each in harness.arrived] == expected
        harness.ack(harness.arrived)
    assert stream.count() == 0


@pytest.mark.parametrize(
    ("place", "label", "key"),
    [
        ("header:order", "A-17", "A-17"), ("body:n", "1", 1), ("message_id", "m-1", "m-1"),
        ("sequence", "1", 1),
    ],
)  # fmt: skip
def test_a_message_is_named_from_where_the_spout_says(
    stream: Stream, place: str, label: str, key: object
) -> None:
    stream.clear()
    spout = stream.make_spout()
    named = JetStreamSpout(spout._url, spout.stream, spout.consumer, label=place, key=place)
    publish_raw(stream, b"NATS/1.0\r\norder: A-17\r\nNats-Msg-Id: m-1\r\n\r\n", b'{"n": 1}')
    assert names_of(named, 1) == [(label, digest(key))]
    assert stream.count() == 0


def test_a_message_with_a_key_that_was_acked_does_not_run_again(stream: Stream) -> None:
    stream.clear()
    spout = stream.make_spout()
    keyed = JetStreamSpout(spout._url, spout.stream, spout.consumer, key="header:order")
    put = partial(publish_raw, stream, b"NATS/1.0\r\norder: A-17\r\n\r\n", b"m")
    check_that_a_key_runs_once(keyed, put, stream.count)


def test_what_cannot_be_emitted_goes_back(stream: Stream) -> None:
    check_that_what_cannot_be_emitted_goes_back(stream)


@pytest.mark.parametrize("settings", [{}, {"filter_subject": SUBJECT}], ids=["all subjects", "a filter"])
def test_messages_that_limits_removed_before_their_delivery_are_reported(stream: Stream, settings) -> None:
    stream.clear(**settings)
    stream.put([b"%d" % n for n in range(10)])
    stream.do(stream.js.update_stream(name=STREAM, subjects=[SUBJECT], max_msgs=4))
    with SpoutHarness(stream.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 4, 10, "the others come")
        harness.ack(harness.arrived)
        harness.rest(0.6)
        reasons = [each.reason for each in harness.reports]
    if settings:  # nobody knows whether the consumer would have read them
        assert reasons == []
    else:
        [reason] = reasons
        assert "messages 1 to 6 were removed from the stream before they were delivered" in reason


def test_a_user_who_may_not_ask_for_the_stream_reads_it_all_the_same(stream: Stream) -> None:
    stream.clear()
    stream.put([b"0"])
    with SpoutHarness(stream.make_spout(stream.url("poor:right@"))) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        harness.ack(harness.arrived)
        harness.rest(0.5)
        assert not harness.reports
    assert stream.count() == 0
