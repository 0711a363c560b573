"""The collector that spouts are handed: emitted messages wait here until they are handed over in runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.core.fields import StreamDeclaration
from acktree.core.ids import Int32s
from acktree.core.pending import MessageIds
from acktree.core.values import encode_rows
from acktree.errors import MisuseError
from acktree.spout import SpoutOutputCollector
from acktree.tasks.collectors import Outlets, batch_of_stream
from acktree.tasks.plan import Plan
from acktree.topology.model import Component


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


class _Buffer:
    """Tuples emitted one by one on one stream, all tracked or all not, all direct or all not."""

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
        self, component: Component, task: int, plan: Plan, open_count: Callable[[], int],
        report: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._component, self._task, self._plan = component, task, plan
        self._open_count, self._report = open_count, report
        self._outlets = Outlets(component, plan)
        self._buffers: dict[tuple[str, bool, bool], _Buffer] = {}
        self._runs: list[Run] = []
        self._unacked: list[object] = []
        self.row_count = 0
        self.tracked_count = 0

    @property
    def pending_count(self) -> int:
        return self._open_count()

    def emit(self, values: Sequence[Any], message_id: object = None, stream: str = "default") -> None:
        outlet = self._outlets.of(stream)
        self._add(outlet.declaration, self._outlets.check_width(outlet, values), message_id, None)

    def emit_direct(
        self, task_id: int, values: Sequence[Any], message_id: object = None, stream: str = "default"
    ) -> None:
        outlet = self._outlets.direct(stream, task_id)
        self._add(outlet.declaration, self._outlets.check_width(outlet, values), message_id, task_id)

    def _add(
        self, declaration: StreamDeclaration, values: tuple[Any, ...], message_id: object, task: int | None
    ) -> None:
        is_tracked = message_id is not None and self._plan.ackers > 0
        key = (declaration.name, is_tracked, task is not None)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _Buffer(declaration)
        buffer.values.append(values)
        self.row_count += 1
        if is_tracked:
            buffer.ids.append(message_id)
            self.tracked_count += 1
        elif message_id is not None:
            self._unacked.append(message_id)
        if task is not None:
            buffer.tasks.append(task)

    def emit_batch(
        self, batch: pa.RecordBatch, message_ids: MessageIds | pa.Array | None = None, stream: str = "default"
    ) -> None:
        where = f"spout {self._component.id!r}, task {self._task}"
        checked = batch_of_stream(batch, self._outlets.of(stream).declaration, where)
        count = checked.num_rows
        if isinstance(message_ids, pa.Array):
            message_ids = message_ids.to_numpy(zero_copy_only=False)
        if message_ids is not None and len(message_ids) != count:
            raise MisuseError(
                f"emit_batch() of {count} rows with {len(message_ids)} message ids", where, "give one id for each row"
            )
        if not count:
            return
        self._runs += self._take_buffers(stream)
        is_tracked = message_ids is not None and self._plan.ackers > 0
        self._runs.append(Run(stream, is_tracked, checked, message_ids if is_tracked and message_ids is not None else (), None))
        self.row_count += count
        if is_tracked:
            self.tracked_count += count
        elif message_ids is not None:
            self._unacked += message_ids.tolist() if isinstance(message_ids, np.ndarray) else list(message_ids)

    def report_error(self, exception: BaseException) -> None:
        self._report(exception)

    def take_runs(self) -> list[Run]:
        """All that was emitted since last taken; within a stream in the order of the emits."""
        runs, self._runs = self._runs, []
        runs += self._take_buffers(None)
        self.row_count = self.tracked_count = 0
        return runs

    def take_unacked(self) -> list[object]:
        """Message ids emitted since last taken that nothing tracks, because there are no ackers."""
        taken, self._unacked = self._unacked, []
        return taken

    def _take_buffers(self, stream: str | None) -> list[Run]:
        keys = [key for key in self._buffers if stream in (None, key[0])]
        return [self._buffers.pop(key).run() for key in keys]
