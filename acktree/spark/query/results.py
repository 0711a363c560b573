"""The results of a micro-batch for the driver, with the payloads of its rows of DataFrames.

With a ``Retry``, level 0 sends the root and the payload of each row of a DataFrame (kind PAYLOADS). The
driver reads the payloads of rows that failed or stay open. For an ``Acknowledger``, level 0 sends the message
ids (kind IDS), and the driver reads all of them. Payloads that are not read stay where the level put them: in
scratch files if driver and workers share a machine, else in blocks that Spark keeps on the executors' disks.

Rules of this file
------------------
1. The driver collects a bounded number of bytes at once, however large the micro-batch is. Without a bound, a
   micro-batch that is too large would fail again at every restart, since Spark repeats a logged micro-batch.
2. The levels run once. Spark keeps their output, so that several jobs can collect it. A part that is lost
   with its executor is computed again, with the same rows but for times and the names of files.
3. Nothing here outlives the sink's call: the acker and the journal write what must be durable.
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
"""About how many bytes the driver collects through Spark at once; at least one wire row."""
_PAYLOADS: Final = int(Kind.PAYLOADS)
_IDS: Final = int(Kind.IDS)


@dataclass(frozen=True)
class Results:
    """The results of one micro-batch; valid inside :func:`results_of`.

    Attributes:
        rows: All wire rows except those of kinds PAYLOADS and IDS.
        payloads: Returns the payloads of some roots, in pieces of some megabytes. Roots that are not in the
            micro-batch are left out.
        ids: The same for message ids.
    """

    rows: Iterable[WireRow]
    payloads: Callable[[Int64s], Iterator[Payload]]
    ids: Callable[[Int64s], Iterator[Payload]]


@contextmanager
def results_of(frame: DataFrame, folder: str | None, *, has_payloads: bool) -> Iterator[Results]:
    """The results of a micro-batch, for as long as the sink needs them.

    Args:
        frame: The DataFrame that ``foreachBatch`` passes.
        folder: The folder of large rows; None if driver and workers share no machine.
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
    """Results whose large rows are in files, which the collected rows name."""
    apart: dict[int, list[WireRow]] = {_PAYLOADS: [], _IDS: []}
    rows: list[WireRow] = []
    for batch in _batches_of(frame):
        for row in rows_of(batch):
            apart.get(row.kind % scratch.ELSEWHERE, rows).append(row)
    payloads, ids = (payloads_in_rows(apart[kind], folder) for kind in (_PAYLOADS, _IDS))
    return Results(scratch.take(folder, rows), payloads, ids)


def _batches_of(frame: DataFrame) -> Sequence[pa.RecordBatch]:
    """All rows of a DataFrame.

    ``toArrow`` also asks the JVM for settings and for the schema, which is known here: 2 ms. The part of it
    that collects is not public, so another release of PySpark may lack it.
    """
    collect = getattr(frame, "_collect_as_arrow", None)
    batches: Sequence[pa.RecordBatch] = frame.toArrow().to_batches() if collect is None else collect()
    return batches


def payloads_in_rows(
    rows: Sequence[WireRow], folder: str | None = None
) -> Callable[[Int64s], Iterator[Payload]]:
    """Returns the payloads of some roots, from rows of kind PAYLOADS or the files that they name."""

    def among(wanted: Int64s) -> Iterator[Payload]:
        ascending = np.sort(wanted)
        for row in rows if len(wanted) else ():
            opened = scratch.look(folder, row)
            payload = payload_among(opened.head, opened.body, ascending)
            if payload is not None:
                yield payload

    return among


def _kept(frame: DataFrame) -> Results:
    """Results that Spark keeps: each kind of row is collected by a separate job."""

    def among(wanted: Int64s) -> Iterator[Payload]:
        if len(wanted):
            selected = frame.where(f"kind = {_PAYLOADS}").mapInArrow(_rows_among(np.sort(wanted)), WIRE_DDL)
            for row in _collected(selected):
                yield payload_of_wire(row.head, row.body)

    def ids_among(wanted: Int64s) -> Iterator[Payload]:
        ascending = np.sort(wanted)  # nearly all are wanted, so all are collected and filtered here
        for row in _collected(frame.where(f"kind = {_IDS}")) if len(wanted) else ():
            payload = payload_among(row.head, row.body, ascending)
            if payload is not None:
                yield payload

    rows = _collected(frame.where(f"kind not in ({_PAYLOADS}, {_IDS})"))
    return Results(rows, among, ids_among)


def _rows_among(wanted: Int64s) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that ``mapInArrow`` runs over rows of kind PAYLOADS: keeps those of some roots."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in rows_of(batch)):
            payload = payload_among(row.head, row.body, wanted)
            if payload is not None:
                roots, values = payload
                yield batch_of([row._replace(head=pack(roots), body=batch_to_bytes(values))])

    return run


def _collected(frame: DataFrame) -> Iterator[WireRow]:
    """All rows, collected in parts of about :data:`COLLECTED_BYTES`."""
    total = frame.selectExpr("sum(length(head) + length(body))").first()
    parts = -(-int((total and total[0]) or 0) // COLLECTED_BYTES)
    if parts <= 1:
        for batch in _batches_of(frame):
            yield from rows_of(batch)
        return
    # By values that are the same when Spark computes a lost part again. Round-robin goes by the content of
    # the rows: some would be lost or come twice where times and names of files differ.
    divided = frame.select(*WIRE_SCHEMA.names).repartition(parts, "partition", "kind", "source", "sequence")
    for row in divided.toLocalIterator():
        values: Any = tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
        yield WireRow(*values)
