"""How the rows of a micro-batch's chunks are divided among the partitions of level 0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

from acktree.core.data.frames import Kind, WireRow
from acktree.core.packing import Buffer


class Slice(NamedTuple):
    """Consecutive rows of a chunk, as a row of kind CHUNK names them: those from ``first`` up to ``end``."""

    chunk: str
    first: int
    end: int

    @classmethod
    def of_head(cls, head: Buffer) -> Self:
        """The slice that the head of a row names."""
        return cls(*json.loads(bytes(head)))

    def row(
        self, partition: int, source: int, sequence: int, clock_ms: int = 0, body: bytes | None = None
    ) -> WireRow:
        """The row for a partition of level 0. With a ``body`` it carries the slice, and counts from 0."""
        named = self if body is None else (self.chunk, 0, self.end - self.first)
        return WireRow(
            partition, 0, int(Kind.CHUNK), source=source, sequence=sequence, clock_ms=clock_ms,
            head=json.dumps(named).encode(), body=body or b"",
        )  # fmt: skip


def divided(
    sizes: Sequence[int], partitions: int, only: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """(index of the chunk, partition, first row, end row) of each slice: all rows in order, in equal parts.

    Each partition gets consecutive whole chunks and parts of at most two others.

    Args:
        sizes: How many rows each chunk has.
        partitions: How many partitions share them.
        only: A partition that gets all of them.

    >>> list(divided([5, 3], partitions=2))
    [(0, 0, 0, 4), (0, 1, 4, 5), (1, 1, 0, 3)]
    """
    total = sum(sizes)
    cuts = [total * at // partitions for at in range(partitions + 1)]
    if only is not None:
        cuts = [0] * (only + 1) + [total] * (partitions - only)
    start = 0
    for index, size in enumerate(sizes):
        for partition, (low, high) in enumerate(pairwise(cuts)):
            first, end = max(low - start, 0), min(high - start, size)
            if first < end:
                yield index, partition, first, end
        start += size
