"""NATS JetStream: messages of a pull consumer, each acknowledged when its tree is done.

Needs ``acktree[nats]``.

Rules of this file
------------------
1. An ack is a message to the delivery's reply subject, and is valid on any connection. So messages that are
   open when the driver dies continue from the checkpoint (``redelivers = False``).
2. A message is identified by its sequence in the stream and the time when it was stored: a stream that is
   made anew counts from 1 again. A second delivery of an open message is not emitted.
3. A message of a stream that was deleted gets no answer: it would be the answer to the message that has its
   sequence now.
4. Every call of nats-py runs on the event loop of the receiving thread; the spout's thread decides when to
   reconnect.

Source: NATS's pages on JetStream consumers and their acks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, NamedTuple

from acktree import (  # isort: skip
    Config, ConfigError, ConnectorError, Failure, OpenMessages, Receiver, Spout, SpoutOutputCollector,
    TaskContext, Tuple,
)  # fmt: skip
from acktree.connectors.batch_sink import (
    BatchSink,
    Outcome,
    as_bytes,
    as_id,
    as_text,
    headers_of,
    must_read,
)
from acktree.connectors.message_names import KeyFrom, LabelFrom, MessageNames
from acktree.connectors.nats_client import (
    LOST,
    NAK,
    SILENT,
    Connection,
    Message,
    NoStreamResponseError,
    Session,
    close,
    connect,
    connector_error,
    forbidden_subject_of,
    hosts_of,
    refusal_of,
    see_stream,
    store,
    stored_ns,
)

__all__ = ["JetStreamSink", "JetStreamSpout"]

_CALL_SECS: Final = 8.0
"""Longest wait of the spout's thread for the event loop."""
_MOST_WAITING: Final = 1000
_ACK_PENDING: Final = 20_000
_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_MOST_SUBJECT_BYTES: Final = 3500
"""The server closes the connection over a longer line than 4,096 bytes."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MESSAGE_ID: Final = "Nats-Msg-Id"
_ACK, _TERM, _IN_PROGRESS = b"+ACK", b"+TERM", b"+WPI"

_Id = tuple[int, str]
"""(sequence in the stream, reply subject)"""


class JetStreamSpout(Spout):
    """The messages of a pull consumer, as ``["subject", "data", "headers"]``.

    Args:
        url: ``nats://user:password@host:4222`` or ``tls://``; for a cluster several, separated by commas.
        stream: The stream.
        consumer: Its durable pull consumer with explicit acks. It must exist: the spout does not create it.
        max_ack_pending: Where the consumer allows fewer unacknowledged messages than this, its limit is
            raised. With the server's default of 1,000 a topology processes 1,000 messages in a micro-batch or
            two. None: the consumer stays as it is.
        given_up: What becomes of a message that a ``Retry`` gives up. ``"dead_letter"``: acktree's dead
            letter is the copy, and the message is acknowledged. ``"reject"``: it is terminated, which
            JetStream publishes as an advisory, and acktree writes no dead letter.
        nak_delay_secs: Without a ``Retry``: how long JetStream waits before it sends a failed message again.
        label: What people call a message, as of a ``RabbitMQSpout``: ``"header:order"``, ``"body:order"`` of
            a JSON object, or a function of ``{"subject", "data", "headers"}``. Also ``"message_id"``, which
            is the header ``Nats-Msg-Id``, and ``"sequence"``, the message's number in the stream.
        key: What names the message in all its deliveries, from the same places: see ``key`` of ``emit``. A
            stream that is made anew counts its sequences from 1 again.

    ``headers`` is a dict of strings, or None where they cannot be read; that is reported.
    ``tup.attempt`` follows JetStream's count of deliveries. ``ack_wait`` is
    extended while the topology works. A consumer with ``max_deliver`` gives messages up by itself and keeps
    no list of them; the spout reports each as an error while it is connected.
    """

    outputs = ["subject", "data", "headers"]
    redelivers = False

    def __init__(
        self,
        url: str,
        stream: str,
        consumer: str,
        *,
        max_ack_pending: int | None = _ACK_PENDING,
        given_up: Literal["dead_letter", "reject"] = "dead_letter",
        nak_delay_secs: float = 0.0,
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        where = f"JetStreamSpout(..., {stream!r}, {consumer!r})"
        if given_up not in ("dead_letter", "reject"):
            raise ConfigError(f"given_up is {given_up!r}", where, 'give "dead_letter" or "reject"')
        if not nak_delay_secs >= 0:
            raise ConfigError(f"nak_delay_secs is {nak_delay_secs!r}", where, "give it seconds, 0 or more")
        given: object = max_ack_pending  # what a caller without a type checker may have passed
        if given is not None and not (type(given) is int and given > 0):
            raise ConfigError(f"max_ack_pending is {given!r}", where, "give a whole number above 0, or None")
        self._where = f"stream {stream!r}, consumer {consumer!r} at {hosts_of(url, where)}"
        self._names = MessageNames(
            where, label, key, dicts={"header": "headers"}, body="data", properties=("message_id", "sequence")
        )
        self._url, self.stream, self.consumer, self.max_ack_pending = url, stream, consumer, max_ack_pending
        self.own_dead_letters = given_up == "reject"
        self._nak = NAK
        if nak_delay_secs:
            self._nak += b' {"delay": %d}' % round(nak_delay_secs * 1e9)
        self._replies: dict[int, str] = {}  # open sequence -> reply subject of the latest delivery
        self._answered: set[tuple[int, int]] = set()  # those of which a second delivery waits in the receiver
        self._made_ns = 0  # what was stored before was in a stream that was deleted

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the consumer is there and can be read. Nothing is received, and nothing is changed.

        Raises:
            ConnectorError: It is not, or the server cannot be used.
        """
        self._session = Session(self._url, self.stream, self.consumer, None, 1)
        with self._as_connector_errors():
            _looked(_connects(self._session))

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Connect, and check that the consumer exists and can be read."""
        self._collector = collector
        self._replies.update(context.open_message_ids)  # type: ignore[arg-type]  # our own
        most = min(context.max_spout_pending or _MOST_WAITING, _MOST_WAITING)
        self._session = Session(self._url, self.stream, self.consumer, self.max_ack_pending, most)
        self._receiver = Receiver(self._session.pull, most=most, wake=collector.wake)
        try:
            with self._as_connector_errors():
                self._connect_if_gone()
        except ConnectorError:
            self._receiver.close()
            raise
        self.keep_alive_secs = self._session.lease_secs / 3

    def next_tuple(self) -> None:
        """Emit the next message that was received."""
        with self._as_connector_errors():
            message = self._next()
            while message is not None and self._is_known(message):
                message = self._next()
            if message is None:
                self._connect_if_gone()
                while self._session.removed:
                    self._collector.report_error(self._removed(*self._session.removed.popleft()))
        if message is not None:
            sequence, reply, attempt, *values, _ = message
            if message.headers is None:
                self._collector.report_error(self._unreadable(sequence))
            # A message that cannot be emitted is delivered again after its ack_wait.
            names = self._names.of(
                dict(zip(self.outputs, values, strict=True)),
                self._collector.report_error,
                {"message_id": (message.headers or {}).get(_MESSAGE_ID), "sequence": sequence},
            )
            self._collector.emit(values, (sequence, reply), attempt=attempt, label=names.label, key=names.key)
            if self._is_present(message):
                self._replies[sequence] = reply

    def keep_alive(self, open_messages: OpenMessages) -> None:
        """Extend the ``ack_wait`` of open and of waiting messages; report those that JetStream gave up."""
        with self._as_connector_errors():
            self._refresh()
            replies = [self._reply_of(each) for each in _ids(open_messages.older_than(0))] + self._waiting()
            self._send([(reply, _IN_PROGRESS) for reply in replies if reply])
        while self._session.given_up:
            self._collector.report_error(self._given_up(self._session.given_up.popleft()))

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        """Acknowledge. After an error the same messages come again: a second ack has no effect."""
        self._answer([(message_id, _ACK) for message_id in message_ids])

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        """Ask JetStream to send failed messages again; acknowledge or terminate those that were given up."""
        final = _TERM if self.own_dead_letters else _ACK
        self._answer([(each, final if failure.final else self._nak) for each, failure in failures])

    def lag(self) -> int | None:
        """How many messages of the consumer were not delivered yet, by its latest answer."""
        return self._session.waiting_count

    def close(self) -> None:
        """Give back waiting messages, and disconnect. Open messages continue in the next run."""
        with suppress(*LOST):
            self._receiver.call(self._session.leave(self._waiting()), _CALL_SECS)
        self._receiver.close()

    def _next(self) -> Message | None:
        """The next message. Raises what pulling raised, unless the connection is up again."""
        try:
            return self._receiver.get()
        except LOST:
            if not self._session.is_connected:
                raise
            return None

    def _waiting(self) -> list[str]:
        """The reply subjects of waiting messages."""
        return [message.reply for message in self._receiver.waiting() if self._is_present(message)]

    def _is_present(self, message: Message) -> bool:
        """Whether it is of the stream that there is now.

        What came after the stream was looked at is, also if the clock of the server that stored it is behind
        that of the server that made the stream.
        """
        return max(message.made_ns, stored_ns(message.reply)) >= self._made_ns

    def _is_known(self, message: Message) -> bool:
        """Whether it is a second delivery of a message that is open, or was answered meanwhile."""
        self._forget_before(self._session.made_ns)
        identity = _identity(message.sequence, message.reply)
        if identity in self._answered:
            self._answered.remove(identity)
            return True
        latest = self._replies.get(message.sequence)
        if latest is None:
            return False
        if _identity(message.sequence, latest) == identity:
            self._replies[message.sequence] = message.reply
            return True
        self._forget_before(min(stored_ns(latest), stored_ns(message.reply)) + 1)
        return False

    def _forget_before(self, made_ns: int) -> None:
        """Note that what was stored before is not in the stream: it was deleted, and made anew since."""
        if made_ns > self._made_ns:
            self._made_ns = made_ns
            self._replies = {n: reply for n, reply in self._replies.items() if stored_ns(reply) >= made_ns}

    def _reply_of(self, message_id: _Id) -> str | None:
        """Where the answer to an open message goes; None for one of a stream that was deleted."""
        sequence, reply = message_id
        latest = self._replies.get(sequence)
        if latest is not None and stored_ns(latest) == stored_ns(reply):
            return latest
        return reply if stored_ns(reply) >= self._made_ns else None

    def _answer(self, answers: Sequence[tuple[_Id, bytes]]) -> None:
        """Answer open messages, and forget them when the server has the answers."""
        with self._as_connector_errors():
            self._refresh()
            found = [(each, self._reply_of((each, reply)), payload) for (each, reply), payload in answers]
            sent = [(each, reply, payload) for each, reply, payload in found if reply is not None]
            self._send([(reply, payload) for _, reply, payload in sent])
        done = {_identity(each, reply) for each, reply, payload in sent if not payload.startswith(NAK)}
        waiting = (_identity(message.sequence, message.reply) for message in self._receiver.waiting())
        self._answered |= done.intersection(waiting)
        for sequence, reply, _ in sent:
            if self._replies.get(sequence) == reply:
                del self._replies[sequence]

    def _send(self, answers: Sequence[tuple[str, bytes]]) -> None:
        if answers:
            self._receiver.call(self._session.answer(answers), _CALL_SECS)

    def _refresh(self) -> None:
        """Connect where there is no connection, and see whether the stream was made anew."""
        self._connect_if_gone()
        if self._session.must_see():
            self._receiver.call(self._session.see(), _CALL_SECS)
        self._forget_before(self._session.made_ns)

    def _connect_if_gone(self) -> None:
        if not self._session.is_connected:
            self._receiver.call(self._session.connect(), _CALL_SECS)

    @contextmanager
    def _as_connector_errors(self) -> Iterator[None]:
        """Raise nats-py's errors as a ConnectorError."""
        try:
            yield
        except LOST as error:
            raise connector_error(self._session.refusal or error, self._where) from error

    def _given_up(self, sequence: int) -> ConnectorError:
        what = f"JetStream gave up message {sequence} of the stream: it was delivered max_deliver times"
        fix = "get it from the stream by its sequence; give the consumer max_deliver -1, the spout a Retry"
        return ConnectorError(what, self._where, fix)

    def _unreadable(self, sequence: int) -> ConnectorError:
        what = f"the headers of message {sequence} cannot be read: it is emitted with None in their place"
        return ConnectorError(what, self._where, "correct what publishes it", can_retry=True)

    def _removed(self, first: int, last: int) -> ConnectorError:
        what = f"messages {first} to {last} were removed from the stream before they were delivered"
        fix = "let the stream keep more: its limits (max_msgs, max_bytes, max_age), purges and deletions"
        return ConnectorError(what, self._where, fix, can_retry=True)


