"""Messages of a child in msgpack: maps and lists, one after another. No I/O. Needs ``acktree[msgpack]``.

Rules of this file
------------------
1. A message begins with a byte that begins a map or a list. What begins with another byte is a line that the
   child printed: it goes up to the end of the line, and is the component's output.
2. A message is decoded when all of it is there, so a few bytes that announce a large list take no memory.
3. A message has a largest size, as in JSON.
4. A key of a map is a text, also in what is written: pystorm's reader refuses others, and the child ends.

Source: pystorm's ``MsgpackSerializer``: the library's defaults, texts as str and bytes as bin. Storm itself
has no such serializer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from acktree.errors import installing
from acktree.multilang.framing import MOST_BYTES, FramingError, Received, UnwritableError, plain

try:
    import msgpack
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"messages in msgpack need the package msgpack, which is not here: {installing('msgpack')}",
        name=missing.name,
    ) from missing

__all__ = ["PackedFrames", "packed"]

_AS_DATETIME: Final = 3
_MOST_READ: Final = 65_536
_MOST_SHOWN: Final = 200
_BEGINNINGS: Final = frozenset([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""What a map or a list begins with."""


class PackedFrames:
    """Divides the output of a child into messages.

    Args:
        most_bytes: The largest size of a message.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = bytearray()
        self._at = 0  # where the rest begins, as the unpacker counts
        self._printed: list[str] = []
        self._unpacker = msgpack.Unpacker(max_buffer_size=0, read_size=_MOST_READ)

    def feed(self, data: bytes) -> Iterator[Received]:
        """Take what the child wrote; yield each message that is complete.

        Raises:
            FramingError: A message is too large, or is not msgpack.
        """
        self._unpacker.feed(data)
        self._rest += data
        while self._rest and (size := self._size_of_next()):
            taken = bytes(self._rest[:size])
            del self._rest[:size]
            self._at = self._unpacker.tell()
            if taken[0] in _BEGINNINGS:
                printed, self._printed = self._printed, []
                yield Received(_unpacked(taken), printed)
            elif line := taken.rstrip(b"\r\n"):
                self._printed.append(line.decode(errors="replace"))
        if len(self._rest) > self._most_bytes:
            raise FramingError(f"a message of more than {self._most_bytes:,} bytes without an end")

    @property
    def rest(self) -> bytes:
        """What is not a complete message yet."""
        return b"".join(f"{line}\n".encode() for line in self._printed) + self._rest

    @property
    def text(self) -> str:
        """The beginning of what is not a complete message yet; empty if there is nothing."""
        return _shown(self.rest) if self.rest else ""

    def _size_of_next(self) -> int:
        """The size of the message, or of the printed line, that is next; 0 if it is not complete."""
        if self._rest[0] not in _BEGINNINGS:
            size = self._rest.find(b"\n") + 1
            self._unpacker.read_bytes(size)
            return size
        try:
            self._unpacker.skip()
        except msgpack.OutOfData:
            return 0
        except ValueError as error:
            raise FramingError(f"what is not msgpack ({error}): {_shown(self._rest)}") from error
        return int(self._unpacker.tell()) - self._at


def packed(message: object) -> bytes:
    """A message for a child.

    Raises:
        UnwritableError: It has a value that msgpack does not have: a date, an integer above 64 bits, an
            object, or a key of a dict that is no text.
    """
    try:
        _refuse_keys(message)
        return bytes(msgpack.packb(message, default=plain))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnwritableError(str(error)) from error


def _refuse_keys(value: object) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.50} of a dict is no text")
            _refuse_keys(each)
    elif isinstance(value, list | tuple):
        for each in value:
            if isinstance(each, dict | list | tuple):
                _refuse_keys(each)


def _unpacked(data: bytes) -> Any:  # noqa: ANN401  # what the child says
    try:
        return msgpack.unpackb(data, timestamp=_AS_DATETIME)
    except (ValueError, RecursionError, OverflowError) as error:
        raise FramingError(f"what is not msgpack ({error}): {_shown(data)}") from error


def _shown(data: bytes | bytearray) -> str:
    return repr(bytes(data[:_MOST_SHOWN])) + ("..." if len(data) > _MOST_SHOWN else "")
