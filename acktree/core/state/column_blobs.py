"""How a bucket of a ``ColumnState`` is stored: its keys and values as packed columns, without pickle.

Layout, by ``core/packing.py``::

    head       JSON: {"version": 1, "count": n, "keys": type, "texts": codec, "values": [type, ...]}
    texts      the length of each key, then the bytes of all of them        (keys are texts or bytes)
    integers   the keys                                                     (keys are integers)
    values     a column for each field, in the order of the fields

The *codec* is "zstd", or null where the bytes are as they are.
A *type* is numpy's name of a little-endian number, such as ``<u2``. Integers are stored in the narrowest type
that holds all of the bucket, so that a count of 200 takes one byte. The order of keys means nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, pack, unpack
from acktree.core.state.key_table import text_buffers
from acktree.errors import CheckpointError

Numbers = npt.NDArray[Any]
"""A column of int64 or float64."""

_VERSION: Final = 1
_ZSTD: Final = pa.Codec("zstd", compression_level=1)
_LEAST_BYTES: Final = 512
"""Shorter texts are not compressed: a call costs more than it saves."""
_WIDTHS: Final = tuple(np.dtype(name) for name in ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4"))


@dataclass(frozen=True)
class StoredKeys:
    """The keys of a bucket as they are stored; written again unchanged if only values changed.

    Attributes:
        count: How many.
        kind: The type of the keys, or of their lengths.
        parts: One part of integers; or the lengths and the bytes of texts.
        codec: How the bytes of texts are compressed; None if they are not.
    """

    count: int
    kind: str
    parts: tuple[Buffer, ...]
    codec: str | None = None

    @classmethod
    def of(cls, column: pa.Array) -> StoredKeys:
        """Keys of type int64, large string or large binary, without nulls."""
        if pa.types.is_integer(column.type):
            keys = _narrow(column.to_numpy())
            return cls(len(column), keys.dtype.str, (keys.tobytes(),))
        ends, content = text_buffers(column)
        lengths = _narrow(np.diff(ends))
        plain = content.tobytes()
        packed = _ZSTD.compress(plain, asbytes=True) if len(plain) >= _LEAST_BYTES else plain
        if len(packed) >= len(plain):
            return cls(len(column), lengths.dtype.str, (lengths.tobytes(), plain))
        return cls(len(column), lengths.dtype.str, (lengths.tobytes(), packed), "zstd")

    def column(self, kind: pa.DataType) -> pa.Array:
        """The keys, as a column of this type."""
        numbers = np.frombuffer(self.parts[0], dtype=self.kind)
        if pa.types.is_integer(kind):
            return pa.array(numbers.astype(np.int64))
        ends: Int64s = np.zeros(self.count + 1, dtype=np.int64)
        np.cumsum(numbers, out=ends[1:])
        content = pa.py_buffer(self.parts[1])
        if self.codec is not None:
            content = pa.decompress(content, int(ends[-1]), codec=self.codec)
        return pa.Array.from_buffers(kind, self.count, [None, pa.py_buffer(ends), content])


def encoded(keys: StoredKeys, values: Sequence[Numbers]) -> bytes:
    """A bucket as bytes. ``values``: a column for each field, each of shape (n,)."""
    columns = [_narrow(column) for column in values]
    head = {
        "version": _VERSION,
        "count": keys.count,
        "keys": keys.kind,
        "texts": keys.codec,
        "values": [column.dtype.str for column in columns],
    }
    return pack(json.dumps(head).encode(), *keys.parts, *(column.tobytes() for column in columns))


def decoded(blob: bytes) -> tuple[StoredKeys, list[Numbers]]:
    """The keys and the columns of values of a bucket, as views of the blob.

    Raises:
        CheckpointError: A newer acktree wrote it.
    """
    first, *parts = unpack(blob)
    head = json.loads(bytes(first))
    if head["version"] != _VERSION:
        raise CheckpointError(
            f"a ColumnState was stored in layout {head['version']}, and this acktree reads layout {_VERSION}",
            "what a bolt remembers",
            "run the topology with the acktree that wrote it, or with a newer one",
        )
    kinds = head["values"]
    at = len(parts) - len(kinds)
    values = [np.frombuffer(part, dtype=kind) for part, kind in zip(parts[at:], kinds, strict=True)]
    return StoredKeys(head["count"], head["keys"], tuple(parts[:at]), head["texts"]), values


def _narrow(values: Numbers) -> Numbers:
    """Integers in the narrowest type that holds them; doubles as they are."""
    if values.dtype.kind == "f":
        return values.astype("<f8", copy=False)
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for kind in _WIDTHS:
        limits = np.iinfo(kind)
        if limits.min <= least and most <= limits.max:
            return values.astype(kind)
    return values.astype("<i8", copy=False)
