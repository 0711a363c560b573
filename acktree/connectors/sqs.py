"""Amazon SQS: messages of a queue, each deleted when its tree is done. Needs ``acktree[sqs]``.

Rules of this file
------------------
1. There is no connection: a received message is hidden for a time (its visibility timeout), and is delivered
   again after that. It is identified by its message id, and deleted with the receipt handle of its latest
   delivery.
2. Messages that are open when the driver dies continue from the checkpoint (``redelivers = False``). A second
   delivery of an open message is not emitted.
3. SQS may refuse a delete because the handle is not the latest any more. The message is then deleted when it
   is delivered again.

Source: the SQS developer guide and API reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, Final, Literal

from acktree import (  # isort: skip
    Config, ConfigError, ConnectorError, Failure, OpenMessages, Receiver, Spout, SpoutOutputCollector,
    TaskContext, Tuple,
)  # fmt: skip
from acktree.connectors.batch_sink import BatchSink, Outcome, as_id, headers_of, must_read
from acktree.connectors.message_names import KeyFrom, LabelFrom, MessageNames
from acktree.connectors.sqs_client import (
    LOST,
    PAGE,
    REFUSED,
    Message,
    as_characters,
    client,
    connector_error,
    host_and_path,
    may_not,
    pages_of,
    read,
    refusal_of,
    session_of,
    size_of,
    typed,
)

__all__ = ["SqsSink", "SqsSpout"]

_WAIT_SECS: Final = 5
_MOST_WAIT_SECS: Final = 20
_PAUSE_SECS: Final = 0.2
_MOST_WAITING: Final = 1000
_LAG_SECS: Final = 30.0
_MOST_DONE: Final = 10_000
_SENT_BYTES: Final = 256 * 1024
"""The size of one request that every queue takes."""
_SYSTEM: Final = frozenset(
    {
        "AWSTraceHeader", "ApproximateFirstReceiveTimestamp", "ApproximateReceiveCount",
        "DeadLetterQueueSourceArn", "MessageDeduplicationId", "MessageGroupId", "SenderId", "SentTimestamp",
        "SequenceNumber",
    }
)  # fmt: skip
"""SQS's own attributes of a message."""

_Id = tuple[str, str]
"""(message id, receipt handle)"""


