"""Ascending 64-bit numbers that are spread evenly, in about log2(2**64 / n) + 2 bits each: Elias-Fano.

The low bytes of each number are stored as they are. The rest of it grows from number to number by little, so
it is a bit map with a one for each number, and a zero for each step of the rest.

Source: P. Elias, Efficient storage and retrieval by content and address of static files, J. ACM 21 (1974);
R. M. Fano, On the number of bits required to implement an associative memory, MIT (1971).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from acktree.core.ids import Int64s
from acktree.core.packing import Buffer

__all__ = ["from_ascending", "to_ascending"]

_BYTES: Final = 8
_SIGN: Final = np.uint64(1 << 63)
"""XOR with this keeps the order of signed numbers when they are read as unsigned ones."""


def to_ascending(numbers: Int64s) -> bytes:
    """Ascending numbers as bytes; :func:`from_ascending` needs their count too.

    Args:
        numbers: Shape (n,), each greater than the one before.
    """
    count, width = len(numbers), _low_bytes(len(numbers))
    unsigned = numbers.view(np.uint64) ^ _SIGN
    low = unsigned.astype("<u8").view(np.uint8).reshape(-1, _BYTES)[:, :width]
    places = _high(unsigned, width) + np.arange(count)
    ones = np.zeros(int(places[-1]) + 1 if count else 0, dtype=np.uint8)
    ones[places] = 1
    return low.tobytes() + np.packbits(ones).tobytes()


def from_ascending(part: Buffer, count: int) -> Int64s:
    """The inverse of :func:`to_ascending`: shape (count,)."""
    width = _low_bytes(count)
    numbers = np.zeros((count, _BYTES), dtype=np.uint8)
    numbers[:, :width] = np.frombuffer(part, dtype=np.uint8, count=count * width).reshape(count, width)
    unsigned = numbers.view("<u8").ravel().astype(np.uint64)
    if width < _BYTES:
        ones = np.unpackbits(np.frombuffer(part, dtype=np.uint8, offset=count * width))
        high = (np.flatnonzero(ones) - np.arange(count)).astype(np.uint64)
        unsigned |= high << np.uint64(8 * width)
    signed: Int64s = (unsigned ^ _SIGN).view(np.int64)
    return signed


def _high(unsigned: np.ndarray[tuple[int], np.dtype[np.uint64]], width: int) -> Int64s:
    """What the low bytes leave of each number."""
    if width == _BYTES:
        return np.zeros(len(unsigned), dtype=np.int64)
    return (unsigned >> np.uint64(8 * width)).astype(np.int64)


def _low_bytes(count: int) -> int:
    """How many bytes of each number are stored as they are, so that they and the bit map are smallest.

    Args:
        count: How many numbers there are. The fewer bytes of each are stored, the longer the bit map is.
    """
    return min(range(1, _BYTES + 1), key=lambda width: 8 * width * count + (1 << (64 - 8 * width)))
