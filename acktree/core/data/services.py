"""What a task's context lends to user code: the place where hooks are added, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from acktree.core.data.hooks import TaskHook
from acktree.core.data.instruments import Instruments
from acktree.errors import MisuseError

__all__ = ["TaskServices"]


def _refuse_hook(hook: TaskHook) -> NoReturn:
    raise MisuseError(
        f"a task hook was added too late, or where there is no task: {type(hook).__name__}",
        "context.add_task_hook()",
        "add it in open() of a spout or prepare() of a bolt, or for all tasks by Config(task_hooks=[...])",
    )


class TaskServices:
    """What a :class:`TaskContext` calls.

    Attributes:
        instruments: The metrics that the task registers.
        resources: What worker hooks have set in this process, by name.
        add_hook: Takes a hook. Refuses it unless the task replaces this while user code may add some.
    """

    def __init__(
        self,
        instruments: Instruments | None = None,
        resources: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Refuse hooks until the task allows them.

        Args:
            instruments: The metrics; None where they are not read.
            resources: What worker hooks have set.
        """
        self.resources = resources
        self.instruments = instruments or Instruments()
        self.add_hook: Callable[[TaskHook], None] = _refuse_hook

    def __reduce__(self) -> tuple[type[TaskServices], tuple[()]]:
        """A copy belongs to no task: it refuses hooks, and its metrics are not read."""
        return TaskServices, ()

    def close(self) -> None:
        """From now on no hook is added: ``open`` or ``prepare`` has returned."""
        self.add_hook = _refuse_hook
