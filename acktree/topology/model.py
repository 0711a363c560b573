"""The finished topology: a frozen, validated graph that knows its tasks and its levels.

Rules of this file
------------------
1. Nothing here can be wrong: ``create_topology`` refused it before.
2. Whatever could be in two orders is in one: components by id, bolts behind what they read, subscribers by
   id. The same topology written in another order has the same tasks, levels and description.

Source: Storm's ``StormTopology`` and ``GeneralTopologyContext``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter

from acktree.topology.component import Component, Kind, Subscription
from acktree.topology.describe import Description, describe
from acktree.topology.levels import Level, levels_of

__all__ = ["Component", "Kind", "Subscription", "Topology"]


@dataclass(frozen=True)
class Topology:
    """What ``create_topology`` returns, and what ``submit`` and ``LocalCluster`` run.

    Attributes:
        name: As given to ``TopologyBuilder``.
        components: Component id -> component, sorted by id.
        subscriptions: Every edge, by subscriber and then in the order written.
    """

    name: str
    components: Mapping[str, Component]
    subscriptions: tuple[Subscription, ...]

    @cached_property
    def spouts(self) -> tuple[Component, ...]:
        """The spouts, by id."""
        return tuple(component for component in self.components.values() if component.kind == "spout")

    @cached_property
    def bolts(self) -> tuple[Component, ...]:
        """The bolts, each behind the bolts that it reads; by id where that leaves a choice."""
        return tuple(component for component in self._sources_first if component.kind == "bolt")

    @cached_property
    def tasks(self) -> Mapping[str, tuple[int, ...]]:
        """Component id -> its task ids, ascending: what every task's context knows."""
        return {component.id: component.task_ids for component in self.components.values()}

    def subscribers(self, component: str, stream: str) -> tuple[Subscription, ...]:
        """Who reads a stream, by id of the reader. Empty when nobody does."""
        return self._readers.get((component, stream), ())

    def component_of(self, task_id: int) -> Component:
        """The component that a task belongs to. KeyError for a number that is no task's."""
        return self._by_task[task_id]

    def levels(self, partitions: int) -> tuple[Level, ...]:
        """The levels of this topology on so many partitions, from the source upwards; see ``levels.py``.

        Raises:
            ConfigError: Less than one partition.
        """
        return levels_of(self._sources_first, partitions)

    def describe(self, partitions: int = 2) -> Description:
        """What runs where: print it, compare it in a test, or draw it with ``.mermaid()``."""
        return describe(self.name, self.components, self.levels(partitions), partitions)

    @cached_property
    def _sources_first(self) -> tuple[Component, ...]:
        """All components, each behind what it reads; the smallest id first where that leaves a choice."""
        sorter = TopologicalSorter(
            {each.id: {edge.source for edge in each.inputs} for each in self.components.values()}
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
    def _by_task(self) -> dict[int, Component]:
        return {task: component for component in self.components.values() for task in component.task_ids}
