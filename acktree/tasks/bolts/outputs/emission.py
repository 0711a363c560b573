"""What a bolt task emitted on one stream while it worked on one frame, and its pieces where it is too large.

Arrow has room for 2 GiB in a column, and the JVM for as much in a value, of which it makes copies. So an
emission is cut by bytes. Where a cut falls follows from the data alone, so a second run cuts alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa

from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int32s, Int64s


@dataclass(frozen=True, eq=False)
class Emission:
    """Tuples of one stream that a task emitted while it worked on one frame.

    Attributes:
        stream: The stream emitted on.
        batch: The values, n rows.
        parents: The row that each tuple is anchored to, shape (n,); -1 for none, or for a tuple in ``joins``.
        joins: Emitted row -> its anchors, for tuples with several anchors or with an anchor in another frame.
        tasks: The target task of each (``emit_direct``), shape (n,); None when groupings choose.
    """

    stream: str
    batch: pa.RecordBatch
    parents: Int64s
    joins: Mapping[int, Sequence[Tuple]]
    tasks: Int32s | None = None


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
