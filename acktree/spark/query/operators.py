"""The operators of the query. Each converts rows, calls one function of ``tasks``, and converts back.

A level is a function for ``mapInArrow``, and so is the combining stage. At a URL a stateful level is a
processor for ``transformWithStateInPandas``, keyed by partition: there Spark's state is the memory. Rows for
other levels are passed on unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from sys import maxsize
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from acktree.checkpoint.inbox_files import read_chunk
from acktree.checkpoint.logs.memory_log import MemoryOfBatch
from acktree.checkpoint.migrated_state import SeededStore
from acktree.checkpoint.staged_files import put_apart
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.slices import Slice
from acktree.core.state.store import StateStore
from acktree.errors import ProtocolError
from acktree.spark.query.state_blobs import MapStateStore
from acktree.spark.query.wire import WIRE_SCHEMA, batch_of, rows_of
from acktree.spark.worker import process as worker
from acktree.spark.worker import scratch
from acktree.spark.worker.isolation import Isolation
from acktree.spark.worker.isolation import Run as RunLevel
from acktree.spark.worker.log_levels import follow_log_levels
from acktree.spark.worker.printing import label_output
from acktree.spark.worker.process import SharedPlan
from acktree.spark.worker.state_channel import GuardedStore
from acktree.tasks.bolts.level import ReadChunk, run_level
from acktree.tasks.bolts.observer import Observer
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.tasks.chunk import Chunk, in_parts
from acktree.tasks.combiner import run_combiner
from acktree.tasks.observers.usual import usual_observers
from acktree.tasks.plan import Plan

if TYPE_CHECKING:
    # Before the first micro-batch Spark imports this module in one more process for each stateful level. That
    # process needs no pandas, whose import takes 0.4 s.
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import TimerValues

ROWS_PER_BATCH: Final = 64
"""The most wire rows in an Arrow batch of a level's output; the JVM holds whole batches in memory."""
BYTES_PER_BATCH: Final = 64 << 20
"""The most bytes in such a batch; a single row may be larger."""

MapInArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Places:
    """Folders that a worker needs, as paths.

    Attributes:
        inbox: The folder of chunks. If executors do not see the checkpoint, only the source reads it.
        marks: The folder of execution marks; a relative path is a folder on a local disk of the executor.
        scratch: The folder of large rows, if driver and workers share a machine.
        memory: The folder of moved memory that Spark's checkpoint starts from, if there is any.
        is_seen: Whether executors see the checkpoint.
        log_levels: The file of log levels, if they do.
        first_batch: The number of Spark's first micro-batch in the checkpoint.
        state: The folder of the files in which bolts remember; None where that is Spark's state.
        state_from: The first micro-batch in which something could be remembered there.
        new_from: Spark's number of the first micro-batch that no earlier run can have begun.
        staged: The folder of the files of staged values; None where rows carry them.
    """

    inbox: str
    marks: str
    scratch: str | None
    memory: str | None = None
    is_seen: bool = True
    log_levels: str | None = None
    first_batch: int = 0
    state: str | None = None
    state_from: int = 0
    new_from: int = maxsize
    staged: str | None = None


def isolation(shared: SharedPlan, places: Places, level: int, partition: int) -> Isolation:
    """The isolation of a level in this attempt of its Spark task."""
    context = TaskContext.get()
    assert context is not None, "levels run in Spark tasks"
    batch_id = _spark_batch(context)
    return Isolation(
        Path(places.marks) if places.is_seen else worker.own_folder(places.marks, batch_id), batch_id, level,
        partition, attempt=context.attemptNumber(), timeout_secs=shared.plan().config.execute_timeout_secs,
        run_number=shared.run_number, new_from=places.new_from if places.is_seen else None,
    )  # fmt: skip


