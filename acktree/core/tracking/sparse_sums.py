"""Sums of some messages of a range: what a partition reports where others report the messages between.

With many partitions each has the acks of a few of a range's messages. One sum for every message of the range
(``sequence_sums.py``) would be mostly zeros, and a pair of root and sum costs a sort in the driver.
:class:`SparseSums` has the place of each message in its range instead: twelve bytes a message, and the driver
adds them to the sums of the range by one indexed XOR.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from acktree.core.ids import SEQUENCE_BITS, Int32s, Int64s, root_ids, roots_named, sequence_names
from acktree.core.runs import xor_by_key
from acktree.core.tracking.sequence_sums import SHORTEST, SequenceSums, by_task

WIDEST: Final = 1 << 31
"""A place in a range is a number below this."""
MOST_ZEROS: Final = 64
"""Sparse sums are spread over their range if it has at most this many messages for each sum: 512 bytes."""

_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SparseSums:
    """One sum for each of some messages of a spout task; n of them.

    Attributes:
        task: The spout task.
        first: Sequence of the first message.
        places: The sequence of each, less ``first``; ascending, each once, shape (n,).
        sums: XOR of the edges created and acked below each, shape (n,).
    """

    task: int
    first: int
    places: Int32s
    sums: Int64s

    @property
    def end(self) -> int:
        """The sequence after the last."""
        return self.first + int(self.places[-1]) + 1


def sparse_sums_of(run_salt: int, roots: Int64s, sums: Int64s) -> tuple[list[SparseSums], Int64s, Int64s]:
    """Convert acks to sparse sums, where a spout task has enough of them.

    Rows of DataFrames have no sequences: their roots look like single messages of very many tasks, and stay.

    Args:
        roots: Root of each, shape (n,); repeats allowed, any order.
        sums: The delta of each, shape (n,).

    Returns:
        Sparse sums; the roots of the others, and their sums.
    """
    if len(roots) < SHORTEST:
        return [], roots, sums
    names, sums = xor_by_key(sequence_names(run_salt, roots), sums)
    sparse_sums: list[SparseSums] = []
    is_other = np.ones(len(names), dtype=np.bool_)
    for names_of_task in by_task(names):
        first, last = int(names[names_of_task.start]), int(names[names_of_task.stop - 1])
        if last - first < WIDEST:
            places = (names[names_of_task] - np.uint64(first)).astype(np.int32)
            task, sequence = divmod(first, 1 << SEQUENCE_BITS)
            sparse_sums.append(SparseSums(task, sequence, places, sums[names_of_task]))
            is_other[names_of_task] = False
    return sparse_sums, roots_named(run_salt, names[is_other]), sums[is_other]


def spread(run_salt: int, sparse_sums: Iterable[SparseSums]) -> tuple[list[SequenceSums], Int64s, Int64s]:
    """Add up sparse sums: as sequence sums where they overlap enough, else as pairs.

    A few messages of a very wide range would need more memory than there is: they become pairs.

    Returns:
        Sequence sums, and the roots and sums of the others; a root may occur twice.
    """
    spread_out: list[SequenceSums] = []
    pairs: list[tuple[Int64s, Int64s]] = [(_NONE, _NONE)]
    for group in _overlapping(sparse_sums):
        first, end = group[0].first, max(part.end for part in group)
        if end - first > MOST_ZEROS * sum(len(part.places) for part in group):
            pairs += [(_roots_of(run_salt, part), part.sums) for part in group]
            continue
        sums = np.zeros(end - first, dtype=np.int64)
        for part in group:
            sums[part.first - first :][part.places] ^= part.sums
        spread_out.append(SequenceSums(group[0].task, first, sums))
    return (
        spread_out,
        np.concatenate([roots for roots, _ in pairs]),
        np.concatenate([sums for _, sums in pairs]),
    )


def _overlapping(sparse_sums: Iterable[SparseSums]) -> Iterator[Sequence[SparseSums]]:
    """Groups of one spout task whose ranges overlap."""
    ordered = sorted(sparse_sums, key=lambda part: (part.task, part.first))
    for _, parts_of_task in groupby(ordered, key=lambda part: part.task):
        group: list[SparseSums] = []
        end = 0
        for part in parts_of_task:
            if group and part.first > end:
                yield group
                group = []
            end = max(end, part.end) if group else part.end
            group.append(part)
        yield group


def _roots_of(run_salt: int, part: SparseSums) -> Int64s:
    return root_ids(run_salt, part.task, part.first + part.places.astype(np.int64))
