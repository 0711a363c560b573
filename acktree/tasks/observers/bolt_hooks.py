"""The calls of users' task hooks for bolt tasks.

Most is read off the accounts of the rows after each frame, so that a task without hooks pays one test a
frame: which rows were acked or failed since the account was read last, and what was routed to which tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa

from acktree.core.data.context import TaskHook
from acktree.core.data.hooks import BoltAckInfo, BoltExecuteInfo, BoltFailInfo, EmitInfo
from acktree.core.data.values import rows_to_show
from acktree.core.ids import Int64s
from acktree.core.tracking.verdicts import Failure
from acktree.errors import HookError
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.observer import Emitted, ObservedTask, Observer
from acktree.tasks.bolts.rows.frame_rows import ACKED, FAILED, OPEN, InboundRows
from acktree.tasks.hook_calls import HookCalls
from acktree.texts import error_text


class BoltHooks(Observer):
    """Gives each bolt task that has hooks an observer of its own, which calls them."""

    def task_begun(self, task: ObservedTask) -> None:
        task.services.add_hook = partial(_add, task)
        try:
            hooks = task.plan.task_hooks()
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            task.report(
                HookError(
                    f"the task hooks cannot be unpickled here: {error_text(error)}",
                    f"component {task.context.component_id!r}, task {task.context.task_id}",
                    "let every worker import what the hooks need",
                )
            )
            return
        for hook in hooks:
            _add(task, hook)


def _add(task: ObservedTask, hook: TaskHook) -> None:
    """Prepare a hook of a task, and call it for all that follows."""
    for observer in task.observers:
        if isinstance(observer, _HooksOfTask):
            break
    else:
        observer = _HooksOfTask(task)
        task.observers.append(observer)
    observer.add(hook)


class _HooksOfTask(Observer):
    """Calls the hooks of one bolt task, in one micro-batch."""

    sees_tuples = True

    def __init__(self, task: ObservedTask) -> None:
        """Start without hooks."""
        self._task, self._acks, self._is_batch = task.context.task_id, task.acks, not task.decodes
        self._calls = HookCalls(task.plan.config, task.context, task.report, task.plan.reported)
        self._rows: dict[int, InboundRows] = {}
        self._reported: dict[int, bytearray] = {}
        self._spent: defaultdict[int, dict[int, float]] = defaultdict(dict)
        self._batches: dict[int, tuple[pa.RecordBatch, float]] = {}

    def add(self, hook: TaskHook) -> None:
        """Prepare a hook and call it for all that follows."""
        self._calls.add(hook)

    def executed(self, rows: InboundRows, row: int, spent_ms: float) -> None:
        if self._acks or rows.fate[row] != OPEN:
            self._spent[self._note(rows)][row] = spent_ms
        self._calls.bolt_execute(BoltExecuteInfo(rows.handle(row), self._task, spent_ms))

    def executed_batch(self, rows: InboundRows, batch: pa.RecordBatch, spent_ms: float) -> None:
        self._batches[self._note(rows)] = batch, spent_ms
        self._calls.bolt_execute(BoltExecuteInfo(None, self._task, spent_ms, batch, batch.num_rows))

    def emitted(self, emitted: Emitted) -> None:
        _, task, emission, _, choices = emitted
        batch = emission.batch
        if self._is_batch:
            targets = {int(each) for choice in choices for each in np.unique(choice.tasks)}
            out = tuple(sorted(targets))
            self._calls.emit(
                EmitInfo(
                    None, emission.stream, task_id=task, out_tasks=out, batch=batch, count=batch.num_rows
                )
            )
            return
        out_tasks: list[list[int]] = [[] for _ in range(batch.num_rows)]
        for choice in choices:
            chosen = count() if choice.rows is None else choice.rows.tolist()
            for row, target in zip(chosen, choice.tasks.tolist(), strict=False):  # of all rows, or of some
                out_tasks[row].append(target)
        for values, targets_of in zip(rows_to_show(batch), out_tasks, strict=True):
            self._calls.emit(EmitInfo(tuple(values), emission.stream, task, tuple(sorted(targets_of))))

    def failed(self, rows: InboundRows, which: Sequence[int], failure: Failure) -> None:  # noqa: ARG002
        """Note the rows. They are reported at the end of the micro-batch, if not before."""
        self._note(rows)

    def acked(self, rows: InboundRows) -> None:
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
            part = batch if len(acked) == batch.num_rows else batch.take(pa.array(acked))
            self._calls.bolt_ack(BoltAckInfo(None, task, spent_ms, part, len(acked)))
        if len(failed):
            part = batch if len(failed) == batch.num_rows else batch.take(pa.array(failed))
            self._calls.bolt_fail(BoltFailInfo(None, task, spent_ms, part, len(failed)))

    def task_ended(self, task: ObservedTask) -> None:  # noqa: ARG002  # of one task
        """Report what failed late, then clean up the hooks."""
        for rows in list(self._rows.values()):
            self.acked(rows)
        self._calls.cleanup()

    def closed(self, rows: InboundRows) -> None:
        """Drop the account of a frame if all of it was acked, and nothing can fail it any more."""
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
