"""The hash of a text: of a single one, and of a whole column of them, which is a tenth of the work.

A text is its UTF-8 bytes, or the bytes that it is. A tag is put behind them, which says what kind of text it
is, and where it ends; then

* up to :data:`LONGEST` bytes are read as one little-endian number. Its residues modulo two primes stand side
  by side, 60 bits, and are mixed. Python's long division does that for one text about as fast as blake2b;
  numpy sums, for all texts of a column at once, 32-bit words times the powers of 2**32;
* longer ones, seldom keys, go through blake2b.

Texts of up to six bytes never collide. Longer ones do as numbers drawn at random would, with 2**-60 for each
pair, unless somebody sets out to find two that do. That is about the residues; the mixing is a bijection. Of
many pairs of primes these are the one whose product divides the least sums of powers of 256 with small
factors: for two texts that differ by such a sum collide. 2 generates the groups of both.

Source: Karp and Rabin, "Efficient randomized pattern-matching algorithms" (1987). Which numbers come out is
frozen, as ``hashing`` says; nothing here depends on the order of bytes in the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s, UInt64s, mix64, mix64_of_one

__all__ = ["BYTES", "FEW", "LONGEST", "TEXT", "digest", "hash_text", "hash_texts", "hash_texts_at"]

TEXT: Final = b"s"
BYTES: Final = b"b"
"""The tags; each one byte that is not zero."""
LONGEST: Final = 128
"""Bytes of the longest text that is not digested."""
FEW: Final = 64
"""Below this many texts a column takes longer than its texts one by one."""

_PRIMES: Final = 0x3C2D12CB, 0x3F149A3D
_KEY: Final = 0x6A09E667F3BCC908
_PRIME_COLUMN: Final = np.array([_PRIMES], dtype=np.uint64).T
_POWERS: Final = np.array(
    [[[pow(2, 32 * place, prime)] for prime in _PRIMES] for place in range(LONGEST // 4 + 2)], dtype=np.uint64
)
"""Of 2**32, modulo each prime, shape (place, 2, 1)."""
_LOW: Final = np.uint64(0xFFFFFFFF)
_S32: Final = np.uint64(32)
_BLOCK: Final = 8192
"""Texts that are hashed together: what numpy makes of them on the way stays in the cache."""
# By how many bytes are left of a text and its tag where a word of eight begins: none, one to eight, more.
_OF_TEXT: Final = np.array([0, *((1 << 8 * left) - 1 for left in range(9))], dtype=np.uint64)
_OF_TAG: Final = np.array([0, *(1 << 8 * left for left in range(8)), 0], dtype=np.uint64)


def digest(tag: bytes, content: bytes | bytearray) -> int:
    """What is neither number nor short: 64 bits of blake2b over a tag and canonical bytes."""
    return int.from_bytes(hashlib.blake2b(tag + content, digest_size=8).digest(), "little")


def hash_text(tag: bytes, content: bytes | bytearray) -> int:
    """The hash of one text.

    Args:
        tag: :data:`TEXT` or :data:`BYTES`.
        content: Its bytes.
    """
    if len(content) > LONGEST:
        return digest(tag, content)
    number = int.from_bytes(content + tag, "little")
    return mix64_of_one((number % _PRIMES[0] << 32 | number % _PRIMES[1]) ^ _KEY)


def hash_texts(tag: bytes, contents: Sequence[bytes]) -> UInt64s:
    """:func:`hash_text` of each, shape (n,)."""
    offsets = np.zeros(len(contents) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, contents), dtype=np.int64, count=len(contents)), out=offsets[1:])
    return hash_texts_at(tag, np.frombuffer(b"".join(contents), dtype=np.uint8), offsets)


def hash_texts_at(tag: bytes, data: npt.NDArray[np.uint8], offsets: Int64s) -> UInt64s:
    """:func:`hash_text` of each text of a column, as Arrow stores them.

    Args:
        data: The bytes of all texts.
        offsets: Where in ``data`` each text begins, and where the last one ends, shape (n + 1,), ascending.

    Costs about 15 ns for each text, and for each 8 bytes of it.
    """
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.empty(len(lengths), dtype=np.uint64)
    for row in np.flatnonzero(lengths > LONGEST).tolist():
        hashes[row] = digest(tag, data[starts[row] : offsets[row + 1]].tobytes())
    # Texts of a length stand together, so that few wait for a long one in their block.
    short = np.flatnonzero(lengths <= LONGEST)
    short = short[np.argsort(lengths[short].astype(np.uint8), kind="stable")]
    words = _words_of(data[offsets[0] : offsets[-1]])
    for first in range(0, len(short), _BLOCK):
        rows = short[first : first + _BLOCK]
        hashes[rows] = _hash_block(tag, words, starts[rows] - offsets[0], lengths[rows] + 1)
    return hashes


def _words_of(data: npt.NDArray[np.uint8]) -> UInt64s:
    """From every byte on the eight that follow, as far as a text may reach; zeros behind the last."""
    padded = np.zeros(len(data) + LONGEST + 8, dtype=np.uint8)
    padded[: len(data)] = data
    return np.ndarray((len(data) + LONGEST + 1,), "<u8", padded, strides=(1,))


def _hash_block(tag: bytes, words: UInt64s, starts: Int64s, lengths: Int64s) -> UInt64s:
    """Hash texts of up to :data:`LONGEST` bytes; their lengths are counted with the tag, and ascending."""
    tags = _OF_TAG * np.uint64(tag[0])
    residues = np.zeros((len(_PRIMES), len(starts)), dtype=np.uint64)
    for place in range(0, int(lengths[-1]), 8):
        left = np.minimum(np.maximum(lengths - place, 0), 9)
        word = words[starts + place] & _OF_TEXT[left] | tags[left]
        residues += (word & _LOW) * _POWERS[place // 4]
        residues += (word >> _S32) * _POWERS[place // 4 + 1]
        residues %= _PRIME_COLUMN
    return mix64((residues[0] << _S32 | residues[1]) ^ np.uint64(_KEY))