class SqsSpout(Spout):
    """The messages of a queue, standard or FIFO, as ``["body", "attributes"]``.

    Args:
        queue_url: The queue, which must exist. boto3 finds the credentials: in the environment, a profile or
            a role.
        endpoint_url: Another server than AWS's.
        visibility_secs: The visibility timeout: how long a message is hidden from others at a time. It is
            extended while the topology works, up to SQS's 12 hours. None: the queue's own.
        threads: How many threads receive, and how many delete and extend; a request has ten messages.
        wait_secs: How long a request waits for messages, at most 20; ``close`` may take that time. 0: it does
            not wait, and each thread asks an empty queue five times a second.
        given_up: What becomes of a message that a ``Retry`` gives up. ``"dead_letter"``: acktree's dead
            letter is the copy, and the message is deleted. ``"reject"``: it is shown again, until the queue's
            redrive policy moves it, and acktree writes no dead letter.
        label: What people call a message, as of a ``RabbitMQSpout``: ``"attribute:order"``, its own attribute
            or one of SQS's; ``"body:order"`` of a JSON object; ``"deduplication_id"``, ``"message_id"``; or a
            function of ``{"body", "attributes"}``.
        key: What names the message in all its deliveries, from the same places: see ``key`` of ``emit``.

    ``body`` is a text; ``attributes`` is a dict of the message's own attributes (text or bytes) and of SQS's
    (text). ``tup.attempt`` follows SQS's count. Without a ``Retry`` a failed message is shown again at once.
    """

    outputs = ["body", "attributes"]
    redelivers = False

    def __init__(
        self,
        queue_url: str,
        *,
        endpoint_url: str | None = None,
        visibility_secs: int | None = None,
        threads: int = 2,
        wait_secs: int = _WAIT_SECS,
        given_up: Literal["dead_letter", "reject"] = "dead_letter",
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        self._where = f"queue {host_and_path(queue_url, 'SqsSpout(...)')}"
        self._names = MessageNames(
            self._where, label, key,
            dicts={"attribute": "attributes"}, properties=("deduplication_id", "message_id"),
        )  # fmt: skip
        if given_up not in ("dead_letter", "reject"):
            raise ConfigError(f"given_up is {given_up!r}", self._where, 'give "dead_letter" or "reject"')
        for name, value, least, most in (
            ("visibility_secs", visibility_secs, 1, 43_200),
            ("threads", threads, 1, 100),
            ("wait_secs", wait_secs, 0, _MOST_WAIT_SECS),
        ):
            given: object = value  # what a caller without a type checker may have passed
            if given is not None and not (type(given) is int and least <= given <= most):
                fix = f"give a whole number from {least} to {most:,}"
                raise ConfigError(f"{name} is {given!r}", self._where, fix)
        self.queue_url, self.endpoint_url, self.visibility_secs = queue_url, endpoint_url, visibility_secs
        self.threads, self.wait_secs = threads, wait_secs
        self.own_dead_letters = given_up == "reject"
        self._handles: dict[str, str] = {}  # message id of an open message -> handle of its latest delivery
        self._hidden: dict[str, float] = {}  # message id -> when it was last hidden
        self._done: dict[str, None] = {}  # to be deleted when they are delivered again
        self._must_ask = False
        self._asked_lag = -_LAG_SECS
        self._lag: int | None = None

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the queue is there. Raises ConnectorError."""
        with self._as_connector_errors():
            looks = client(session_of(self.queue_url), self.endpoint_url, 1)
            looks.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["QueueArn"])

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Check that the queue exists, and begin to receive."""
        self._collector = collector
        with self._as_connector_errors():
            session = session_of(self.queue_url)
            self._client = client(session, self.endpoint_url, self.threads)
            self._poller = client(session, self.endpoint_url, self.threads, wait_secs=self.wait_secs)
            queue = self._client.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["All"])
        if self.own_dead_letters and "RedrivePolicy" not in queue["Attributes"]:
            fix = 'set a RedrivePolicy on the queue, or given_up="dead_letter"'
            raise ConnectorError("the queue has no redrive policy", self._where, fix)
        self._visibility = self.visibility_secs or max(1, int(queue["Attributes"]["VisibilityTimeout"]))
        self.keep_alive_secs = self._visibility / 4
        self._closing = Event()
        self._pool = ThreadPoolExecutor(self.threads, "acktree sqs")
        self._handles.update(context.open_message_ids)  # type: ignore[arg-type]  # our own
        with self._as_connector_errors():
            self._show(self._handles.items(), self._visibility)
        most = min(context.max_spout_pending or _MOST_WAITING, _MOST_WAITING) // self.threads
        self._receivers = [
            Receiver(self._receive, most=max(1, most), wake=collector.wake) for _ in range(self.threads)
        ]

    def next_tuple(self) -> None:
        """Emit the next message that was received."""
        with self._as_connector_errors():
            message = self._next()
            while message is not None and self._is_known(message):
                message = self._next()
            if message is None and self._must_ask:  # asks whether the outage is over
                self._client.get_queue_attributes(QueueUrl=self.queue_url)
                self._must_ask = False
        if message is not None:
            message_id = (message.message_id, message.handle)
            # A message that cannot be emitted is delivered again after its visibility timeout.
            names = self._names.of(
                {"body": message.body, "attributes": message.attributes},
                self._collector.report_error,
                {
                    "deduplication_id": message.attributes.get("MessageDeduplicationId"),
                    "message_id": message.message_id,
                },
            )
            self._collector.emit(
                [message.body, message.attributes], message_id,
                attempt=message.attempt, label=names.label, key=names.key,
            )  # fmt: skip
            self._handles[message.message_id] = message.handle
            self._hidden.setdefault(message.message_id, message.received)

    def keep_alive(self, open_messages: OpenMessages) -> None:
        """Hide open and waiting messages again, those that were hidden some time ago."""
        here = dict(_ids(open_messages.older_than(0)))
        here = {each: self._handles.get(each, handle) for each, handle in here.items()}
        for message in self._waiting():
            here.setdefault(message.message_id, message.handle)
            self._hidden.setdefault(message.message_id, message.received)
        now = time.monotonic()
        old = [each for each in here if now - self._hidden.get(each, 0.0) >= self._visibility / 4]
        with self._as_connector_errors():
            self._show([(each, here[each]) for each in old], self._visibility)
        self._hidden.update(dict.fromkeys(old, now))

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        """Delete. After an error the same messages come again: a second delete has no effect."""
        latest = [(each, self._handles.get(each, handle)) for each, handle in _ids(message_ids)]
        with self._as_connector_errors():
            self._delete(latest)
        self._forget(each for each, _ in latest)

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        """Delete messages that were given up; make the others visible again."""
        deleted = [each for each, failure in failures if failure.final and not self.own_dead_letters]
        if deleted:
            self.ack_batch(deleted)
        gone = {each for each, _ in _ids(deleted)}
        again = [
            (each, self._handles.get(each, handle))
            for each, handle in _ids([message_id for message_id, _ in failures])
            if each not in gone
        ]
        with self._as_connector_errors():
            self._show(again, 0)
        self._forget(each for each, _ in again)

    def lag(self) -> int | None:
        """About how many messages can be received; SQS is asked every half minute."""
        if time.monotonic() >= self._asked_lag + _LAG_SECS:
            self._asked_lag, self._lag = time.monotonic(), None
            with suppress(*LOST):
                names = ["ApproximateNumberOfMessages"]
                answer = self._client.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)
                self._lag = int(answer["Attributes"][names[0]])
        return self._lag

    def close(self) -> None:
        """Stop receiving, and make waiting messages visible again. Open messages continue in the next run."""
        self._closing.set()
        for receiver in self._receivers:
            receiver.close(0)
        for receiver in self._receivers:
            receiver.close(self.wait_secs + 1)
        with suppress(*LOST):
            self._show([(each.message_id, each.handle) for each in self._waiting()], 0)
        self._pool.shutdown()
        self._client.close()
        self._poller.close()

    def _receive(self) -> list[Message]:
        """Up to ten messages; on a receiving thread."""
        answer = self._poller.receive_message(
            QueueUrl=self.queue_url, MaxNumberOfMessages=PAGE, WaitTimeSeconds=self.wait_secs,
            VisibilityTimeout=self._visibility, MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )  # fmt: skip
        now = time.monotonic()
        messages = [read(each, now) for each in answer.get("Messages", ())]
        if not messages and not self.wait_secs:
            self._closing.wait(_PAUSE_SECS)
        if messages and self._closing.is_set():  # these are not emitted any more
            with suppress(*LOST):
                self._show([(each.message_id, each.handle) for each in messages], 0)
            return []
        return messages

    def _next(self) -> Message | None:
        """The next message of any receiver. Raises what SQS refused; an outage may be over by now."""
        self._receivers.append(self._receivers.pop(0))
        for receiver in self._receivers:
            try:
                message = receiver.get()
            except REFUSED:
                raise
            except LOST:
                self._must_ask = True
                continue
            if message is not None:
                return message
        return None

    def _waiting(self) -> list[Message]:
        return [message for receiver in self._receivers for message in receiver.waiting()]

    def _is_known(self, message: Message) -> bool:
        """Whether it is a second delivery of a message that is open, or that is done and was not deleted."""
        if message.message_id in self._done:
            self._delete([(message.message_id, message.handle)])
            return True
        if message.message_id in self._handles:
            self._handles[message.message_id] = message.handle
            self._hidden[message.message_id] = message.received
            return True
        return False

    def _forget(self, message_ids: Iterable[str]) -> None:
        for each in message_ids:
            self._handles.pop(each, None)
            self._hidden.pop(each, None)

    def _delete(self, messages: Sequence[_Id]) -> None:
        """Delete messages. One that is not deleted, or was received again, is deleted when it comes again."""
        waiting = {message.message_id for message in self._waiting()}
        late = [each for each, _ in messages if each in waiting]
        for page, answer in self._ask(self._client.delete_message_batch, messages):
            for failed in answer.get("Failed", ()):
                if not failed["SenderFault"]:
                    raise ConnectorError(
                        f"SQS did not delete a message: {failed['Code']}", self._where,
                        "it is tried again", can_retry=True,
                    )  # fmt: skip
                late.append(page[int(failed["Id"])][0])
        for each, _ in messages:  # not before: a request that SQS throttles has deleted nothing
            self._done.pop(each, None)
        self._done.update(dict.fromkeys(late))
        while len(self._done) > _MOST_DONE:  # another consumer has received them
            del self._done[next(iter(self._done))]

    def _show(self, messages: Iterable[_Id], secs: int) -> None:
        """Make messages visible again after ``secs`` seconds. An expired handle has no effect."""
        for _ in self._ask(self._client.change_message_visibility_batch, messages, VisibilityTimeout=secs):
            pass

    def _ask(
        self, call: Callable[..., Any], messages: Iterable[_Id], **more: object
    ) -> Iterator[tuple[Sequence[_Id], Any]]:
        """Call with ten messages at a time, on threads. Yields each page with its answer."""

        def ask(page: Sequence[_Id]) -> Any:  # noqa: ANN401  # boto3's
            entries = [
                {"Id": str(index), "ReceiptHandle": handle, **more} for index, (_, handle) in enumerate(page)
            ]
            return call(QueueUrl=self.queue_url, Entries=entries)

        pages = list(pages_of(messages))
        answers = map(ask, pages) if len(pages) < 2 else self._pool.map(ask, pages)  # noqa: PLR2004  # a thread each
        yield from zip(pages, answers, strict=True)

    @contextmanager
    def _as_connector_errors(self) -> Iterator[None]:
        """Raise boto3's errors as a ConnectorError."""
        try:
            yield
        except LOST as error:
            self._must_ask = True
            raise connector_error(error, self._where) from error


