"""Packs several arrays into one blob, and reads them without a copy.

A frame's lineage, a part of the acker's state and the deltas of a level are each a few arrays of known types.
They are sent or stored as one binary value that a later release can read. Pickle would tie the checkpoint to
numpy's layout.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int32s, Int64s

_LENGTH: Final = struct.Struct("<q")

Buffer = bytes | memoryview


def pack(*parts: npt.NDArray[np.integer[Any]] | Buffer) -> bytes:
    """Concatenate arrays and byte strings; each begins at a multiple of eight bytes."""
    out: list[bytes | memoryview] = [_LENGTH.pack(len(parts))]
    for part in parts:
        view = np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part
        data = view if isinstance(view, bytes) else view.cast("B")
        out += (_LENGTH.pack(len(data)), data, bytes(-len(data) % 8))
    return b"".join(out)


def unpack(blob: Buffer) -> list[memoryview]:
    """The inverse of :func:`pack`: the parts, as views of the blob."""
    view = memoryview(blob)
    (count,) = _LENGTH.unpack_from(view)
    parts: list[memoryview] = []
    at = _LENGTH.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        parts.append(view[at : at + length])
        at += length + (-length % 8)
    return parts


def int64s(part: Buffer) -> Int64s:
    """Read a part as signed 64-bit integers, shape (n,), read only."""
    return np.frombuffer(part, dtype=np.int64)


def int32s(part: Buffer) -> Int32s:
    """Read a part as signed 32-bit integers, shape (n,), read only."""
    return np.frombuffer(part, dtype=np.int32)
