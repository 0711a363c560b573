"""What a task is told about itself and its topology: Storm's ``TopologyContext``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")

# One per process, on purpose: a worker process outlives the micro-batches it serves, a bolt does not.
_cached: dict[tuple[str, str, Hashable], Any] = {}
_inherited: list[Mapping[tuple[str, str, Hashable], Any]] = []


def forget_inherited() -> None:
    """Let ``cached`` begin anew. Called in a forked child, which must not use its parent's connections.

    What the parent has cached is kept, out of reach: if it were let go of here, the child could close it, and
    a goodbye over a socket that both have ends the parent's connection too.
    """
    _inherited.append(dict(_cached))
    _cached.clear()


@dataclass(frozen=True)
class TaskContext:
    """Where this copy of a spout or bolt stands.

    Attributes:
        topology_name: Name given to the builder.
        component_id: Id given to ``set_spout`` or ``set_bolt``.
        task_id: This task's number in the topology, from 1.
        task_index: This task's place among its component's tasks, from 0.
        tasks: The task ids of every component, ascending.
        open_message_ids: Of a spout with ``redelivers = False``: the ids of the messages that an earlier run
            left open. acktree brings them back and tells their verdicts; the spout must not emit them again.
        max_spout_pending: Of a spout: how many messages of this task may be open; None: any number.
    """

    topology_name: str
    component_id: str
    task_id: int
    task_index: int
    tasks: Mapping[str, tuple[int, ...]]
    open_message_ids: tuple[Hashable, ...] = ()
    max_spout_pending: int | None = None

    def task_ids(self, component: str) -> tuple[int, ...]:
        """The tasks of a component, ascending. KeyError for a component that is not there."""
        return self.tasks[component]

    def cached(self, key: Hashable, factory: Callable[[], _T]) -> _T:
        """What ``factory`` made the first time this process was asked for ``key``.

        For what is dear to make and may be shared by the tasks of a component: connections, models, tables.
        ``prepare`` may run in every micro-batch; a worker process stays. Never put what must be remembered
        here: another process will not have it. A level that runs again after a worker died runs in a forked
        child, which calls ``factory`` itself and is given nothing of its parent's. Two threads that ask first
        at the same moment may both make one; both are given the same, and the other is let go.
        """
        place = (self.topology_name, self.component_id, key)
        if place not in _cached:
            _cached.setdefault(place, factory())
        return _cached[place]  # type: ignore[no-any-return]  # what factory made
