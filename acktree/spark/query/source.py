"""The inbox as a Spark source: offsets are inbox numbers, and each row names a slice of a chunk to read.

Rules of this file
------------------
1. ``partitions`` and ``read`` are pure functions of (start, end) and the inbox's files, because Spark calls
   them again after a crash and in other processes. How messages are divided may differ then: a micro-batch
   that runs again after a crash runs again as a whole.
2. The source reads no messages. A row names a slice of a chunk, and the source level reads it in the worker.
   If executors do not see the inbox, a row carries its slice, and micro-batches are bounded in bytes.
3. ``latestOffset`` waits for new entries, up to :data:`PATIENCE_SECS`: each call costs Spark's JVM more than
   the wait costs here. Beside DataFrames it waits one second, and two after a minute without a micro-batch.

Storm has no counterpart: its spouts push. The order of calls and their threads are documented in Spark 4's
``DataSourceStreamReader``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from acktree.checkpoint.inbox_files import (
    HOLD,
    WAKE,
    ChunkKind,
    Entry,
    Taken,
    Work,
    entries_after,
    newest_watch,
    read_chunk,
    read_orders,
)
from acktree.checkpoint.pace import Pace
from acktree.core.data.frames import SINK_LEVEL, WireRow
from acktree.core.data.slices import Slice, divided
from acktree.errors import CheckpointError
from acktree.spark.query.wire import WIRE_DDL, batch_of
from acktree.system.private_files import DISK, Disk
from acktree.system.readable import is_readable
from acktree.tasks.broadcast import Broadcast, OperatorOrder
from acktree.tasks.chunk import Chunk

FORMAT: Final = "acktree"
PATIENCE_SECS: Final = 4.0
"""How long the source waits for new entries before it returns the old offset."""
PATIENCE_BESIDE_ROWS_SECS: Final = 1.0
"""The same if rows of DataFrames are messages too. Spark asks one source after the other, so their rows wait
while this one does."""
_REST_CALLS: Final = 60
"""After this many calls without a micro-batch the source waits twice as long, but not over four seconds."""
_LOOK_SECS: Final = 2.0
"""A waiting source looks for entries this often, even if no byte came: the reader of a stopped query may have
taken the byte from the pipe."""
CARRIED_BYTES: Final = 32 << 20
"""If rows carry their messages, the most bytes of a micro-batch; a single chunk may be larger. Spark sends
each executor its part in one message, of at most ``spark.rpc.message.maxSize``, and the driver holds all of
it."""
SLICE_ROWS: Final = 64
SLICE_MS: Final = 50.0
"""One partition gets all messages if there are fewer than SLICE_ROWS for each partition, and if the bolts of
the source level execute all of them in less than SLICE_MS: a second Spark task takes longer than they do."""


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
    """Reads one inbox; runs in a Python process of its own beside the driver.

    Options: ``inbox``, its folder; ``partitions``; ``interval_secs`` and perhaps ``longest_secs``, see
    :class:`Pace`; ``after``, the inbox number after which a new checkpoint of Spark begins; ``carries``,
    whether rows carry their messages; ``patience_secs``, as :data:`PATIENCE_SECS`.
    """

    def __init__(self, options: dict[str, str], disk: Disk = DISK) -> None:
        self._folder, self._disk = Path(options["inbox"]), disk
        self._partitions = int(options["partitions"])
        self._after = int(options.get("after", -1))
        self._carries = options.get("carries") == "true"
        self._patience_secs = float(options.get("patience_secs", PATIENCE_SECS))
        self._java = os.getppid()
        self._pace = Pace(float(options["interval_secs"]), float(options.get("longest_secs", 0)))
        self._running: tuple[Sequence[Entry], float] | None = None  # the last micro-batch, when it began
        self._rest_calls = 0  # calls since the last micro-batch, also one with rows of other sources only

    def initialOffset(self) -> dict[str, int]:
        """The offset at which a new checkpoint of Spark begins; it may be newer than acktree's checkpoint."""
        return {"chunk": self._after}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002  # see Pace
        """The end of the next micro-batch; waits up to ``patience_secs`` for an entry after ``start``."""
        if self._running is not None:
            entries, began = self._running
            messages, secs = sum(entry.rows for entry in entries), time.monotonic() - began
            self._pace.ran(messages, secs)
            self._running = None
        until = time.monotonic() + self._longest_wait_secs()
        while not (news := self._news(start["chunk"])):
            secs_left = until - time.monotonic()
            if secs_left <= 0:
                return start
            self._wait(min(secs_left, _LOOK_SECS))
            if self._is_held() or os.getppid() != self._java:  # the query stops, or its JVM has ended
                return start
        self._running = news, time.monotonic()
        Taken(news[-1].number, self._pace.allowance).write(self._folder, self._disk)
        return {"chunk": news[-1].number}

    def commit(self, end: dict[str, int]) -> None:  # noqa: ARG002  # Spark's signature
        """A micro-batch is over, perhaps one with rows of other sources only."""
        self._rest_calls = 0

    def _longest_wait_secs(self) -> float:
        self._rest_calls += 1
        if self._rest_calls <= _REST_CALLS:
            return self._patience_secs
        return max(self._patience_secs, min(2 * self._patience_secs, PATIENCE_SECS))

    def _news(self, start: int) -> list[Entry]:
        """The entries after ``start`` for the next micro-batch: as many as the pace allows, at least one."""
        if self._is_held():
            return []
        following = self._following(start)
        before = accumulate((entry.rows for entry in following), initial=0)
        news = [entry for entry, rows in zip(following, before, strict=False) if rows < self._pace.allowance]
        if not self._carries:
            return news
        through = accumulate(self._disk.size(self._folder / entry.name) for entry in news)
        fit = sum(size <= CARRIED_BYTES for size in through)
        return news[: max(1, fit)]

    def _following(self, start: int) -> Sequence[Entry]:
        return entries_after(self._folder, start, self._disk)

    def _is_held(self) -> bool:
        return self._disk.exists(self._folder / HOLD)

    def _wait(self, secs: float) -> None:
        """Wait for a byte in the wake pipe, at most ``secs``."""
        try:
            pipe = os.open(self._folder / WAKE, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)  # this file system has no pipes: poll
            return
        try:
            if is_readable(pipe, secs) and not os.read(pipe, 65536):
                time.sleep(0.01)  # the pipe has no writer and would be readable again at once
        except BlockingIOError:
            pass  # another reader took the byte
        finally:
            os.close(pipe)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Slices]:
        """Divide the entries after ``start`` up to ``end`` into one part for each partition."""
        entries = self._between(start["chunk"], end["chunk"])
        rows: list[list[WireRow]] = [[] for _ in range(self._partitions)]
        ticks = dict[int, dict[str, float]]()
        is_first, begun = False, set[int]()  # levels with sinks, if a run begins
        # spout task -> entries before this number do not count: its queue redelivers their messages
        void: dict[int, int] = {}
        for entry in entries:
            if entry.kind is ChunkKind.RUN:
                run = self._orders(entry)
                is_first = True
                void |= {int(task): entry.number for task in run["first_sequences"]}
                begun |= {*run.get("sink_levels", ())}
            elif entry.kind is ChunkKind.TICK:
                for level, due in self._orders(entry).items():
                    ticks.setdefault(int(level), {}).update(due)
        order, levels = self._order(end["chunk"])
        for level, partition in product(sorted({*ticks, *begun, *range(levels)}), range(self._partitions)):
            order_here = order if level < levels else None
            broadcast = Broadcast(ticks.get(level, {}), order_here, is_first=level in begun)
            rows[partition].append(broadcast.row(partition, level))
        data = [
            entry
            for entry in entries
            if entry.kind is ChunkKind.DATA and entry.number > void.get(entry.task, -1)
        ]
        chunk: tuple[Entry, Chunk] | None = None
        only = _only_partition(data, self._partitions, self._work())
        sizes = [entry.rows for entry in data]
        for index, partition, first, end_row in divided(sizes, self._partitions, only):
            entry = data[index]
            body: bytes | None = None
            if self._carries_messages(entry):
                body = self._whole(entry) if end_row - first == entry.rows else None
                if body is None:
                    if chunk is None or chunk[0] != entry:
                        chunk = entry, self._chunk(entry)
                    body = chunk[1].slice(first, end_row).to_bytes()
            part = Slice(entry.name, first, end_row)
            rows[partition].append(part.row(partition, entry.task, entry.number, body=body))
        rows[0].append(Broadcast(end=end["chunk"], is_first=is_first).row(0, SINK_LEVEL))
        return [Slices(part) for part in rows]

    def _order(self, end: int) -> tuple[OperatorOrder | None, int]:
        """The order that holds in a micro-batch, and for how many levels it is; None and 0 for none."""
        entry = self._watch(end)
        if entry is None:
            return None, 0
        stored = self._orders(entry)
        return OperatorOrder.from_bytes(stored["order"].encode()), stored["levels"]

    def _between(self, start: int, end: int) -> list[Entry]:
        named = map(Entry.of_name, self._disk.names(self._folder))
        entries = [entry for entry in named if entry is not None and start < entry.number <= end]
        if len(entries) != end - start:
            # Without this error their messages would never reach the acker and never time out.
            raise CheckpointError(
                f"{end - start - len(entries)} of the inbox's files after {start} up to {end} are missing",
                str(self._folder),
                "restore them, or give the topology a new checkpoint",
            )
        return sorted(entries, key=lambda entry: entry.number)

    def _orders(self, entry: Entry) -> dict[str, Any]:
        """What an entry of the driver says: a run, ticks, or an operator's order."""
        return read_orders(self._folder, entry, self._disk)

    def _chunk(self, entry: Entry) -> Chunk:
        return read_chunk(self._folder, entry.name, self._disk)

    def _carries_messages(self, entry: Entry) -> bool:  # noqa: ARG002  # all entries, or none
        """Whether rows carry the messages of an entry; else they name its file."""
        return self._carries

    def _whole(self, entry: Entry) -> bytes | None:  # noqa: ARG002  # it is in its file
        """The bytes of a whole chunk, if they are at hand."""
        return None

    def _watch(self, end: int) -> Entry | None:
        """The entry with the newest operator's order, up to ``end``."""
        return newest_watch(self._disk.names(self._folder), end)

    def _work(self) -> Work | None:
        return Work.read(self._folder, self._disk)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        assert isinstance(partition, Slices), "partitions() makes no others"
        yield batch_of(partition.rows)


def _only_partition(data: Sequence[Entry], partitions: int, work: Work | None) -> int | None:
    """The partition that gets all messages, if they are few and known to be little work; else None.

    ``work`` is how long messages took so far; None before the first.
    """
    total = sum(entry.rows for entry in data)
    is_little = work is not None and total * work.message_ms < SLICE_MS
    if data and (total <= 1 or (is_little and total < SLICE_ROWS * partitions)):
        return data[0].number % partitions
    return None
