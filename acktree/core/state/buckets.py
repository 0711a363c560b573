"""Which bucket a key is in, where buckets are added one at a time (linear hashing).

One more bucket divides one bucket: bucket n takes half of the keys of bucket n - 2^k, where 2^k is the
greatest power of two not above n. So a state that grows by a thousand keys reads and writes the buckets of
some thousand keys, however many it has. Doubling would now and then read and write all of them.

Source: Litwin, "Linear hashing: a new tool for file and table addressing", 1980.
"""

from __future__ import annotations

import numpy as np

from acktree.core.ids import Int64s, UInt64s


def buckets_of(hashes: UInt64s, count: int) -> Int64s:
    """The bucket of each hash among ``count`` buckets, shape (n,)."""
    upper = 1 << (count - 1).bit_length()
    numbers = (hashes & np.uint64(upper - 1)).astype(np.int64)
    numbers[numbers >= count] -= upper >> 1
    return numbers


def bucket_of(key_hash: int, count: int) -> int:
    """:func:`buckets_of` of one hash."""
    upper = 1 << (count - 1).bit_length()
    number = key_hash & (upper - 1)
    return number if number < count else number - (upper >> 1)


def divided(before: int, after: int) -> Int64s:
    """Which of ``before`` buckets give keys away when there are ``after`` buckets, ascending."""
    new = np.arange(before, after)
    while (too_high := new >= before).any():
        # The bucket that was divided may have been made by an earlier division: that one's bucket gives keys.
        powers = 1 << (np.frexp(new[too_high])[1] - 1)
        new[too_high] -= powers
    return np.unique(new)
