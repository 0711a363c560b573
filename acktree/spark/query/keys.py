"""The partition of a stateful operator's key, as a pure function: no Spark job is needed to find it."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Final

_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def spark_hash(key: int) -> int:
    """Spark's ``hash`` of one bigint: murmur3 of its two halves, as a signed 32-bit number.

    Source: ``Murmur3_x86_32.hashLong`` in Spark's ``common/unsafe``, with the seed of ``HashPartitioning``.

    >>> spark_hash(0), spark_hash(1)
    (-1670924195, -1712319331)
    """
    mixed = _SEED
    for half in (key & _MASK, key >> 32 & _MASK):
        mixed ^= _rotated(half * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
        mixed = (_rotated(mixed, 13) * 5 + 0xE6546B64) & _MASK
    mixed ^= 8  # bytes hashed
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ mixed >> shift) * factor & _MASK
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK


@lru_cache(maxsize=8)
def partition_keys(partitions: int) -> tuple[int, ...]:
    """For each partition a key that Spark's hash assigns to it.

    A stateful operator places its keys by murmur3: keys 0 and 1 of two would share one partition.
    """
    key_of: dict[int, int] = {}
    for key in count():
        key_of.setdefault(spark_hash(key) % partitions, key)
        if len(key_of) == partitions:
            return tuple(key_of[partition] for partition in range(partitions))
    raise AssertionError("count() does not end")
