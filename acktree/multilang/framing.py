"""Messages of a child as text: JSON on one or more lines, then the line ``end``. No I/O.

A ``Format`` is this one, or that of ``packing.py``.

Rules of this file
------------------
1. What a child wrote before a message in the same frame, by ``print``, is the component's output and no
   mistake: the message is the longest run of lines at the end that is a JSON object or list.
2. A frame has a largest size. A child that never ends a message does not fill this process's memory.

Source: Storm's ``JsonSerializer``. There, a printed line ends the worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

__all__ = [
    "MOST_BYTES",
    "Format",
    "Frames",
    "FramingError",
    "Received",
    "UnwritableError",
    "format_of",
    "framed",
    "plain",
    "serializer_named",
]

MOST_BYTES: Final = 16 * 1024 * 1024
"""The largest frame of a child."""
_END: Final = b"end"
_MOST_STARTS: Final = 100
_MOST_SHOWN: Final = 200


class UnwritableError(ValueError):
    """A message has a value that its format does not have."""


class FramingError(ValueError):
    """What a child wrote is not a message."""


class Received(NamedTuple):
    """A message of a child.

    Attributes:
        message: What its JSON says: a dict or a list.
        printed: The lines that it printed before.
    """

    message: Any
    printed: list[str]


class Frames:
    """Divides the output of a child into messages.

    Args:
        most_bytes: The largest size of a frame.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = bytearray()
        self._lines: list[bytes] = []
        self._bytes = 0

    def feed(self, data: bytes) -> Iterator[Received]:
        """Take what the child wrote; yield each message that is complete.

        Raises:
            FramingError: A frame is too large, or has no message.
        """
        *lines, rest = data.split(b"\n")
        for end in lines:
            line, self._rest = bytes(self._rest + end), bytearray()
            if line.rstrip(b"\r") == _END:
                yield self._received()
            elif line.strip():
                self._grow(len(line) + 1)
                self._lines.append(line)
        self._rest += rest
        self._grow(0)

    @property
    def rest(self) -> bytes:
        """What is not a complete message yet."""
        return b"\n".join([*self._lines, bytes(self._rest)])

    @property
    def text(self) -> str:
        """The beginning of what is not a complete message yet; empty if there is nothing."""
        text = b"\n".join([*self._lines[:_MOST_SHOWN], bytes(self._rest[:_MOST_SHOWN])]).strip()
        return _shown(text) if text else ""

    def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes + len(self._rest) > self._most_bytes:
            raise FramingError(f"a message of more than {self._most_bytes:,} bytes without a line 'end'")

    def _received(self) -> Received:
        lines, self._lines, self._bytes = self._lines, [], 0
        for start in _starts(lines):
            try:
                message = json.loads(b"\n".join(lines[start:]))
            except (ValueError, RecursionError):
                continue
            return Received(message, [line.decode(errors="replace") for line in lines[:start]])
        raise FramingError(f"what is not JSON: {_shown(b' '.join(lines[-3:]))}")


class AnyFrames(Protocol):
    """What divides the output of a child into messages: see ``Frames``."""

    def feed(self, data: bytes) -> Iterator[Received]:
        """Take what the child wrote; yield each message that is complete."""

    @property
    def rest(self) -> bytes:
        """What is not a complete message yet."""

    @property
    def text(self) -> str:
        """The beginning of what is not a complete message yet."""


class Format(NamedTuple):
    """How messages are written.

    Attributes:
        name: Its name, for errors.
        message: What a message is, for errors.
        values: The values that a child can be given, for errors.
        frames: Divides the output of a child into messages.
        framed: Writes a message.
    """

    name: str
    message: str
    values: str
    frames: Callable[[], AnyFrames]
    framed: Callable[[object], bytes]


def serializer_named(setting: object) -> str | None:
    """The serializer that Storm's ``topology.multilang.serializer`` names; None for one that is not here.

    It is a name, or one of the Java classes that read JSON or msgpack.
    """
    name = str(setting or "json").rpartition(".")[2].lower()
    if name in {"json", "jsonserializer"}:
        return "json"
    return "msgpack" if "msgpack" in name or "messagepack" in name else None


def format_of(serializer: str) -> Format:
    """The format of a serializer: "json", or else msgpack.

    Raises:
        ModuleNotFoundError: The extra ``acktree[msgpack]`` is not installed.
    """
    if serializer == "json":
        about = "JSON, then a line 'end'", "texts, numbers, booleans, lists and dicts"
        return Format("JSON", *about, Frames, framed)
    from acktree.multilang.packing import PackedFrames, packed  # noqa: PLC0415  # an extra

    about = "a map in msgpack", "texts, bytes, numbers, booleans, lists and dicts with texts as keys"
    return Format("msgpack", *about, PackedFrames, packed)


def framed(message: object) -> bytes:
    """A message for a child.

    Raises:
        UnwritableError: It has a value that JSON does not have: bytes, NaN, an object.
    """
    try:
        return json.dumps(message, default=plain, allow_nan=False).encode() + b"\nend\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UnwritableError(str(error)) from error


def _starts(lines: list[bytes]) -> Iterator[int]:
    """Where a message may begin: at lines with a bracket, the first first. Their number is bounded."""
    starts = [nth for nth, line in enumerate(lines) if line.lstrip()[:1] in (b"{", b"[")]
    yield from starts[:1]
    yield from starts[1:][-_MOST_STARTS:]


def plain(value: object) -> object:
    """A number of another type as one of JSON's. TypeError for anything else."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    item = getattr(value, "item", None)  # of a scalar of numpy
    if callable(item):
        return item()
    raise TypeError(f"{type(value).__name__} has no form in a message")


def _shown(data: bytes) -> str:
    return repr(data[:_MOST_SHOWN].decode(errors="replace")) + ("..." if len(data) > _MOST_SHOWN else "")
