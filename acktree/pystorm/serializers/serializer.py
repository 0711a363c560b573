"""The base class of serializers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from acktree.pystorm.exceptions import StormWentAwayError

log = logging.getLogger(__name__)

_CLOSING: Final = frozenset({"ack", "fail"})


class Serializer:
    """Reads and writes messages.

    Args:
        input_stream: Where messages come from.
        output_stream: Where messages go.
        reader_lock: Held while a message is read.
        writer_lock: Held while a message is written.

    Attributes:
        taken: The id of the tuple that the bolt took last.
        printed: The stream of stdout, where that was moved.
    """

    taken: Any = None
    printed: Any = None

    def __init__(
        self,
        input_stream: Any,
        output_stream: Any,
        reader_lock: AbstractContextManager[object],
        writer_lock: AbstractContextManager[object],
    ) -> None:
        self._reader_lock, self._writer_lock = reader_lock, writer_lock
        self.input_stream, self.output_stream = input_stream, output_stream
        self._closed: set[Any] = set()

    def take(self, tup_id: Any) -> None:
        """Note which tuple the bolt takes."""
        self.taken = tup_id
        self._closed.clear()

    def is_closed(self, tup_id: Any) -> bool:
        """Whether the bolt has acked or failed a tuple, since it took the last one."""
        return tup_id in self._closed

    def wrapped(self, stream: Any) -> Any:
        """A stream of bytes as ``output_stream`` has it."""
        return stream

    def read_message(self) -> Any:
        """The next message.

        Raises:
            StormWentAwayError: The other end is closed.
        """
        raise NotImplementedError

    def send_message(self, msg_dict: Mapping[str, Any]) -> bool:
        """Write a message. Returns whether it was: a value that the format does not know is logged.

        Raises:
            StormWentAwayError: The other end is closed.
        """
        with self._writer_lock:
            try:
                self.output_stream.flush()
                self.output_stream.write(self.serialize_dict(msg_dict))
                self.output_stream.flush()
            except OSError:
                raise StormWentAwayError from None
            except Exception:
                log.exception("Failed to send message: %r", msg_dict)
                return False
            if msg_dict.get("command") in _CLOSING:
                self._closed.add(msg_dict.get("id"))
        return True

    def serialize_dict(self, msg_dict: Mapping[str, Any]) -> Any:
        """A message as the text or the bytes that are written."""
        raise NotImplementedError
