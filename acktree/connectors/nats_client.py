"""Connections of nats-py, what the spout pulls over one, and nats-py's errors. Needs ``acktree[nats]``.

Rules of this file
------------------
1. Coroutines run on one event loop, the receiving thread's; attributes may be read by any thread.
2. nats-py does not reconnect by itself here: the caller does, so an outage is reported once.
3. JetStream does not say when a consumer is deleted: the consumer is looked up whenever no message comes.
4. What a publisher wrote into the headers cannot end the connection.
5. JetStream does not say what its limits removed: the stream's first message is compared with the consumer.
6. JetStream does not say when a stream is deleted and made anew: the time when it was made is looked up.

Source: NATS's pages on JetStream consumers; ADR-13 for pull requests.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from acktree import ConnectorError
from acktree.connectors import client_errors
from acktree.connectors.client_errors import Cause

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.client import Client
except ModuleNotFoundError as missing:
    raise client_errors.missing_client(missing, "nats") from missing

__all__ = [
    "CONNECT_SECS",
    "LOST",
    "NAK",
    "SILENT",
    "Connection",
    "Message",
    "NoStreamResponseError",
    "Session",
    "close",
    "connect",
    "connector_error",
    "forbidden_subject_of",
    "hosts_of",
    "refusal_of",
    "see_stream",
    "store",
    "stored_ns",
]

CONNECT_SECS: Final = 5.0
_PING_SECS: Final = 2
"""A connection that has not answered two pings is gone."""
_API_SECS: Final = 3.0
_PULL_SECS: Final = 2.0
"""A request that brought nothing ends after this time, and the consumer is asked for."""
_PULL_PAUSE_SECS: Final = 0.2
_EXPIRED: Final = "408"
_BUFFER_BYTES: Final = 1 << 30
_LOOK_SECS: Final = 5.0
"""The time between two looks at the stream's first message."""
_STREAM_SECS: Final = 1.0
_UNREADABLE: Final[dict[str, str]] = {"": "headers that cannot be read"}
"""What nats-py gives in their place here; known by its identity."""

_LOGIN: Final = Cause("NATS refused the login", "correct user and password in the URL; nothing was received")
_ACCESS: Final = Cause(
    "NATS refused access",
    "give the user the right to ask for, pull from and answer this consumer ($JS.API.>, $JS.ACK.>)",
)
_TLS: Final = Cause("", "")
_NO_STREAM: Final = Cause(
    "there is no such stream", "create it: nats stream add; or correct its name, and submit again"
)
_NO_CONSUMER: Final = Cause(
    "there is no such consumer", "create it: nats consumer add; or correct its name, and submit again"
)
_BUSY: Final = Cause(
    "NATS cannot serve this now", "see what it says; it is tried again until then", passes=True
)
_WRONG: Final = Cause("JetStream refused", "see what it says; submit again")
_LARGE: Final = Cause(
    "the message is larger than the server allows",
    "send less, or raise max_payload of the server or max_msg_size of the stream",
)
_SUBJECT: Final = Cause(
    "this is no subject of NATS", "give words with dots between them, without blanks and wildcards"
)
_HEADER: Final = Cause(
    "a header cannot be sent", "give texts without line ends, under names without blanks and colons"
)
_VALUE: Final = Cause("nats-py cannot send this value", "give data as bytes or text, and headers as texts")
API_ERRORS: Final = {
    10002: _BUSY, 10010: _WRONG, 10014: _NO_CONSUMER, 10036: _WRONG, 10054: _LARGE, 10059: _NO_STREAM,
    408: _BUSY, 429: _BUSY, 4: _WRONG, 5: _BUSY,
}  # fmt: skip
"""JetStream's errors: by their own number, else by their status, else by its first digit."""
CLIENT_ERRORS: Final = (
    (nats.errors.MaxPayloadError, _LARGE), (nats.errors.BadSubjectError, _SUBJECT),
    (getattr(nats.errors, "BadHeaderError", nats.errors.BadSubjectError), _HEADER),
    (nats.errors.AuthorizationError, _LOGIN), (nats.errors.InvalidUserCredentialsError, _LOGIN),
    (nats.errors.SecureConnRequiredError, _TLS), (nats.errors.SecureConnWantedError, _TLS),
    (nats.errors.SecureConnFailedError, _TLS), (ssl.SSLError, _TLS),
    (nats.errors.BadTimeoutError, _WRONG), (nats.errors.InvalidCallbackTypeError, _WRONG),
)  # fmt: skip
"""What nats-py raises, and does not pass. Its other errors mean a connection that is gone."""
SERVER_WORDS: Final = {
    "authorization violation": _LOGIN, "authentication expired": _LOGIN, "authentication revoked": _LOGIN,
    "permissions violation": _ACCESS, "tls required": _TLS, "maximum payload": _LARGE,
    "invalid subject": _SUBJECT, "invalid publish subject": _SUBJECT, "maximum control line": _WRONG,
    "invalid client protocol": _WRONG, "unknown protocol operation": _WRONG,
    "authorization timeout": _BUSY, "connections exceeded": _BUSY, "subscriptions exceeded": _BUSY,
    "slow consumer": _BUSY, "server shutdown": _BUSY,
}  # fmt: skip
"""By words of what the server says when it closes a connection, in small letters."""
NAK: Final = b"-NAK"
NoStreamResponseError: Final = nats.js.errors.NoStreamResponseError
LOST: Final = (nats.errors.Error, OSError, TimeoutError, asyncio.TimeoutError)
"""What nats-py raises."""
SILENT: Final = (
    nats.errors.TimeoutError, nats.errors.ConnectionClosedError, nats.errors.StaleConnectionError, OSError,
    TimeoutError, asyncio.CancelledError,
)  # fmt: skip
"""What is raised where no answer came to a message."""
_TOO_LARGE: Final = 10054
_FORBIDDEN: Final = re.compile(r"permissions violation for publish to \"(.*)\"", re.IGNORECASE)
_HEADER_BYTES: Final = len(": \r\n")
_HEADERS_BYTES: Final = len("NATS/1.0\r\n\r\n")
_SHORT_REPLY: Final = 9
"""The number of parts of a reply subject that names no domain."""


