"""The validated topology: an immutable graph with its tasks and levels.

Rules of this file
------------------
1. A ``Topology`` is always valid: ``create_topology`` checks it before it is made.
2. All orders are defined: components by id, bolts after the components that they read, subscribers by id. The
   same topology declared in another order has the same tasks, levels and description.

Source: Storm's ``StormTopology`` and ``GeneralTopologyContext``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter

from acktree.errors import TopologyError, ending_at_caller
from acktree.topology.component import Component, Kind, Subscription
from acktree.topology.describe import Description, describe
from acktree.topology.drawing import html_of
from acktree.topology.levels import Level, levels_of

__all__ = ["Component", "Kind", "Subscription", "Topology", "refuse_other_than_topology"]


@dataclass(frozen=True)
class Topology:
    """The result of ``create_topology``, which ``submit`` and ``LocalCluster`` run.

    Attributes:
        name: As given to ``TopologyBuilder``.
        components: Component id -> component, sorted by id.
        subscriptions: Every edge, by subscriber and then in the order written.
    """

    name: str
    components: Mapping[str, Component]
    subscriptions: tuple[Subscription, ...]

    def __repr__(self) -> str:
        tasks = sum(component.parallelism for component in self.components.values())
        kinds = f"{len(self.spouts)} spouts, {len(self.bolts)} bolts, {tasks} tasks"
        return f"Topology({self.name!r:.50}, {kinds})"

    @cached_property
    def spouts(self) -> tuple[Component, ...]:
        """The spouts, by id."""
        return tuple(component for component in self.components.values() if component.kind == "spout")

    @cached_property
    def bolts(self) -> tuple[Component, ...]:
        """The bolts, each after the bolts that it reads; otherwise by id."""
        return tuple(component for component in self._sources_first if component.kind == "bolt")

    @cached_property
    def tasks(self) -> Mapping[str, tuple[int, ...]]:
        """Component id -> its task ids, ascending; part of every task's context."""
        return {component.id: component.task_ids for component in self.components.values()}

    def subscribers(self, component: str, stream: str) -> tuple[Subscription, ...]:
        """The subscriptions to a stream, by id of the subscriber. Empty if there are none."""
        return self._readers.get((component, stream), ())

    def gates(self, component: str, stream: str) -> tuple[str, ...]:
        """The gates that the tuples of a stream are staged for, by id. Empty if there are none."""
        return self._gates.get((component, stream), ())

    def gates_of_answers(self, component: str, stream: str) -> tuple[str, ...]:
        """The gates of a stream that have answers to questions, too: in front of an exactly-once bolt."""
        readers = {gate: self.subscribers(gate, stream)[0] for gate in self.gates(component, stream)}
        return tuple(
            gate
            for gate, edge in readers.items()
            if edge.gate and self.components[edge.subscriber].exactly_once
        )

    def component_of(self, task_id: int) -> Component:
        """The component of a task. KeyError for an unknown task id."""
        return self._by_task[task_id]

    @ending_at_caller
    def levels(self, partitions: int) -> tuple[Level, ...]:
        """The levels of this topology on that number of partitions, source first; see ``levels.py``.

        Raises:
            ConfigError: Less than one partition.
        """
        return levels_of(self._sources_first, partitions)

    @ending_at_caller
    def describe(self, partitions: int = 2) -> Description:
        """A description of components, tasks and levels: print it, compare it, draw it (``.mermaid()``)."""
        return describe(self.name, self.components, self.levels(partitions), partitions)

    def _repr_html_(self) -> str:
        """For notebooks: a drawing and a table."""
        return html_of(self.describe().data)

    @cached_property
    def _sources_first(self) -> tuple[Component, ...]:
        """All components, each after those that it reads; otherwise by id."""
        sorter = TopologicalSorter(
            {
                component.id: {edge.source for edge in component.inputs}
                for component in self.components.values()
            }
        )
        sorter.prepare()
        ready: list[str] = []
        order: list[Component] = []
        while sorter.is_active():
            for component in sorter.get_ready():
                heapq.heappush(ready, component)
            smallest = heapq.heappop(ready)
            order.append(self.components[smallest])
            sorter.done(smallest)
        return tuple(order)

    @cached_property
    def _readers(self) -> dict[tuple[str, str], tuple[Subscription, ...]]:
        readers: dict[tuple[str, str], tuple[Subscription, ...]] = {}
        for edge in self.subscriptions:
            readers[edge.source, edge.stream] = (*readers.get((edge.source, edge.stream), ()), edge)
        return readers

    @cached_property
    def _gates(self) -> dict[tuple[str, str], tuple[str, ...]]:
        gates: dict[tuple[str, str], tuple[str, ...]] = {}
        for gate in self.spouts:
            for stream in gate.streams if gate.gated is not None else ():
                assert gate.gated is not None
                gates[gate.gated, stream] = (*gates.get((gate.gated, stream), ()), gate.id)
        return gates

    @cached_property
    def _by_task(self) -> dict[int, Component]:
        return {task: component for component in self.components.values() for task in component.task_ids}


def refuse_other_than_topology(argument: object, call: str) -> None:
    """Check what ``submit`` is given.

    Args:
        argument: What a caller without a type checker may have passed.
        call: The name of the call.

    Raises:
        TopologyError: It is no topology; for a builder, with the call that makes one of it.
    """
    if isinstance(argument, Topology):
        return
    what = f"{call}() needs a Topology, and is given a {type(argument).__name__}"
    is_builder = hasattr(argument, "create_topology")
    fix = (
        "call it on what the builder makes"
        if is_builder
        else "pass what TopologyBuilder's create_topology() returns"
    )
    raise TopologyError(
        what,
        f"{call}({type(argument).__name__}(...), ...)",
        f"{fix}: {call}(builder.create_topology(), ...)" if is_builder else fix,
    )
