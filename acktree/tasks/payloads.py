"""Payloads: the values of rows of a ``DataFrameSpout``, by root. Read for rows that failed or stay open."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.values import batch_from_bytes
from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, int64s, unpack

__all__ = ["Payload", "TakePayloads", "is_among", "payload_among", "payload_of_wire"]

Payload = tuple[Int64s, pa.RecordBatch]
"""Roots of rows of a DataFrame, and the values of each row."""


TakePayloads = Callable[[Int64s], Iterator[Payload]]
"""Returns the values of the rows with the given roots, in pieces."""


def payload_of_wire(head: Buffer, body: Buffer) -> Payload:
    """Read the head and body of a row of kind PAYLOADS."""
    (roots,) = unpack(head)
    return int64s(roots), batch_from_bytes(body)


def payload_among(head: Buffer, body: Buffer, wanted: Int64s) -> Payload | None:
    """The payloads of some roots in a row of kind PAYLOADS; None if it has none of them.

    Args:
        head: The row's head.
        body: The row's body.
        wanted: Roots, ascending, shape (n,).
    """
    (packed,) = unpack(head)
    roots = int64s(packed)
    which = np.flatnonzero(is_among(roots, wanted))
    if not len(which):
        return None
    return roots[which], batch_from_bytes(body).take(pa.array(which))


def is_among(roots: Int64s, wanted: Int64s) -> npt.NDArray[np.bool_]:
    """Which roots are in ``wanted``, which is ascending, so that a table of millions is sorted only once."""
    at = np.searchsorted(wanted, roots)
    found: npt.NDArray[np.bool_] = np.zeros(len(roots), dtype=np.bool_)
    inside = at < len(wanted)
    found[inside] = wanted[at[inside]] == roots[inside]
    return found
