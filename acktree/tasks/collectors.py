"""The collectors that bolts are handed: they write down what user code says, and refuse what it may not say.

Nothing is sent from here. Emitted values wait in an :class:`Outlet` per stream until the frame is done and are
then routed together; acks and fails are one byte each in the rows' account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.bolt import ArrowOutputCollector, BasicOutputCollector, OutputCollector
from acktree.core.fields import StreamDeclaration
from acktree.core.groupings import Direct
from acktree.core.tuples import Tuple
from acktree.core.values import encode_rows
from acktree.core.verdicts import FailureCause
from acktree.errors import MisuseError
from acktree.tasks.outputs import Outputs, failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.router import Emission
from acktree.tasks.rows import ACKED, FAILED, FATES, OPEN, InboundRows
from acktree.topology.model import Component

Anchors = Tuple | Iterable[Tuple] | None


class Outlet:
    """Tuples emitted on one stream while one frame is worked on."""

    __slots__ = ("declaration", "joins", "parents", "tasks", "values", "width")

    def __init__(self, declaration: StreamDeclaration, *, direct: bool) -> None:
        self.declaration = declaration
        self.width = len(declaration.fields)
        self.values: list[tuple[Any, ...]] = []
        self.parents: list[int] = []
        self.joins: dict[int, list[Tuple]] = {}
        self.tasks: list[int] | None = [] if direct else None

    def emission(self) -> Emission:
        """What was emitted so far, as a batch."""
        batch = encode_rows(self.declaration.fields, self.values, self.declaration.schema)
        tasks = None if self.tasks is None else np.array(self.tasks, dtype=np.int32)
        parents = np.array(self.parents, dtype=np.int64)
        return Emission(self.declaration.name, batch, parents, self.joins, tasks)


class Outlets:
    """The streams of one component, as its collector writes to them; and who may be sent to directly."""

    def __init__(self, component: Component, plan: Plan) -> None:
        self._component, self._plan = component, plan
        self._open: dict[str, Outlet] = {}
        self._direct: dict[str, Outlet] = {}

    def of(self, stream: str) -> Outlet:
        """Where ``emit`` on a stream goes. MisuseError when it is not declared, or has a direct subscriber."""
        outlet = self._open.get(stream)
        if outlet is None:
            declaration = self._declared(stream)
            for subscription in self._plan.topology.subscribers(self._component.id, stream):
                if isinstance(subscription.grouping, Direct):
                    raise MisuseError(
                        f"emit() on stream {stream!r}, which {subscription.subscriber!r} reads by direct grouping",
                        f"component {self._component.id!r}",
                        "name the task: emit_direct(task_id, values, stream=...)",
                    )
            outlet = self._open[stream] = Outlet(declaration, direct=False)
        return outlet

    def direct(self, stream: str, task: int) -> Outlet:
        """Where ``emit_direct`` goes. MisuseError when the task is not of a direct-grouped subscriber."""
        outlet = self._direct.get(stream)
        if outlet is None:
            outlet = self._direct[stream] = Outlet(self._declared(stream), direct=True)
        topology = self._plan.topology
        for subscription in topology.subscribers(self._component.id, stream):
            tasks = topology.components[subscription.subscriber].task_ids
            if task in tasks and isinstance(subscription.grouping, Direct):
                return outlet
        raise MisuseError(
            f"emit_direct() to task {task}, which does not read stream {stream!r} by direct grouping",
            f"component {self._component.id!r}",
            f"set_bolt(...).direct_grouping({self._component.id!r}, stream={stream!r}) on the receiver, and one of "
            "context.task_ids(receiver)",
        )

    def check_width(self, outlet: Outlet, values: object) -> tuple[Any, ...]:
        """The values as a tuple. MisuseError when they are not as many as the stream has fields."""
        if not isinstance(values, str | bytes | Mapping):
            try:
                row = tuple(values)  # type: ignore[arg-type]  # that it iterates is what is tried here
            except TypeError:
                row = None
            if row is not None and len(row) == outlet.width:
                return row
        fields = list(outlet.declaration.fields)
        raise MisuseError(
            f"emitted {values!r:.80} on stream {outlet.declaration.name!r}, which has the fields {fields}",
            f"component {self._component.id!r}",
            f"emit a list of {outlet.width} values, in the order of the fields",
        )

    def take(self) -> list[Emission]:
        """All that was emitted since last taken, stream by stream."""
        used = [outlet for outlet in (*self._open.values(), *self._direct.values()) if outlet.values]
        self._open.clear()
        self._direct.clear()
        return [outlet.emission() for outlet in used]

    def _declared(self, stream: str) -> StreamDeclaration:
        declaration = self._component.streams.get(stream)
        if declaration is None:
            known = ", ".join(map(repr, self._component.streams)) or "none"
            raise MisuseError(
                f"emitted on stream {stream!r}, which is not declared (declared: {known})",
                f"component {self._component.id!r}",
                f'add it to the outputs of {self._component.id!r}: outputs = {{"{stream}": [fields]}}',
            )
        return declaration


class BasicCollector(BasicOutputCollector):
    """For a ``BasicBolt``: everything is anchored to the tuple being executed."""

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        self._component, self._task, self._outlets, self._outputs = component, task, outlets, outputs
        self.rows: InboundRows | None = None
        self.row = -1

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        outlet = self._outlets.of(stream)
        outlet.values.append(self._outlets.check_width(outlet, values))
        outlet.parents.append(self.row)

    def emit_direct(self, task_id: int, values: Sequence[Any], stream: str = "default") -> None:
        outlet = self._outlets.direct(stream, task_id)
        outlet.values.append(self._outlets.check_width(outlet, values))
        outlet.parents.append(self.row)
        assert outlet.tasks is not None, "a direct outlet"
        outlet.tasks.append(task_id)

    def reset_timeout(self) -> None:
        assert self.rows is not None, "a collector is used while its bolt executes"
        self._outputs.reset(self.rows.lineage.roots_of(np.array([self.row])))

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))


class HandCollector(OutputCollector):
    """For a ``Bolt``: anchors, acks and fails are the bolt's own words, and are held against the rows' account."""

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        self._component, self._task, self._outlets, self._outputs = component, task, outlets, outputs
        self.rows: InboundRows | None = None
        self.elsewhere: dict[int, InboundRows] = {}

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = "default") -> None:
        self._emit(self._outlets.of(stream), values, anchors)

    def emit_direct(
        self, task_id: int, values: Sequence[Any], stream: str = "default", anchors: Anchors = None
    ) -> None:
        outlet = self._outlets.direct(stream, task_id)
        self._emit(outlet, values, anchors)
        assert outlet.tasks is not None, "a direct outlet"
        outlet.tasks.append(task_id)

    def _emit(self, outlet: Outlet, values: Sequence[Any], anchors: Anchors) -> None:
        row = self._outlets.check_width(outlet, values)
        parent = -1
        if anchors is not None:
            several = [anchors] if isinstance(anchors, Tuple) else list(anchors)
            named: dict[tuple[int, int], Tuple] = {}
            for anchor in several:
                named[id(self._open_rows(anchor, "emitted anchored to")), anchor._row] = anchor  # noqa: SLF001
            if len(named) == 1 and several[0]._rows is self.rows:  # noqa: SLF001
                parent = several[0]._row  # noqa: SLF001
            elif named:
                outlet.joins[len(outlet.values)] = list(named.values())
        outlet.values.append(row)
        outlet.parents.append(parent)

    def ack(self, tup: Tuple) -> None:
        rows = self._open_rows(tup, "acked")
        rows.fate[tup._row] = ACKED  # noqa: SLF001
        self._done(rows, tup, acked=True)

    def fail(self, tup: Tuple, reason: str = "") -> None:
        rows = self._open_rows(tup, "failed")
        rows.fate[tup._row] = FAILED  # noqa: SLF001
        failure = failure_of(None, self._component.id, reason, FailureCause.FAILED_BY_BOLT)
        self._outputs.fail(rows.lineage.roots_of(np.array([tup._row])), failure)  # noqa: SLF001
        self._done(rows, tup, acked=False)

    def reset_timeout(self, tup: Tuple) -> None:
        rows = self._open_rows(tup, "reset the timeout of")
        self._outputs.reset(rows.lineage.roots_of(np.array([tup._row])))  # noqa: SLF001

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))

    def _done(self, rows: InboundRows, tup: Tuple, *, acked: bool) -> None:
        if rows is self.rows:
            return  # counted with its frame
        self.elsewhere[id(rows)] = rows
        if not acked and not tup.is_tick:
            source = f"{tup.component}:{tup.stream}"
            self._outputs.counters.add(self._component.id, self._task, source, "failed", 1)

    def _open_rows(self, tup: Tuple, doing: str) -> InboundRows:
        """The rows of an open tuple. MisuseError when it is done, or no tuple at all."""
        if not isinstance(tup, Tuple):
            raise MisuseError(
                f"{doing} {tup!r:.80}, which is not a tuple of the topology",
                f"component {self._component.id!r}, task {self._task}",
                "give the Tuple that execute() was handed, not its values",
            )
        rows: InboundRows = tup._rows  # type: ignore[assignment]  # noqa: SLF001  # the engine's own rows
        fate = rows.fate[tup._row]  # noqa: SLF001
        if fate != OPEN:
            raise MisuseError(
                f"{doing} a tuple that was {FATES[fate]} before: {tup!r}",
                f"component {self._component.id!r}, task {self._task}, stream {tup.stream!r} of {tup.component!r}",
                "ack or fail a tuple once, after everything that is anchored to it was emitted",
            )
        return rows


class ArrowCollector(ArrowOutputCollector):
    """For an ``ArrowBolt``: whole batches, each output row naming its parent row."""

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        self._component, self._task, self._outlets, self._outputs = component, task, outlets, outputs
        self.emissions: list[Emission] = []
        self.failed: dict[int, str] = {}
        self.row_count = 0

    def emit_batch(
        self, batch: pa.RecordBatch, parents: Sequence[int] | pa.Array | None, stream: str = "default"
    ) -> None:
        declaration = self._outlets.of(stream).declaration
        checked = batch_of_stream(batch, declaration, f"component {self._component.id!r}")
        self.emissions.append(Emission(stream, checked, self._parents(parents, checked.num_rows), {}))

    def _parents(self, parents: object, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if parents is None:
            return np.full(count, -1, dtype=np.int64)
        if isinstance(parents, pa.ChunkedArray):
            parents = parents.combine_chunks()
        if isinstance(parents, pa.Array):
            parents = parents.to_numpy(zero_copy_only=False)
        rows = np.asarray(parents)
        if rows.shape != (count,) or (count and (rows.dtype.kind not in "iu" or not _within(rows, self.row_count))):
            raise MisuseError(
                f"emit_batch() of {count} rows with parents {parents!r:.80}",
                f"component {self._component.id!r}, task {self._task}",
                f"one integer for each emitted row: the input row (0 to {self.row_count - 1}) it was made from",
            )
        return rows.astype(np.int64)

    def fail_rows(self, rows: Sequence[int] | pa.Array, reason: str = "") -> None:
        wanted = [int(row) for row in (rows.to_pylist() if isinstance(rows, pa.Array) else rows)]
        wrong = [row for row in wanted if not 0 <= row < self.row_count]
        if wrong:
            raise MisuseError(
                f"fail_rows({wrong[:5]}) of a batch with {self.row_count} rows",
                f"component {self._component.id!r}, task {self._task}",
                f"rows of the batch that execute_batch() was handed: 0 to {self.row_count - 1}",
            )
        for row in wanted:
            self.failed.setdefault(row, reason)

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))


def _within(rows: np.ndarray[tuple[int], np.dtype[Any]], count: int) -> bool:
    return bool(rows.min() >= 0 and rows.max() < count)


def batch_of_stream(batch: pa.RecordBatch, declaration: StreamDeclaration, where: str) -> pa.RecordBatch:
    """A user's batch with exactly the columns of a stream, in its order and types. MisuseError otherwise."""
    if not isinstance(batch, pa.RecordBatch):
        what = f"emit_batch() of a {type(batch).__name__}"
        raise MisuseError(what, where, "give a pyarrow.RecordBatch: pa.record_batch({field: array, ...})")
    fields = list(declaration.fields)
    if sorted(batch.schema.names) != sorted(fields):
        what = f"emit_batch() with columns {batch.schema.names} on stream {declaration.name!r}, which has {fields}"
        raise MisuseError(what, where, "name each field of the stream once")
    chosen = batch.select(fields)
    if declaration.schema is None or chosen.schema.equals(declaration.schema):
        return chosen
    try:
        return chosen.cast(declaration.schema)
    except pa.ArrowInvalid as error:
        what = f"emit_batch() with types {chosen.schema.types} on stream {declaration.name!r}: {error}"
        raise MisuseError(what, where, f"declared: {declaration.schema.types}") from error
