"""RabbitMQ: messages of a queue, each acknowledged there when its tree is done. Needs ``acktree[rabbitmq]``.

Rules of this file
------------------
1. A delivery tag is valid on its channel only. So message ids are (epoch, tag), and a verdict of an earlier
   epoch acknowledges nothing.
2. pika does not report a channel that the server closed, nor a consumer that it cancelled: both are checked
   at each look.
3. When the connection is gone, every open message is ``lost``: the queue delivers it again.
4. pika's calls have no time limit: each is made inside :func:`_limited`.
5. A header is the publisher's, whatever its name. Only a quorum queue counts deliveries, and it writes its
   count when it delivers a message again.
6. What a publisher wrote can neither end the connection nor keep a message from its place in the prefetch.

Source: AMQP 0-9-1, RabbitMQ's pages on consumer acknowledgements, quorum queues and streams.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, Literal, NamedTuple, NoReturn

from acktree import (  # isort: skip
    Config, ConfigError, ConnectorError, Failure, OpenMessages, Spout, SpoutOutputCollector, TaskContext,
    Tuple,
)  # fmt: skip
from acktree.connectors import client_errors
from acktree.connectors.batch_sink import BatchSink, Outcome, as_bytes, as_text, headers_of, must_read
from acktree.connectors.message_names import KeyFrom, LabelFrom, MessageNames, Names
from acktree.connectors.rabbitmq_client import UNREADABLE, Wire, connector_error, size_of_headers
from acktree.system.readable import is_readable

try:
    import pika
    import pika.exceptions
    from pika.adapters.utils.connection_workflow import AMQPConnectorException
except ModuleNotFoundError as missing:
    raise client_errors.missing_client(missing, "rabbitmq") from missing

__all__ = ["RabbitMQSink", "RabbitMQSpout"]

MOST_PREFETCH: Final = 65_535
"""AMQP's prefetch count has 16 bits."""
_PREFETCH: Final = 20_000
_KEEP_ALIVE_SECS: Final = 1.0
_CONNECT_SECS: Final = 5.0
_ANSWER_SECS: Final = 5.0
"""Longest wait for an answer; a healthy server answers at once."""
_CLOSE_SECS: Final = 1.0
_NO_ANSWER: Final = "no answer for"
_MOST_KEY_BYTES: Final = 255
_FRAME_BYTES: Final = 64
"""What a frame of headers has beside them."""
# The exception says all that pika logs before it raises: a refused login would log ten lines.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)

_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406
_STREAM: Final = "stream"
_KINDS: Final = re.compile(r"of queue type (?:rabbit_)?(\w+?)(?:_queue)?$")
_FIRST_TO_TELL: Final = (3, 10)
"""The first version of RabbitMQ that was seen to name a queue's kind."""
_MOST_COUNTED: Final = 1 << 20

_LOST: Final = (pika.exceptions.AMQPError, AMQPConnectorException, OSError, ValueError)
"""What pika raises; a login that takes too long is no AMQPError."""

_Id = tuple[int, int]
"""(epoch, delivery tag)"""
_Delivery = tuple[int, bytes, str, dict[str, Any] | None, int, Names]
"""(delivery tag, body, routing key, headers, attempt, label and key)"""


