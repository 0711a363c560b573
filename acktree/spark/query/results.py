"""What a micro-batch hands to the driver, and what its rows of DataFrames hold.

With a ``Retry`` level 0 tells for each row of a DataFrame its root and what it holds (kind PAYLOADS). The
driver reads that of rows that failed or stay open. For an ``Acknowledger`` it tells their ids (kind IDS), of
which the driver reads all. The rest stays where the level put it: in scratch files
where driver and workers share a machine, else among the blocks that Spark keeps on the executors' disks.

Rules of this file
------------------
1. What the driver collects at once is bounded, however large the micro-batch is: an attempt that is too large
   would be too large again at every restart, since Spark runs a logged micro-batch again as it is.
2. The levels run once. What is collected in several jobs is kept by Spark after the first, and a part that is
   lost with its executor is computed again, with the same rows.
3. Nothing here outlives the sink's call: what must last is written by the acker and the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import Int64s
from acktree.core.packing import pack
from acktree.spark.query.wire import WIRE_DDL, WIRE_SCHEMA, batch_of, rows_of
from acktree.spark.worker import scratch
from acktree.tasks.payloads import Payload, payload_among, payload_of_wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLLECTED_BYTES: Final = 64 << 20
"""How many bytes the driver collects through Spark at once, about; one wire row at least."""
_PAYLOADS: Final = int(Kind.PAYLOADS)
_IDS: Final = int(Kind.IDS)


@dataclass(frozen=True)
class Results:
    """What one micro-batch hands over; open while :func:`results_of` is.

    Attributes:
        rows: All wire rows but those of kinds PAYLOADS and IDS.
        payloads: Gives what rows of some roots hold, in pieces of some megabytes. Roots of which the
            micro-batch says nothing are left out.
        ids: The same for their message ids.
    """

    rows: Iterable[WireRow]
    payloads: Callable[[Int64s], Iterator[Payload]]
    ids: Callable[[Int64s], Iterator[Payload]]


@contextmanager
def results_of(frame: DataFrame, folder: str | None, *, has_payloads: bool) -> Iterator[Results]:
    """Open what a micro-batch hands over, for as long as the sink works on it.

    Args:
        frame: What ``foreachBatch`` was given.
        folder: Where large rows are; None where driver and workers share no machine.
        has_payloads: Whether some spout is a DataFrame with a ``Retry`` or an ``Acknowledger``.
    """
    if folder is not None or not has_payloads:
        yield _beside(frame, folder)
        return
    from pyspark import StorageLevel  # noqa: PLC0415  # takes long to import, and only clusters need it

    kept = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield _kept(kept)
    finally:
        kept.unpersist()


def _beside(frame: DataFrame, folder: str | None) -> Results:
    """Of rows in files: what is collected says where they are."""
    apart: dict[int, list[WireRow]] = {_PAYLOADS: [], _IDS: []}
    rows: list[WireRow] = []
    for batch in frame.toArrow().to_batches():
        for row in rows_of(batch):
            apart.get(row.kind % scratch.ELSEWHERE, rows).append(row)
    payloads, ids = (payloads_in_rows(apart[kind], folder) for kind in (_PAYLOADS, _IDS))
    return Results(scratch.take(folder, rows), payloads, ids)


def payloads_in_rows(
    rows: Sequence[WireRow], folder: str | None = None
) -> Callable[[Int64s], Iterator[Payload]]:
    """Gives what rows of some roots hold, from rows of kind PAYLOADS or the files that they name."""

    def among(wanted: Int64s) -> Iterator[Payload]:
        ascending = np.sort(wanted)
        for row in rows if len(wanted) else ():
            opened = scratch.look(folder, row)
            found = payload_among(opened.head, opened.body, ascending)
            if found is not None:
                yield found

    return among


def _kept(frame: DataFrame) -> Results:
    """Of rows that Spark keeps: collected in jobs of their own."""

    def among(wanted: Int64s) -> Iterator[Payload]:
        if len(wanted):
            found = frame.where(f"kind = {_PAYLOADS}").mapInArrow(_rows_among(np.sort(wanted)), WIRE_DDL)
            for row in _collected(found):
                yield payload_of_wire(row.head, row.body)

    def ids_among(wanted: Int64s) -> Iterator[Payload]:
        ascending = np.sort(wanted)  # nearly all are wanted: they are picked here
        for row in _collected(frame.where(f"kind = {_IDS}")) if len(wanted) else ():
            found = payload_among(row.head, row.body, ascending)
            if found is not None:
                yield found

    rows = _collected(frame.where(f"kind not in ({_PAYLOADS}, {_IDS})"))
    return Results(rows, among, ids_among)


def _rows_among(wanted: Int64s) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that ``mapInArrow`` runs over rows of kind PAYLOADS: what they say of some roots."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in rows_of(batch)):
            found = payload_among(row.head, row.body, wanted)
            if found is not None:
                roots, values = found
                yield batch_of([row._replace(head=pack(roots), body=batch_to_bytes(values))])

    return run


def _collected(frame: DataFrame) -> Iterator[WireRow]:
    """All rows, as much of them at once as the driver takes."""
    total = frame.selectExpr("sum(length(head) + length(body))").first()
    parts = -(-int((total and total[0]) or 0) // COLLECTED_BYTES)
    if parts <= 1:
        for batch in frame.toArrow().to_batches():
            yield from rows_of(batch)
        return
    for row in frame.select(*WIRE_SCHEMA.names).repartition(parts).toLocalIterator():
        values: Any = tuple(bytes(each) if isinstance(each, bytearray) else each for each in row)
        yield WireRow(*values)
