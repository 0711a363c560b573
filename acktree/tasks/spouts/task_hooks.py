"""The calls of task hooks for one spout task. All of them are made on the task's thread.

Rows of a DataFrame are not seen: Spark reads them, and the driver counts their verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from acktree.core.data.context import TaskContext, TaskHook, TaskServices
from acktree.core.data.hooks import EmitInfo, SpoutAckInfo, SpoutFailInfo
from acktree.core.data.values import rows_to_show
from acktree.core.spouts.pending import Closed
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.hook_calls import HookCalls
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.retries import Redriven


class SpoutHooks:
    """The task hooks of one spout task, from ``open`` to ``close``."""

    def __init__(self, plan: Plan, task: int, report: Callable[[BaseException], None]) -> None:
        """Start without hooks.

        Args:
            report: Called with what a hook raises.
        """
        self._calls: HookCalls | None = None
        self._plan, self._task, self._report = plan, task, report

    @property
    def are_there(self) -> bool:
        """Whether the task has hooks."""
        return self._calls is not None

    def begin(self, context: TaskContext, services: TaskServices) -> None:
        """Before ``open``: begin to call the configured hooks, and let ``open`` add some."""
        calls = HookCalls(self._plan.config, context, self._report, self._plan.reported)

        def add(hook: TaskHook) -> None:
            self._calls = calls
            calls.add(hook)

        services.add_hook = add
        for hook in self._plan.task_hooks():
            add(hook)

    def emitted(self, chunks: Iterable[Chunk]) -> None:
        """Chunks were handed over: new messages, or next attempts."""
        if self._calls is None:
            return
        for chunk in chunks:
            targets = [None] * len(chunk) if chunk.tasks is None else [(int(task),) for task in chunk.tasks]
            for values, out_tasks in zip(rows_to_show(chunk.values), targets, strict=True):
                self._calls.emit(EmitInfo(tuple(values), chunk.stream, self._task, out_tasks))

    def acked(self, closed: Closed, now_ms: int) -> None:
        """Tracked messages were acked."""
        if self._calls is not None:
            for message_id, waited_ms in _waits(closed, now_ms):
                self._calls.spout_ack(SpoutAckInfo(message_id, self._task, waited_ms))

    def acked_untracked(self, message_ids: Sequence[object]) -> None:
        """Messages were acked because nothing tracks them."""
        if self._calls is not None:
            for message_id in message_ids:
                self._calls.spout_ack(SpoutAckInfo(message_id, self._task, None))

    def failed(self, closed: Closed, failure: Failure, now_ms: int) -> None:
        """An attempt of each of some messages failed."""
        if self._calls is not None:
            for message_id, waited_ms in _waits(closed, now_ms):
                self._calls.spout_fail(SpoutFailInfo(message_id, self._task, waited_ms, failure))

    def end(self) -> None:
        """Clean up the hooks: the spout was closed, or is opened anew."""
        if self._calls is not None:
            self._calls.cleanup()
            self._calls = None


def _waits(closed: Closed, now_ms: int) -> Iterable[tuple[object, float]]:
    """The id of each message of the spout's own, and how long it waited for its verdict."""
    ids = closed.message_list()
    waits = np.broadcast_to(np.maximum(closed.waits_ms(now_ms), 0), len(ids)).tolist()
    return [
        (id_of(message_id), float(waited_ms))
        for message_id, waited_ms in zip(ids, waits, strict=True)
        if not isinstance(message_id, Redriven)
    ]
