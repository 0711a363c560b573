"""The collectors that bolts are handed: they write down what user code says, and refuse what it may not say.

Nothing is sent from here. Emitted values wait in an :class:`Outlet` per stream until the frame is done and
are then routed together; acks and fails are one byte each in the rows' account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.bolt import ArrowOutputCollector, BasicOutputCollector, OutputCollector
from acktree.core.fields import StreamDeclaration
from acktree.core.groupings import Direct
from acktree.core.tuples import Tuple
from acktree.core.values import encode_rows
from acktree.errors import MisuseError
from acktree.tasks.outputs import Outputs, failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.router import Emission
from acktree.tasks.rows import ACKED, FAILED, FATES, OPEN, InboundRows, account_of
from acktree.topology.model import Component

Anchors = Tuple | Iterable[Tuple] | None


@dataclass(frozen=True)
class Unfit:
    """A tuple that was emitted and cannot travel; what it hangs on fails."""

    parent: int
    anchors: Sequence[Tuple]
    error: Exception


class Outlet:
    """Tuples emitted on one stream while one frame is worked on."""

    __slots__ = ("_component", "_joins", "_parents", "_tasks", "_values", "_width", "declaration")

    def __init__(self, declaration: StreamDeclaration, component: str) -> None:
        self.declaration = declaration
        self._component = component
        self._width = len(declaration.fields)
        self._values: list[tuple[Any, ...]] = []
        self._parents: list[int] = []
        self._joins: dict[int, Sequence[Tuple]] = {}
        self._tasks: list[int] = []

    def checked(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values as a tuple. MisuseError when they are not as many as the stream has fields."""
        kind = type(values)
        # Nearly always a list, and to ask an ABC about it would take longer than all the rest.
        if kind is list or kind is tuple or _is_row(values):
            row = tuple(values)
            if len(row) == self._width:
                return row
        raise MisuseError(
            f"emitted {values!r:.80} on stream {self.declaration.name!r}, "
            f"which has the fields {list(self.declaration.fields)}",
            f"component {self._component!r}",
            f"emit a list of {self._width} values, in the order of the fields",
        )

    def add(
        self, values: Sequence[Any], parent: int, anchors: Sequence[Tuple] = (), task: int | None = None
    ) -> None:
        """Write down one tuple. MisuseError as :meth:`checked`; nothing was written then.

        Args:
            parent: The row of the frame at hand that it is anchored to; -1 for none.
            anchors: What it is anchored to instead: several tuples, or one of another frame.
            task: The task it is for, if the bolt named one. On one stream it always does or never.
        """
        row = self.checked(values)
        if anchors:
            self._joins[len(self._values)] = anchors
        self._values.append(row)
        self._parents.append(parent)
        if task is not None:
            self._tasks.append(task)

    def emission(self, unfit: list[Unfit]) -> Emission:
        """All that was written down, as a batch.

        Args:
            unfit: Is given the tuples with values that do not fit the stream's types, or do not pickle.
        """
        name, fields, schema = self.declaration.name, self.declaration.fields, self.declaration.schema
        parents = np.array(self._parents, dtype=np.int64)
        tasks = np.array(self._tasks, dtype=np.int32) if self._tasks else None
        try:
            return Emission(name, encode_rows(fields, self._values, schema), parents, self._joins, tasks)
        except MisuseError:
            pass  # some tuple's fault: look at each, which is slow but seldom
        fits: list[int] = []
        for row, values in enumerate(self._values):
            try:
                encode_rows(fields, [values], schema)
                fits.append(row)
            except MisuseError as error:
                told = placed(error, self._component, name)
                unfit.append(Unfit(self._parents[row], self._joins.get(row, ()), told))
        batch = encode_rows(fields, [self._values[row] for row in fits], schema)
        joins = {at: self._joins[row] for at, row in enumerate(fits) if row in self._joins}
        return Emission(name, batch, parents[fits], joins, None if tasks is None else tasks[fits])


def placed(error: MisuseError, component: str, stream: str) -> MisuseError:
    """The codec's error about a value, with where it was emitted."""
    return MisuseError(error.what, f"component {component!r}, stream {stream!r}, {error.where}", error.fix)


