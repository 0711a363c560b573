"""What the parts of one spout task share: its spout, its host, and the tables of its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from acktree.core.data.context import Clock
from acktree.core.ids import root_ids
from acktree.spout import Spout
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.open_chunks import OpenChunks
from acktree.tasks.spouts.recovery import Recovery
from acktree.tasks.spouts.reporter import Reporter
from acktree.tasks.spouts.retries import Retries
from acktree.tasks.spouts.spout_calls import Hooks
from acktree.tasks.spouts.task_hooks import SpoutHooks
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.topology.model import Component

__all__ = ["SpoutParts"]


@dataclass(frozen=True)
class SpoutParts:
    """The shared parts of one spout task.

    Attributes:
        spout: The task's own copy of the user's spout.
        host: What the driver or ``LocalCluster`` gives to the task.
        reporter: Counts, and reports errors.
        hooks: Calls the spout's hooks.
        task_hooks: Calls task hooks.
        retries: What waits for its next attempt, and what was given up.
        chunks: The task's chunks in the inbox, and the open messages in them.
        recovery: What an earlier run left.
        clock: What the task's context says the time is.
    """

    spout: Spout
    component: Component
    task: int
    plan: Plan
    host: SpoutHost
    reporter: Reporter
    hooks: Hooks
    task_hooks: SpoutHooks
    retries: Retries
    chunks: OpenChunks
    recovery: Recovery
    clock: Clock

    @classmethod
    def of(
        cls,
        spout: Spout,
        component: Component,
        task: int,
        plan: Plan,
        host: SpoutHost,
        dispatch: Callable[[VerdictBatch], None],
    ) -> SpoutParts:
        """The parts of a task that has done nothing yet.

        Args:
            dispatch: Queues a verdict batch for the task's next step.
        """
        reporter = Reporter(component.id, task, host.report)
        retries = Retries(component.retry)
        chunks = OpenChunks(host.inbox, retries.needs)
        roots_of = partial(root_ids, plan.run_salt, task)
        recovery = Recovery(chunks, retries, roots_of, host.letters_among, dispatch, keys=host.keys)
        return cls(
            spout, component, task, plan, host, reporter,
            Hooks(spout, reporter.error, partial(host.note_recovered, component.id, task)),
            SpoutHooks(plan, task, reporter.error), retries, chunks, recovery, Clock(),
        )  # fmt: skip
