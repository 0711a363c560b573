"""A level of a resident query, in a worker: one call of ``run_level`` for each epoch.

The task stays as long as Spark's batch. What its bolts remember is in the files that micro-batches have, see
``checkpoint/memory_files.py``; the first epoch of a task reads the head of the commit before it.

Rules of this file
------------------
1. What goes to the next level goes before the bolts' memory is written: that level need not wait for a file.
   The report comes after it, and no epoch is committed without all reports. So where the file cannot be
   written the epoch is not committed, and runs again.
2. What a task knows of its memory is dropped with the task. Whatever makes an epoch run again ends its task:
   an exception, a death, the query's end. So memory of an epoch that was not committed is never seen.
3. Copies of bolts stay prepared, and their states in memory, but not in the first epochs of a task: those may
   run in child processes. They are dropped with the task, as what it knows of its memory is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from acktree.checkpoint.logs.memory_log import MemoryOfBatch
from acktree.checkpoint.staged_files import put_apart
from acktree.core.data.frames import WireRow
from acktree.core.state.store import StateStore
from acktree.spark.query.operators import Places, carried_by, observe, with_moved_memory
from acktree.spark.realtime.connections import REPORT, Address, Peer, connect
from acktree.spark.realtime.epochs import MOST_UNDER_WAY, Alignment
from acktree.spark.realtime.frames import (
    Frame,
    FrameKind,
    frame_batch,
    frames_in,
    frames_of,
    packed,
    unpacked,
)
from acktree.spark.worker import process as worker
from acktree.spark.worker import scratch
from acktree.spark.worker.isolation import Isolation, Run
from acktree.spark.worker.kept_workers import lose_connection_only
from acktree.spark.worker.log_levels import follow_log_levels
from acktree.spark.worker.printing import label_output
from acktree.spark.worker.process import SharedPlan
from acktree.spark.worker.state_channel import GuardedStore
from acktree.spark.worker.staying import StayingMonitor
from acktree.system.forks import lose_in_children, note_closed
from acktree.tasks.bolts.level import run_level
from acktree.tasks.bolts.prepared import Stock, clean_up
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor

__all__ = ["DRIVER", "ResidentLevel", "resident_level", "whole_by"]

DRIVER: Final = 0
"""Who sends to the first level."""
_YOUNG: Final = 5000
"""The collector's threshold for its youngest objects: at how many new ones it looks for garbage. Python has
700. A level makes some thousands for one message, and almost all of them end without the collector."""


def resident_level(
    shared: SharedPlan, level: int, address: Address, places: Places
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A level as the function that ``mapInArrow`` runs, in each partition until the end of Spark's batch.

    Args:
        shared: The plan.
        level: The level.
        address: Where it reports.
        places: Its folders: the state, and the marks.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker.freeze_imports()
        gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
        context = TaskContext.get()
        assert context is not None, "levels run in Spark tasks"
        plan = shared.plan()
        worker.limit_memory(plan.config.worker_max_bytes)
        label_output(plan.config.log_format)
        follow_log_levels(places.log_levels)
        here = ResidentLevel(shared, level, context.partitionId(), places)
        return lose_connection_only(here.epochs(address, batches))

    return run


def _whole_epochs(
    batches: Iterable[pa.RecordBatch], senders: Iterable[int]
) -> Iterator[tuple[int, list[WireRow]]]:
    """The epochs of which all markers have come, with their rows."""
    alignment: Alignment[WireRow] = Alignment([*senders])
    for frame in frames_in(batches):
        rows = whole_by(alignment, frame)
        if rows is not None:
            yield frame.epoch, rows


def whole_by(alignment: Alignment[WireRow], frame: Frame) -> list[WireRow] | None:
    """Add what a frame brings. Returns the rows of its epoch if it is whole by that, else None."""
    alignment.arrived(frame.sender, frame.epoch, unpacked(frame.body))
    return alignment.marked(frame.sender, frame.epoch) if frame.kind == FrameKind.MARKER else None


class ResidentLevel:
    """A level in one partition, and what its bolts remember."""

    def __init__(self, shared: SharedPlan, level: int, partition: int, places: Places) -> None:
        self._shared, self._level, self._partition, self._places = shared, level, partition, places
        self._plan = shared.plan()
        self._memory: _Memory | None = None
        self._staying = StayingMonitor(
            Path(places.marks), level, partition, self._plan.config.execute_timeout_secs, shared.run_number
        )
        self._ran_through: int | None = None
        """Later epochs than this one were not under way when this task began."""
        self._is_warm = False
        """Whether a later one has run."""
        self._stock: Stock = {}

    def epochs(self, address: Address, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run each epoch as soon as it is whole: yields what goes to the next level, and reports the rest."""
        targets = range(self._plan.partitions)
        with connect(address, Peer(self._level, self._partition)) as driver:
            lose_in_children(driver.fileno())
            try:
                for epoch, rows in _whole_epochs(batches, targets if self._level else [DRIVER]):
                    yield from self.run_whole(epoch, rows, address.incarnation, driver.sendall)
            finally:
                clean_up(self._stock)
                self._staying.close()
                note_closed(driver.fileno())

    def run_whole(
        self, epoch: int, rows: list[WireRow], incarnation: int, report: Callable[[bytes], object]
    ) -> Iterator[pa.RecordBatch]:
        """Run an epoch that is whole: yields what goes to the next level, and reports the rest."""
        whole, spent = time.monotonic_ns(), time.thread_time_ns()
        onward, for_driver = self._run(epoch, rows)
        onward = self._put_apart(epoch, onward, incarnation)
        moments = whole, time.monotonic_ns(), time.thread_time_ns() - spent
        if self._level + 1 < len(self._plan.levels):
            yield frame_batch(frames_of(self._partition, epoch, onward, range(self._plan.partitions)))
        body = packed([*for_driver, *self._written_memory()])
        report(REPORT.pack(epoch, len(body), *moments) + body)

    def _put_apart(self, epoch: int, rows: list[WireRow], incarnation: int) -> list[WireRow]:
        """Write large rows to a file, which the sink deletes when a later epoch is committed."""
        if self._places.scratch is None:
            return rows
        number = epoch - self._places.first_batch
        name = scratch.name_of(number, self._level, self._partition, incarnation)
        return [*scratch.put_into(self._places.scratch, name, rows)]

    def _run(self, epoch: int, rows: list[WireRow]) -> tuple[list[WireRow], list[WireRow]]:
        """Run an epoch. Returns the rows for later levels, and those for the driver."""
        if self._plan.levels[self._level].stateful:
            self._open_memory(epoch)
        onward = [row for row in rows if row.level != self._level]
        own_rows = [row for row in rows if row.level == self._level]
        for_driver: list[WireRow] = []
        ran = self._run_bolts(epoch, own_rows) if own_rows else ()
        for row in put_apart(self._places.staged, epoch, ran):
            (onward if row.level < len(self._plan.levels) else for_driver).append(row)
        return onward, for_driver

    def _run_bolts(self, epoch: int, sent: list[WireRow]) -> Iterator[WireRow]:
        rows = [*scratch.take(self._places.scratch, sent)]
        read_chunk = carried_by(rows, Path(self._places.inbox))

        def run_it(monitor: ExecutionMonitor, store: StateStore | None) -> Iterable[WireRow]:
            return run_level(
                self._plan, self._level, self._partition, rows, store, read_chunk, observe, monitor,
                batch_id=epoch, stock=self._stock if is_staying else None,
            )  # fmt: skip

        if self._ran_through is None:
            self._ran_through = epoch + MOST_UNDER_WAY - 1
        is_staying = epoch > self._ran_through  # else it may run in a process of its own
        if is_staying:
            if not self._is_warm:
                worker.freeze_imports()  # what the first epochs have imported and made is there to stay
                self._is_warm = True
            run = partial(self._staying.run, epoch - self._places.first_batch)
            yield from self._on_memory(run, run_it)
            return
        alone = Isolation(
            Path(self._places.marks), epoch - self._places.first_batch, self._level, self._partition, 0,
            self._plan.config.execute_timeout_secs, self._shared.run_number,
            self._places.new_from,
        ).resumed()  # fmt: skip
        with alone.noting_errors():
            yield from self._on_memory(alone.run, run_it)
            yield from self._written_memory()
        yield from alone.lost_rows()

    def _open_memory(self, epoch: int) -> None:
        """Begin an epoch of it.

        The first epoch of a task follows a committed one: only so is there a head to read. So this is called
        also where the epoch has no rows for the level.
        """
        if self._memory is None:
            assert self._places.state is not None, "real time has a folder"
            self._memory = _Memory(Path(self._places.state), epoch, self._places.state_from)
        self._memory.begin(epoch)

    def _on_memory(
        self, run: Callable[[Run, StateStore | None], Iterable[WireRow]], level: Run
    ) -> list[WireRow]:
        """Run the level on what it remembers."""
        if self._memory is None:
            return [*run(level, None)]
        store = GuardedStore(self._memory)
        rows = [*run(level, with_moved_memory(store, self._places))]
        store.channel.refuse_if_lost()
        return rows

    def _written_memory(self) -> Iterator[WireRow]:
        """Write what the level remembers, if that is not done; returns the rows that say where."""
        return iter(()) if self._memory is None else self._memory.commit(self._partition)


class _Memory(MemoryOfBatch):
    """What the tasks of a level remember in a partition, from epoch to epoch."""

    def begin(self, epoch: int) -> None:
        """Begin an epoch. It follows the last one here, which may not be committed yet."""
        self._batch_id = epoch
