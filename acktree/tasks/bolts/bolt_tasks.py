"""Unpickles a bolt and makes its task, of the kind that the bolt is."""

from __future__ import annotations

import pickle

from acktree.bolt import ArrowBolt, BasicBolt
from acktree.core.state.store import StateStore
from acktree.stopped_by import pass_on
from acktree.tasks.bolts.concurrent_kinds import ConcurrentBasicTask, ConcurrentHandTask
from acktree.tasks.bolts.kinds import ArrowBoltTask, BasicBoltTask, HandBoltTask
from acktree.tasks.bolts.outputs import Outputs
from acktree.tasks.bolts.sink_task import SinkTask
from acktree.tasks.bolts.task import BoltTask
from acktree.topology.model import Component

__all__ = ["bolt_task"]


def bolt_task(
    component: Component,
    task: int,
    outputs: Outputs,
    store: StateStore | None,
    *,
    are_questions: bool = False,
) -> BoltTask:
    """The task of a bolt, of the kind that the bolt is."""
    try:
        bolt = pickle.loads(outputs.plan.pickles[component.id])
    except BaseException as error:  # noqa: BLE001  # what it needs cannot be imported here: its tuples fail with that
        pass_on(error)
        bolt = error
    is_concurrent = component.is_concurrent
    kind: type[BoltTask] = ConcurrentHandTask if is_concurrent else HandBoltTask
    if component.is_sink:  # it may be a bolt, too
        kind = SinkTask
    elif isinstance(bolt, ArrowBolt):
        kind = ArrowBoltTask
    elif isinstance(bolt, BasicBolt):
        kind = ConcurrentBasicTask if is_concurrent else BasicBoltTask
    return kind(bolt, component, task, outputs, store, are_questions=are_questions)