class RabbitMQSpout(Spout):
    """The messages of a queue, classic or quorum, as ``["body", "routing_key", "headers"]``.

    Args:
        url: ``amqp://user:password@host:5672/vhost``, or ``amqps://``; pika's query options may follow.
        queue: The queue. It must exist: the spout does not declare it, since only its owner knows its
            arguments.
        prefetch: How many unacknowledged messages the server sends; at most 65,535. It bounds the open
            messages, so give the message rate times the time to a verdict, which is a micro-batch or two.
            None: what ``max_spout_pending`` allows, at most 20,000.
        given_up: What becomes of a message that a ``Retry`` gives up. ``"dead_letter"``: acktree's dead
            letter is the copy, and the message is acknowledged. ``"reject"``: it is rejected to the queue's
            own dead-letter exchange, and acktree writes no dead letter. A queue without such an exchange
            drops the message.
        label: What people call a message, for dead letters, traces and the log. ``"header:order"``: the
            header of that name. ``"body:order"``: that field of a body that is a JSON object.
            ``"message_id"``: AMQP's property. Or a function of the emitted values by field, which returns a
            text, or None for none: ``lambda message: message["routing_key"]``.
        key: What names the message in all its deliveries, from the same places as ``label``: see ``key`` of
            ``emit``. A message where it is not a text, bytes or an integer has none.

    Without a ``Retry`` a failed message goes back to the queue at once. On a quorum queue ``tup.attempt``
    follows the queue's own count of deliveries; a classic queue has none, and a header ``x-delivery-count``
    that a publisher wrote does not count. ``headers`` is None where they cannot be read; that is reported.
    """

    outputs = ["body", "routing_key", "headers"]
    keep_alive_secs = _KEEP_ALIVE_SECS

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        prefetch: int | None = None,
        given_up: Literal["dead_letter", "reject"] = "dead_letter",
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        where = f"RabbitMQSpout(..., {queue!r})"
        parameters = _parameters_of(url, where)
        given: object = prefetch  # what a caller without a type checker may have passed
        if given is not None and not (type(given) is int and 0 < given <= MOST_PREFETCH):
            what, fix = f"prefetch is {prefetch!r}", f"give a whole number from 1 to {MOST_PREFETCH:,}"
            raise ConfigError(what, where, fix)
        if given_up not in ("dead_letter", "reject"):
            raise ConfigError(f"given_up is {given_up!r}", where, 'give "dead_letter" or "reject"')
        self._names = MessageNames(where, label, key, dicts={"header": "headers"}, properties=("message_id",))
        self.queue, self.prefetch = queue, prefetch
        self.own_dead_letters = given_up == "reject"
        self._url = url  # not its parameters: with TLS they hold objects that cannot be copied for a task
        heartbeat = parameters.heartbeat
        if isinstance(heartbeat, int) and heartbeat:
            self.keep_alive_secs = min(_KEEP_ALIVE_SECS, heartbeat / 4)
        self._where = f"queue {queue!r} at {parameters.host}:{parameters.port}"
        self._connection: Any = None
        self._channel: Any = None
        self._closed: BaseException | None = None
        self._epoch = 0
        self._may_hold = True
        self._counts = False  # whether the queue counts deliveries
        self._ahead: deque[_Delivery] = deque()
        self._tags = _Tags()

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the queue is there, and whether it may be read.

        Raises:
            ConnectorError: It cannot be used as it is, or the server cannot be reached.
        """
        with _checking(self._url, self._where, self.queue) as channel:
            channel.queue_declare(self.queue, passive=True)

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Connect, and start consuming."""
        self._collector = collector
        self._count = self.prefetch or min(context.max_spout_pending or _PREFETCH, MOST_PREFETCH)
        self._connect()

    def next_tuple(self) -> None:
        """Emit the next message that the server has sent."""
        if not self._ahead and (self._may_hold or self._can_read()):
            self._look()
        if self._ahead:
            tag, body, routing_key, headers, attempt, names = self._ahead.popleft()
            try:
                self._collector.emit(
                    [body, routing_key, headers],
                    (self._epoch, tag),
                    attempt=attempt,
                    label=names.label,
                    key=names.key,
                )
            except BaseException:  # it was not emitted: it goes back, with its place in the prefetch
                self._give_back(tag)
                raise

    def keep_alive(self, open_messages: OpenMessages) -> None:  # noqa: ARG002
        """Answer heartbeats, and check the connection."""
        if self._connection is not None:
            self._look()

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        """Acknowledge those of this connection: consecutive ones in one frame."""
        with self._as_connector_errors():
            top, alone = self._tags.answer(self._mine(message_ids))
            if top:
                self._channel.basic_ack(top, multiple=True)
            for tag in alone:
                self._channel.basic_ack(tag)

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        """Return failed messages to the queue; acknowledge or reject those that were given up."""
        with self._as_connector_errors():
            for (epoch, tag), failure in failures:
                if epoch != self._epoch:
                    continue
                self._tags.answer([tag], alone=True)
                if failure.final and not self.own_dead_letters:
                    self._channel.basic_ack(tag)
                else:
                    self._channel.basic_nack(tag, requeue=not failure.final)

    def _give_back(self, tag: int) -> None:
        with self._as_connector_errors():
            self._tags.answer([tag], alone=True)
            self._channel.basic_nack(tag)

    def lag(self) -> int | None:
        """Ask the server how many messages are ready in the queue."""
        if self._channel is None:
            return None
        self._may_hold = True
        with suppress(*_LOST), _limited(self._connection):  # the next look reports the error
            return int(self._channel.queue_declare(self.queue, passive=True).method.message_count)
        return None

    def close(self) -> None:
        """Disconnect; open messages return to the queue."""
        connection, self._connection, self._channel = self._connection, None, None
        _disconnect(connection)

    def _look(self) -> None:
        """Receive what the server has sent, and check connection, channel and consumer."""
        if self._connection is None:
            self._connect()
        with self._as_connector_errors():
            self._connection.process_data_events(0)
        self._may_hold = False
        if not (self._connection.is_open and self._channel.is_open):
            self._lose(self._closed or pika.exceptions.ConnectionClosed(0, "the connection is closed"))
        if not self._channel.consumer_tags:
            # Cancelled by the server: the queue was deleted, or has moved. Consuming again shows which.
            self._forget()
            self._connect()

    def _can_read(self) -> bool:
        """Whether the socket has something to read: this takes a tenth of the CPU of asking pika."""
        try:
            stream = self._connection._impl._transport._sock  # noqa: SLF001  # pika shows its socket nowhere else
            return is_readable(stream)
        except (AttributeError, OSError, ValueError):  # the connection is gone: a look finds out
            return True

    def _connect(self) -> None:
        self._closed, self._may_hold = None, True
        try:
            self._connection = pika.BlockingConnection(
                _parameters_of(self._url, self._where), _impl_class=Wire
            )
            with _limited(self._connection):
                self._channel = self._connection.channel()
                self._channel._impl.add_on_close_callback(self._note_close)  # noqa: SLF001  # it is called with the reason
                self._channel.queue_declare(self.queue, passive=True)
                self._look_at_kind()
                self._channel.basic_qos(prefetch_count=self._count)
                self._channel.basic_consume(self.queue, self._take)
        except _LOST as error:
            self._lose(error)

    def _look_at_kind(self) -> None:
        """See whether the queue counts deliveries. Raises a ConnectorError if it is a stream."""
        kind = _kind_of(self._connection, self.queue)
        self._counts = kind == "quorum"
        if kind == _STREAM:
            self._forget()
            what = f"the queue {self.queue!r} is a stream: it never gives an acknowledged message back or up"
            fix = "bind a classic or quorum queue to the same exchange, and read that"
            raise ConnectorError(what, self._where, fix)

    def _take(self, _: object, method: Any, properties: Any, body: bytes) -> None:  # noqa: ANN401  # pika's
        headers = properties.headers or {}
        if headers is UNREADABLE:
            headers = None
            what = "the headers of a message cannot be read: it is emitted with None in their place"
            self._collector.report_error(ConnectorError(what, self._where, "correct what publishes it"))
        count = (headers or {}).get("x-delivery-count") if self._counts and method.redelivered else None
        attempt = 1 + min(count, _MOST_COUNTED) if type(count) is int and count > 0 else 1
        values = {"body": body, "routing_key": method.routing_key, "headers": headers}
        names = self._names.of(values, self._collector.report_error, {"message_id": properties.message_id})
        self._ahead.append((method.delivery_tag, body, method.routing_key, headers, attempt, names))

    def _note_close(self, _: object, reason: BaseException) -> None:
        self._closed = reason

    def _mine(self, message_ids: Iterable[_Id]) -> list[int]:
        """The tags of the messages that came over this connection."""
        return [tag for epoch, tag in message_ids if epoch == self._epoch and self._channel is not None]

    @contextmanager
    def _as_connector_errors(self) -> Iterator[None]:
        """Raise pika's errors as a ConnectorError: each means that the connection is gone.

        Whatever pika is asked for, it reads from its socket meanwhile, and holds the messages among it.
        """
        self._may_hold = True
        try:
            with nullcontext() if self._connection is None else _limited(self._connection):
                yield
        except _LOST as error:
            self._lose(error)

    def _lose(self, error: BaseException) -> NoReturn:
        reason = self._closed or error
        self._forget()
        raise connector_error(reason, self._where, self.queue) from error

    def _forget(self) -> None:
        """Drop the connection and all messages that came over it: they are the queue's again."""
        self.close()
        self._epoch += 1
        self._tags = _Tags()
        self._ahead.clear()
        self._collector.lost()


