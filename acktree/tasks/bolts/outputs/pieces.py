"""Cuts what is too large for one frame, by bytes, so that each frame fits into one row.

Arrow has room for 2 GiB in a column, and the JVM for as much in a value, of which it makes copies. Where a
cut falls follows from the data alone, so a second run cuts alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from acktree.tasks.bolts.outputs.emission import Emission

PIECE_BYTES: Final = 64 << 20
"""About how many bytes of values a piece has; one tuple may have more."""


def pieces_of(emission: Emission) -> Iterator[Emission]:
    """The same tuples in the same order, in pieces of equally many if they are too large for one."""
    batch, count = emission.batch, emission.batch.num_rows
    pieces = min(count, -(-batch.nbytes // PIECE_BYTES))
    if pieces <= 1:
        yield emission
        return
    cuts = [count * at // pieces for at in range(pieces + 1)]
    for first, end in pairwise(cuts):
        joins = {row - first: emission.joins[row] for row in range(first, end) if row in emission.joins}
        tasks = None if emission.tasks is None else emission.tasks[first:end]
        values = batch.slice(first, end - first)
        yield Emission(emission.stream, values, emission.parents[first:end], joins, tasks)