class Outlets:
    """The streams of one component, as its collector writes to them; and who may be sent to directly."""

    def __init__(self, component: Component, plan: Plan) -> None:
        self._component, self._plan = component, plan
        self._open: dict[str, Outlet] = {}
        self._direct: dict[str, Outlet] = {}

    def of(self, stream: str) -> Outlet:
        """Where ``emit`` on a stream goes. MisuseError when it is not declared, or is read directly."""
        outlet = self._open.get(stream)
        if outlet is None:
            declaration = self._declared(stream)
            for subscription in self._plan.topology.subscribers(self._component.id, stream):
                if isinstance(subscription.grouping, Direct):
                    what = f"emit() on stream {stream!r}, read by {subscription.subscriber!r} directly"
                    fix = "name the task: emit_direct(task_id, values, stream=...)"
                    raise MisuseError(what, f"component {self._component.id!r}", fix)
            outlet = self._open[stream] = Outlet(declaration, self._component.id)
        return outlet

    def direct(self, stream: str, task: int) -> Outlet:
        """Where ``emit_direct`` goes. MisuseError when the task is not of a direct-grouped subscriber."""
        outlet = self._direct.get(stream)
        if outlet is None:
            outlet = self._direct[stream] = Outlet(self._declared(stream), self._component.id)
        topology = self._plan.topology
        for subscription in topology.subscribers(self._component.id, stream):
            tasks = topology.components[subscription.subscriber].task_ids
            if task in tasks and isinstance(subscription.grouping, Direct):
                return outlet
        raise MisuseError(
            f"emit_direct() to task {task}, which does not read stream {stream!r} by direct grouping",
            f"component {self._component.id!r}",
            f"set_bolt(...).direct_grouping({self._component.id!r}, stream={stream!r}) on the receiver, "
            "and one of context.task_ids(receiver)",
        )

    def take(self) -> tuple[list[Emission], list[Unfit]]:
        """All that was emitted since last taken, stream by stream; and what of it cannot travel."""
        used = (*self._open.values(), *self._direct.values())
        self._open.clear()
        self._direct.clear()
        unfit: list[Unfit] = []
        return [outlet.emission(unfit) for outlet in used], unfit

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
        self.rows, self.row = InboundRows.of_clock(0), -1

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        self._outlets.of(stream).add(values, self.row)

    def emit_direct(self, task_id: int, values: Sequence[Any], stream: str = "default") -> None:
        self._outlets.direct(stream, task_id).add(values, self.row, task=task_id)

    def reset_timeout(self) -> None:
        self._outputs.reset(self.rows.lineage.roots_of(np.array([self.row])))

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))


