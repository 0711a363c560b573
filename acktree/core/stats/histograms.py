"""Histograms of latencies, from which percentiles are read: exact counts in buckets that grow with the value.

Rules of this file
------------------
1. A bucket is at most 1/32 wide of its values, so a percentile is at most 3 % too large, and never too small.
   Values below 64 have a bucket each.
2. Histograms are added bucket by bucket: in any order, with the same result as one histogram of all values.

The buckets are those of ``core/buckets.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from acktree.core.buckets import bucket_of, top_of
from acktree.errors import ProtocolError

__all__ = ["Histogram", "bucket_of", "top_of"]


class Histogram(Mapping[int, int]):
    """The number of values by bucket.

    >>> histogram = Histogram()
    >>> histogram.add_all(np.arange(1000))
    >>> histogram.percentile(50), histogram.percentile(99), len(histogram) < 200
    (503, 991, True)
    """

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        """Start with these counts by bucket; None: empty."""
        self._counts: dict[int, int] = dict(_plain(counts or {}))

    def __getitem__(self, bucket: int) -> int:
        return self._counts[bucket]

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        p50, p99 = self.percentile(50), self.percentile(99)
        return f"Histogram(count={self.count}, p50={p50}, p99={p99})"

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self._counts.values())

    def add(self, value: int, count: int = 1) -> None:
        """Add a value ``count`` times. A negative value, of a clock that was set back, counts as 0.

        Raises:
            ProtocolError: ``count`` is negative.
        """
        if count < 0:
            what = f"a histogram only grows, and {value} was to be counted {count} times"
            raise ProtocolError(what, "Histogram.add", "this is a bug in acktree: please report it")
        if count:
            bucket = bucket_of(max(0, value))
            self._counts[bucket] = self._counts.get(bucket, 0) + count

    def add_all(self, values: int | npt.NDArray[np.int64], count: int = 1) -> None:
        """Add whole numbers, any shape; costs one sort of them. One number is added ``count`` times."""
        if isinstance(values, int):
            self.add(values, count)
            return
        distinct, counts = np.unique(values, return_counts=True)
        for value, times in zip(distinct.tolist(), counts.tolist(), strict=True):
            self.add(value, times)

    def merge(self, other: Mapping[int, int]) -> None:
        """Add the counts of another histogram, which is not changed."""
        for bucket, count in _plain(other).items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count

    def percentile(self, percent: float) -> int | None:
        """The smallest bucket's largest value that ``percent`` of the values do not exceed; None if empty.

        Args:
            percent: Above 0, at most 100.
        """
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return top_of(bucket)
        return None


def _plain(counts: Mapping[int, int]) -> Mapping[int, int]:
    """The same counts, as a dict if they are a histogram's: Mapping asks for each bucket alone."""
    return counts._counts if isinstance(counts, Histogram) else counts  # noqa: SLF001  # of this class
