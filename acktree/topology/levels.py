"""Levels: which bolts run together, and between which of them Spark shuffles.

Rules of this file
------------------
1. A task runs in exactly one partition, on every level: ``task_id % partitions``.
2. Two bolts share a level only if no tuple between them has to change its partition.
3. A stateful bolt is never on the level of its producer: the shuffle before its level groups its tuples by
   task and sorts them.
4. The level of a component depends only on the topology and the number of partitions.

Level 0 is the source: the spouts' messages are distributed over all partitions there. Each further level
begins with one shuffle by target task. A bolt is on the lowest level that its inputs allow:

    level(bolt) = max over its inputs of  level(source)      if the edge is fusable
                                          level(source) + 1  if not

An input from a lower level than ``level(bolt) - 1``, or a fusable one from any lower level, is passed on by
the levels in between.

Source: ours. Storm has no levels: every edge is a queue there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acktree.errors import ConfigError
from acktree.topology.component import Component, Subscription


@dataclass(frozen=True, slots=True)
class Level:
    """One level: bolts that run one after the other on the frames of one partition.

    Attributes:
        index: 0 for the source level, then upwards.
        bolts: Component ids in the order in which they run, producers first. Empty only on level 0.
        stateful: Whether it has a stateful bolt. Always false for level 0.
    """

    index: int
    bolts: tuple[str, ...]
    stateful: bool


def host(task_id: int, partitions: int) -> int:
    """The partition that runs a bolt's task, 0 to ``partitions - 1``.

    >>> [host(task, 2) for task in (1, 2, 3)]
    [1, 0, 1]
    """
    return task_id % partitions


def is_fusable(edge: Subscription, source: Component, target: Component, partitions: int) -> bool:
    """Whether the target may run on the source's level.

    This is so if the target is stateless, its grouping accepts any task, and every partition in which the
    source emits hosts one of the target's tasks. A concurrent bolt whose tasks are in further partitions
    is on a level of its own, so that all its tasks have tuples.

    Args:
        edge: The subscription.
        source: The component that emits: a spout in all partitions, a bolt in those of its tasks.
        target: The bolt that reads.
        partitions: The number of partitions of a level.
    """
    if edge.grouping.crosses or target.remembers:
        return False
    emits, executes = _hosts(source, partitions), _hosts(target, partitions)
    return emits == executes if target.is_concurrent else emits <= executes


def levels_of(sources_first: Sequence[Component], partitions: int) -> tuple[Level, ...]:
    """Compute the level of every bolt.

    Args:
        sources_first: All components, each after those that it reads.
        partitions: The number of partitions of a level, at least 1.

    Returns:
        The levels from 0 upwards, without a gap; only level 0 may be empty.

    Raises:
        ConfigError: Less than one partition.
    """
    if partitions < 1:
        what = f"a topology cannot be laid out on {partitions} partitions"
        raise ConfigError(what, f"levels({partitions})", "give a whole number of at least 1")
    by_id = {component.id: component for component in sources_first}
    level: dict[str, int] = {}
    for target in sources_first:
        level[target.id] = max(
            (
                level[edge.source] + (not is_fusable(edge, by_id[edge.source], target, partitions))
                for edge in target.inputs
            ),
            default=0,
        )
    bolts = [component for component in sources_first if component.kind == "bolt"]
    return tuple(
        Level(index, tuple(bolt.id for bolt in here), any(bolt.remembers for bolt in here))
        for index in range(max(level.values(), default=0) + 1)
        for here in [[bolt for bolt in bolts if level[bolt.id] == index]]
    )


def _hosts(component: Component, partitions: int) -> frozenset[int]:
    """The partitions in which a component emits."""
    if component.kind == "spout":
        return frozenset(range(partitions))
    return frozenset(host(task, partitions) for task in component.task_ids)
