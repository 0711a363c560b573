"""The collector that spouts are handed: emitted messages wait here until they are handed over in runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree.core.fields import StreamDeclaration
from acktree.core.ids import Int32s
from acktree.core.pending import MessageIds
from acktree.core.values import encode_rows
from acktree.errors import MisuseError
from acktree.spout import SpoutOutputCollector
from acktree.tasks.collectors import Outlets, batch_of_stream, placed
from acktree.tasks.plan import Plan
from acktree.topology.model import Component

_FITS_ANYWHERE: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types whose values always travel, unless a schema says otherwise."""


@dataclass(frozen=True, eq=False)
class Run:
    """Messages of one stream, emitted one after the other; n rows.

    Attributes:
        is_tracked: Whether they have message ids and there are ackers.
        values: A column per field.
        message_ids: One for each row when tracked, else empty.
        tasks: Target of each (``emit_direct``); None when groupings choose.
    """

    stream: str
    is_tracked: bool
    values: pa.RecordBatch
    message_ids: MessageIds
    tasks: Int32s | None

    def __len__(self) -> int:
        rows: int = self.values.num_rows
        return rows

    def cut(self, most: int) -> Iterator[Run]:
        """The same in pieces of at most so many messages."""
        for first in range(0, len(self), most):
            end = first + most
            yield Run(
                self.stream,
                self.is_tracked,
                self.values.slice(first, most),
                self.message_ids[first:end],
                None if self.tasks is None else self.tasks[first:end],
            )


class _Buffer:
    """Tuples emitted one after the other on one stream, all tracked or all not, all direct or all not."""

    __slots__ = ("declaration", "ids", "tasks", "values")

    def __init__(self, declaration: StreamDeclaration) -> None:
        self.declaration = declaration
        self.values: list[tuple[Any, ...]] = []
        self.ids: list[object] = []
        self.tasks: list[int] = []

    def run(self) -> Run:
        values = encode_rows(self.declaration.fields, self.values, self.declaration.schema)
        tasks = np.array(self.tasks, dtype=np.int32) if self.tasks else None
        return Run(self.declaration.name, bool(self.ids), values, self.ids, tasks)


class SpoutCollector(SpoutOutputCollector):
    """Writes down what a spout emits."""

    def __init__(
        self,
        component: Component,
        task: int,
        plan: Plan,
        open_count: Callable[[], int],
        report: Callable[[BaseException], None],
    ) -> None:
        self._component, self._task, self._plan = component, task, plan
        self._open_count, self._report = open_count, report
        self._outlets = Outlets(component, plan)
        self._buffers: dict[str, tuple[tuple[bool, bool], _Buffer]] = {}
        self._runs: list[Run] = []
        self._unacked: list[tuple[str, object]] = []
        self.row_count = 0
        self.tracked_count = 0

    @property
    def pending_count(self) -> int:
        return self._open_count()

    def emit(self, values: Sequence[Any], message_id: object = None, stream: str = "default") -> None:
        outlet = self._outlets.of(stream)
        self._add(outlet.declaration, outlet.checked(values), message_id, None)

    def emit_direct(
        self, task_id: int, values: Sequence[Any], message_id: object = None, stream: str = "default"
    ) -> None:
        outlet = self._outlets.direct(stream, task_id)
        self._add(outlet.declaration, outlet.checked(values), message_id, task_id)

    def _add(
        self, declaration: StreamDeclaration, values: tuple[Any, ...], message_id: object, task: int | None
    ) -> None:
        if declaration.schema is not None or not _FITS_ANYWHERE.issuperset(map(type, values)):
            try:  # here, where the spout is to blame, and not when its run is put together
                encode_rows(declaration.fields, [values], declaration.schema)
            except MisuseError as error:
                raise placed(error, self._component.id, declaration.name) from error
        is_tracked = message_id is not None and self._plan.is_tracking
        buffer = self._buffer(declaration, (is_tracked, task is not None))
        buffer.values.append(values)
        self.row_count += 1
        if is_tracked:
            buffer.ids.append(message_id)
            self.tracked_count += 1
        elif message_id is not None:
            self._unacked.append((declaration.name, message_id))
        if task is not None:
            buffer.tasks.append(task)

    def _buffer(self, declaration: StreamDeclaration, kind: tuple[bool, bool]) -> _Buffer:
        """The stream's buffer; another kind of tuple on it ends its run, so that the order is kept."""
        before, buffer = self._buffers.get(declaration.name, (None, None))
        if buffer is None or before != kind:
            self._end_run(declaration.name)
            buffer = _Buffer(declaration)
            self._buffers[declaration.name] = kind, buffer
        return buffer

    def emit_batch(
        self, batch: pa.RecordBatch, message_ids: MessageIds | pa.Array | None = None, stream: str = "default"
    ) -> None:
        where = f"spout {self._component.id!r}, task {self._task}"
        checked = batch_of_stream(batch, self._outlets.of(stream).declaration, where)
        count = checked.num_rows
        ids = None if message_ids is None else _listed(message_ids)
        if ids is not None and len(ids) != count:
            what = f"emit_batch() of {count} rows with {len(ids)} message ids"
            raise MisuseError(what, where, "give one id for each row")
        if not count:
            return
        self._end_run(stream)
        is_tracked = ids is not None and self._plan.is_tracking
        self._runs.append(
            Run(stream, is_tracked, checked, ids if ids is not None and is_tracked else (), None)
        )
        self.row_count += count
        if is_tracked:
            self.tracked_count += count
        elif ids is not None:
            listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
            self._unacked += [(stream, message_id) for message_id in listed]

    def report_error(self, exception: BaseException) -> None:
        self._report(exception)

    def take_runs(self) -> list[Run]:
        """All that was emitted since last taken; within a stream in the order of the emits."""
        for stream in list(self._buffers):
            self._end_run(stream)
        runs, self._runs = self._runs, []
        self.row_count = self.tracked_count = 0
        return runs

    def take_unacked(self) -> dict[str, list[object]]:
        """Message ids emitted since last taken that nothing tracks, as there are no ackers; by stream."""
        taken: dict[str, list[object]] = {}
        for stream, message_id in self._unacked:
            taken.setdefault(stream, []).append(message_id)
        self._unacked.clear()
        return taken

    def _end_run(self, stream: str) -> None:
        if stream in self._buffers:
            self._runs.append(self._buffers.pop(stream)[1].run())


def _listed(message_ids: MessageIds | pa.Array | pa.ChunkedArray) -> MessageIds:
    """Message ids as a list, or a numpy array if they are integers; Arrow's own objects are no ids."""
    if not isinstance(message_ids, pa.Array | pa.ChunkedArray):
        return message_ids
    if pa.types.is_integer(message_ids.type) and not message_ids.null_count:
        integers: MessageIds = message_ids.to_numpy()
        return integers
    listed: list[object] = message_ids.to_pylist()
    return listed
