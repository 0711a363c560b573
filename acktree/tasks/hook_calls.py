"""Calls task hooks. What they raise is reported, and fails nothing.

This module calls user code and no other code outside of acktree: the watchdog interrupts user code here.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from time import perf_counter
from typing import Any, Final

from acktree.config import Config
from acktree.core.data.context import TaskContext, TaskHook
from acktree.core.data.hooks import (
    BoltAckInfo,
    BoltExecuteInfo,
    BoltFailInfo,
    EmitInfo,
    SpoutAckInfo,
    SpoutFailInfo,
)
from acktree.errors import HookError
from acktree.system.stopped_by import pass_on
from acktree.texts import error_text

BLOCKED_SECS: Final = 2.0
"""A call of a hook that takes longer is reported."""

_AGAIN_MS: Final = 60_000
"""The same hook and method of a task is reported again after this time."""

Reported = MutableMapping[tuple[int, str, str], int]
"""(task, class of the hook, what happened) -> when it was reported last; milliseconds."""


class HookCalls:
    """The hooks of one task."""

    def __init__(
        self,
        config: Config,
        context: TaskContext,
        report: Callable[[Exception], None],
        reported: Reported,
    ) -> None:
        """Start without hooks.

        Args:
            config: What hooks are prepared with.
            context: Likewise.
            report: Takes what a hook raised, as an error that names it.
            reported: What was reported before in this process; it is written to.
        """
        self._config, self._context, self._report, self._reported = config, context, report, reported
        self._hooks: list[TaskHook] = []

    def add(self, hook: TaskHook) -> None:
        """Prepare a hook and call it from now on. One whose ``prepare`` raises is called all the same."""
        self._call(hook, "prepare", hook.prepare, self._config, self._context)
        self._hooks.append(hook)

    def emit(self, info: EmitInfo) -> None:
        """Call ``emit`` of each hook."""
        for hook in self._hooks:
            self._call(hook, "emit", hook.emit, info)

    def spout_ack(self, info: SpoutAckInfo) -> None:
        """Call ``spout_ack`` of each hook."""
        for hook in self._hooks:
            self._call(hook, "spout_ack", hook.spout_ack, info)

    def spout_fail(self, info: SpoutFailInfo) -> None:
        """Call ``spout_fail`` of each hook."""
        for hook in self._hooks:
            self._call(hook, "spout_fail", hook.spout_fail, info)

    def bolt_execute(self, info: BoltExecuteInfo) -> None:
        """Call ``bolt_execute`` of each hook."""
        for hook in self._hooks:
            self._call(hook, "bolt_execute", hook.bolt_execute, info)

    def bolt_ack(self, info: BoltAckInfo) -> None:
        """Call ``bolt_ack`` of each hook."""
        for hook in self._hooks:
            self._call(hook, "bolt_ack", hook.bolt_ack, info)

    def bolt_fail(self, info: BoltFailInfo) -> None:
        """Call ``bolt_fail`` of each hook."""
        for hook in self._hooks:
            self._call(hook, "bolt_fail", hook.bolt_fail, info)

    def cleanup(self) -> None:
        """Call ``cleanup`` of each hook, and none from now on."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            self._call(hook, "cleanup", hook.cleanup)

    def _call(self, hook: TaskHook, name: str, method: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        began = perf_counter()
        try:
            method(*arguments)
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            self._say(
                hook, name, f"raised in {name}(): {error_text(error)}",
                "correct what the exception says; no tuple fails; reported again after a minute",
                error,
            )  # fmt: skip
        secs = perf_counter() - began
        if secs > BLOCKED_SECS:
            self._say(
                hook, f"{name} blocks", f"did not return from {name}() for {secs:.1f} s: its task waited",
                "return at once, and let a thread do what takes long; reported again after a minute",
            )  # fmt: skip

    def _say(
        self, hook: TaskHook, about: str, what: str, fix: str, error: BaseException | None = None
    ) -> None:
        kind, now_ms = type(hook).__qualname__, self._context.now_ms()
        key = self._context.task_id, kind, about
        before_ms = self._reported.get(key)
        if before_ms is not None and 0 <= now_ms - before_ms < _AGAIN_MS:
            return
        self._reported[key] = now_ms
        where = f"component {self._context.component_id!r}, task {self._context.task_id}"
        reported = HookError(f"task hook {kind} {what}", where, fix)
        reported.__cause__ = error
        self._report(reported)
