"""The base class of serializers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from acktree.pystorm.exceptions import StormWentAwayError

log = logging.getLogger(__name__)


class Serializer:
    """Reads and writes messages.

    Args:
        input_stream: Where messages come from.
        output_stream: Where messages go.
        reader_lock: Held while a message is read.
        writer_lock: Held while a message is written.
    """

    def __init__(
        self,
        input_stream: Any,
        output_stream: Any,
        reader_lock: AbstractContextManager[object],
        writer_lock: AbstractContextManager[object],
    ) -> None:
        self._reader_lock, self._writer_lock = reader_lock, writer_lock
        self.input_stream, self.output_stream = input_stream, output_stream

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
        return True

    def serialize_dict(self, msg_dict: Mapping[str, Any]) -> Any:
        """A message as the text or the bytes that are written."""
        raise NotImplementedError
