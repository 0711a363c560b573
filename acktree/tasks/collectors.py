"""The collectors that bolts are handed: they write down what user code says, and refuse what it may not say.

Nothing is sent from here. Emitted values wait in an :class:`~acktree.tasks.outlets.Outlet` per stream until
the frame is done and are then routed together; acks and fails are one byte each in the rows' account.

What is called for each tuple looks for the usual case itself, without a call, and leaves the rest to others.
"""

# ruff: noqa: SLF001  # a Tuple shows its users values; its place in the account is the engine's

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from acktree.bolt import ArrowOutputCollector, BasicOutputCollector, OutputCollector
from acktree.core.fields import StreamDeclaration
from acktree.core.texts import MOST_REASON, bounded
from acktree.core.tuples import Tuple
from acktree.errors import MisuseError
from acktree.tasks.outlets import Outlet, Outlets, Unfit
from acktree.tasks.outputs import Outputs, failure_of
from acktree.tasks.router import Emission
from acktree.tasks.rows import ACKED, FAILED, FATES, OPEN, InboundRows, account_of
from acktree.topology.model import Component

Anchors = Tuple | Iterable[Tuple] | None

_NO_TUPLE: Final = "give the Tuple that execute() was handed, not its values"
_NOT_OURS: Final = "keep tuples in attributes that the bolt `remembers`, and nowhere else"
_DONE: Final = "ack or fail a tuple once, after everything that is anchored to it was emitted"


class _Writer:
    """What the collectors have in common that write tuple by tuple."""

    _outlet: Outlet

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        self._component, self._task, self._outlets, self._outputs = component, task, outlets, outputs
        self._stream: str | None = None
        self.rows = InboundRows.of_clock(0)

    def _turn_to(self, stream: str) -> Outlet:
        """The outlet of a stream, from now on the one at hand: most bolts emit on one stream alone."""
        self._outlet, self._stream = self._outlets.of(stream), stream
        return self._outlet

    def take(self) -> tuple[list[Emission], list[Unfit]]:
        """What was emitted since last taken, and what of it cannot travel."""
        self._stream = None
        return self._outlets.take()

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))


class BasicCollector(_Writer, BasicOutputCollector):
    """For a ``BasicBolt``: everything is anchored to the tuple being executed.

    Attributes:
        rows, row: The frame at hand, and the tuple of it; -1 for none, in a tick.
    """

    row = -1

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        outlet = self._outlet if stream is self._stream else self._turn_to(stream)
        # What nearly every emit is, seen without a call.
        if (type(values) is not list and type(values) is not tuple) or len(values) != outlet.width:
            values = outlet.checked(values)
        outlet.cells.extend(values)
        outlet.parents.append(self.row)

    def emit_direct(self, task_id: int, values: Sequence[Any], stream: str = "default") -> None:
        outlet = self._outlets.direct(stream, task_id)
        outlet.cells.extend(outlet.checked(values))
        outlet.parents.append(self.row)
        outlet.tasks.append(task_id)

    def reset_timeout(self) -> None:
        self._outputs.reset(self.rows.lineage.roots_of(np.array([self.row])))


class HandCollector(_Writer, OutputCollector):
    """For a ``Bolt``: anchors, acks and fails are its own words, and held against the rows' account.

    Attributes:
        rows: The frame at hand.
        elsewhere: Rows of other frames of which something was acked or failed since last cleared, by id().
    """

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        super().__init__(component, task, outlets, outputs)
        self.elsewhere: dict[int, InboundRows] = {}

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = "default") -> None:
        outlet = self._outlet if stream is self._stream else self._turn_to(stream)
        here = self.rows
        if (type(values) is not list and type(values) is not tuple) or len(values) != outlet.width:
            values = outlet.checked(values)
        if anchors is None:
            parent = -1
        elif type(anchors) is Tuple and anchors._rows is here and here.fate[anchors._row] == OPEN:
            parent = anchors._row  # the tuple at hand, nearly always; all else is looked at closely
        else:
            parent = self._parent(outlet, anchors)
        outlet.cells.extend(values)
        outlet.parents.append(parent)

    def emit_direct(
        self, task_id: int, values: Sequence[Any], stream: str = "default", anchors: Anchors = None
    ) -> None:
        outlet = self._outlets.direct(stream, task_id)
        values = outlet.checked(values)
        parent = -1 if anchors is None else self._parent(outlet, anchors)
        outlet.cells.extend(values)
        outlet.parents.append(parent)
        outlet.tasks.append(task_id)

    def _parent(self, outlet: Outlet, anchors: Tuple | Iterable[Tuple]) -> int:
        """The row of the frame at hand that the next tuple hangs on; -1 when it is a join, noted as such."""
        if isinstance(anchors, Tuple):
            rows, row = self._open(anchors, "emitted anchored to")
            if rows is self.rows:
                return row
            outlet.joins[len(outlet.parents)] = [anchors]
            return -1
        several = list(anchors)
        accounts = [self._open(anchor, "emitted anchored to") for anchor in several]
        named = {(id(rows), row): anchor for (rows, row), anchor in zip(accounts, several, strict=True)}
        if len(named) == 1:
            return self._parent(outlet, several[0])
        if named:
            outlet.joins[len(outlet.parents)] = list(named.values())
        return -1

    def ack(self, tup: Tuple) -> None:
        here = self.rows
        if type(tup) is Tuple and tup._rows is here and here.fate[tup._row] == OPEN:
            here.fate[tup._row] = ACKED
            return
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

    def _open(self, tup: Tuple, doing: str) -> tuple[InboundRows, int]:
        """The account of an open tuple. MisuseError when it is done, not ours, or no tuple at all."""
        if not isinstance(tup, Tuple):
            self._refuse(f"{doing} {tup!r:.80}, which is not a tuple of the topology", _NO_TUPLE)
        rows, row = account_of(tup)
        if rows.keeper is not self:
            what = f"{doing} a tuple that this task was not given in this micro-batch: {tup!r}"
            self._refuse(what, _NOT_OURS)
        if rows.fate[row] != OPEN:
            what = f"{doing} a tuple that was {FATES[rows.fate[row]]} before: {tup!r}"
            self._refuse(what, _DONE, f", {tup.component}:{tup.stream}")
        return rows, row

    def _refuse(self, what: str, fix: str, of: str = "") -> NoReturn:
        raise MisuseError(what, f"component {self._component.id!r}, task {self._task}{of}", fix)


class TimingCollector(HandCollector):
    """The same in a micro-batch that is sampled: notes how long each tuple took from its execute to its ack.

    Attributes:
        took: Milliseconds of each ack since last cleared, by whose tuple it was.
    """

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        super().__init__(component, task, outlets, outputs)
        self.took: defaultdict[InboundRows, list[float]] = defaultdict(list)

    def ack(self, tup: Tuple) -> None:
        super().ack(tup)
        rows, row = account_of(tup)
        began = rows.began.get(row)
        if began is not None:
            self.took[rows].append((perf_counter() - began) * 1000)
        elif rows.came_ms >= 0:  # of an earlier micro-batch; a clock that was set back makes it no younger
            self.took[rows].append(max(0, self._outputs.clock_ms - rows.came_ms))


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
        declaration = self._outlets.declaration(stream)
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
            self.failed.setdefault(row, bounded(str(reason), MOST_REASON))

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