class HandCollector(OutputCollector):
    """For a ``Bolt``: anchors, acks and fails are its own words, and held against the rows' account.

    Attributes:
        rows, row: The frame at hand, and the tuple of it.
        elsewhere: Rows of other frames of which something was acked or failed since last cleared, by id().
    """

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        self._component, self._task, self._outlets, self._outputs = component, task, outlets, outputs
        self.rows, self.row = InboundRows.of_clock(0), -1
        self.elsewhere: dict[int, InboundRows] = {}

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = "default") -> None:
        self._emit(self._outlets.of(stream), values, anchors, None)

    def emit_direct(
        self, task_id: int, values: Sequence[Any], stream: str = "default", anchors: Anchors = None
    ) -> None:
        self._emit(self._outlets.direct(stream, task_id), values, anchors, task_id)

    def _emit(self, outlet: Outlet, values: Sequence[Any], anchors: Anchors, task: int | None) -> None:
        checked = outlet.checked(values)
        several = [] if anchors is None else [anchors] if isinstance(anchors, Tuple) else list(anchors)
        accounts = [self._open(anchor, "emitted anchored to") for anchor in several]
        named = {(id(rows), row): anchor for (rows, row), anchor in zip(accounts, several, strict=True)}
        if len(named) == 1 and accounts[0][0] is self.rows:
            outlet.add(checked, accounts[0][1], task=task)
        else:
            outlet.add(checked, -1, list(named.values()), task)

    def ack(self, tup: Tuple) -> None:
        rows, row = self._open(tup, "acked")
        rows.fate[row] = ACKED
        if rows is not self.rows:  # else it is counted with its frame
            self.elsewhere[id(rows)] = rows

    def fail(self, tup: Tuple, reason: str = "") -> None:
        rows, row = self._open(tup, "failed")
        rows.fate[row] = FAILED
        failure = failure_of(None, self._component.id, reason)
        self._outputs.fail(rows.lineage.roots_of(np.array([row])), failure)
        if rows is not self.rows:
            self.elsewhere[id(rows)] = rows
            source = f"{tup.component}:{tup.stream}"
            self._outputs.counters.add(
                self._component.id, self._task, source, "failed", 0 if tup.is_tick else 1
            )

    def reset_timeout(self, tup: Tuple) -> None:
        rows, row = self._open(tup, "reset the timeout of")
        self._outputs.reset(rows.lineage.roots_of(np.array([row])))

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))

    def _open(self, tup: object, doing: str) -> tuple[InboundRows, int]:
        """The account of an open tuple. MisuseError when it is done, not ours, or no tuple at all."""
        where = f"component {self._component.id!r}, task {self._task}"
        if not isinstance(tup, Tuple):
            raise MisuseError(
                f"{doing} {tup!r:.80}, which is not a tuple of the topology",
                where,
                "give the Tuple that execute() was handed, not its values",
            )
        rows, row = account_of(tup)
        if rows.keeper is not self:
            raise MisuseError(
                f"{doing} a tuple that this task was not given in this micro-batch: {tup!r}",
                where,
                "keep tuples in attributes that the bolt `remembers`, and nowhere else",
            )
        if rows.fate[row] != OPEN:
            raise MisuseError(
                f"{doing} a tuple that was {FATES[rows.fate[row]]} before: {tup!r}",
                f"{where}, {tup.component}:{tup.stream}",
                "ack or fail a tuple once, after everything that is anchored to it was emitted",
            )
        return rows, row


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
        is_index = rows.shape == (count,) and (not count or rows.dtype.kind in "iu")
        if not is_index or (count and not _within(rows, self.row_count)):
            raise MisuseError(
                f"emit_batch() of {count} rows with parents {parents!r:.80}",
                f"component {self._component.id!r}, task {self._task}",
                f"for each emitted row the input row that it was made from, 0 to {self.row_count - 1}",
            )
        return rows.astype(np.int64)

    def fail_rows(self, rows: Sequence[int] | pa.Array, reason: str = "") -> None:
        listed = rows.to_pylist() if isinstance(rows, pa.Array | pa.ChunkedArray) else rows
        wanted = [int(row) for row in listed]
        wrong = [row for row in wanted if not 0 <= row < self.row_count]
        if wrong:
            raise MisuseError(
                f"fail_rows({wrong[:5]}) of a batch with {self.row_count} rows",
                f"component {self._component.id!r}, task {self._task}",
                f"rows of the batch that execute_batch() was handed: 0 to {self.row_count - 1}",
            )
        for row in wanted:
            self.failed.setdefault(row, str(reason))

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))


def _is_row(values: object) -> bool:
    """Whether this can be the values of a tuple: a text or a mapping is taken for a slip."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)


def _within(rows: np.ndarray[tuple[int], np.dtype[Any]], count: int) -> bool:
    return bool(rows.min() >= 0 and rows.max() < count)


def batch_of_stream(batch: pa.RecordBatch, declaration: StreamDeclaration, where: str) -> pa.RecordBatch:
    """A user's batch with exactly the columns of a stream, in its order and types. MisuseError otherwise."""
    if not isinstance(batch, pa.RecordBatch):
        what = f"emit_batch() of a {type(batch).__name__}"
        raise MisuseError(what, where, "give a pyarrow.RecordBatch: pa.record_batch({field: array, ...})")
    fields = list(declaration.fields)
    if sorted(batch.schema.names) != sorted(fields):
        what = f"emit_batch() with columns {batch.schema.names} on stream {declaration.name!r} of {fields}"
        raise MisuseError(what, where, "name each field of the stream once")
    chosen = batch.select(fields)
    if declaration.schema is None or chosen.schema.equals(declaration.schema):
        return chosen
    try:
        return chosen.cast(declaration.schema)
    except (pa.ArrowException, ValueError) as error:
        what = f"emit_batch() with types {chosen.schema.types} on stream {declaration.name!r}: {error}"
        raise MisuseError(what, where, f"declared: {declaration.schema.types}") from error
