"""The collectors of bolts: they record what user code emits, acks and fails, and refuse illegal calls.

Collectors send nothing. Emitted values wait in an ``Outlet`` per stream (see ``outlets.py``) until the frame
is done, and are then routed together. Acks and fails are one byte each in the rows' account.

Methods that are called for each tuple handle the usual case inline, without a call.
``emit`` has no keyword-only parameters, though its contract has: CPython 3.11 does not specialise such calls.

An exception from outside (a timer's signal, MemoryError, KeyboardInterrupt) may be raised between any two
steps of a method, and user code may catch it and go on. So the last step of each method makes it effective:
what an interrupted method wrote before that step is undone, or has no effect by itself.
"""

# ruff: noqa: SLF001  # a Tuple shows its users values; its place in the account is the engine's

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Final, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from acktree.bolt import ArrowOutputCollector, BasicOutputCollector, OutputCollector
from acktree.core.data.tuples import Tuple
from acktree.core.data.values import UNCHANGING
from acktree.errors import MisuseError
from acktree.tasks.arguments import parents_of, parts_of_stream, rows_named
from acktree.tasks.bolts.outputs.emission import Emission
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.outputs.outlets import Outlet, Outlets, Unfit
from acktree.tasks.bolts.rows.frame_rows import ACKED, FAILED, FATES, OPEN, InboundRows, account_of
from acktree.tasks.failures import failure_of
from acktree.texts import MOST_REASON, bounded, short_repr
from acktree.topology.model import Component

Anchors = Tuple | Iterable[Tuple] | None

_NO_STREAM: Final = object()
"""Selected while no outlet is: no argument is this object, as ``None`` may be."""

_NO_TUPLE: Final = "give the Tuple that execute() received, not its values"
_NOT_OURS: Final = "keep tuples in attributes that the bolt `remembers`, and nowhere else"
_DONE: Final = "ack or fail a tuple once, after everything that is anchored to it was emitted"


class Collector(Protocol):
    """What the engine asks of any kind of collector."""

    def take(self) -> tuple[list[Emission], list[Unfit]]:
        """The tuples emitted since the last call, and those of them that cannot be encoded."""

    def close(self) -> None:
        """Refuse from now on whatever user code says."""


class _Writer:
    """The common part of the collectors that write single tuples."""

    _outlet: Outlet

    def __init__(self, component: Component, task: int, outlets: Outlets, outputs: Outputs) -> None:
        self._component, self._task, self._outlets, self._outputs = component, task, outlets, outputs
        self._stream: object = _NO_STREAM
        self.rows = InboundRows.of_clock(0)

    def _turn_to(self, stream: str) -> Outlet:
        """Select and return the outlet of a stream; it stays selected: most bolts emit on one stream."""
        self._stream = _NO_STREAM  # no stream is selected until both attributes are set
        self._outlet = self._outlets.of(stream)
        self._stream = stream
        return self._outlet

    def reopen(self, outlets: Outlets, outputs: Outputs) -> None:
        """Go on, after :meth:`close`, with another micro-batch."""
        self._outlets, self._outputs = outlets, outputs

    def close(self) -> None:
        """From now on nothing is emitted, acked or failed: MisuseError. Called before ``cleanup``."""
        self._stream = _NO_STREAM
        self.rows = InboundRows.of_clock(0)
        self._outlets.close()

    def take(self) -> tuple[list[Emission], list[Unfit]]:
        """The tuples emitted since the last call, and those of them that cannot be encoded."""
        self._stream = _NO_STREAM
        return self._outlets.take()

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))