def _ids(message_ids: Sequence[Any]) -> Sequence[_Id]:
    """Message ids, typed as this spout makes them."""
    return message_ids


def _identity(sequence: int, reply: str) -> tuple[int, int]:
    """What is the same in all deliveries of a message, and differs where a stream was made anew."""
    return sequence, stored_ns(reply)


class _Row(NamedTuple):
    """What is published of a tuple."""

    subject: str
    data: bytes
    headers: dict[str, str] | None


class JetStreamSink(BatchSink[_Row]):
    """Publishes each tuple's ``data``, and acks it when JetStream has stored it. At least once.

    Args:
        url: As of the spout.
        subject: The subject, or a function of the tuple.
        message_id: A field, or a function of the tuple, whose text is the id by which JetStream recognizes
            duplicates (``Nats-Msg-Id``): a second message with the same id within its window, two minutes, is
            dropped. It must be the same when the message is tried again. None: no id.

    A message fails alone where no stream takes its subject, where JetStream refuses it, and where a header
    would be another one when it is read. Reads the field ``data`` (bytes or str), and ``headers`` (texts) if
    there is one.
    """

    def __init__(
        self,
        url: str,
        subject: str | Callable[[Tuple], str],
        *,
        message_id: str | Callable[[Tuple], str] | None = None,
    ) -> None:
        self._hosts = hosts_of(url, "JetStreamSink(...)")
        self._url, self.subject, self.message_id = url, subject, message_id

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the server answers, and a stream takes the subject. Nothing is published.

        A user who may not ask for streams may publish all the same, and is not refused.

        Raises:
            ConfigError: No stream that it reads has the field ``data``, or that of ``message_id``.
            ConnectorError: No stream takes the subject, or the server cannot be used.
        """
        must_read(context, "JetStreamSink(...)", "data", self.message_id)
        subject = self._subject(self.subject) if isinstance(self.subject, str) else None
        try:
            _looked(see_stream(self._url, subject))
        except LOST as error:
            where = self._hosts if subject is None else f"subject {subject!r} at {self._hosts}"
            is_absent = isinstance(error, NoStreamResponseError)
            raise (refusal_of if is_absent else connector_error)(error, where) from error

    def _subject(self, given: object) -> str:
        """The subject, which is one. Raises ConnectorError."""
        subject = as_text("the subject", given, self._hosts)
        if not _SUBJECT.fullmatch(subject) or len(subject.encode()) > _MOST_SUBJECT_BYTES:
            fix = f"give words with points between them, no *, no >, at most {_MOST_SUBJECT_BYTES:,} bytes"
            raise ConnectorError(f"{subject!r:.200} is not a subject", self._hosts, fix)
        return subject

    def prepare(self, config: Config, context: TaskContext, collector: Any) -> None:  # noqa: ANN401  # as Bolt's
        """Connect at the first page; the connection stays with the process."""
        super().prepare(config, context, collector)
        self._kept = context.cached((self._url, context.task_id), _Kept)

    def entry(self, tup: Tuple) -> _Row:
        """A message whose parts NATS can hold."""
        subject = self._subject(self.subject if isinstance(self.subject, str) else self.subject(tup))
        where = f"subject {subject!r} at {self._hosts}"
        headers = {
            name: _header(name, value, where) for name, value in headers_of(tup, "headers", where).items()
        }
        if self.message_id is not None:
            value = tup[self.message_id] if isinstance(self.message_id, str) else self.message_id(tup)
            headers[_MESSAGE_ID] = _header(_MESSAGE_ID, as_id("the message id", value, where), where)
        return _Row(subject, as_bytes("'data'", tup["data"], where), headers or None)

    def send(self, _: Sequence[Tuple], entries: Sequence[_Row]) -> Iterator[Outcome]:
        """Publish a page, and wait for every answer."""
        try:
            answers = self._kept.publish(self._url, entries)
        except LOST as error:
            raise connector_error(error, self._hosts) from error
        silent = None
        for index, answer in enumerate(answers):
            if isinstance(answer, SILENT) and not self._kept.answers:
                silent = answer
            elif isinstance(answer, BaseException):
                yield [index], refusal_of(answer, f"subject {entries[index].subject!r} at {self._hosts}")
            else:
                yield [index], None
        if silent is not None:
            raise connector_error(silent, self._hosts) from silent


async def _connects(session: Session) -> None:
    try:
        await session.connect()
    finally:
        await session.disconnect()


def _looked(look: Coroutine[Any, Any, None]) -> None:
    """Run it on a thread of its own: the caller's may have an event loop that runs, as in a notebook."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, look).result()


