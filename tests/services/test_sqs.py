"""The connector of SQS against moto. An outage of SQS is, to a client, that it cannot be reached."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

boto3 = pytest.importorskip("boto3")

from acktree import Config, ConfigError, ConnectorError, Retry, TopologyBuilder  # noqa: E402
from acktree.connectors import sqs_client as connector  # noqa: E402
from acktree.connectors.sqs import SqsSink, SqsSpout  # noqa: E402
from acktree.testing import SPOUT_CHECKS, FeederSpout, LocalCluster, SpoutHarness, check_spout  # noqa: E402
from tests.services.named import check_that_a_key_runs_once, digest, names_of, refused_before  # noqa: E402
from tests.services.proxied import (  # noqa: E402
    ProxiedBroker,
    check_that_a_hang_is_reported,
    check_that_leases_are_kept,
    check_that_what_cannot_be_emitted_goes_back,
)
from tests.services.proxy import Proxy  # noqa: E402
from tests.services.servers import Moto  # noqa: E402

QUEUE, DEAD, VISIBILITY_SECS = "orders", "orders-dead", 1


class Canned:
    """A server that answers every request alike: what moto does not do, as it takes any credentials."""

    def __init__(self, status: int, answer: dict):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @classmethod
    def refusing(cls, code: str, status: int) -> Canned:
        """With one error of SQS's."""
        return cls(status, {"__type": f"com.amazonaws.sqs#{code}", "message": "as the test says"})

    def remove(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Queue(ProxiedBroker):
    """A queue of moto's, which is away when the proxy is."""

    shortest_lease_secs = VISIBILITY_SECS
    redelivery_secs = 1.5
    acks_belong_to_connection = False
    counts_attempts = True
    secret = "S3cr3t"

    def __init__(self, server: Moto, given_up: str = "dead_letter"):
        super().__init__(server)
        self.given_up = given_up
        self.port = self.proxy.port
        self.refusing = Canned.refusing("UnrecognizedClientException", 403)
        self.client = boto3.client("sqs", region_name="us-east-1", endpoint_url=server.url)

    def make_spout(self, queue: str = QUEUE, endpoint: str | None = None, **more) -> SqsSpout:
        endpoint = endpoint or f"http://127.0.0.1:{self.port}"
        more = {"wait_secs": 0, "given_up": self.given_up} | more
        return SqsSpout(f"{endpoint}/123456789012/{queue}", endpoint_url=endpoint, **more)

    def url(self, queue: str = QUEUE) -> str:
        return f"{self.server.url}/123456789012/{queue}"

    def put(self, bodies):
        for first in range(0, len(bodies), 10):
            page = bodies[first : first + 10]
            entries = [{"Id": str(n), "MessageBody": body.decode()} for n, body in enumerate(page)]
            self.client.send_message_batch(QueueUrl=self.url(), Entries=entries)

    def body_of(self, values):
        return values[0].encode()

    def count(self):
        if self.given_up == "reject":  # the redrive policy is applied when somebody asks for messages
            self.client.receive_message(QueueUrl=self.url(), VisibilityTimeout=0)
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.client.get_queue_attributes(QueueUrl=self.url(), AttributeNames=names)["Attributes"]
        return sum(map(int, answer.values()))

    def stop(self):
        self.proxy.remove()

    kill = stop

    def start(self):
        self.proxy = Proxy(self.server.port, self.port)

    def drop_queue(self):
        self.client.delete_queue(QueueUrl=self.url())

    def clear(self):
        for queue in (QUEUE, DEAD):
            with suppress(self.client.exceptions.QueueDoesNotExist):
                self.client.delete_queue(QueueUrl=self.url(queue))
        self.client.create_queue(QueueName=DEAD)
        settings = {"VisibilityTimeout": str(VISIBILITY_SECS)}
        if self.given_up == "reject":
            dead = f"arn:aws:sqs:us-east-1:123456789012:{DEAD}"
            settings["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": "1"})
        self.client.create_queue(QueueName=QUEUE, Attributes=settings)

    def dead_letters(self):
        found = self.client.receive_message(
            QueueUrl=self.url(DEAD), MaxNumberOfMessages=10, VisibilityTimeout=0
        )
        return [each["Body"].encode() for each in found.get("Messages", ())]

    def misconfigured(self):
        secure = f"https://127.0.0.1:{self.port}"
        return {
            "an absent queue": (lambda: self.make_spout("nowhere"), False),
            "no server": (lambda: self.make_spout(endpoint="http://127.0.0.1:1"), True),
            "TLS on a plain port": (lambda: self.make_spout(endpoint=secure), False),
            "a wrong password": (lambda: self.make_spout(endpoint=self.refusing.url), False),
        }

    def remove(self):
        self.client.close()
        self.refusing.remove()
        self.proxy.remove()


