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
_COPIED: Final = 4096
_PADDING: Final = [bytes(count) for count in range(8)]

Buffer = bytes | memoryview


def pack(*parts: npt.NDArray[np.integer[Any]] | Buffer) -> bytes:
    """Concatenate arrays and byte strings; each begins at a multiple of eight bytes."""
    length_of = _LENGTH.pack
    out: list[bytes | memoryview] = [length_of(len(parts))]
    for part in parts:
        data: bytes | memoryview
        if type(part) is bytes:
            data = part
        elif not isinstance(part, np.ndarray):
            data = memoryview(part).cast("B")
        elif part.nbytes <= _COPIED:  # a copy is faster than a view then
            data = part.tobytes()
        else:
            data = np.ascontiguousarray(part).data.cast("B")
        size = len(data)
        out += (length_of(size), data, _PADDING[-size % 8])
    return b"".join(out)


def unpack(blob: Buffer) -> list[memoryview]:
    """The inverse of :func:`pack`: the parts, as views of the blob."""
    view, length_at = memoryview(blob), _LENGTH.unpack_from
    (count,) = length_at(view)
    parts: list[memoryview] = []
    at = 8
    for _ in range(count):
        (length,) = length_at(view, at)
        at += 8
        parts.append(view[at : at + length])
        at += length + (-length % 8)
    return parts


def int64s(part: Buffer) -> Int64s:
    """Read a part as signed 64-bit integers, shape (n,), read only."""
    return np.frombuffer(part, dtype=np.int64)


def int32s(part: Buffer) -> Int32s:
    """Read a part as signed 32-bit integers, shape (n,), read only."""
    return np.frombuffer(part, dtype=np.int32)