def _header(name: str, value: object, where: str) -> str:
    """The text of a header. Raises ConnectorError for one that would be another when it is read."""
    text = as_text(f"the header {name!r:.60}", value, where)
    if not _HEADER_NAME.fullmatch(name) or text != text.strip() or "\r" in text or "\n" in text:
        what = f"the header {name!r:.60} would be another one when it is read"
        fix = "name it with letters, digits and -, and give it one line without blanks at its ends"
        raise ConnectorError(what, where, fix)
    return text


class _Kept:
    """A connection that outlives the bolt, which lives for one micro-batch, and its event loop.

    Attributes:
        answers: Whether the server still answered after the latest page.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._client: Connection | None = None
        self._sends: dict[str, list[asyncio.Task[object]]] = {}
        self._refusals: dict[str, Exception] = {}
        self.answers = True

    def publish(self, url: str, rows: Sequence[_Row]) -> list[BaseException | object]:
        """Publish, and return each answer or what was raised instead."""
        return self._runner.run(self._publish(url, rows))

    async def _publish(self, url: str, rows: Sequence[_Row]) -> list[BaseException | object]:
        client = await self._connected(url)
        self._sends.clear()
        self._refusals.clear()
        tasks = [asyncio.ensure_future(store(client, *row)) for row in rows]
        for row, task in zip(rows, tasks, strict=True):
            self._sends.setdefault(row.subject, []).append(task)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        self.answers = True
        if any(isinstance(each, SILENT) for each in answers):
            with suppress(*LOST):
                self.answers = False
                await client.flushed()
                self.answers = True
        return [
            self._refusals.get(row.subject, answer) if isinstance(answer, asyncio.CancelledError) else answer
            for row, answer in zip(rows, answers, strict=True)
        ]

    async def _note(self, error: Exception) -> None:
        """Called with what the server refuses: no answer comes to a message whose subject is not allowed."""
        subject = forbidden_subject_of(error)
        self._refusals[subject] = error
        for task in self._sends.get(subject, ()):
            task.cancel()

    async def _connected(self, url: str) -> Connection:
        """A connection that answers. The server may have closed an idle one, so it is tested first."""
        if self._client is not None:
            try:
                await self._client.flushed()
            except LOST:
                await close(self._client)
            else:
                return self._client
        self._client = await connect(url, self._note)
        return self._client