def _spark_batch(context: TaskContext) -> int:
    """Spark's number of the micro-batch.

    Raises:
        ProtocolError: Spark does not tell it.
    """
    property_value = context.getLocalProperty("streaming.sql.batchId")
    if property_value is None:
        raise ProtocolError(
            "Spark does not tell which micro-batch this is",
            "streaming.sql.batchId",
            "this is a bug in acktree: please report it",
        )
    return int(property_value)


def _micro_batch(places: Places) -> int:
    """The number of the micro-batch in the checkpoint."""
    context = TaskContext.get()
    assert context is not None, "levels run in Spark tasks"
    return places.first_batch + _spark_batch(context)


def mapped_level(shared: SharedPlan, level: int, places: Places, *, remembers: bool) -> MapInArrow:
    """A level as the function that ``mapInArrow`` runs.

    It is called once for each partition and attempt of a micro-batch, in any worker process. The same input
    rows give the same output rows, because Spark runs it again after a failure.

    Args:
        remembers: Whether it has stateful bolts. Then it writes what they remember before it returns rows,
            and one of the rows names the file.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker.freeze_imports()
        mine: list[WireRow] = []
        yield from _passed_on(batches, level, mine)
        if mine:
            plan, partition = shared.plan(), mine[0].partition
            worker.limit_memory(plan.config.worker_max_bytes)
            label_output(plan.config.log_format)
            follow_log_levels(places.log_levels)

            def run_it(monitor: ExecutionMonitor, store: StateStore | None) -> Iterable[WireRow]:
                rows = scratch.take(places.scratch, mine)
                return run_level(
                    plan, level, partition, rows, store, read_chunk=reader, observe=observe, monitor=monitor,
                    batch_id=_micro_batch(places),
                )  # fmt: skip

            reader = partial(read_chunk, Path(places.inbox)) if places.is_seen else carried_by(mine)
            alone = isolation(shared, places, level, partition)
            with alone.noting_errors():
                if remembers:
                    out: Iterable[WireRow] = _remembered(alone, run_it, places, partition)
                else:
                    out = alone.run(run_it)
                out = put_apart(places.staged, _micro_batch(places), chain(out, alone.lost_rows()))
                yield from map(batch_of, _in_batches(scratch.put(places.scratch, level, out)))
            plan.worker.end_with_process()

    return run


def _remembered(alone: Isolation, run_it: RunLevel, places: Places, partition: int) -> list[WireRow]:
    """Run a level on its memory of the last micro-batch, and write what it changed there."""
    assert places.state is not None, "else Spark's state is the memory"
    memory = MemoryOfBatch(Path(places.state), _micro_batch(places), places.state_from)
    store = GuardedStore(memory)
    rows = [*alone.run(run_it, with_moved_memory(store, places))]
    store.channel.refuse_if_lost()
    return [*rows, *memory.commit(partition)]


def with_moved_memory(store: StateStore, places: Places) -> StateStore:
    """The memory of a level, with what was moved there while no driver ran."""
    return store if places.memory is None else SeededStore(store, Path(places.memory))


def combining_stage(shared: SharedPlan, level: int, places: Places) -> MapInArrow:
    """The combining stage, as the function that ``mapInArrow`` runs after the last level.

    Args:
        level: The ``level`` of its rows.

    It runs no user code, so nothing is marked and nobody watches it.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker.freeze_imports()
        level_rows: list[WireRow] = []
        yield from _passed_on(batches, level, level_rows)
        if level_rows:
            plan = shared.plan()
            worker.limit_memory(plan.config.worker_max_bytes)
            out = run_combiner(plan, level_rows[0].partition, scratch.take(places.scratch, level_rows))
            yield from map(batch_of, _in_batches(scratch.put(places.scratch, level, out)))

    return run


