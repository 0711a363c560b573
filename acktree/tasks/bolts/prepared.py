"""What stays of a bolt task from one epoch to the next in its process: the bolt as ``prepare`` left it.

With micro-batches a task goes from process to process, so a copy of a bolt is made and prepared for each. In
real time it stays, and an epoch takes some milliseconds: less than many a ``prepare``. What the bolt
remembers is restored in each epoch all the same; a ``KeyValueState`` or ``ColumnState`` may stay as it was
saved, so that its buckets are not read again.

Rules of this file
------------------
1. A copy stays only while it is as a fresh one would be. So it goes when its user code has raised, and it
   does not stay where its ``prepare`` has asked for the clock or the number of the micro-batch, or has added
   a hook, or where the bolt has a ``flush``: what it gathers until then may begin in ``prepare``.
2. A state stays with its copy, where the copy's memory was saved and nobody can tell it from one that is
   read from the store (``StoredState.may_stay``). What it has read comes in another order then; so with
   sinks or exactly-once bolts, where an epoch that runs again must write the same, none stays.
3. Nothing of it is durable. A copy that is lost is made and prepared anew.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from acktree.core.data.context import Clock, TaskContext, TaskServices
from acktree.core.state.stored_state import StoredState
from acktree.logs.loggers import logger
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.guard import Guard
from acktree.texts import error_text

log = logger("acktree")


@dataclass(frozen=True)
class Prepared:
    """A prepared copy of a bolt.

    Attributes:
        bolt: The copy.
        collector: What its ``prepare`` may have been given; it is closed between two epochs.
        context: The same.
        clock: What the context reads.
        services: What the context calls.
        guard: Knows the attributes as ``prepare`` left them.
        states: By attribute the states that stay in memory, as they were saved.
    """

    bolt: Any
    collector: Any
    context: TaskContext
    clock: Clock
    services: TaskServices
    guard: Guard
    states: Mapping[str, StoredState[Any, Any]]


Stock = MutableMapping[tuple[str, int], Prepared]
"""The copies of a level in a partition, by component and task. An epoch takes one out and puts it back."""


def clean_up(stock: Stock) -> None:
    """Call ``cleanup`` of each copy, at the end and on the thread of its ``prepare``; errors are logged."""
    while stock:
        (component, task), prepared = stock.popitem()
        try:
            prepared.bolt.cleanup()
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            log.warning("bolt %r, task %s, raised in cleanup(): %s", component, task, error_text(error))
