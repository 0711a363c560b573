"""Tells components that their run is over: their ``run_ended(run_id)``.

A spout or bolt may have this method. It is called in the driver's process when the query was stopped, once
for each component, and ends what lives longer than a worker: child processes.
"""

from __future__ import annotations

from acktree.logs.loggers import logger
from acktree.system.stopped_by import pass_on
from acktree.tasks.component_checks import optional_hook
from acktree.topology.model import Topology

log = logger("acktree")


def tell_ended(topology: Topology, run_id: str) -> None:
    """Call the method of each component that has it. What it raises is logged."""
    for component in topology.components.values():
        run_ended = optional_hook(component.user_object, "run_ended", ["run_id"])
        if run_ended is None:
            continue
        try:
            run_ended(run_id)
        except BaseException as error:  # user code
            pass_on(error)
            log.exception("topology=%s component=%s run_ended() raised", topology.name, component.id)