class _Tags:
    """The answered (acked or nacked) delivery tags of a channel, as ranges: no more than there are open ones.

    The first range begins at 1. It is empty until tag 1 is answered.
    """

    def __init__(self) -> None:
        self._last = {1: 0}  # first tag of a range -> its last one
        self._first = {0: 1}  # and the other way round

    def answer(self, tags: Sequence[int], *, alone: bool = False) -> tuple[int, list[int]]:
        """Note tags as answered, each once.

        Args:
            alone: Whether each is sent to the server in a frame by itself.

        Returns:
            The tag up to which one frame can ack all (0: none), and the tags that need a frame each. The
            first is one of ``tags``: the server refuses a tag that is acked already.
        """
        for tag in tags:
            first, last = self._first.pop(tag - 1, tag), self._last.pop(tag + 1, tag)
            self._last[first], self._first[last] = last, first
        frontier, fresh = self._last[1], () if alone else tags
        top = max((tag for tag in fresh if tag <= frontier), default=0)
        return top, sorted(tag for tag in fresh if tag > frontier)


def _kind_of(connection: Any, queue: str) -> str:  # noqa: ANN401  # pika has no types
    """What kind of queue it is: ``classic``, ``quorum``, ``stream``; "" where the server does not tell.

    RabbitMQ names the kind where it refuses an argument that only a stream takes; AMQP cannot ask for it.
    """
    server = connection._impl.server_properties  # noqa: SLF001  # pika shows them nowhere else
    version = tuple(map(int, re.findall(r"\d+", str(server.get("version")))[:2]))
    if server.get("product") != "RabbitMQ" or version < _FIRST_TO_TELL:
        return ""
    channel = connection.channel()
    try:
        channel.basic_qos(prefetch_count=1)  # a stream wants it
        channel.basic_consume(queue, lambda *_: None, arguments={"x-stream-offset": "next"})
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code == _PRECONDITION_FAILED:
            kind = _KINDS.search(error.reply_text)
            return kind[1] if kind else ""
        raise
    channel.close()
    return _STREAM


