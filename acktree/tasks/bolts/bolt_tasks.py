"""Unpickles a bolt and makes its task, of the kind that the bolt is."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Final

from acktree.bolt import BoltKind
from acktree.core.state.store import StateStore
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.concurrent.concurrent_kinds import ConcurrentBasicTask, ConcurrentHandTask
from acktree.tasks.bolts.kinds import ArrowBoltTask, BasicBoltTask, HandBoltTask
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.sink_task import SinkTask
from acktree.tasks.bolts.task import BoltTask
from acktree.topology.model import Component

_ONE_BY_ONE: Final[Mapping[BoltKind, type[BoltTask]]] = {
    "by hand": HandBoltTask,
    "by itself": BasicBoltTask,
    "batches": ArrowBoltTask,
}
_AT_ONCE: Final[Mapping[BoltKind, type[BoltTask]]] = {
    **_ONE_BY_ONE,
    "by hand": ConcurrentHandTask,
    "by itself": ConcurrentBasicTask,
}


def bolt_task(
    component: Component,
    task: int,
    outputs: Outputs,
    store: StateStore | None,
    *,
    are_questions: bool = False,
) -> BoltTask:
    """The task of a bolt, of the kind that the bolt's base class names."""
    prepared = None if outputs.stock is None else outputs.stock.pop((component.id, task), None)
    try:
        bolt = pickle.loads(outputs.plan.pickles[component.id]) if prepared is None else prepared.bolt
    except BaseException as error:  # noqa: BLE001  # what it needs cannot be imported here: its tuples fail with that
        pass_on(error)
        bolt = error
    kinds = _AT_ONCE if component.is_concurrent else _ONE_BY_ONE
    # A sink may be a bolt, too; an error that was raised is of no kind.
    kind = SinkTask if component.is_sink else kinds[getattr(bolt, "_acktree_kind", "by hand")]
    if prepared is not None:
        return kind(bolt, component, task, outputs, store, prepared=prepared)
    return kind(bolt, component, task, outputs, store, are_questions=are_questions)
