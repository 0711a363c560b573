"""The ladder's operators: each converts, calls one function of ``tasks``, converts back.

A stateless level is a function for ``mapInArrow``; a remembering level is a processor for
``transformWithStateInPandas``, keyed by partition. Rows for other levels pass untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle

from acktree.core.frames import WireRow
from acktree.core.state import StateStore
from acktree.spark import scratch, worker
from acktree.spark.inbox import read_chunk
from acktree.spark.wire import WIRE_SCHEMA, batch_of, rows_of
from acktree.spark.worker import SharedPlan
from acktree.tasks.level import run_level

if TYPE_CHECKING:  # Spark calls us with one; its import costs a worker 50 ms
    from pyspark.sql.streaming.stateful_processor import TimerValues

ROWS_PER_BATCH: Final = 64
"""Wire rows that leave a level in one Arrow batch: frames are large, and JVM memory is not ours to fill."""

MapInArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def stateless_level(shared: SharedPlan, level: int, inbox: str, folder: str | None) -> MapInArrow:
    """A level that remembers nothing, as the function that ``mapInArrow`` runs.

    Run once for each (partition, attempt) of a micro-batch, in any worker process, possibly again after a
    failure: the same rows in give the same rows out.

    Args:
        folder: Where large rows go; see :mod:`acktree.spark.scratch`.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker.settle()
        mine: list[WireRow] = []
        for batch in batches:
            is_mine = np.asarray(batch.column("level")) == level
            if is_mine.all():
                mine += rows_of(batch)
                continue
            if is_mine.any():
                mine += rows_of(batch.filter(pa.array(is_mine)))
                batch = batch.filter(pa.array(~is_mine))  # noqa: PLW2901  # what is left of it
            # Spark marks columns as never null where it knows; what leaves an operator must be of one schema.
            yield pa.RecordBatch.from_arrays(batch.columns, schema=WIRE_SCHEMA)
        if mine:
            reader = partial(read_chunk, Path(inbox))
            rows = scratch.take(folder, mine)
            out = run_level(shared.plan(), level, mine[0].partition, rows, read_chunk=reader)
            yield from _in_batches(scratch.put(folder, level, out))

    return run


def _in_batches(rows: Iterable[WireRow]) -> Iterator[pa.RecordBatch]:
    waiting: list[WireRow] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == ROWS_PER_BATCH:
            yield batch_of(waiting)
            waiting = []
    if waiting:
        yield batch_of(waiting)


class RememberingOperator(StatefulProcessor):
    """A level with memory: one key for each partition, its state named blobs."""

    def __init__(self, shared: SharedPlan, level: int, folder: str | None) -> None:
        """Host a level; ``folder`` is where large rows go."""
        self._shared, self._level, self._folder = shared, level, folder

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: one map of blobs. Called in every task of every micro-batch."""
        self._blobs = handle.getMapState("blobs", "name string", "blob binary")

    def handleInputRows(
        self,
        key: object,  # noqa: ARG002  # the rows say which partition
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: ARG002  # the clock is a column
    ) -> Iterator[pd.DataFrame]:
        """Run the level over the rows of one partition; pass on what is for others."""
        worker.settle()
        names = list(WIRE_SCHEMA.names)
        given = [WireRow(*row) for frame in rows for row in frame[names].itertuples(index=False, name=None)]
        mine = [row for row in given if row.level == self._level]
        out = [row for row in given if row.level != self._level]
        if mine:
            plan, store = self._shared.plan(), _MapStateStore(self._blobs)
            rows_of_mine = scratch.take(self._folder, mine)
            produced = run_level(plan, self._level, mine[0].partition, rows_of_mine, store)
            out += scratch.put(self._folder, self._level, produced)
        yield _frame_of(out)

    def close(self) -> None:
        """Nothing to let go of."""


class _MapStateStore(StateStore):
    """Named blobs in Spark's state store; a blob that is asked for twice is read once."""

    def __init__(self, blobs: MapState) -> None:
        self._blobs = blobs
        self._seen: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        if name not in self._seen:
            found = self._blobs.getValue((name,))
            self._seen[name] = None if found is None else bytes(found[0])
        return self._seen[name]

    def put(self, name: str, blob: bytes) -> None:
        self._seen[name] = blob
        self._blobs.updateValue((name,), (blob,))

    def delete(self, name: str) -> None:
        self._seen[name] = None
        self._blobs.removeKey((name,))


def _frame_of(rows: list[WireRow]) -> pd.DataFrame:
    plain = [row._replace(kind=int(row.kind), body=bytes(row.body)) for row in rows]
    frame = pd.DataFrame(plain, columns=list(WIRE_SCHEMA.names))
    return frame.astype(
        {
            field.name: field.type.to_pandas_dtype()
            for field in WIRE_SCHEMA
            if not pa.types.is_binary(field.type)
        }
    )
