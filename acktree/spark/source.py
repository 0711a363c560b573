"""The inbox as a Spark source: offsets are its numbers, rows say which slices of which chunks to read.

Rules of this file
------------------
1. ``partitions`` and ``read`` are pure functions of (start, end) and the inbox's files: Spark calls them
   again after a crash, and elsewhere.
2. No message goes through here. A row names a slice of a chunk; the source level reads it where it is used.
3. ``latestOffset`` waits for news, up to :data:`PATIENCE_SECS`: a query at rest costs a call a second.

Storm has no counterpart: its spouts push. Order of calls and threads: ``DataSourceStreamReader`` of Spark 4.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from acktree.core.frames import SINK_LEVEL, Kind, WireRow
from acktree.errors import CheckpointError
from acktree.spark.inbox import HOLD, WAKE, ChunkKind, Entry, entries_after
from acktree.spark.wire import WIRE_DDL, batch_of

FORMAT: Final = "acktree"
PATIENCE_SECS: Final = 1.0
"""How long the source waits for news before it tells Spark that there is none."""
SLICE_ROWS: Final = 64
"""A chunk is cut so that each partition gets at least so many rows of it; a smaller one goes to one."""


class InboxSource(DataSource):
    """``readStream.format("acktree")``; options ``inbox`` and ``partitions``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """The wire schema."""
        return WIRE_DDL

    def streamReader(self, schema: StructType) -> InboxReader:  # noqa: ARG002  # it is always the wire schema
        """The reader of one query."""
        return InboxReader({str(key): str(value) for key, value in self.options.items()})


class Slices(InputPartition):
    """The rows of one partition of one micro-batch."""

    def __init__(self, rows: Sequence[WireRow]) -> None:
        super().__init__(None)
        self.rows = list(rows)


class InboxReader(DataSourceStreamReader):
    """Reads one inbox; lives in a process of its own beside the driver."""

    def __init__(self, options: dict[str, str]) -> None:
        self._folder = Path(options["inbox"])
        self._partitions = int(options["partitions"])

    def initialOffset(self) -> dict[str, int]:
        """Before the first number."""
        return {"chunk": -1}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002  # all of it
        """The newest number; waits for one a while if there is none after ``start``."""
        news = self._news(start["chunk"])
        if news == start["chunk"]:
            self._wait()
            news = self._news(start["chunk"])
        return {"chunk": news}

    def _news(self, start: int) -> int:
        if (self._folder / HOLD).exists():
            return start
        return start + len(entries_after(self._folder, start))

    def _wait(self) -> None:
        """Until somebody wakes us, or patience ends."""
        try:
            pipe = os.open(self._folder / WAKE, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)  # no pipes on this file system: look again soon
            return
        try:
            if select.select([pipe], [], [], PATIENCE_SECS)[0] and not os.read(pipe, 65536):
                time.sleep(0.01)  # nobody holds the other end: it would be readable again at once
        except BlockingIOError:
            pass  # another wait took the wake
        finally:
            os.close(pipe)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Slices]:
        """Cut what lies after ``start`` up to ``end`` into one part for each partition."""
        entries = self._between(start["chunk"], end["chunk"])
        rows: list[list[WireRow]] = [[] for _ in range(self._partitions)]
        is_first = False
        void: dict[int, int] = {}  # spout task -> messages before this number are brought back by its queue
        for entry in entries:
            if entry.kind is ChunkKind.RUN:
                run = json.loads((self._folder / entry.name).read_bytes())
                is_first = True
                void |= {int(task): entry.number for task in run["first_sequences"]}
            elif entry.kind is ChunkKind.TICK:
                ticks = json.loads((self._folder / entry.name).read_bytes())
                for level, due in ticks.items():
                    for partition in range(self._partitions):
                        head = json.dumps(due).encode()
                        rows[partition].append(_row(partition, int(level), Kind.TICK, -1, entry.number, head))
        for entry in entries:
            if entry.kind is ChunkKind.DATA and entry.number > void.get(entry.task, -1):
                for partition, first, last in self._slices(entry):
                    head = json.dumps((entry.name, first, last)).encode()
                    rows[partition].append(_row(partition, 0, Kind.CHUNK, entry.task, entry.number, head))
        told = json.dumps({"end": end["chunk"], "is_first": is_first}).encode()
        rows[0].append(_row(0, SINK_LEVEL, Kind.CLOCK, 0, 0, told))
        return [Slices(part) for part in rows]

    def _between(self, start: int, end: int) -> list[Entry]:
        found = (Entry.of_name(file.name) for file in self._folder.iterdir())
        mine = [entry for entry in found if entry is not None and start < entry.number <= end]
        if len(mine) != end - start:
            # Silence would be worse: their messages would never reach the acker, and never time out.
            raise CheckpointError(
                f"{end - start - len(mine)} of the inbox's files after {start} up to {end} are missing",
                str(self._folder),
                "bring them back, or give the topology a new checkpoint",
            )
        return sorted(mine, key=lambda entry: entry.number)

    def _slices(self, entry: Entry) -> Iterator[tuple[int, int, int]]:
        """(partition, first row, end row) of each slice."""
        if entry.rows < SLICE_ROWS * self._partitions:
            yield entry.number % self._partitions, 0, entry.rows
            return
        for partition in range(self._partitions):
            first, last = (entry.rows * at // self._partitions for at in (partition, partition + 1))
            yield partition, first, last

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        assert isinstance(partition, Slices), "partitions() makes no others"
        yield batch_of(partition.rows)


def _row(partition: int, level: int, kind: Kind, source: int, sequence: int, head: bytes) -> WireRow:
    return WireRow(partition, level, int(kind), source, sequence, 0, head, b"")  # Spark puts the clock in
