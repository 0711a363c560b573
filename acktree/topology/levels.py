"""The ladder: which bolts run together, and where a shuffle stands between them.

Rules of this file
------------------
1. A task is hosted by exactly one partition, whatever level it is on: ``task_id % partitions``.
2. Two bolts share a level only if no tuple between them has to change its partition.
3. A bolt that remembers never runs behind its own producer in one level: its tuples are grouped by task, and
   sorted, by the shuffle in front of it.
4. Where a component runs depends on the topology and the number of partitions, on nothing else.

Level 0 is the source: the spouts' messages are spread over all partitions there. Each further level is one
shuffle by target task. A bolt stands as low as its inputs let it:

    level(bolt) = max over its inputs of  level(source)      if the edge is fusable
                                          level(source) + 1  if not

An input from a lower level than ``level(bolt) - 1``, or a fusable one from any lower level, is carried
upwards by the shuffles in between.

Source: ours. Storm has no levels: there every edge is a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acktree.errors import ConfigError
from acktree.topology.component import Component, Subscription

__all__ = ["Level", "host", "is_fusable", "levels_of"]


@dataclass(frozen=True, slots=True)
class Level:
    """One storey: bolts that run one after the other on the frames of one partition.

    Attributes:
        index: 0 for the source level, then upwards.
        bolts: Component ids in the order to run them: who feeds another comes first. Empty only in level 0.
        stateful: Whether some bolt of it remembers. Never true of level 0.
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
    """Whether the target may run in the source's level.

    It may when every partition that emits hosts a task that may be chosen, and nothing is remembered there.

    Args:
        edge: The subscription; its grouping must leave the choice of the task to us.
        source: Who emits. A spout emits in all partitions, a bolt where its tasks are hosted.
        target: Who reads; must remember nothing.
        partitions: How many partitions a level has.
    """
    if edge.grouping.crosses or target.remembers:
        return False
    return _hosts(source, partitions) <= _hosts(target, partitions)


def levels_of(sources_first: Sequence[Component], partitions: int) -> tuple[Level, ...]:
    """Put every bolt on its level.

    Args:
        sources_first: All components, each after those that it reads.
        partitions: How many partitions a level has, at least 1.

    Returns:
        The levels from 0 upwards, without a gap; level 0 may be empty, no other is.

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