class Message(NamedTuple):
    """A delivery.

    Attributes:
        sequence: Its place in the stream.
        reply: The subject that an answer to it is published to.
        attempt: The number of this delivery, from 1.
        headers: None where they cannot be read.
        made_ns: ``made_ns`` of the session when it came.
    """

    sequence: int
    reply: str
    attempt: int
    subject: str
    data: bytes
    headers: dict[str, str] | None
    made_ns: int


def stored_ns(reply: str) -> int:
    """When the stream stored a message, by the reply subject of any of its deliveries."""
    parts = reply.split(".")
    return int(parts[7 if len(parts) == _SHORT_REPLY else 9])


class Session:
    """A connection of nats-py and what is pulled over it. Coroutines run on one event loop.

    Attributes:
        is_connected: Whether the connection can be used. Any thread may read it.
        refusal: What the server last refused this user; nats-py reports it by a callback, not by the call.
        lease_secs: How long the consumer waits for an ack.
        waiting_count: How many messages were not delivered yet, by the latest answer.
        given_up: Sequences of messages that the consumer gave up by itself.
        removed: The first and last sequence of messages that were removed before their delivery; each once.
        made_ns: When the stream was made: what was stored before was in another one of its name. 0 where that
            is not known: for a mirror, which has the times of its origin, and where this user may not ask.
    """

    def __init__(self, url: str, stream: str, consumer: str, ack_pending: int | None, most: int) -> None:
        self._url, self._stream, self._consumer = url, stream, consumer
        self._ack_pending, self._most = ack_pending, most
        self._client: Connection | None = None
        self._up = asyncio.Event()
        self._messages: Any = None
        self._asked = 0
        self.is_connected = False
        self.refusal: Exception | None = None
        self.lease_secs = 30.0
        self.waiting_count: int | None = None
        self.given_up: deque[int] = deque()
        self.removed: deque[tuple[int, int]] = deque()
        self.made_ns = 0
        self._seen_first = 0
        self._look_after = self._see_after = 0.0
        self._may_look = True

    async def connect(self) -> None:
        """Close the old connection, connect, and look at the consumer."""
        await self.disconnect()
        self.refusal = None
        self._client = await connect(self._url, self._note_refusal)
        try:
            async with asyncio.timeout(CONNECT_SECS):
                await self._subscribe(self._client)
        except BaseException:
            await self.disconnect()
            raise
        self.is_connected = True
        self._up.set()

    async def _subscribe(self, client: Connection) -> None:
        """Look at the consumer, and subscribe to its messages and to its advisories."""
        config = (await self._look()).config
        _check(config)
        await self._see_removed()
        await self._raise_ack_pending(config)
        self.lease_secs = min(config.backoff or [config.ack_wait or self.lease_secs])
        if (config.max_deliver or 0) > 0:
            subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{self._stream}.{self._consumer}"
            await client.subscribe(subject, cb=self._note_given_up)
        inbox = client.new_inbox()
        self._messages = await client.subscribe(inbox, pending_bytes_limit=_BUFFER_BYTES)
        self._asked = 0

    async def pull(self) -> list[Message]:
        """The messages that came; an empty list when none came for a while. Called again and again."""
        await self._up.wait()
        client = self._client
        try:
            return await self._pull()
        except LOST:
            if client is not self._client:  # another thread has closed it, and may have reconnected
                return []
            self.is_connected = False
            self._up.clear()
            raise

    async def answer(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Publish answers; returns when the server has them."""
        assert self._client is not None, "connected"
        try:
            for subject, payload in answers:
                await self._client.publish(subject, payload)
            await self._client.flushed()
        except LOST:
            self.is_connected = False
            raise

    def must_see(self) -> bool:
        """Whether the last look at the stream is some time ago, or no request would be refused by now."""
        return self._may_look and (not self._asked or time.monotonic() >= self._see_after)

    async def see(self) -> None:
        """Look when the stream was made. Raises where the connection is gone."""
        try:
            await self._first_sequence()
        except LOST:
            self.is_connected = False
            raise

    async def leave(self, replies: Sequence[str]) -> None:
        """Give back messages that were not emitted, and disconnect."""
        if self.is_connected:
            with suppress(*LOST):
                await self.answer([(reply, NAK) for reply in replies])
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connection, if there is one, also a broken one."""
        self.is_connected = False
        self._up.clear()
        client, self._client = self._client, None
        if client is not None:
            await close(client)

    async def _pull(self) -> list[Message]:
        assert self._client is not None, "connected"
        if not self._asked:
            wanted = {"batch": self._most, "expires": int(_PULL_SECS * 1e9)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            await self._client.publish(subject, json.dumps(wanted).encode(), reply=self._messages.subject)
            self._asked = self._most
        found: list[Message] = []
        while not found or self._messages.pending_msgs:
            message = await self._next_message()
            if message is not None and message.reply:
                found.append(self._read(message))
                self._asked -= 1
                continue
            # The server has ended the request, or its message that says so was lost.
            self._asked = 0
            is_refused = message is not None and (message.headers or {}).get("Status") != _EXPIRED
            if is_refused:  # the consumer may be gone, and its stream be made anew
                self._see_after = 0.0
            if not found:
                await self._look()
                if time.monotonic() >= self._look_after:
                    await self._see_removed()
                if is_refused:
                    await asyncio.sleep(_PULL_PAUSE_SECS)  # else the next one is refused as quickly
            break
        return found

    async def _next_message(self) -> Any:  # noqa: ANN401  # nats-py's
        with suppress(nats.errors.TimeoutError):
            return await self._messages.next_msg(_PULL_SECS + 1)

    def _read(self, message: Any) -> Message:  # noqa: ANN401  # nats-py's
        metadata = message.metadata
        self.waiting_count = metadata.num_pending
        # nats-py has members of an enumeration among the names.
        headers = {str.__str__(name): value for name, value in (message.headers or {}).items()}
        return Message(
            metadata.sequence.stream, message.reply, attempt=metadata.num_delivered, subject=message.subject,
            data=message.data, headers=None if message.headers is _UNREADABLE else headers,
            made_ns=self.made_ns,
        )  # fmt: skip

    async def _see_removed(self) -> None:
        """Note what was removed from the stream before it was delivered, where the consumer reads all of it.

        With a filter nobody knows whether the consumer would have read it. What was delivered and then
        removed counts as acknowledged at once: JetStream has no trace of it.
        """
        self._look_after = time.monotonic() + _LOOK_SECS
        first = await self._first_sequence()
        if first is None:
            return
        info = await self._look()  # after the stream: what is delivered meanwhile counts as delivered
        begin, self._seen_first = max(info.delivered.stream_seq + 1, self._seen_first), first
        if begin < first and not _is_filtered(info.config):
            self.removed.append((begin, first - 1))

    async def _first_sequence(self) -> int | None:
        """Note when the stream was made. Returns its first sequence; None where this user may not ask."""
        if not self._may_look or self._client is None:
            return None
        self._see_after = time.monotonic() + _LOOK_SECS
        try:
            stream = await self._client.jetstream(timeout=_STREAM_SECS).stream_info(self._stream)
        except TimeoutError:  # this user may not ask
            return None
        except nats.js.errors.APIError:  # among others, there is none now: the next one is another stream
            self._see_after = 0.0
            return None
        made = None if stream.config.mirror else getattr(stream, "created", None)  # newer versions have it
        made_ns = int(made.timestamp() * 1e6) * 1000 if isinstance(made, datetime) else 0
        if made_ns != self.made_ns:
            self.made_ns, self._seen_first = made_ns, 0
        return int(stream.state.first_seq)

    async def _look(self) -> Any:  # noqa: ANN401  # nats-py's
        """Look the consumer up; raises where it is gone."""
        assert self._client is not None, "connected"
        info = await self._client.jetstream(timeout=_API_SECS).consumer_info(self._stream, self._consumer)
        self.waiting_count = info.num_pending
        return info

    async def _raise_ack_pending(self, config: Any) -> None:  # noqa: ANN401  # nats-py's
        """Raise the consumer's limit of open messages, where this user may change it."""
        assert self._client is not None, "connected"
        now = config.max_ack_pending or 0
        if self._ack_pending is not None and 0 < now < self._ack_pending:
            with suppress(nats.js.errors.APIError):
                changed = config.evolve(max_ack_pending=self._ack_pending)
                await self._client.jetstream(timeout=_API_SECS).add_consumer(self._stream, changed)

    async def _note_refusal(self, error: Exception) -> None:
        words = str(error).lower()
        if "$js.api.stream.info" in words:  # a right that is not needed
            self._may_look = False
        elif "permissions violation" in words:
            self.refusal = error

    async def _note_given_up(self, advisory: Any) -> None:  # noqa: ANN401  # nats-py's
        self.given_up.append(int(json.loads(advisory.data)["stream_seq"]))


class Connection(Client):
    """A client of nats-py that notes when it is lost, and with ``tls://`` sends no password unencrypted."""

    def __init__(self) -> None:
        super().__init__()
        self._lost = asyncio.Event()

    async def note_lost(self) -> None:
        """Called when it is closed, by either side."""
        self._lost.set()

    async def flushed(self) -> None:
        """Wait until the server has all that was published, or the connection is lost.

        nats-py's own ``flush`` does not return when the connection is lost.
        """
        answer = asyncio.ensure_future(self.flush(int(CONNECT_SECS)))
        lost = asyncio.ensure_future(self._lost.wait())
        await asyncio.wait([answer, lost], return_when=asyncio.FIRST_COMPLETED)
        for each in (answer, lost):
            each.cancel()
        await asyncio.wait([answer, lost])
        if answer.cancelled():
            raise nats.errors.ConnectionClosedError
        answer.result()

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:  # noqa: ANN401  # nats-py's
        """The headers of a message. An error of nats-py here ends its receiving without a report."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError):
            return _UNREADABLE

    def _connect_command(self) -> bytes:
        wants_tls = self._current_server is not None and self._current_server.uri.scheme == "tls"
        if wants_tls and not self._server_info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        return bytes(super()._connect_command())


async def connect(url: str, note_error: Callable[[Exception], Awaitable[None]] | None = None) -> Connection:
    """A connection to one of a URL's servers. It is tried once, and does not reconnect by itself.

    Args:
        note_error: Called with errors that nats-py reports by a callback, such as what the server refused.
    """
    client = Connection()
    noted: list[Exception] = []

    async def note(error: Exception) -> None:
        noted.append(error)
        if note_error is not None:
            await note_error(error)

    try:
        async with asyncio.timeout(CONNECT_SECS):
            await client.connect(
                url.split(","), error_cb=note, closed_cb=client.note_lost, name="acktree",
                allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0, connect_timeout=2,
                ping_interval=_PING_SECS, max_outstanding_pings=2,
            )  # fmt: skip
    except BaseException as error:
        await close(client)
        # Where no server could be reached, the reason comes by `error_cb` and not by the call.
        if noted and isinstance(error, (nats.errors.NoServersError, TimeoutError)):
            raise noted[-1] from error
        raise
    return client


async def close(client: Client) -> None:
    """Close a connection, in whatever state it is."""
    with suppress(Exception):  # an error of a connection that is closed has no consequence
        async with asyncio.timeout(1):
            await client.close()


def _check(config: Any) -> None:  # noqa: ANN401  # nats-py's
    """Refuse a consumer that cannot be read, or whose acks mean more than one message."""
    if config.deliver_subject:
        raise _WrongConsumerError("it is a push consumer")
    if config.ack_policy != "explicit":
        raise _WrongConsumerError(f"its ack policy is {config.ack_policy!s:.20}")


def _is_filtered(config: Any) -> bool:  # noqa: ANN401  # nats-py's
    return bool(config.filter_subject or getattr(config, "filter_subjects", None))


class _WrongConsumerError(nats.errors.Error):
    """A consumer that cannot serve a topology."""


def connector_error(error: BaseException, where: str) -> ConnectorError:
    """What nats-py raised, as a ConnectorError: what it means, whether to try again, and the fix."""
    words = str(error) or type(error).__name__
    if isinstance(error, _WrongConsumerError):
        fix = "make a durable pull consumer with explicit acks: nats consumer add --pull --ack explicit"
        return ConnectorError(f"this consumer cannot be read: {error}", where, fix)
    cause = _cause_of(error, words) if isinstance(error, LOST) else _VALUE
    if cause is _TLS:
        return client_errors.tls_mismatch("NATS", where, "tls://", "nats://")
    if cause is not None:
        return cause.error(getattr(error, "description", None) or words, where)
    return client_errors.gone("NATS", words, where, ", and that JetStream is enabled (nats-server -js)")


def _cause_of(error: BaseException, words: str) -> Cause | None:
    """The row of the tables that an error has; None for a connection that is gone."""
    if isinstance(error, nats.js.errors.APIError):
        code = error.code or 0
        return next(
            (API_ERRORS[key] for key in (error.err_code, code, code // 100) if key in API_ERRORS), None
        )
    for each in client_errors.causes_of(error):
        for kind, cause in CLIENT_ERRORS:
            if isinstance(each, kind):
                return cause
    return next((cause for part, cause in SERVER_WORDS.items() if part in words.lower()), None)


def hosts_of(url: str, where: str) -> str:
    """The servers of a URL, without user and password."""
    form = "nats://user:password@host:4222"
    try:
        parts = [urlsplit(each.strip()) for each in url.split(",")]
        hosts = [f"{each.hostname}:{each.port or 4222}" for each in parts]
    except ValueError as error:
        raise client_errors.unreadable_url("NATS", error, where, form) from None
    if any(each.scheme not in ("nats", "tls") or not each.hostname for each in parts):
        raise client_errors.unreadable_url("NATS", ValueError(), where, f"{form}, or tls://")
    return ", ".join(hosts)


async def see_stream(url: str, subject: str | None) -> None:
    """Connect, and see whether a stream takes a subject; None: only connect.

    Raises:
        NoStreamResponseError: None does.
    """
    refused: list[Exception] = []

    async def note(error: Exception) -> None:
        refused.append(error)

    client = await connect(url, note)
    try:
        if subject is not None:
            await client.jetstream(timeout=_API_SECS).find_stream_name_by_subject(subject)
    except nats.js.errors.NotFoundError as error:
        raise NoStreamResponseError from error
    except SILENT:
        if not any("permissions violation" in str(each).lower() for each in refused):
            raise
    finally:
        await close(client)


async def store(client: Connection, subject: str, data: bytes, headers: dict[str, str] | None) -> object:
    """Publish a message, and wait for JetStream's answer."""
    pairs = (headers or {}).items()
    size = len(data) + sum(len(name.encode()) + len(text.encode()) + _HEADER_BYTES for name, text in pairs)
    if size + _HEADERS_BYTES * bool(headers) > client.max_payload:  # the server would close the connection
        raise nats.errors.MaxPayloadError
    return await client.jetstream().publish(subject, data, CONNECT_SECS, headers=headers)


def forbidden_subject_of(error: BaseException) -> str:
    """The subject of a message that this user may not publish; empty for other errors."""
    found = _FORBIDDEN.search(str(error))
    return found[1] if found else ""


def refusal_of(error: BaseException, where: str) -> ConnectorError:
    """Why a message was not stored, where the server can be reached."""
    if isinstance(error, NoStreamResponseError):
        fix = "make a stream with this subject: nats stream add --subjects"
        return ConnectorError("JetStream has no stream that takes this subject", where, fix)
    if isinstance(error, nats.js.errors.APIError):
        what = f"JetStream refused the message: {error.description!s:.{client_errors.SHORT}}"
        can_retry = error.err_code != _TOO_LARGE
        return ConnectorError(what, where, "see the stream's limits", can_retry=can_retry)
    if isinstance(error, nats.errors.MaxPayloadError):
        fix = "send less, such as a reference to the content, or raise max_payload of the server"
        return ConnectorError("the message is larger than the server's max_payload", where, fix)
    if forbidden_subject_of(error):
        what = f"NATS refused the message: {error!s:.{client_errors.SHORT}}"
        return ConnectorError(what, where, "give the user the right to publish to this subject")
    if isinstance(error, SILENT):
        fix = "see whether a stream has this subject (nats stream ls --subjects); it may be stored"
        what = f"NATS answers, and JetStream did not answer for this message: {type(error).__name__}"
        return ConnectorError(what, where, fix, can_retry=True)
    what = f"nats-py refused the message: {str(error) or type(error).__name__:.{client_errors.SHORT}}"
    return ConnectorError(what, where, "correct what it names")