@pytest.fixture(scope="module")
def queue(sqs):
    made = Queue(sqs)
    yield made
    made.remove()


def test_a_check_sees_whether_the_queue_is_there(queue: Queue) -> None:
    queue.clear()
    queue.make_spout().check(Config(), None)
    with pytest.raises(ConnectorError) as raised:
        queue.make_spout("nowhere").check(Config(), None)
    assert not raised.value.can_retry


def test_a_check_of_the_sink_sees_the_queue_its_kind_and_the_fields_and_sends_nothing(queue: Queue) -> None:
    queue.clear()
    endpoint = f"http://127.0.0.1:{queue.port}"

    def refused(name=QUEUE, fields=("body", "n"), endpoint=endpoint, **more):
        return refused_before(
            SqsSink(f"{endpoint}/123456789012/{name}", endpoint_url=endpoint, **more), fields
        )

    assert refused() is None
    assert queue.count() == 0
    assert refused("nowhere").what.startswith("there is no such queue")
    assert not refused("nowhere").can_retry
    assert "has a field 'body'" in refused(fields=["n"]).what
    assert "has a field 'group'" in refused(group_id="group").what
    assert refused(endpoint="http://127.0.0.1:1").can_retry
    for name, by_content in (("one.fifo", "true"), ("two.fifo", "false")):
        settings = {"FifoQueue": "true", "ContentBasedDeduplication": by_content}
        queue.client.create_queue(QueueName=name, Attributes=settings)
        assert "have no group" in refused(name).what
        assert refused(name, group_id="n", deduplication_id=lambda tup: "x") is None
    assert refused("one.fifo", group_id="n") is None
    assert "nothing names a duplicate" in refused("two.fifo", group_id="n").what
    refusing = Canned.refusing("AccessDenied", 403)  # who may send, and not ask
    assert refused(endpoint=refusing.url) is None
    refusing.remove()


@pytest.mark.slow
@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_the_spout_keeps_the_contract(queue: Queue, check: str) -> None:
    check_spout(queue.make_spout, queue, only=[check])


@pytest.mark.slow
def test_a_rejected_message_ends_in_the_queue_of_the_redrive_policy(sqs) -> None:
    queue = Queue(sqs, "reject")
    try:
        check_spout(queue.make_spout, queue, only=["what is given up has one copy"])
    finally:
        queue.remove()


def test_a_queue_without_a_redrive_policy_cannot_be_rejected_to(queue: Queue) -> None:
    queue.clear()
    with pytest.raises(ConnectorError, match="no redrive policy"):
        SpoutHarness(queue.make_spout(given_up="reject"))


@pytest.mark.parametrize(
    ("code", "status", "may_pass", "words"),
    [
        ("RequestThrottled", 400, True, "throttles"),
        ("OverLimit", 403, True, "in flight"),
        ("InternalError", 500, True, "connection to SQS is gone"),
        ("AccessDeniedException", 403, False, "refused access"),
        ("SomethingNew", 400, False, "SomethingNew"),
    ],
)
def test_an_error_of_sqs_says_who_must_act(queue: Queue, code, status, may_pass, words) -> None:
    refusing = Canned.refusing(code, status)
    try:
        with pytest.raises(ConnectorError, match=words) as raised:
            queue.make_spout(endpoint=refusing.url).open(None, None, None)
    finally:
        refusing.remove()
    assert raised.value.can_retry is may_pass