def _ids(message_ids: Sequence[Any]) -> Sequence[_Id]:
    """Message ids, typed as this spout makes them."""
    return message_ids


class SqsSink(BatchSink[dict[str, Any]]):
    """Sends each tuple's ``body``, ten in a request, and acks it when SQS has it. At least once.

    Args:
        queue_url: As of the spout.
        endpoint_url: As of the spout.
        group_id: For a FIFO queue: the field, or a function of the tuple, that gives the message group.
        deduplication_id: For a FIFO queue without content-based deduplication: the field, or a function of
            the tuple, that gives the id by which SQS recognizes duplicates for five minutes. It must be the
            same when the message is tried again.

    A message that SQS refuses, or that has characters or attributes that SQS does not have, fails alone.
    Reads the field ``body`` (a text), and ``attributes`` (texts, bytes and numbers) if there is one; SQS's
    own attributes in it are left out.
    """

    def __init__(
        self,
        queue_url: str,
        *,
        endpoint_url: str | None = None,
        group_id: str | Callable[[Tuple], str] | None = None,
        deduplication_id: str | Callable[[Tuple], str] | None = None,
    ) -> None:
        self._where = f"queue {host_and_path(queue_url, 'SqsSink(...)')}"
        self.queue_url, self.endpoint_url = queue_url, endpoint_url
        self.group_id, self.deduplication_id = group_id, deduplication_id

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the queue is there, and what it needs of each message. Nothing is sent.

        A user who may send and not ask is not refused.

        Raises:
            ConfigError: No stream that it reads has the field ``body``, or another one that is named; or the
                queue is FIFO, and lacks what such a queue needs.
            ConnectorError: The queue is not there, or SQS cannot be used.
        """
        must_read(context, self._where, "body", self.group_id, self.deduplication_id)
        names = ["QueueArn", "FifoQueue", "ContentBasedDeduplication"]
        try:
            looks = client(session_of(self.queue_url), self.endpoint_url, 1)
            queue = looks.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)["Attributes"]
        except LOST as error:
            if may_not(error):
                return
            raise connector_error(error, self._where) from error
        if queue.get("FifoQueue") != "true":
            return
        if self.group_id is None:
            fix = "give group_id: the field, or a function of the tuple, that gives the message group"
            raise ConfigError("the queue is FIFO, and its messages have no group", self._where, fix)
        if self.deduplication_id is None and queue.get("ContentBasedDeduplication") != "true":
            fix = "give deduplication_id, or set ContentBasedDeduplication on the queue"
            raise ConfigError("the queue is FIFO, and nothing names a duplicate", self._where, fix)

    def prepare(self, config: Config, context: TaskContext, collector: Any) -> None:  # noqa: ANN401  # as Bolt's
        """Make a client, or take the one that the process has."""
        super().prepare(config, context, collector)
        key = (self.queue_url, self.endpoint_url)
        self._client = context.cached(key, lambda: client(session_of(self.queue_url), self.endpoint_url, 1))

    def entry(self, tup: Tuple) -> dict[str, Any]:
        """An entry of a request."""
        entry: dict[str, Any] = {"MessageBody": as_characters("'body'", tup["body"], self._where)}
        own = {
            name: typed(name, value, self._where)
            for name, value in headers_of(tup, "attributes", self._where).items()
            if name not in _SYSTEM
        }
        if own:
            entry["MessageAttributes"] = own
        for name, field in (
            ("MessageGroupId", self.group_id),
            ("MessageDeduplicationId", self.deduplication_id),
        ):
            if field is not None:
                value = tup[field] if isinstance(field, str) else field(tup)
                entry[name] = as_id(name, value, self._where)
        return entry

    def send(self, _: Sequence[Tuple], entries: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """Send a page, request by request."""
        numbered = [{"Id": str(index), **entry} for index, entry in enumerate(entries)]
        for request in pages_of(numbered, most_bytes=_SENT_BYTES, size_of=size_of):
            yield from self._ask(request)

    def _ask(self, request: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """Send a request. One that SQS refuses as a whole has sent nothing: each entry is then sent alone."""
        try:
            answer = self._client.send_message_batch(QueueUrl=self.queue_url, Entries=request)
        except LOST as error:
            refusal = refusal_of(error, self._where)
            if refusal is None:
                raise connector_error(error, self._where) from error
            if len(request) == 1:
                yield [int(request[0]["Id"])], refusal
            else:
                for entry in request:
                    yield from self._ask([entry])
            return
        for sent in answer.get("Successful", ()):
            yield [int(sent["Id"])], None
        for failed in answer.get("Failed", ()):
            what = f"SQS refused the message: {failed['Code']} {failed.get('Message', ''):.200}"
            can_retry = not failed["SenderFault"]
            fix = "it may be taken when it is sent again" if can_retry else "correct what SQS names"
            yield [int(failed["Id"])], ConnectorError(what, self._where, fix, can_retry=can_retry)
