"""An observer: sees what one level does in a partition and micro-batch.

The engine knows this class only. Observers are in ``tasks/observers``; whoever runs a level passes them in.

Rules of this file
------------------
1. An observer changes nothing: neither fates nor sums nor what is emitted.
2. Only :meth:`Observer.executed` is called for a single tuple, and only on observers with ``sees_tuples``.
   All other methods are called for a frame, an emission or a task.

Source: Trio's ``Instrument``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from acktree.core.data.choosers import Choice
from acktree.core.data.context import TaskContext, TaskServices
from acktree.core.data.frames import Frame, Kind
from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int64s
from acktree.core.packing import Buffer
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.bolts.outputs.emission import Emission
from acktree.tasks.bolts.rows.frame_rows import InboundRows
from acktree.tasks.broadcast import OperatorOrder
from acktree.tasks.plan import Plan


class ObservedTask(Protocol):
    """What observers may use of a bolt task.

    Attributes:
        plan: The plan of the topology.
        context: The context that the bolt is prepared with.
        services: What the context calls.
        observers: Those of the task; a list of its own.
        acks: Whether the engine acks what ``execute`` returned for.
        decodes: Whether the bolt takes tuples; else batches.
    """

    plan: Plan
    context: TaskContext
    services: TaskServices
    observers: list[Observer]
    acks: bool
    decodes: bool

    def report(self, error: BaseException) -> None:
        """Report an error of the task."""

    def moved_tuples(self) -> Sequence[tuple[InboundRows, int]]:
        """Tuples of earlier micro-batches whose account changed in this one: rows, and which of them."""


class Emitted(NamedTuple):
    """Tuples that a task emitted.

    Attributes:
        component: The component.
        task: The task.
        emission: The tuples.
        rows: The frame that the parents of the emission count in.
        choices: The tasks that each subscriber's grouping chose.
    """

    component: str
    task: int
    emission: Emission
    rows: InboundRows
    choices: Sequence[Choice]


class Routed(NamedTuple):
    """Copies of emitted tuples for one subscriber.

    Attributes:
        frame: The copies, with their lineage; of several partitions, if those are sent at once.
        parents: The row that each is anchored to, shape (n,); -1 for none, or for one in ``joins``.
        emitted: The emitted tuple that each is a copy of; None if there is one copy of each, in order.
        joins: Emitted tuple -> its anchors, where there are several.
        rows: The frame that ``parents`` counts in.
    """

    frame: Frame
    parents: Int64s
    emitted: Int64s | None
    joins: Mapping[int, Sequence[Tuple]]
    rows: InboundRows


class Observer:
    """An observer that does nothing.

    Attributes:
        sees_tuples: Whether it is told of each call of ``execute``, and shown values that the bolt refused.
    """

    sees_tuples = False

    def ordered(self, order: OperatorOrder) -> None:
        """Operators' order for this micro-batch. Called before anything else, if there is one."""

    def task_begun(self, task: ObservedTask) -> None:
        """A bolt task begins, before its ``prepare``. May add observers to the task's."""

    def task_ended(self, task: ObservedTask) -> None:
        """A bolt task ends: it has flushed, and its memory is saved."""

    def opened(self, rows: InboundRows, component: str, values: pa.RecordBatch) -> None:
        """A spout's messages enter the level, before they are routed."""

    def received(self, rows: InboundRows, component: str, task: int) -> None:
        """A bolt task received a frame, before its tuples are executed. May set ``rows.timer``."""

    def executed(self, rows: InboundRows, row: int, spent_ms: float) -> None:
        """``execute`` has returned or raised for one tuple."""

    def executed_batch(self, rows: InboundRows, batch: pa.RecordBatch, spent_ms: float) -> None:
        """``execute_batch`` has returned or raised."""

    def emitted(self, emitted: Emitted) -> None:
        """A task emitted tuples over some rows, and they were routed."""

    def routed(self, routed: Routed) -> None:
        """The copies of an emission for one subscriber are ready to leave."""

    def failed(self, rows: InboundRows, which: Sequence[int], failure: Failure) -> None:
        """Rows are failed. They may have been acked or failed before."""

    def acked(self, rows: InboundRows) -> None:
        """The acks of rows, and fails before them, are complete up to now. May be called again for them."""

    def closed(self, rows: InboundRows) -> None:
        """A frame is done: only a later hook of the bolt, or the next micro-batch, acks or fails its rows."""

    def driver_rows(self) -> Iterator[tuple[Kind, bytes, Buffer]]:
        """What the driver is to be given at the end of the level: kind, head and body of rows."""
        return iter(())


Observe = Callable[[Plan, int], Sequence[Observer]]
"""Makes the observers of one level, partition and micro-batch, given the plan and the micro-batch's clock."""
