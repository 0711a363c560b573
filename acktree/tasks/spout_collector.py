"""The collector that spouts are handed: emitted messages wait here until they are handed over in runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree.core.fields import StreamDeclaration
from acktree.core.ids import Int32s
from acktree.core.pending import MessageIds
from acktree.core.values import quick_look
from acktree.errors import MisuseError
from acktree.spout import SpoutOutputCollector
from acktree.tasks.chunk import CHUNK_BYTES
from acktree.tasks.collectors import batch_of_stream
from acktree.tasks.outlets import Outlets, TupleBuffer
from acktree.tasks.plan import Plan
from acktree.topology.model import Component

SMALL_ROWS: Final = 1 << 12
SMALL_BYTES: Final = 1 << 20
"""Runs of at most so many messages and bytes are put together."""


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


def runs_together(runs: Iterable[Run]) -> Iterator[Run]:
    """The same messages in few runs, so that a spout that emits a handful at a time makes few files.

    Only small ones are copied; within a stream the order stays.
    """
    waiting: list[Run] = []
    size = 0
    for run in runs:
        more: int = run.values.nbytes
        is_small = len(run) <= SMALL_ROWS and more <= SMALL_BYTES
        if waiting and not (is_small and size + more <= CHUNK_BYTES and _are_alike(waiting[-1], run)):
            yield _as_one(waiting)
            waiting, size = [], 0
        waiting.append(run)
        size += more if is_small else CHUNK_BYTES  # a large one stays alone
    if waiting:
        yield _as_one(waiting)


def _are_alike(one: Run, other: Run) -> bool:
    return (
        (one.stream, one.is_tracked) == (other.stream, other.is_tracked)
        and one.tasks is None
        and other.tasks is None
        and one.values.schema.equals(other.values.schema, check_metadata=True)
    )


def _as_one(runs: Sequence[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    values = pa.Table.from_batches([run.values for run in runs]).combine_chunks().to_batches()[0]
    return replace(runs[0], values=values, message_ids=_ids_together([run.message_ids for run in runs]))


def _ids_together(several: Sequence[MessageIds]) -> MessageIds:
    arrays = [ids for ids in several if isinstance(ids, np.ndarray)]
    if len(arrays) == len(several):
        together: MessageIds = np.concatenate(arrays)
        return together
    return [*chain.from_iterable(ids.tolist() if isinstance(ids, np.ndarray) else ids for ids in several)]


class _Buffer(TupleBuffer):
    """Tuples emitted one after the other on one stream, all tracked or all not.

    Attributes:
        ids: The message id of each; None for none.
        is_tracked: Whether they have ids, and there are ackers.
        fits: A quick look at the values of one: see :func:`~acktree.core.values.quick_look`.
        weight: Bytes of the large ones, about.
    """

    __slots__ = ("fits", "ids", "is_tracked", "weight")

    def __init__(self, declaration: StreamDeclaration, component: str) -> None:
        super().__init__(declaration, component)
        self.ids: list[object] = []
        self.is_tracked = False
        self.fits = quick_look(declaration.schema)
        self.weight = 0

    def take_run(self) -> Run:
        values, tasks = self.batch(self.cells, len(self.ids)), self.named_tasks()
        run = Run(self.declaration.name, self.is_tracked, values, self.ids if self.is_tracked else (), tasks)
        self.cells, self.ids, self.tasks, self.weight = [], [], [], 0
        return run


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
        self._is_tracking = plan.is_tracking
        self._must_have_ids = component.retry is not None
        self._buffers: dict[str, _Buffer] = {}
        self._direct: dict[str, _Buffer] = {}
        self._runs: list[Run] = []
        self._unacked: list[tuple[str, object]] = []
        self.row_count = 0
        self.tracked_count = 0
        self._weight = 0

    @property
    def is_heavy(self) -> bool:
        """Whether what waits is so large that it is to be handed over now: only then does the inbox know."""
        return self._weight >= CHUNK_BYTES

    @property
    def pending_count(self) -> int:
        return self._open_count()

    def fill(
        self, next_tuple: Callable[[], None], enough: int, room: int, is_interrupted: Callable[[], bool]
    ) -> None:
        """Ask a spout once, and again while it emits something each time.

        Args:
            enough: Until so many wait to be taken.
            room: Until so many that are tracked wait to be taken.
            is_interrupted: Or until this says so; asked after each call that emitted.

        Raises:
            BaseException: What ``next_tuple`` raises.
        """
        while True:
            before = self.row_count
            next_tuple()
            count = self.row_count
            if count == before or count >= enough or self.tracked_count >= room or self.is_heavy:
                return
            if is_interrupted():
                return

    def emit(self, values: Sequence[Any], message_id: object = None, stream: str = "default") -> None:
        buffer = self._buffers.get(stream)
        if buffer is None:
            declaration = self._outlets.of(stream).declaration
            buffer = self._buffers[stream] = _Buffer(declaration, self._component.id)
        self._write(buffer, values, message_id)

    def emit_direct(
        self, task_id: int, values: Sequence[Any], message_id: object = None, stream: str = "default"
    ) -> None:
        declaration = self._outlets.direct(stream, task_id).declaration
        buffer = self._direct.get(stream)
        if buffer is None:
            buffer = self._direct[stream] = _Buffer(declaration, self._component.id)
        self._write(buffer, values, message_id)
        buffer.tasks.append(task_id)

    def _write(self, buffer: _Buffer, values: Sequence[Any], message_id: object) -> None:
        if (type(values) is not list and type(values) is not tuple) or len(values) != buffer.width:
            values = buffer.checked(values)
        if not buffer.fits(values):
            # Raises here, where the spout is to blame, and not with its run.
            self._weigh(buffer, buffer.batch([*values], 1).nbytes)
        is_tracked = message_id is not None and self._is_tracking
        if not is_tracked and self._must_have_ids and message_id is None:
            raise self._has_no_id()
        if is_tracked is not buffer.is_tracked:
            # Another kind of tuple ends the run, so that the order is kept.
            self._end_run(buffer)
            buffer.is_tracked = is_tracked
        buffer.cells.extend(values)
        buffer.ids.append(message_id)
        self.row_count += 1
        if is_tracked:
            self.tracked_count += 1
        elif message_id is not None:
            self._unacked.append((buffer.declaration.name, message_id))

    def _weigh(self, buffer: _Buffer, weight: int) -> None:
        """A large tuple comes: it ends the run, if the two are too much for one chunk."""
        if buffer.weight + weight > CHUNK_BYTES:
            self._end_run(buffer)
        buffer.weight += weight
        self._weight += weight

    def emit_batch(
        self, batch: pa.RecordBatch, message_ids: MessageIds | pa.Array | None = None, stream: str = "default"
    ) -> None:
        where = f"spout {self._component.id!r}, task {self._task}"
        checked = batch_of_stream(batch, self._outlets.declaration(stream), where)
        count = checked.num_rows
        ids = None if message_ids is None else _listed(message_ids)
        if ids is not None and len(ids) != count:
            what = f"emit_batch() of {count} rows with {len(ids)} message ids"
            raise MisuseError(what, where, "give one id for each row")
        if not count:
            return
        if ids is None and self._must_have_ids:
            raise self._has_no_id()
        if stream in self._buffers:
            self._end_run(self._buffers[stream])
        is_tracked = ids is not None and self._is_tracking
        self._runs.append(
            Run(stream, is_tracked, checked, ids if ids is not None and is_tracked else (), None)
        )
        self.row_count += count
        self._weight += checked.nbytes
        if is_tracked:
            self.tracked_count += count
        elif ids is not None:
            listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
            self._unacked += [(stream, message_id) for message_id in listed]

    def _has_no_id(self) -> MisuseError:
        """Without an id nobody hears that the tuple failed: it would be lost in spite of the policy."""
        return MisuseError(
            f"spout {self._component.id!r} has a Retry, and emitted a tuple without a message id: no failure "
            "of it would be noticed, so it could never be tried again",
            f"spout {self._component.id!r}, task {self._task}",
            "give a message id: emit(values, message_id=...); or leave retry= out of set_spout",
        )

    def report_error(self, exception: BaseException) -> None:
        self._report(exception)

    def take_runs(self) -> list[Run]:
        """All that was emitted since last taken; within a stream in the order of the emits."""
        for buffer in (*self._buffers.values(), *self._direct.values()):
            self._end_run(buffer)
        runs, self._runs = self._runs, []
        self.row_count = self.tracked_count = self._weight = 0
        return runs

    def take_unacked(self) -> dict[str, list[object]]:
        """Message ids emitted since last taken that nothing tracks, as there are no ackers; by stream."""
        taken: dict[str, list[object]] = {}
        for stream, message_id in self._unacked:
            taken.setdefault(stream, []).append(message_id)
        self._unacked.clear()
        return taken

    def _end_run(self, buffer: _Buffer) -> None:
        if buffer.ids:
            self._runs.append(buffer.take_run())


def _listed(message_ids: MessageIds | pa.Array | pa.ChunkedArray) -> MessageIds:
    """Message ids as a list, or a numpy array if they are integers; Arrow's own objects are no ids."""
    if not isinstance(message_ids, pa.Array | pa.ChunkedArray):
        return message_ids
    if pa.types.is_integer(message_ids.type) and not message_ids.null_count:
        integers: MessageIds = message_ids.to_numpy()
        return integers
    listed: list[object] = message_ids.to_pylist()
    return listed