def _passed_on(
    batches: Iterable[pa.RecordBatch], level: int, level_rows: list[WireRow]
) -> Iterator[pa.RecordBatch]:
    """The rows for others; those of a level are added to ``level_rows``."""
    for batch in batches:
        is_mine = np.asarray(batch.column("level")) == level
        if is_mine.all():
            level_rows += rows_of(batch)
            continue
        if is_mine.any():
            level_rows += rows_of(batch.filter(pa.array(is_mine)))
            batch = batch.filter(pa.array(~is_mine))  # noqa: PLW2901  # the remaining rows
        # Spark marks some columns as not nullable; all output of an operator must have one schema.
        yield pa.RecordBatch.from_arrays(batch.columns, schema=WIRE_SCHEMA)


def observe(plan: Plan, clock_ms: int) -> list[Observer]:
    """The observers of a level in a worker."""
    return usual_observers(plan, clock_ms, now_ms=lambda: time.time_ns() // 1_000_000)


def carried_by(rows: Iterable[WireRow], inbox: Path | None = None) -> ReadChunk:
    """Reads chunks from the bodies of the rows that name them; without a body, from the inbox's file."""
    bodies = {Slice.of_head(row.head).chunk: row.body for row in rows if row.kind == Kind.CHUNK}

    def read(name: str) -> Chunk:
        body = bodies[name]
        return Chunk.from_bytes(body) if len(body) or inbox is None else read_chunk(inbox, name)

    return read


def _in_batches(rows: Iterable[WireRow]) -> Iterator[list[WireRow]]:
    return in_parts(rows, lambda row: len(row.head) + len(row.body), BYTES_PER_BATCH, ROWS_PER_BATCH)


class RememberingOperator(StatefulProcessor):
    """A level with stateful bolts where Spark's state is their memory.

    There is one key for each partition, whose state is a map of named blobs.
    """

    def __init__(self, shared: SharedPlan, level: int, places: Places) -> None:
        """Make the operator of a level."""
        self._shared, self._level, self._places = shared, level, places

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: one map of blobs. Called in every task of every micro-batch."""
        self._blobs = handle.getMapState("blobs", "name string", "blob binary")

    def handleInputRows(
        self,
        key: object,  # noqa: ARG002  # the rows say which partition
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: ARG002  # the clock is a column
    ) -> Iterator[pd.DataFrame]:
        """Run the level over its rows of one partition; pass the other rows on."""
        worker.freeze_imports()
        names = list(WIRE_SCHEMA.names)
        arrived = [WireRow(*row) for frame in rows for row in frame[names].itertuples(index=False, name=None)]
        level_rows = [row for row in arrived if row.level == self._level]
        out = [row for row in arrived if row.level != self._level]
        if level_rows:
            plan, partition = self._shared.plan(), level_rows[0].partition
            worker.limit_memory(plan.config.worker_max_bytes)
            label_output(plan.config.log_format)
            follow_log_levels(self._places.log_levels)

            def run_it(monitor: ExecutionMonitor, store: StateStore | None) -> Iterable[WireRow]:
                given = scratch.take(self._places.scratch, level_rows)
                return run_level(
                    plan, self._level, partition, given, store, observe=observe, monitor=monitor,
                    batch_id=_micro_batch(self._places),
                )  # fmt: skip

            alone = isolation(self._shared, self._places, self._level, partition)
            kept = MapStateStore(self._blobs)
            store = with_moved_memory(kept, self._places)
            with alone.noting_errors():
                produced = [*alone.run(run_it, store), *alone.lost_rows()]
                kept.channel.refuse_if_lost()
                out += scratch.put(self._places.scratch, self._level, produced)
            plan.worker.end_with_process()
        yield from map(_frame_of, _in_batches(out))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _frame_of(rows: list[WireRow]) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415  # see above

    plain = [row._replace(kind=int(row.kind), body=bytes(row.body)) for row in rows]
    frame = pd.DataFrame(plain, columns=list(WIRE_SCHEMA.names))
    return frame.astype(
        {
            field.name: field.type.to_pandas_dtype()
            for field in WIRE_SCHEMA
            if not pa.types.is_binary(field.type)
        }
    )