def test_missing_credentials_are_reported_with_the_fix(queue: Queue, monkeypatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConnectorError, match="refused the login"):
        queue.make_spout().open(None, None, None)


def test_the_server_waits_for_messages_and_those_not_emitted_are_given_back_at_the_end(queue: Queue) -> None:
    queue.clear()
    with SpoutHarness(queue.make_spout(wait_secs=1, visibility_secs=600), max_spout_pending=1) as harness:
        queue.put([b"0", b"1", b"2"])
        harness.until(lambda: len(harness.arrived) == 1, 10, "one comes")
        harness.until(lambda: len(harness.spout._waiting()) == 2, 10, "two wait")
    with SpoutHarness(queue.make_spout(visibility_secs=600)) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 10, "what waited comes at once")


def test_a_second_delivery_of_an_open_message_is_not_emitted_and_its_handle_deletes_the_message(
    queue: Queue,
) -> None:
    queue.clear()
    queue.put([b"0"])
    with SpoutHarness(queue.make_spout(visibility_secs=600)) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        [(message_id, handle)] = harness.spout._handles.items()
        queue.client.change_message_visibility(
            QueueUrl=queue.url(), ReceiptHandle=handle, VisibilityTimeout=0
        )
        harness.until(lambda: harness.spout._handles[message_id] != handle, 10, "it comes again")
        assert len(harness.arrived) == 1
        harness.ack(harness.arrived)
    assert queue.count() == 0


def test_a_message_acked_with_an_old_handle_is_deleted_at_its_next_delivery(queue: Queue) -> None:
    queue.clear()
    queue.put([b"0"])
    with SpoutHarness(queue.make_spout(visibility_secs=600)) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        [handle] = harness.spout._handles.values()
        queue.client.change_message_visibility(
            QueueUrl=queue.url(), ReceiptHandle=handle, VisibilityTimeout=0
        )
        deadline = time.monotonic() + 10
        while not harness.spout._waiting() and time.monotonic() < deadline:
            time.sleep(0.01)  # and next_tuple is not called
        harness.ack(harness.arrived)
        harness.until(lambda: queue.count() == 0, 10, "it is deleted")
        assert len(harness.arrived) == 1


def test_an_acked_message_is_not_emitted_again_after_its_delete_was_throttled() -> None:
    deleted, emitted, waiting, throttled = [], [], [], []

    class Client:
        def delete_message_batch(self, QueueUrl, Entries):  # noqa: N803  # boto3's
            if throttled:
                error = {"Code": "RequestThrottled", "Message": throttled.pop()}
                raise connector.botocore.exceptions.ClientError({"Error": error}, "DeleteMessageBatch")
            deleted.extend(entry["ReceiptHandle"] for entry in Entries)
            return {}

        def get_queue_attributes(self, **_):
            return {}

    class Receiver:
        def get(self):
            return waiting.pop(0) if waiting else None

        def waiting(self):
            return waiting

    class Collector:
        report_error = pytest.fail

        def emit(self, values, message_id, **_):
            emitted.append(message_id)

    def deliver(handle: str, attempt: int) -> None:
        waiting.append(connector.Message("m", handle, attempt, "body", {}, time.monotonic()))

    spout = SqsSpout("http://127.0.0.1:1/1/q")
    spout._client, spout._receivers, spout._collector = Client(), [Receiver()], Collector()
    deliver("h1", 1)
    spout.next_tuple()
    deliver("h2", 2)
    spout.ack_batch(emitted)
    throttled.append("slow down")
    with pytest.raises(ConnectorError, match="throttles"):
        spout.next_tuple()
    deliver("h3", 3)
    spout.next_tuple()
    assert (emitted, deleted) == ([("m", "h1")], ["h1", "h3"])
    deliver("h4", 4)  # as after a redrive: it was deleted, and is a message again
    spout.next_tuple()
    assert len(emitted) == 2


