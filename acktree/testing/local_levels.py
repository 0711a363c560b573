"""Runs the levels of a topology in this process, one micro-batch after the other, as Spark's query does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from acktree.core.data.fields import DEFAULT_STREAM
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.slices import Slice, divided
from acktree.core.data.values import decode_rows
from acktree.core.packing import Buffer
from acktree.core.state.store import MemoryStore
from acktree.driver.ticks import Ticks
from acktree.errors import MisuseError, nearest
from acktree.tasks.bolts.level import run_level
from acktree.tasks.bolts.observer import Emitted, Observer
from acktree.tasks.broadcast import Broadcast, OperatorOrder
from acktree.tasks.chunk import Chunk
from acktree.tasks.combiner import combined
from acktree.tasks.observers.usual import usual_observers
from acktree.tasks.plan import Plan
from acktree.topology.model import Topology

__all__ = ["LocalLevels", "refuse_unknown_stream"]


class LocalLevels:
    """The levels of one topology: their state in memory, and all tuples that were emitted."""

    def __init__(self, plan: Plan, ticks: Ticks) -> None:
        """Start with empty state."""
        self._plan, self._ticks = plan, ticks
        self._stores: dict[tuple[int, int], MemoryStore] = {}
        self._emitted: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self._order: OperatorOrder | None = None

    def obey(self, order: OperatorOrder) -> None:
        """Take an order of what to watch; it holds from the next micro-batch on."""
        self._order = order

    def next_tick_ms(self) -> int | None:
        """When the next tick is due; None when no bolt has any."""
        return self._ticks.next_ms()

    def tuples(self, component: str, stream: str) -> list[list[Any]]:
        """All that a component emitted on a stream."""
        batches = self._emitted.get((component, stream), ())
        return [list(values) for batch in batches for values in decode_rows(batch)]

    def run(
        self, chunks: Sequence[tuple[int, Chunk]], clock_ms: int, batch_id: int | None = None
    ) -> list[WireRow]:
        """Run one micro-batch over chunks of the inbox. Returns the rows that no level takes."""
        given = {str(number): chunk for number, chunk in chunks}
        rows = list(self._rows_of(chunks, clock_ms))
        for level in self._plan.levels:
            level_rows = [row for row in rows if row.level == level.index]
            rows = [row for row in rows if row.level != level.index]
            for partition in range(self._plan.partitions):
                here = [row for row in level_rows if row.partition == partition]
                store = self._store(level.index, partition) if level.stateful else None
                rows += run_level(
                    self._plan, level.index, partition, here, store, read_chunk=given.__getitem__,
                    observe=self._observers, batch_id=batch_id,
                )  # fmt: skip
        return combined(self._plan, rows)

    def _rows_of(self, chunks: Sequence[tuple[int, Chunk]], clock_ms: int) -> Iterator[WireRow]:
        """What Spark's source gives: all rows in order, in equal parts, and broadcasts."""
        partitions = self._plan.partitions
        for index, partition, first, end in divided([len(chunk) for _, chunk in chunks], partitions):
            number, chunk = chunks[index]
            yield Slice(str(number), first, end).row(partition, chunk.task, number, clock_ms)
        ticks = self._ticks.due(clock_ms)
        for level in range(len(self._plan.levels)):
            broadcast = Broadcast(ticks.get(level, {}), self._order)
            if broadcast != Broadcast():
                yield from (broadcast.row(partition, level, clock_ms) for partition in range(partitions))

    def _store(self, level: int, partition: int) -> MemoryStore:
        return self._stores.setdefault((level, partition), MemoryStore())

    def _observers(self, plan: Plan, clock_ms: int) -> list[Observer]:
        return [_Emitted(self._emitted), *usual_observers(plan, clock_ms)]


def refuse_unknown_stream(topology: Topology, component: str, stream: str) -> None:
    """Check what ``tuples`` is asked for: a test that a misspelt name is empty would pass for ever.

    Raises:
        MisuseError: There is no such component, or it has no such stream. A component without any has an
            empty default stream.
    """
    call = f"tuples({component!r}, {stream!r})"
    if component not in topology.components:
        what = f"topology {topology.name!r} has no component {component!r}"
        raise MisuseError(what, call, nearest(component, topology.components))
    streams = topology.components[component].streams or [DEFAULT_STREAM]
    if stream not in streams:
        what = f"component {component!r} has no stream {stream!r}"
        raise MisuseError(what, call, nearest(stream, streams))


class _Emitted(Observer):
    """Notes all tuples that are emitted, for the test; not those of a run that does not count."""

    def __init__(self, batches: dict[tuple[str, str], list[pa.RecordBatch]]) -> None:
        self._batches = batches
        self._noted: list[Emitted] = []

    def emitted(self, emitted: Emitted) -> None:
        self._noted.append(emitted)

    def driver_rows(self) -> Iterator[tuple[Kind, bytes, Buffer]]:
        for emitted in self._noted:
            key = emitted.component, emitted.emission.stream
            self._batches.setdefault(key, []).append(emitted.emission.batch)
        self._noted.clear()
        return iter(())