class _Missing:
    """A method that a collector does not have, with the reason.

    A ``__getattr__`` would be shorter. But CPython caches no attribute look-up of a class that has one, and
    a word count of per-tuple bolts took 17 % more CPU time.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, collector: object, owner: type | None = None) -> _Missing:
        if collector is None:  # of the class
            return self
        what = f"the collector of a BasicBolt has no {self._name!r}"
        why = "its tuple is acked when execute returns, and fails when it raises; Bolt acks by hand"
        raise AttributeError(f"{what}: {why}", name=self._name, obj=collector)


class AckedByItself:
    """What all collectors of a ``BasicBolt`` have in common: they say why they neither ack nor fail."""

    ack = _Missing()
    fail = _Missing()


class BasicCollector(_Writer, AckedByItself, BasicOutputCollector):
    """For a ``BasicBolt``: everything is anchored to the tuple being executed.

    Attributes:
        rows, row: The current frame, and the index of the current tuple; -1 for none, in a tick.
    """

    row = -1

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        outlet = self._outlet if stream is self._stream else self._turn_to(stream)
        # The usual case, checked without a call.
        if (type(values) is not list and type(values) is not tuple) or len(values) != outlet.width:
            values = outlet.checked(values)
        for value in values:
            if type(value) not in UNCHANGING:
                values = outlet.frozen(values)
                break
        try:
            outlet.cells.extend(values)
            outlet.parents.append(self.row)
        except BaseException:
            outlet.take_back()
            raise

    def emit_direct(self, task_id: int, values: Sequence[Any], *, stream: str = "default") -> None:
        outlet = self._outlets.direct(stream, task_id)
        outlet.write(outlet.checked(values), self.row, task_id)

    def reset_timeout(self) -> None:
        self._outlets.refuse_if_closed("reset a timeout")
        self._outputs.reset(self._component.id, self.rows.lineage.roots_of(np.array([self.row])))


class HandCollector(_Writer, OutputCollector):
    """For a ``Bolt``, which names anchors, acks and fails itself; each call is checked against the account.

    Attributes:
        rows: The current frame.
        elsewhere: Other frames with rows that were acked or failed since it was cleared, by id().
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
            parent = anchors._row  # the usual case; all others are checked in full
        else:
            parent, joined = self._parent(anchors)
            if joined:
                outlet.write(values, -1, joined=joined)
                return
        for value in values:
            if type(value) not in UNCHANGING:
                values = outlet.frozen(values)
                break
        try:
            outlet.cells.extend(values)
            outlet.parents.append(parent)
        except BaseException:
            outlet.take_back()
            raise

    def emit_direct(
        self, task_id: int, values: Sequence[Any], *, anchors: Anchors = None, stream: str = "default"
    ) -> None:
        outlet = self._outlets.direct(stream, task_id)
        values = outlet.checked(values)
        parent, joined = (-1, ()) if anchors is None else self._parent(anchors)
        outlet.write(values, parent, task_id, joined)

    def _parent(self, anchors: Tuple | Iterable[Tuple]) -> tuple[int, Sequence[Tuple]]:
        """The row of the current frame that is the anchor; -1 and the anchors for several or other frames."""
        if isinstance(anchors, Tuple):
            rows, row = self._open(anchors, "emitted anchored to")
            if rows is self.rows:
                return row, ()
            return -1, [anchors]
        several = list(anchors)
        accounts = [self._open(anchor, "emitted anchored to") for anchor in several]
        named = {(id(rows), row): anchor for (rows, row), anchor in zip(accounts, several, strict=True)}
        if len(named) == 1:
            return self._parent(several[0])
        return -1, list(named.values())

    def ack(self, tup: Tuple) -> None:
        here = self.rows
        if type(tup) is Tuple and tup._rows is here and here.fate[tup._row] == OPEN:
            here.fate[tup._row] = ACKED
            return
        rows, row = self._open(tup, "acked")
        if rows is not self.rows:  # else it is counted with its frame
            self.elsewhere[id(rows)] = rows
        rows.fate[row] = ACKED

    def fail(self, tup: Tuple, reason: str = "", *, exception: BaseException | None = None) -> None:
        rows, row = self._open(tup, "failed")
        failure = failure_of(exception, self._component.id, reason)
        # The fail is added first: if the row were marked and the fail were not added, the message would time
        # out.
        self._outputs.fail(rows.lineage.roots_of(np.array([row])), failure)
        rows.fate[row] = FAILED
        for observer in self._outputs.observers:
            observer.failed(rows, (row,), failure)
        if rows is not self.rows:
            self.elsewhere[id(rows)] = rows
            self._count_failed(tup)

    def _count_failed(self, tup: Tuple) -> None:
        """Count a failed tuple of another frame; failures of this frame are counted together."""
        source = f"{tup.component}:{tup.stream}"
        self._outputs.counters.add(self._component.id, self._task, source, "failed", 0 if tup.is_tick else 1)

    def reset_timeout(self, tup: Tuple) -> None:
        rows, row = self._open(tup, "reset the timeout of")
        self._outputs.reset(self._component.id, rows.lineage.roots_of(np.array([row])))

    def _open(self, tup: Tuple, doing: str) -> tuple[InboundRows, int]:
        """The account of an open tuple. MisuseError if it is done, of another task, or no tuple."""
        self._outlets.refuse_if_closed(f"{doing} a tuple")
        if not isinstance(tup, Tuple):
            self._refuse(f"{doing} {short_repr(tup)}, which is not a tuple of the topology", _NO_TUPLE)
        rows, row = account_of(tup)
        if rows.owner is not self:
            what = f"{doing} a tuple that this task was not given in this micro-batch: {tup!r}"
            self._refuse(what, _NOT_OURS)
        if rows.fate[row] != OPEN:
            self._refuse_done(tup, doing, FATES[rows.fate[row]])
        return rows, row

    def _refuse_done(self, tup: Tuple, doing: str, done: str) -> NoReturn:
        what = f"{doing} a tuple that was {done} before: {tup!r}"
        self._refuse(what, _DONE, f", {tup.component}:{tup.stream}")

    def _refuse(self, what: str, fix: str, of: str = "") -> NoReturn:
        raise MisuseError(what, f"component {self._component.id!r}, task {self._task}{of}", fix)


