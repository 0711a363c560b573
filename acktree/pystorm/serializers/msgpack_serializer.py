"""Reads and writes messages in msgpack. Making a serializer needs the package ``msgpack``."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from acktree.pystorm.exceptions import ComponentValueError, StormWentAwayError
from acktree.pystorm.serializers.serializer import Serializer


class MsgpackSerializer(Serializer):
    """Reads and writes bytes, with msgpack's defaults: texts as str, bytes as bin."""

    CHUNK_SIZE = 1024**2

    def __init__(
        self,
        input_stream: Any,
        output_stream: Any,
        reader_lock: AbstractContextManager[object],
        writer_lock: AbstractContextManager[object],
    ) -> None:
        try:
            self._msgpack = import_module("msgpack")
        except ModuleNotFoundError as error:
            raise ComponentValueError(
                "the serializer msgpack needs the package msgpack, which is not installed",
                "Component(serializer='msgpack')",
                "pip install msgpack, or use the serializer json",
            ) from error
        super().__init__(
            input_stream, getattr(output_stream, "buffer", output_stream), reader_lock, writer_lock
        )
        self._messages = self._read_all()

    def _read_all(self) -> Iterator[Any]:
        unpacker = self._msgpack.Unpacker()
        while True:
            part = self._read_part()
            if not part:
                raise StormWentAwayError
            unpacker.feed(part)
            yield from unpacker

    def _read_part(self) -> bytes:
        """The bytes that have arrived: a read of the stream would wait until a chunk is full."""
        with self._reader_lock:
            try:
                return os.read(self.input_stream.fileno(), self.CHUNK_SIZE)
            except io.UnsupportedOperation:
                return bytes(self.input_stream.read(self.CHUNK_SIZE))

    def read_message(self) -> Any:
        return next(self._messages)

    def serialize_dict(self, msg_dict: Mapping[str, Any]) -> bytes:
        return bytes(self._msgpack.packb(msg_dict))
