"""Several arrays in one blob, and out again without a copy.

What a frame's lineage, a bucket of the acker and a message to the acker have in common: a few arrays of
known types that must travel as one binary value, quickly, and be readable by a later release. Pickle would
tie the checkpoint to numpy's own layout.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from acktree.core.ids import Int32s, Int64s

_LENGTH: Final = struct.Struct("<q")

Buffer = bytes | memoryview


def pack(*parts: Int64s | Int32s | Buffer) -> bytes:
    """Put arrays and byte strings one after the other; each begins on a multiple of eight."""
    out: list[bytes | memoryview] = [_LENGTH.pack(len(parts))]
    for part in parts:
        view = np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part
        data = view if isinstance(view, bytes) else view.cast("B")
        out += (_LENGTH.pack(len(data)), data, bytes(-len(data) % 8))
    return b"".join(out)


def unpack(blob: Buffer) -> list[memoryview]:
    """The parts that :func:`pack` put together, as views of the blob."""
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
