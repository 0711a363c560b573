"""Buckets that grow with the value: what histograms count by.

A bucket is at most 1/32 wide of its values. Values below 64 have a bucket each.

Source: G. Tene's HdrHistogram, with 5 bits of precision.
"""

from __future__ import annotations

from typing import Final

_BITS: Final = 5


def bucket_of(value: int) -> int:
    """The bucket of a whole number, 0 or more. Larger values have the same bucket or a larger one."""
    shift = max(0, value.bit_length() - _BITS - 1)
    return (shift << _BITS) + (value >> shift)


def top_of(bucket: int) -> int:
    """The largest value of a bucket.

    >>> [top_of(bucket_of(value)) for value in (0, 63, 64, 65, 1000)]
    [0, 63, 65, 65, 1007]
    """
    shift = max(0, (bucket >> _BITS) - 1)
    return ((bucket - (shift << _BITS) + 1) << shift) - 1
