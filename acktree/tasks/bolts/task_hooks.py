"""The calls of task hooks for one bolt task.

Most is read off the accounts of the rows after each frame, so that a task without hooks pays one test a
frame: which rows were acked or failed since the account was read last, and what was routed to which tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pyarrow as pa

from acktree.core.data.choosers import Choice
from acktree.core.data.context import TaskContext, TaskHook
from acktree.core.data.frames import Frame
from acktree.core.data.hooks import BoltAckInfo, BoltExecuteInfo, BoltFailInfo, EmitInfo
from acktree.core.data.reading import Column
from acktree.core.data.values import rows_to_show, unpickled_columns
from acktree.core.ids import Int64s
from acktree.errors import HookError, MisuseError
from acktree.stopped_by import pass_on
from acktree.tasks.bolts.emission import Emission
from acktree.tasks.bolts.rows import ACKED, FAILED, OPEN, InboundRows
from acktree.tasks.hook_calls import HookCalls
from acktree.tasks.plan import Plan
from acktree.texts import error_text

__all__ = ["BoltWatch", "watch_of"]


def columns_to_show(frame: Frame) -> Sequence[Column]:
    """The values of a frame that the bolt is not given; nulls if they cannot be read."""
    try:
        return unpickled_columns(frame.values)
    except MisuseError:
        return [[None] * len(frame.lineage) for _ in frame.values.schema]


def watch_of(
    plan: Plan, context: TaskContext, report: Callable[[Exception], None], *, acks: bool
) -> BoltWatch | None:
    """The watch of a bolt task, with the hooks that the topology has for every task; None if it has none.

    Args:
        plan: The plan.
        context: The task's context.
        report: Takes what a hook raised.
        acks: Whether the engine acks what ``execute`` returned for.
    """
    try:
        hooks = plan.task_hooks()
    except BaseException as error:  # noqa: BLE001  # user code
        pass_on(error)
        report(
            HookError(
                f"the task hooks cannot be unpickled here: {error_text(error)}",
                f"component {context.component_id!r}, task {context.task_id}",
                "let every worker import what the hooks need",
            )
        )
        return None
    if not hooks:
        return None
    watch = BoltWatch(plan, context, report, acks=acks)
    for hook in hooks:
        watch.add(hook)
    return watch


class BoltWatch:
    """Tells the hooks of one bolt task, in one micro-batch.

    Attributes:
        chosen: Is given the choices of each route over which an emission goes; read by :meth:`emitted`.
    """

    def __init__(
        self, plan: Plan, context: TaskContext, report: Callable[[Exception], None], *, acks: bool
    ) -> None:
        """Start without hooks."""
        self.chosen: list[Choice] = []
        self._task, self._acks = context.task_id, acks
        self._calls = HookCalls(plan.config, context, report, plan.reported)
        self._rows: dict[int, InboundRows] = {}
        self._reported: dict[int, bytearray] = {}
        self._spent: defaultdict[int, dict[int, float]] = defaultdict(dict)
        self._batches: dict[int, tuple[pa.RecordBatch, float]] = {}

    def add(self, hook: TaskHook) -> None:
        """Prepare a hook and call it for all that follows."""
        self._calls.add(hook)

    def executed(self, rows: InboundRows, row: int, spent_ms: float) -> None:
        """``execute`` has returned or raised for a row."""
        if self._acks or rows.fate[row] != OPEN:
            self._spent[self._note(rows)][row] = spent_ms
        self._calls.bolt_execute(BoltExecuteInfo(rows.handle(row), self._task, spent_ms))

    def executed_batch(self, rows: InboundRows, batch: pa.RecordBatch, spent_ms: float) -> None:
        """``execute_batch`` has returned or raised."""
        self._batches[self._note(rows)] = batch, spent_ms
        self._calls.bolt_execute(BoltExecuteInfo(None, self._task, spent_ms, batch, batch.num_rows))

    def emitted(self, emission: Emission, *, is_batch: bool) -> None:
        """An emission was routed, as :attr:`chosen` says."""
        chosen, self.chosen[:] = list(self.chosen), []
        batch, task = emission.batch, self._task
        if is_batch:
            targets = {int(each) for choice in chosen for each in np.unique(choice.tasks)}
            out = tuple(sorted(targets))
            self._calls.emit(EmitInfo(None, emission.stream, task, out, batch, batch.num_rows))
            return
        out_tasks: list[list[int]] = [[] for _ in range(batch.num_rows)]
        for choice in chosen:
            rows = count() if choice.rows is None else choice.rows.tolist()
            for row, target in zip(rows, choice.tasks.tolist(), strict=False):  # of all rows, or of some
                out_tasks[row].append(target)
        for values, targets_of in zip(rows_to_show(batch), out_tasks, strict=True):
            self._calls.emit(EmitInfo(tuple(values), emission.stream, task, tuple(sorted(targets_of))))

    def note(self, rows: InboundRows) -> None:
        """Rows have failed, or are about to; reported at the end of the micro-batch, if not before."""
        self._note(rows)

    def report(self, rows: InboundRows) -> None:
        """Call the hooks for rows that were acked or failed since the last report of them."""
        if rows.component == "__system":
            return
        key = self._note(rows)
        reported = self._reported[key]
        fate, known = (np.frombuffer(each, dtype=np.uint8) for each in (rows.fate, reported))
        acked = np.flatnonzero((fate == ACKED) & (known == OPEN))
        failed = np.flatnonzero((fate == FAILED) & (known != FAILED))
        del known
        for row in acked.tolist():
            reported[row] = ACKED
        for row in failed.tolist():
            reported[row] = FAILED
        if key in self._batches:
            self._report_batch(key, acked, failed)
            return
        spent, task = self._spent.get(key, {}), self._task
        for row in sorted((*acked.tolist(), *failed.tolist())):
            if reported[row] == ACKED:
                self._calls.bolt_ack(BoltAckInfo(rows.handle(row), task, spent.get(row)))
            else:
                self._calls.bolt_fail(BoltFailInfo(rows.handle(row), task, spent.get(row)))

    def _report_batch(self, key: int, acked: Int64s, failed: Int64s) -> None:
        (batch, spent_ms), task = self._batches[key], self._task
        if len(acked):
            mine = batch if len(acked) == batch.num_rows else batch.take(pa.array(acked))
            self._calls.bolt_ack(BoltAckInfo(None, task, spent_ms, mine, len(acked)))
        if len(failed):
            mine = batch if len(failed) == batch.num_rows else batch.take(pa.array(failed))
            self._calls.bolt_fail(BoltFailInfo(None, task, spent_ms, mine, len(failed)))

    def end(self) -> None:
        """The micro-batch is over: report what failed late, then clean up the hooks."""
        for rows in list(self._rows.values()):
            self.report(rows)
        self._calls.cleanup()

    def forget(self, rows: InboundRows) -> None:
        """A frame is done: drop its account if all of it was acked, and nothing can fail it any more."""
        key = id(rows)
        if key in self._rows and not (OPEN in rows.fate or FAILED in rows.fate):
            del self._rows[key], self._reported[key]
            self._spent.pop(key, None)
            self._batches.pop(key, None)

    def _note(self, rows: InboundRows) -> int:
        key = id(rows)  # they are kept here, so no others get that number
        if key not in self._rows:
            self._rows[key] = rows
            self._reported[key] = bytearray(len(rows.fate))
        return key
