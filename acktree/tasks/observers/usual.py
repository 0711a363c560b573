"""The observers that every level has."""

from __future__ import annotations

from collections.abc import Callable

from acktree.tasks.bolts.observer import Observer
from acktree.tasks.observers.bolt_hooks import BoltHooks
from acktree.tasks.observers.emitted_events import EmittedEvents, EmittedTuples
from acktree.tasks.observers.tracer import Tracer
from acktree.tasks.plan import Plan


def usual_observers(plan: Plan, clock_ms: int, now_ms: Callable[[], int] | None = None) -> list[Observer]:
    """The observers of one level, partition and micro-batch.

    Args:
        plan: The plan of the topology.
        clock_ms: The micro-batch's clock.
        now_ms: The time, in milliseconds since 1970; None for the micro-batch's clock.
    """
    clock = now_ms or (lambda: clock_ms)
    usual: list[Observer] = [EmittedEvents(clock), Tracer(clock), BoltHooks()]
    return [EmittedTuples(), *usual] if plan.config.debug else usual