def run_sink(sink: SqsSink, rows: list[dict]) -> FeederSpout:
    feeder = FeederSpout(["body", "attributes"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    builder.set_bolt("sink", sink).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for n, row in enumerate(rows):
            feeder.feed([row["body"], row.get("attributes", {})], message_id=n)
        cluster.advance()
    return feeder


def test_the_sink_acks_what_was_sent_and_a_refused_message_fails_alone(queue: Queue) -> None:
    queue.clear()
    rows = [{"body": f"body {n}"} for n in range(12)]
    rows[0]["attributes"] = {"text": "t", "bytes": b"b", "number": 3, "SenderId": "not sent"}
    assert sorted(run_sink(SqsSink(queue.url(), endpoint_url=queue.server.url), rows).acked) == [*range(12)]
    with SpoutHarness(queue.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 12, 10, "12 messages come")
    [attributes] = [each.values[1] for each in harness.arrived if each.values[0] == "body 0"]
    assert (attributes["text"], attributes["bytes"], attributes["number"]) == ("t", b"b", "3")
    assert attributes["SenderId"] != "not sent"
    refusal = {
        "Id": "1",
        "SenderFault": True,
        "Code": "InvalidMessageContents",
        "Message": "no such character",
    }
    taken = {"Id": "0", "MessageId": "0", "MD5OfMessageBody": hashlib.md5(b"body 1").hexdigest()}
    canned = Canned(200, {"Successful": [taken], "Failed": [refusal]})
    try:
        feeder = run_sink(SqsSink(f"{canned.url}/1/q", endpoint_url=canned.url), rows[1:3])
    finally:
        canned.remove()
    [(message_id, failure)] = feeder.failed
    assert (feeder.acked, message_id) == ([0], 1)
    assert "InvalidMessageContents" in failure.reason


def test_a_fifo_queue_keeps_the_order_of_a_group_and_recognizes_a_duplicate_by_its_id(queue: Queue) -> None:
    name = "orders.fifo"
    queue.client.create_queue(QueueName=name, Attributes={"FifoQueue": "true", "VisibilityTimeout": "600"})
    rows = [{"body": str(n), "attributes": {"order": "a"}} for n in (0, 1, 2, 1)]
    sink = SqsSink(
        queue.url(name), endpoint_url=queue.server.url, deduplication_id="body",
        group_id=lambda tup: tup["attributes"]["order"],
    )  # fmt: skip
    assert sorted(run_sink(sink, rows).acked) == [0, 1, 2, 3]
    with SpoutHarness(queue.make_spout(name)) as harness:
        harness.until(lambda: len(harness.arrived) == 3, 10, "3 messages come")
        harness.ack(harness.arrived)
    assert [each.values[0] for each in harness.arrived] == ["0", "1", "2"]
    assert harness.arrived[0].values[1]["MessageGroupId"] == "a"
    queue.client.delete_queue(QueueUrl=queue.url(name))


def test_a_request_has_at_most_as_many_bytes_as_every_queue_takes(queue: Queue) -> None:
    queue.clear()
    rows = [{"body": str(n) * 100_000} for n in range(5)]
    assert sorted(run_sink(SqsSink(queue.url(), endpoint_url=queue.server.url), rows).acked) == [*range(5)]


@pytest.mark.parametrize("url", ["sqs.amazonaws.com/1/q", "https://me:S3cr3t@host/1/q", "ftp://host/q"])
def test_a_url_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SqsSpout(url)
    assert "S3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong", [{"given_up": "drop"}, {"visibility_secs": 0}, {"threads": 0}, {"wait_secs": 21}]
)
def test_a_setting_that_cannot_be_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SqsSpout("https://sqs.eu-west-1.amazonaws.com/1/q", **wrong)


def test_a_server_that_answers_no_more_is_an_outage(queue: Queue, monkeypatch) -> None:
    monkeypatch.setattr(connector, "_READ_SECS", 0.5)
    check_that_a_hang_is_reported(queue)


def test_no_other_consumer_gets_open_or_waiting_messages(queue: Queue) -> None:
    check_that_leases_are_kept(queue)


@pytest.mark.parametrize(
    ("place", "label", "key"),
    [
        ("attribute:order", "A-17", "A-17"), ("attribute:raw", "\\xff", b"\xff"), ("body:n", "1", 1),
        ("attribute:MessageGroupId", "g", "g"), ("deduplication_id", "d-1", "d-1"),
        (lambda message: message["body"], '{"n": 1}', '{"n": 1}'),
    ],
)  # fmt: skip
def test_a_message_is_named_from_where_the_spout_says(
    queue: Queue, place: object, label: str, key: object
) -> None:
    made = queue.client.create_queue(QueueName="named.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    attributes = {
        "order": {"DataType": "String", "StringValue": "A-17"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff"},
    }
    try:
        queue.client.send_message(
            QueueUrl=made, MessageBody='{"n": 1}', MessageGroupId="g", MessageDeduplicationId="d-1",
            MessageAttributes=attributes,
        )  # fmt: skip
        assert names_of(queue.make_spout("named.fifo", label=place, key=place), 1) == [(label, digest(key))]
    finally:
        queue.client.delete_queue(QueueUrl=made)


def test_a_message_is_named_by_its_id_and_one_without_a_name_goes_on(queue: Queue) -> None:
    queue.clear()
    sent = queue.client.send_message(QueueUrl=queue.url(), MessageBody="no JSON")["MessageId"]
    assert names_of(queue.make_spout(label="message_id", key="body:n"), 1) == [(sent, b"")]
    assert queue.count() == 0


def test_a_message_with_a_key_that_was_acked_does_not_run_again(queue: Queue) -> None:
    queue.clear()
    attributes = {"order": {"DataType": "String", "StringValue": "A-17"}}
    check_that_a_key_runs_once(
        queue.make_spout(key="attribute:order"),
        lambda: queue.client.send_message(
            QueueUrl=queue.url(), MessageBody="m", MessageAttributes=attributes
        ),
        queue.count,
    )


def test_what_cannot_be_emitted_goes_back(queue: Queue) -> None:
    check_that_what_cannot_be_emitted_goes_back(queue)


def test_an_attribute_of_a_message_counts_no_delivery(queue: Queue) -> None:
    queue.clear()
    count = {"DataType": "Number", "StringValue": "9"}
    for name in ("ApproximateReceiveCount", "attempt"):
        queue.client.send_message(QueueUrl=queue.url(), MessageBody=name, MessageAttributes={name: count})
    with SpoutHarness(queue.make_spout(), retry=Retry(max_attempts=3)) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 10, "they come")
        harness.ack(harness.arrived)
    assert [each.attempt for each in harness.arrived] == [1, 1]


@pytest.mark.parametrize(
    ("system", "attempt"),
    [
        ({"ApproximateReceiveCount": "4"}, 4),
        ({"ApproximateReceiveCount": "4", "DeadLetterQueueSourceArn": "arn:aws:sqs:::orders"}, 1),
        ({"ApproximateReceiveCount": "many"}, 1),
        ({"ApproximateReceiveCount": "0"}, 1),
        ({"ApproximateReceiveCount": "9" * 30}, 1),
        ({"ApproximateReceiveCount": ""}, 1),
        ({}, 1),
    ],
)
def test_the_count_of_this_queue_is_the_attempt(system, attempt: int) -> None:
    message = {"MessageId": "m", "ReceiptHandle": "h", "Body": "b", "Attributes": system}
    assert connector.read(message, 0.0).attempt == attempt