class TimingCollector(HandCollector):
    """The same in a sampled micro-batch: measures the time of each tuple from its execute to its ack.

    Attributes:
        took: Frame -> milliseconds of each ack since it was cleared.
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
        self.unfit: list[Unfit] = []
        self.failed: dict[int, str] = {}
        self.row_count = 0

    def reopen(self, outlets: Outlets, outputs: Outputs) -> None:
        """Go on, after :meth:`close`, with another micro-batch."""
        self._outlets, self._outputs = outlets, outputs
        self.emissions, self.unfit, self.failed, self.row_count = [], [], {}, 0

    def take(self) -> tuple[list[Emission], list[Unfit]]:
        """The batches emitted since the last call, and those rows of them that cannot be sent."""
        emissions, unfit = self.emissions, self.unfit
        self.emissions, self.unfit = [], []
        return emissions, unfit

    def close(self) -> None:
        """From now on nothing is emitted or failed: MisuseError. Called before ``cleanup``."""
        self._outlets.close()

    def emit_batch(
        self, batch: pa.RecordBatch, parents: Sequence[int] | pa.Array | None, *, stream: str = "default"
    ) -> None:
        self._outlets.refuse_if_closed("emitted a batch")
        declaration, where = self._outlets.chosen_by_groupings(stream), self._where
        count = batch.num_rows if isinstance(batch, pa.RecordBatch) else 0
        parts = list(parts_of_stream(batch, declaration, where))
        rows = parents_of(parents, count, self.row_count, where)
        unfit = [Unfit(int(rows[first]), (), part) for first, part in parts if isinstance(part, MisuseError)]
        emissions = [
            Emission(stream, part, rows[first : first + part.num_rows], {})
            for first, part in parts
            if not isinstance(part, MisuseError)
        ]
        self.unfit += unfit  # first: these fail even if the next step is interrupted
        self.emissions += emissions

    @property
    def _where(self) -> str:
        return f"component {self._component.id!r}, task {self._task}"

    def fail_rows(self, rows: Sequence[int] | pa.Array, reason: str = "") -> None:
        self._outlets.refuse_if_closed("failed rows")
        words = bounded(str(reason), MOST_REASON)
        named = rows_named(rows, self.row_count, self._where)
        self.failed.update({row: words for row in named if row not in self.failed})  # all in one step

    def report_error(self, exception: BaseException) -> None:
        self._outputs.error(self._component.id, self._task, failure_of(exception, self._component.id))