@contextmanager
def _limited(connection: Any, secs: float | None = None) -> Iterator[None]:  # noqa: ANN401  # pika has no types
    """Close the connection when the body takes longer; pika raises that as a lost connection."""
    secs = _ANSWER_SECS if secs is None else secs
    inner = connection._impl  # noqa: SLF001  # the public call_later runs only after the call that hangs

    def give_up() -> None:
        if not inner.is_closed:
            inner._terminate_stream(pika.exceptions.StreamLostError(f"{_NO_ANSWER} {secs:g} s"))  # noqa: SLF001

    timer = inner._adapter_call_later(secs, give_up)  # noqa: SLF001
    try:
        yield
    finally:
        inner._adapter_remove_timeout(timer)  # noqa: SLF001


def _disconnect(connection: Any) -> None:  # noqa: ANN401  # pika has no types
    """Close a connection, if there is one, in whatever state it is."""
    if connection is not None:
        with suppress(*_LOST), _limited(connection, _CLOSE_SECS):
            connection.close()


def _parameters_of(url: str, where: str) -> Any:  # noqa: ANN401  # pika has no types
    """The parameters of a URL, with one connection attempt: the caller tries again."""
    try:
        parameters = pika.URLParameters(url)
    except Exception as error:  # noqa: BLE001  # no error may show the URL
        raise client_errors.unreadable_url(
            "RabbitMQ", error, where, "amqp://user:password@host:5672/vhost"
        ) from None
    parameters.connection_attempts = 1
    parameters.retry_delay = 0
    parameters.socket_timeout = parameters.stack_timeout = _CONNECT_SECS
    return parameters


