"""The inbox as a Spark source: offsets are its numbers, rows say which slices of which chunks to read.

Rules of this file
------------------
1. ``partitions`` and ``read`` are pure functions of (start, end) and the inbox's files: Spark calls them
   again after a crash, and elsewhere.
2. No message goes through here. A row names a slice of a chunk; the source level reads it where it is used.
   Where executors do not see the inbox a row carries its slice, and micro-batches are bounded in bytes.
3. ``latestOffset`` waits for news, up to :data:`PATIENCE_SECS`: a query at rest costs a call a second.

Storm has no counterpart: its spouts push. Order of calls and threads: ``DataSourceStreamReader`` of Spark 4.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from acktree.checkpoint.inbox_files import HOLD, WAKE, ChunkKind, Entry, Taken, entries_after, read_chunk
from acktree.checkpoint.pace import Pace
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.errors import CheckpointError
from acktree.private_files import DISK, Disk
from acktree.spark.query.wire import WIRE_DDL, batch_of
from acktree.tasks.chunk import Chunk

FORMAT: Final = "acktree"
PATIENCE_SECS: Final = 1.0
"""How long the source waits for news before it tells Spark that there is none."""
CARRIED_BYTES: Final = 32 << 20
"""Where rows carry them, chunks of so many bytes make a micro-batch, or one that is larger: Spark sends an
executor its part in one message, of at most ``spark.rpc.message.maxSize``, and the driver holds all of it."""
SLICE_ROWS: Final = 64
"""With less than so many messages for each partition, one gets all of them."""


class InboxSource(DataSource):
    """``readStream.format("acktree")``; its options are those of :class:`InboxReader`."""

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
    """Reads one inbox; lives in a process of its own beside the driver.

    Options: ``inbox``, its folder; ``partitions``; ``interval_secs``; ``after``, the number after which a
    fresh checkpoint of Spark's begins; ``carries``, whether rows carry their messages.
    """

    def __init__(self, options: dict[str, str], disk: Disk = DISK) -> None:
        self._folder, self._disk = Path(options["inbox"]), disk
        self._partitions = int(options["partitions"])
        self._after = int(options.get("after", -1))
        self._carries = options.get("carries") == "true"
        self._pace = Pace(float(options["interval_secs"]))
        self._running: tuple[int, float] | None = None  # messages of the last micro-batch, and when it began

    def initialOffset(self) -> dict[str, int]:
        """Where a fresh checkpoint of Spark's begins: it may be younger than ours."""
        return {"chunk": self._after}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002  # ours
        """How far the next micro-batch goes; waits a while if there is nothing after ``start``."""
        if self._running is not None:
            messages, began = self._running
            self._pace.ran(messages, time.monotonic() - began)
            self._running = None
        news = self._news(start["chunk"])
        if not news:
            self._wait()
            news = self._news(start["chunk"])
        if not news:
            return start
        self._running = sum(entry.rows for entry in news), time.monotonic()
        Taken(news[-1].number, self._pace.allowance).write(self._folder, self._disk)
        return {"chunk": news[-1].number}

    def _news(self, start: int) -> list[Entry]:
        """What follows, as much of it as one micro-batch shall run over; a chunk at least."""
        if self._disk.exists(self._folder / HOLD):
            return []
        following = entries_after(self._folder, start, self._disk)
        before = accumulate((entry.rows for entry in following), initial=0)
        news = [entry for entry, rows in zip(following, before, strict=False) if rows < self._pace.allowance]
        if not self._carries:
            return news
        through = accumulate(self._disk.size(self._folder / entry.name) for entry in news)
        fit = sum(size <= CARRIED_BYTES for size in through)
        return news[: max(1, fit)]

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
                run = json.loads(self._disk.read(self._folder / entry.name))
                is_first = True
                void |= {int(task): entry.number for task in run["first_sequences"]}
            elif entry.kind is ChunkKind.TICK:
                ticks = json.loads(self._disk.read(self._folder / entry.name))
                for level, due in ticks.items():
                    for partition in range(self._partitions):
                        head = json.dumps(due).encode()
                        rows[partition].append(_row(partition, int(level), Kind.TICK, -1, entry.number, head))
        data = [e for e in entries if e.kind is ChunkKind.DATA and e.number > void.get(e.task, -1)]
        chunk: tuple[Entry, Chunk] | None = None
        for entry, partition, first, end_row in _slices(data, self._partitions):
            body = b""
            place = (entry.name, first, end_row)
            if self._carries:
                if chunk is None or chunk[0] != entry:
                    chunk = entry, read_chunk(self._folder, entry.name, self._disk)
                body = chunk[1].slice(first, end_row).to_bytes()
                place = (entry.name, 0, end_row - first)
            head = json.dumps(place).encode()
            rows[partition].append(_row(partition, 0, Kind.CHUNK, entry.task, entry.number, head, body))
        told = json.dumps({"end": end["chunk"], "is_first": is_first}).encode()
        rows[0].append(_row(0, SINK_LEVEL, Kind.CLOCK, 0, 0, told))
        return [Slices(part) for part in rows]

    def _between(self, start: int, end: int) -> list[Entry]:
        found = map(Entry.of_name, self._disk.names(self._folder))
        mine = [entry for entry in found if entry is not None and start < entry.number <= end]
        if len(mine) != end - start:
            # Silence would be worse: their messages would never reach the acker, and never time out.
            raise CheckpointError(
                f"{end - start - len(mine)} of the inbox's files after {start} up to {end} are missing",
                str(self._folder),
                "bring them back, or give the topology a new checkpoint",
            )
        return sorted(mine, key=lambda entry: entry.number)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        assert isinstance(partition, Slices), "partitions() makes no others"
        yield batch_of(partition.rows)


def _slices(data: Sequence[Entry], partitions: int) -> Iterator[tuple[Entry, int, int, int]]:
    """(chunk, partition, first row, end row) of each slice: all rows in order, an equal part for each.

    So each partition gets whole chunks, one after the other, and at most two that are cut. A few rows stay
    together: a second task costs more than they do.
    """
    total = sum(entry.rows for entry in data)
    cuts = [total * at // partitions for at in range(partitions + 1)]
    if total < SLICE_ROWS * partitions:
        at = data[0].number % partitions if data else 0
        cuts = [0] * (at + 1) + [total] * (partitions - at)
    start = 0
    for entry in data:
        for partition, (low, high) in enumerate(pairwise(cuts)):
            first, end = max(low, start), min(high, start + entry.rows)
            if first < end:
                yield entry, partition, first - start, end - start
        start += entry.rows


def _row(
    partition: int, level: int, kind: Kind, source: int, sequence: int, head: bytes, body: bytes = b""
) -> WireRow:
    return WireRow(partition, level, int(kind), source, sequence, 0, head, body)  # Spark puts the clock in
