"""Payloads: the values of rows of a ``DataFrameSpout``, by root. Read for rows that failed or stay open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.values import batch_from_bytes
from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, int64s, unpack

Payload = tuple[Int64s, pa.RecordBatch]
"""Roots of rows of a DataFrame, and the values of each row."""


TakePayloads = Callable[[Int64s], Iterator[Payload]]
"""Returns the values of the rows with the given roots, in pieces."""


def no_payloads(_: Int64s) -> Iterator[Payload]:
    """The payloads of no rows."""
    return iter(())


@dataclass(frozen=True)
class RowIds:
    """Message ids of rows of DataFrames that have an ``Acknowledger``, in one micro-batch.

    Attributes:
        judged: Of rows that have their verdict now, one column for each part of the id. To be read once.
        left_open: Of rows that this micro-batch opened and left open, as (spout task, ids).
    """

    judged: Iterable[Payload] = ()
    left_open: Sequence[tuple[int, pa.RecordBatch]] = ()


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
    places = np.flatnonzero(is_among(roots, wanted))
    if not len(places):
        return None
    values = batch_from_bytes(body)
    return (roots, values) if len(places) == len(roots) else (roots[places], values.take(pa.array(places)))


def is_among(roots: Int64s, wanted: Int64s) -> npt.NDArray[np.bool_]:
    """Which roots are in ``wanted``, which is ascending, so that a table of millions is sorted only once."""
    at = np.searchsorted(wanted, roots)
    is_wanted: npt.NDArray[np.bool_] = np.zeros(len(roots), dtype=np.bool_)
    inside = at < len(wanted)
    is_wanted[inside] = wanted[at[inside]] == roots[inside]
    return is_wanted