@contextmanager
def _checking(url: str, where: str, name: str) -> Iterator[Any]:
    """A channel on a connection of its own, for the length of the block. Raises ConnectorError."""
    connection: Any = None
    try:
        connection = pika.BlockingConnection(_parameters_of(url, where))
        with _limited(connection):
            yield connection.channel()
    except _LOST as error:
        raise connector_error(error, where, name) from error
    finally:
        _disconnect(connection)


class _Message(NamedTuple):
    """What is published of a tuple."""

    routing_key: str
    body: bytes
    properties: Any


class RabbitMQSink(BatchSink[_Message]):
    """Publishes each tuple's ``body`` and acks it when the server has confirmed it. At least once.

    Args:
        url: As of the spout.
        exchange: The exchange; ``""`` is the default one, which routes to the queue whose name is the key.
        routing_key: The key, or a function of the tuple.

    A message that no queue takes (``mandatory``), that the server refuses, or whose headers would be others
    when they are read, fails alone. Each message costs a round trip. If the server does not confirm one
    within 5 s, later tuples of the micro-batch are not sent, and the messages of this one and of those wait.
    Reads the field ``body`` (bytes or str), and ``headers`` if there is one.
    """

    def __init__(self, url: str, *, exchange: str = "", routing_key: str | Callable[[Tuple], str]) -> None:
        self._most_bytes = _parameters_of(url, "RabbitMQSink(...)").frame_max - _FRAME_BYTES
        self.url, self.exchange, self.routing_key = url, exchange, routing_key

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether the exchange is there; of the default one, whether the queue of the key is.

        Raises:
            ConnectorError: It cannot be used as it is, or the server cannot be reached.
        """
        key = self.routing_key if isinstance(self.routing_key, str) else ""
        name = self.exchange or key
        where = f"exchange {self.exchange!r}, routing key {key!r}"
        with _checking(self.url, where, name) as channel:
            if self.exchange:
                channel.exchange_declare(self.exchange, passive=True)
            elif key:
                channel.queue_declare(key, passive=True)
        must_read(context, where, "body")

    def prepare(self, config: Config, context: TaskContext, collector: Any) -> None:  # noqa: ANN401  # as Bolt's
        """Connect at the first page; the connection stays with the process."""
        super().prepare(config, context, collector)
        self._kept = context.cached((self.url, context.task_id), _Kept)

    def entry(self, tup: Tuple) -> _Message:
        """A message whose parts AMQP can hold."""
        where = f"exchange {self.exchange!r}"
        key = self.routing_key if isinstance(self.routing_key, str) else self.routing_key(tup)
        key = as_text("the routing key", key, where)
        if len(key.encode()) > _MOST_KEY_BYTES:
            what = f"the routing key has {len(key.encode()):,} bytes; AMQP takes {_MOST_KEY_BYTES}"
            raise ConnectorError(what, where, "give a shorter one")
        headers = dict(headers_of(tup, "headers", where))
        size = size_of_headers(headers, where)
        if size > self._most_bytes:
            what = f"the headers have {size:,} bytes; this connection takes {self._most_bytes:,}"
            raise ConnectorError(what, where, "emit less in 'headers', and more in 'body'")
        body = as_bytes("'body'", tup["body"], where)
        return _Message(key, body, pika.BasicProperties(delivery_mode=2, headers=headers))

    def send(self, _: Sequence[Tuple], entries: Sequence[_Message]) -> Iterator[Outcome]:
        """Publish one after the other, and wait for each confirmation."""
        self._kept.check()
        for index, message in enumerate(entries):
            yield [index], self._publish(message)

    def _publish(self, message: _Message) -> ConnectorError | None:
        """Publish a message. Returns why it is refused. Raises ConnectorError if the server is gone."""
        where = f"exchange {self.exchange!r}, routing key {message.routing_key!r}"
        try:
            channel = self._kept.channel(self.url)
        except _LOST as error:
            self._kept.drop()
            raise connector_error(error, where, self.exchange) from error
        try:
            with _limited(channel.connection):
                channel.basic_publish(self.exchange, *message, mandatory=True)
        except pika.exceptions.UnroutableError:
            fix = "bind a queue to the exchange under that key"
            return ConnectorError("RabbitMQ has no queue for this message", where, fix)
        except pika.exceptions.NackError:
            fix = "see the queue's limits (x-max-length, overflow)"
            return ConnectorError("RabbitMQ refused the message", where, fix, can_retry=True)
        except _LOST as error:
            return self._refusal(error, where)
        return None

    def _refusal(self, error: Exception, where: str) -> ConnectorError:
        """Why the server closed channel or connection over a message. Raises ConnectorError if it is gone."""
        words = f"{getattr(error, 'reply_text', '') or error!s:.{client_errors.SHORT}}"
        code = getattr(error, "reply_code", None)
        blocked = self._kept.blocked
        self._kept.drop()
        if blocked:
            what = f"RabbitMQ takes no messages at the moment: {blocked:.{client_errors.SHORT}}"
            fix = "free memory or disk space of the server (rabbitmqctl status shows its alarms)"
            raise ConnectorError(what, where, fix, can_retry=True) from error
        if code == _NOT_FOUND:
            what = f"there is no exchange {self.exchange!r}: {words}"
            raise ConnectorError(what, where, "declare it, or correct its name") from error
        if isinstance(error, pika.exceptions.ChannelClosedByBroker):
            fix = "correct what it names: the size of the message, or the right to write to this routing key"
            return ConnectorError(f"RabbitMQ refused the message: {words}", where, fix)
        if _NO_ANSWER not in str(error) and self._kept.connects(self.url):
            fix = "see the server's log for what it says of the message"
            return client_errors.broken_by_a_message("RabbitMQ", words, where, fix)
        raise connector_error(error, where, self.exchange) from error


class _Kept:
    """A connection that outlives the bolt, which lives for one micro-batch.

    Attributes:
        blocked: Why the server takes no messages over this connection; empty while it takes them.
    """

    def __init__(self) -> None:
        self._connection: Any = None
        self._channel: Any = None
        self.blocked = ""

    def check(self) -> None:
        """Notice that the server has closed the connection since it was used."""
        if self._connection is not None:
            try:
                with _limited(self._connection):
                    self._connection.process_data_events(0)
            except _LOST:
                self.drop()

    def channel(self, url: str) -> Any:  # noqa: ANN401  # pika has no types
        """An open channel with confirmations."""
        if self._connection is None or not (self._connection.is_open and self._channel.is_open):
            self.drop()
            self._connection = pika.BlockingConnection(_parameters_of(url, "RabbitMQSink(...)"))
            with _limited(self._connection):
                # pika's own callbacks run only after the call that waits.
                self._connection._impl.add_on_connection_blocked_callback(self._note_blocked)  # noqa: SLF001
                self._connection._impl.add_on_connection_unblocked_callback(self._note_unblocked)  # noqa: SLF001
                self._channel = self._connection.channel()
                self._channel.confirm_delivery()
        return self._channel

    def connects(self, url: str) -> bool:
        """Whether the server can be reached."""
        try:
            self.channel(url)
        except _LOST:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """Close the connection."""
        connection, self._connection, self._channel = self._connection, None, None
        self.blocked = ""
        _disconnect(connection)

    def _note_blocked(self, _: object, frame: Any) -> None:  # noqa: ANN401  # pika has no types
        self.blocked = str(frame.method.reason) or "the connection is blocked"

    def _note_unblocked(self, *_: object) -> None:
        self.blocked = ""
