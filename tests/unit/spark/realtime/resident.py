"""A resident query whose tasks are threads: what Spark and the Java source do for it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from queue import SimpleQueue
from threading import Thread

import pyarrow as pa

from acktree.errors import CheckpointError
from acktree.spark.realtime.connections import FRAME, FRAME_TYPE, SOURCE_LEVEL, Address, Peer, connect
from acktree.spark.realtime.frames import Frame, frame_batch
from acktree.spark.realtime.level import ResidentLevel
from acktree.spark.realtime.query import ResidentQuery
from acktree.system.stopped_by import EndOfLevelError


class Tasks:
    """One incarnation: a thread for each reader and for each level and partition; a batch follows a batch."""

    def __init__(self, address: Address, query: ThreadedQuery) -> None:
        self.address, self.query = address, query
        self.isActive = True
        self._sockets = []
        self._begin_batch()

    def _begin_batch(self) -> None:
        plan = self.query._plan
        partitions, levels = range(plan.partitions), range(len(plan.levels))
        self._queues = {place: SimpleQueue() for place in product(levels, partitions)}
        self._running = len(partitions)
        for partition in partitions:
            Thread(target=self._read, args=(partition,), daemon=True).start()
        for level, partition in product(levels, partitions):
            Thread(target=self._run_level, args=(level, partition), daemon=True).start()

    def _read(self, partition: int) -> None:
        """What FrameReader does in the JVM."""
        with suppress(OSError):
            self._read_batch(partition)

    def _read_batch(self, partition: int) -> None:
        with connect(self.address, Peer(SOURCE_LEVEL, partition)) as driver:
            self._sockets.append(driver)
            with driver.makefile("rb") as file:
                while (kind := file.read(1)) == bytes([FRAME_TYPE]):
                    head = FRAME.unpack(kind + file.read(FRAME.size - 1))
                    _, length, target, sender, which, epoch = head
                    row = Frame(target, sender, which, epoch, file.read(length))
                    self._queues[0, partition].put(frame_batch([row]))
        if kind == b"\0":
            self._end_level(0)

    def _end_level(self, level: int) -> None:
        """A part of the level before has ended: with the last one, the inputs of this level end."""
        for partition in range(self.query._plan.partitions):
            self._queues[level, partition].put(None)

    def _batches(self, level: int, partition: int) -> Iterator[pa.RecordBatch]:
        left = self.query._plan.partitions
        while left:
            batch = self._queues[level, partition].get()
            if batch is None:
                left -= 1
            else:
                yield batch

    def _run_level(self, level: int, partition: int) -> None:
        try:
            here = ResidentLevel(self.query._shared, level, partition, self.query._places)
            for batch in here.epochs(self.address, self._batches(level, partition)):
                for at in range(batch.num_rows):  # the shuffle
                    row = batch.slice(at, 1)
                    self._queues[level + 1, row["target"][0].as_py()].put(row)
        except (OSError, CheckpointError, EndOfLevelError):
            # As where Spark kills the task, or ends the query with its error. Spark's processes die with
            # their query; a thread here may still read a memory that the next query has superseded.
            self.isActive = False
            return
        if level + 1 < len(self.query._plan.levels):
            self._end_level(level + 1)
        else:
            self._running -= 1
            if not self._running and self.isActive:
                self._begin_batch()

    def die(self) -> None:
        """A worker dies, and Spark ends the query."""
        self.isActive = False
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(2)

    def stop(self) -> None:
        self.isActive = False

    def awaitTermination(self, secs: float) -> bool:  # noqa: N802  # Spark's name
        return True

    def exception(self) -> None:
        return None


class ThreadedQuery(ResidentQuery):
    """A resident query without Spark."""

    def _started(self, address: Address) -> Tasks:
        return Tasks(address, self)
