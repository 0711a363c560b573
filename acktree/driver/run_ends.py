"""Tells components that their run is over: their ``run_ended(run_id)``.

A spout or bolt may have this method. It is called in the driver's process when the query was stopped. It ends
what lives longer than a worker: child processes.
"""

from __future__ import annotations

from collections.abc import Callable

from acktree.logs import logger
from acktree.topology.model import Topology

__all__ = ["ends_of", "tell_ended"]

log = logger("acktree")


def ends_of(topology: Topology) -> dict[str, Callable[[str], object]]:
    """The method of each component that has one."""
    found = {
        component.id: getattr(component.user_object, "run_ended", None)
        for component in topology.components.values()
    }
    return {name: end for name, end in found.items() if callable(end)}


def tell_ended(topology: Topology, run_id: str) -> None:
    """Tell each component that has the method. What it raises is logged: the run is over in any case."""
    for name, end in ends_of(topology).items():
        try:
            end(run_id)
        except Exception:
            log.exception("topology=%s component=%s run_ended() raised", topology.name, name)
