"""pika's connection as the RabbitMQ connector uses it, and pika's errors. Needs ``acktree[rabbitmq]``.

Source: AMQP 0-9-1 and its errata by RabbitMQ.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from acktree import ConnectorError
from acktree.connectors import client_errors
from acktree.connectors.client_errors import Cause

try:
    import pika
    import pika.data
    import pika.exceptions
    import pika.frame
    import pika.spec
except ModuleNotFoundError as missing:
    raise client_errors.missing_client(missing, "rabbitmq") from missing

__all__ = ["ERRORS", "UNREADABLE", "Wire", "connector_error", "size_of_headers"]

_ACCESS: Final = Cause(
    "RabbitMQ refused access",
    "give the user the right to the virtual host and to read the queue (set_permissions)",
)
_ABSENT: Final = Cause(
    "there is no such queue or exchange", "declare it, or correct its name, and submit again"
)
_BUSY: Final = Cause(
    "RabbitMQ cannot serve this now", "see what it says; it is tried again until then", passes=True
)
_WRONG: Final = Cause("RabbitMQ refused", "correct what it names, and submit again")
_LEASE: Final = Cause(
    "RabbitMQ closed the channel",
    "raise the server's consumer_timeout above the longest time to a verdict; it connects again",
    passes=True,
)
_UNSENDABLE: Final = Cause(
    "RabbitMQ's client cannot send this", "correct the routing key, the headers or the body"
)
ERRORS: Final = (
    (311, "", _WRONG), (312, "", _BUSY), (313, "", _BUSY), (320, "", _BUSY), (402, "", _ACCESS),
    (403, "in exclusive use", _BUSY), (403, "", _ACCESS),
    (404, "is down or inaccessible", _BUSY), (404, "stopped by supervisor", _BUSY), (404, "", _ABSENT),
    (405, "", _BUSY),
    (406, "acknowledgement on channel", _LEASE), (406, "unknown delivery tag", _LEASE), (406, "", _WRONG),
    (501, "", _BUSY), (502, "", _WRONG), (503, "", _WRONG), (504, "", _BUSY), (505, "", _BUSY),
    (506, "", _BUSY),
    (530, "limit", _BUSY), (530, "", _ACCESS), (540, "", _WRONG), (541, "", _BUSY),
)  # fmt: skip
"""AMQP's reply codes, each with words of RabbitMQ's text, and the cause: the first row that fits counts."""
_OF_THE_MESSAGE: Final = (
    pika.exceptions.ShortStringTooLong, pika.exceptions.UnsupportedAMQPFieldException,
    pika.exceptions.BodyTooLongError,
)  # fmt: skip


def connector_error(error: BaseException, where: str, queue: str) -> ConnectorError:  # noqa: ARG001  # the sink's call
    """What pika raised, as a ConnectorError: what it means, whether to try again, and the fix."""
    inner = [*client_errors.causes_of(error)]
    answer = next((each for each in inner if hasattr(each, "reply_code")), error)
    code = getattr(answer, "reply_code", None)
    words = str(getattr(answer, "reply_text", "")) or str(error)
    if any(isinstance(each, ssl.SSLError) for each in inner):
        return client_errors.tls_mismatch("RabbitMQ", where, "amqps://", "amqp://")
    # pika raises these also where a connection breaks during the login: only the server's text is certain.
    text = " ".join(map(str, inner))
    if isinstance(error, pika.exceptions.AuthenticationError) or "ACCESS_REFUSED - Login" in text:
        return client_errors.login_refused("RabbitMQ", where)
    if isinstance(error, _OF_THE_MESSAGE):
        return _UNSENDABLE.error(f"{type(error).__name__} {words}", where)
    for known, part, cause in ERRORS:
        if code == known and part in words:
            return cause.error(words, where)
    if "ACCESS_REFUSED" in text or "NOT_ALLOWED" in text:
        return _ACCESS.error(words, where)
    words = words if words != "()" else ""  # of an exception without arguments
    causes = (getattr(each, "exception", None) for each in inner)
    of_system = [f"{type(cause).__name__}: {cause}" for cause in causes if isinstance(cause, OSError)]
    words = words or " ".join(of_system)
    words = words or " ".join(type(each).__name__ for each in inner)
    speaks = isinstance(error, pika.exceptions.IncompatibleProtocolError)
    hint = ", and that the URL fits its port (amqps:// if it speaks TLS)" if speaks else ""
    return client_errors.gone("RabbitMQ", words, where, hint)


UNREADABLE: Final[dict[str, Any]] = {"": "headers that cannot be read"}
"""What :class:`Wire` gives in their place; known by its identity."""
_DEEPEST: Final = 100
_HEADER_FRAME: Final = b"%c" % pika.spec.FRAME_HEADER
_LEAST_FLAGS: Final = b"\x20"
_HAS_HEADERS: Final = 1 << 13
_decode_frame: Final = pika.frame.decode_frame
_BEFORE_HEADERS: Final = (1 << 15, 1 << 14)  # content type, content encoding
_OF_ONE_BYTE: Final = (1 << 12, 1 << 11)  # after the headers: delivery mode, priority
_BEFORE_MESSAGE_ID: Final = (1 << 10, 1 << 9, 1 << 8)  # correlation id, reply to, expiration
_HAS_MESSAGE_ID: Final = 1 << 7
_CONTINUES: Final = 1
_DAY: Final = b"T"
_PLAIN: Final = {
    kind: struct.Struct(f">{code}")
    for kind, code in zip((b"%c" % each for each in b"tbBsUuIilLfdT"), "?bBhhHiIqqfdQ", strict=True)
}
"""The fields of one size, as RabbitMQ writes them: its ``B`` is unsigned, ``l`` signed."""


class Wire(pika.SelectConnection):  # type: ignore[misc]  # pika has no types
    """pika's connection, with headers as they were sent; of the properties beside them the message id alone.

    pika takes the connection for lost at a date after the year 9999, so that it is lost again with each
    delivery; and it cuts the fraction of a number off.
    """

    def _read_frame(self) -> Any:  # noqa: ANN401
        raw = self._frame_buffer
        # Called for each frame, so no more than this for those without headers.
        if raw[:1] == _HEADER_FRAME and raw[19:20] >= _LEAST_FLAGS and (read := _header_of(raw)) is not None:
            return read
        return _decode_frame(raw)


def _header_of(raw: bytes) -> tuple[int, Any] | None:
    """The header frame that bytes begin with, and its size; None where it is incomplete or has no headers."""
    size, flags = int.from_bytes(raw[3:7]), int.from_bytes(raw[19:21])
    if len(raw) < size + 8 or not flags & _HAS_HEADERS or flags & _CONTINUES:
        return None
    at, message_id = 21, None
    try:
        for flag in _BEFORE_HEADERS:
            at += 1 + raw[at] if flags & flag else 0
        if flags & _HAS_MESSAGE_ID:
            message_id = _message_id(raw, at + 4 + int.from_bytes(raw[at : at + 4]), flags)
        headers, _ = _table(raw, at, 0)
    except (KeyError, IndexError, struct.error, ArithmeticError):
        headers = UNREADABLE
    channel, body_size = int.from_bytes(raw[1:3]), int.from_bytes(raw[11:19])
    properties = pika.BasicProperties(headers=headers, message_id=message_id)
    return size + 8, pika.frame.Header(channel, body_size, properties)


def _message_id(raw: bytes, at: int, flags: int) -> str:
    """The message id, of properties whose headers end at ``at``."""
    at += sum(bool(flags & flag) for flag in _OF_ONE_BYTE)
    for flag in _BEFORE_MESSAGE_ID:
        at += 1 + raw[at] if flags & flag else 0
    return raw[at + 1 : at + 1 + raw[at]].decode(errors="backslashreplace")


def _table(raw: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """A table of AMQP, and where it ends. Raises KeyError for one that is too deep or has unknown fields."""
    if depth > _DEEPEST:
        raise KeyError(depth)
    found: dict[str, Any] = {}
    end = at + 4 + int.from_bytes(raw[at : at + 4])
    at += 4
    while at < end:
        name, at = raw[at + 1 : at + 1 + raw[at]], at + 1 + raw[at]
        found[_text(name)], at = _field(raw, at, depth)
    return found, at


def _field(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    """A field of AMQP, and where it ends."""
    kind, at = raw[at : at + 1], at + 1
    plain = _PLAIN.get(kind)
    if plain is not None:
        [value] = plain.unpack_from(raw, at)
        return _date(value) if kind == _DAY else value, at + plain.size
    if kind == b"V":
        return None, at
    if kind == b"D":
        return Decimal(int.from_bytes(raw[at + 1 : at + 5], signed=True)).scaleb(-raw[at]), at + 5
    if kind == b"F":
        return _table(raw, at, depth + 1)
    end = at + 4 + int.from_bytes(raw[at : at + 4])
    if kind == b"A":
        return _array(raw, at + 4, end, depth + 1), end
    if kind not in (b"S", b"x"):
        raise KeyError(kind)
    return _text(raw[at + 4 : end]) if kind == b"S" else raw[at + 4 : end], end


def _array(raw: bytes, at: int, end: int, depth: int) -> list[Any]:
    if depth > _DEEPEST:
        raise KeyError(depth)
    values = []
    while at < end:
        value, at = _field(raw, at, depth)
        values.append(value)
    return values


def _text(raw: bytes) -> Any:  # noqa: ANN401  # as pika: bytes where it is no UTF-8
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _date(secs: int) -> datetime | int:
    """A date; the number itself where it is none, as milliseconds are."""
    try:
        return datetime.fromtimestamp(secs, UTC)
    except (ValueError, OverflowError, OSError):
        return secs


def size_of_headers(headers: Mapping[str, Any], where: str) -> int:
    """The size of headers in bytes. Raises ConnectorError for one that AMQP would not return as it is."""
    size = 0
    for name, value in headers.items():
        pieces: list[bytes] = []
        # pika's own, struct.error, RecursionError, and what methods of values raise
        with suppress(Exception):
            pika.data.encode_table(pieces, {name: value})
            if pika.data.decode_table(b"".join(pieces), 0)[0] == {name: value}:
                size += sum(map(len, pieces))
                continue
        what = f"the header {name!r:.60} of type {type(value).__name__} would be another one when it is read"
        fix = "emit texts, bytes, booleans, ints of 64 bits, whole seconds in UTC, lists and dicts of them"
        raise ConnectorError(what, where, fix)
    return size
