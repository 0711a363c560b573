"""Messages as JSON: one or more lines, then the line ``end``."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from acktree.multilang.framing import plain
from acktree.pystorm.exceptions import StormWentAwayError
from acktree.pystorm.serializers.serializer import Serializer

log = logging.getLogger(__name__)

_MANY_BLANK_LINES: Final = 1000


class _Text(io.TextIOWrapper):
    """A stream of text that leaves the stream of bytes open when it is collected: that may be the stdout."""

    def __del__(self) -> None:
        with suppress(OSError, ValueError):  # it was closed before
            self.detach()


class JSONSerializer(Serializer):
    """Reads and writes UTF-8, whatever the encoding of the platform is."""

    def __init__(
        self,
        input_stream: Any,
        output_stream: Any,
        reader_lock: AbstractContextManager[object],
        writer_lock: AbstractContextManager[object],
    ) -> None:
        streams = self._wrap_stream(input_stream), self._wrap_stream(output_stream)
        super().__init__(*streams, reader_lock, writer_lock)

    @staticmethod
    def _wrap_stream(stream: Any) -> io.TextIOWrapper:
        return _Text(getattr(stream, "buffer", stream), encoding="utf-8")

    def wrapped(self, stream: Any) -> io.TextIOWrapper:
        return self._wrap_stream(stream)

    def read_message(self) -> Any:
        lines: list[str] = []
        blank_count = 0
        while True:
            with self._reader_lock:
                line = self.input_stream.readline()
            if line == "end\n":
                break
            if not line:
                raise StormWentAwayError
            if line == "\n":
                blank_count += 1
                if blank_count % _MANY_BLANK_LINES == 0:
                    log.warning("Storm has sent %s blank lines instead of a message", blank_count)
                continue
            lines.append(line)
        text = "".join(lines)
        try:
            return json.loads(text)
        except ValueError:
            log.exception("JSON decode error for message: %r", text)
            raise

    def serialize_dict(self, msg_dict: Mapping[str, Any]) -> str:
        return f"{json.dumps(msg_dict, default=plain)}\nend\n"
