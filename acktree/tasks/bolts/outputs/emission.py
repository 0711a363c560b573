"""What a bolt task emitted on one stream while it worked on one frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int32s, Int64s

__all__ = ["Emission"]


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
