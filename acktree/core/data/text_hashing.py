"""Hashes of texts and bytes: the same number from one Python value and from a whole Arrow column.

A text of at most :data:`SHORT` bytes (UTF-8) is cut into little-endian words of eight bytes, the last one
filled with zeros. Its hash begins with a seed and the length, and each word is mixed into it. So numpy hashes
a column word by word, without a Python object for a text. A longer text is hashed with blake2b: one call for
a text of many words is cheaper than many steps.

The rules that hold for all hashes are in ``hashing.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s, UInt64s, mix64, mix64_one

if TYPE_CHECKING:
    import pyarrow as pa

SHORT: Final = 64
"""Texts of at most this number of bytes are mixed; longer ones go through blake2b."""

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_LENGTH: Final = 0xA0761D6478BD642F
_ROWS: Final = 1 << 14
"""A column is hashed in blocks of this number of rows, so that a block stays in the processor's cache."""


class TextKind(IntEnum):
    """What is hashed; its value is the seed. A text and bytes of the same content have different hashes."""

    TEXT = 0x6A09E667F3BCC909
    BYTES = 0xBB67AE8584CAA73B


_TAGS: Final = {TextKind.TEXT: b"s", TextKind.BYTES: b"b"}
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(8)] + [_MASK], dtype=np.uint64)
"""What is kept of a word of which only this number of bytes belongs to the text."""


def hash_text(content: bytes, kind: TextKind) -> int:
    """The hash of one text, unsigned, 64 bits."""
    length = len(content)
    if length > SHORT:
        return int.from_bytes(hashlib.blake2b(_TAGS[kind] + content, digest_size=8).digest(), "little")
    number = kind ^ length * _LENGTH & _MASK
    for at in range(0, length, 8):
        number = mix64_one((number + _STEP & _MASK) ^ int.from_bytes(content[at : at + 8], "little"))
    return mix64_one(number)


def hash_texts(column: pa.Array, kind: TextKind) -> UInt64s:
    """:func:`hash_text` of each value, shape (n,).

    Args:
        column: Of type (large) string or binary, without nulls.
    """
    offsets, content = _buffers_of(column)
    lengths = offsets[1:] - offsets[:-1]
    hashes = np.empty(len(lengths), dtype=np.uint64)
    for first in range(0, len(lengths), _ROWS):
        rows = slice(first, first + _ROWS)
        hashes[rows] = _hash_block(content, offsets[:-1][rows], lengths[rows], kind)
    long = (lengths > SHORT).nonzero()[0]
    if len(long):
        hashes[long] = _hash_long(column, long, kind)
    return hashes


def _buffers_of(column: pa.Array) -> tuple[Int64s, npt.NDArray[np.uint64]]:
    """Where each text begins, shape (n + 1,), and the eight bytes from each byte on, as one word."""
    from pyarrow import types  # noqa: PLC0415  # local: importing acktree must not import pyarrow

    wide = types.is_large_string(column.type) or types.is_large_binary(column.type)
    _, places, data = column.buffers()
    if places is None or not len(column):
        offsets: npt.NDArray[Any] = np.zeros(len(column) + 1, dtype=np.int64)
    else:
        kind = np.int64 if wide else np.int32
        offsets = np.frombuffer(places, dtype=kind)[column.offset : column.offset + len(column) + 1]
    offsets = offsets.astype(np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(end - first + 8, dtype=np.uint8)  # a word that begins at the last byte can be read
    if data is not None:
        padded[: end - first] = np.frombuffer(data, dtype=np.uint8)[first:end]
    words = np.ndarray(end - first + 1, dtype="<u8", buffer=padded, strides=(1,))
    return offsets - first, words


def _hash_block(words: npt.NDArray[np.uint64], starts: Int64s, lengths: Int64s, kind: TextKind) -> UInt64s:
    """The hashes of consecutive texts; those of long ones mean nothing."""
    hashes = lengths.astype(np.uint64) * np.uint64(_LENGTH) ^ np.uint64(kind)
    shortest = int(lengths.min(initial=SHORT))
    for at in range(0, min(int(lengths.max(initial=0)), SHORT), 8):
        rows = slice(None) if shortest > at else np.flatnonzero(lengths > at)
        byte_counts = np.minimum(lengths[rows] - at, 8)
        word = words[starts[rows] + at] & _MASKS[byte_counts]
        hashes[rows] = mix64((hashes[rows] + np.uint64(_STEP)) ^ word)
    return mix64(hashes)


def _hash_long(column: pa.Array, rows: Int64s, kind: TextKind) -> UInt64s:
    """The hashes of the long texts of a column, each different one computed once."""
    import pyarrow as pa  # noqa: PLC0415  # local for the same reason as above

    binary = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    encoded = column.take(pa.array(rows)).cast(binary).dictionary_encode()
    hash_one: Callable[[bytes], int] = lambda content: hash_text(content, kind)  # noqa: E731
    different = np.fromiter(map(hash_one, encoded.dictionary.to_pylist()), dtype=np.uint64)
    taken: UInt64s = different[encoded.indices.to_numpy()]
    return taken
