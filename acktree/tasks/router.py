"""From what a task emitted to the frames that others receive: targets, edges, lineage.

Rules of this file
------------------
1. Every delivered copy has an edge of its own, for every anchor. One ordinal step of the anchor is spent for
   each copy, so that no two of its edges are equal, whatever the grouping does.
2. Nothing depends on time, arrival order between tasks, or chance: a second run names the same edges.
3. An anchor named twice counts once.

Source: Storm's ``daemon/GrouperFactory``, ``executor/bolt/BoltOutputCollectorImpl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.frames import Frame
from acktree.core.groupings import Chooser, Direct, make_chooser
from acktree.core.ids import Int32s, Int64s, UInt64s, channel_id, edge_ids, mix64
from acktree.core.lineage import Lineage, Sparse
from acktree.core.tuples import Tuple
from acktree.tasks.outputs import Outputs
from acktree.tasks.rows import InboundRows
from acktree.topology.model import Component, Subscription

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)

_channel = lru_cache(maxsize=65536)(channel_id)


@dataclass(frozen=True, eq=False)
class Emission:
    """Tuples of one stream that a task emitted while it worked on one frame.

    Attributes:
        stream: The stream emitted on.
        batch: The values, n rows.
        parents: The row each is anchored to, shape (n,); -1 for none, or for those in ``joins``.
        joins: Anchors of the tuples that hang on several, or on tuples of another frame; by emitted row.
        tasks: The task each is for (``emit_direct``), shape (n,); None when groupings choose.
    """

    stream: str
    batch: pa.RecordBatch
    parents: Int64s
    joins: Mapping[int, Sequence[Tuple]]
    tasks: Int32s | None = None


@dataclass(frozen=True, eq=False)
class _Route:
    subscription: Subscription
    chooser: Chooser | None
    is_fused: bool


class Router:
    """The groupings of one task's streams."""

    def __init__(self, component: Component, task: int, outputs: Outputs, sequence: int | None = None) -> None:
        """Open the streams of a task.

        Args:
            sequence: The number that every frame gets; None to number them one by one.
        """
        self._component, self._task, self._outputs = component, task, outputs
        self._plan = outputs.plan
        self._sequence, self._step = (0, 1) if sequence is None else (sequence, 0)
        self._routes: dict[str, list[_Route]] = {}

    def route(self, emission: Emission, rows: InboundRows) -> Mapping[int, Exception]:
        """Send an emission on its way and charge its edges to its anchors.

        Args:
            rows: The frame that ``emission.parents`` counts in.

        Returns:
            Emitted rows that a custom grouping raised on, with the exception; they were not delivered there.
        """
        outputs, count = self._outputs, emission.batch.num_rows
        outputs.counters.add(self._component.id, self._task, emission.stream, "emitted", count)
        if outputs.witness is not None:
            outputs.witness(self._component.id, emission.stream, emission.batch)
        refused: dict[int, Exception] = {}
        for route in self._routes_of(emission.stream):
            if emission.tasks is None:
                choice = self._choose(route, emission, rows)
                refused |= choice.refused
                emitted, tasks = choice.rows, choice.tasks
            else:
                emitted, tasks = _for_subscriber(emission.tasks, self._targets(route.subscription))
            if len(tasks):
                outputs.counters.add(self._component.id, self._task, emission.stream, "transferred", len(tasks))
                self._deliver(route, emission, rows, emitted, tasks)
        return refused

    def _choose(self, route: _Route, emission: Emission, rows: InboundRows):  # type: ignore[no-untyped-def]
        assert route.chooser is not None, "emit() on a stream with a direct-grouped subscriber was let through"
        return route.chooser.choose(emission.batch, _mixes(emission.parents, rows))

    def _deliver(
        self, route: _Route, emission: Emission, rows: InboundRows, emitted: Int64s | None, tasks: Int32s
    ) -> None:
        batch, parents, joins = emission.batch, emission.parents, emission.joins
        if emitted is not None:
            batch, parents = batch.take(pa.array(emitted)), parents[emitted]
        if rows.is_untracked and not joins:
            lineage: Lineage = Sparse.untracked(len(tasks))
        else:
            channels = self._channels(emission.stream, tasks)
            edges = charge(rows, parents, channels)
            lineage = rows.lineage.children(parents, edges)
            if joins:
                copies = np.arange(len(tasks)) if emitted is None else emitted
                lineage = _joined(lineage, copies, joins, channels)
        self._send(route, emission.stream, batch, lineage, tasks)

    def _send(self, route: _Route, stream: str, batch: pa.RecordBatch, lineage: Lineage, tasks: Int32s) -> None:
        """One frame for each partition that hosts a target."""
        partitions = tasks % self._plan.partitions
        first = int(partitions[0])
        if (partitions == first).all():
            self._frame(route, stream, first, batch, lineage, tasks)
            return
        for partition in np.unique(partitions):
            mine = np.flatnonzero(partitions == partition)
            taken = batch.take(pa.array(mine))
            self._frame(route, stream, int(partition), taken, lineage.take(mine), tasks[mine])

    def _frame(
        self, route: _Route, stream: str, partition: int, batch: pa.RecordBatch, lineage: Lineage, tasks: Int32s
    ) -> None:
        target: Int32s | int = int(tasks[0]) if (tasks == tasks[0]).all() else tasks
        subscriber, sequence = route.subscription.subscriber, self._sequence
        self._sequence += self._step
        frame = Frame(self._component.id, stream, subscriber, self._task, sequence, target, batch, lineage)
        self._outputs.frame(partition, frame)

    def _channels(self, stream: str, tasks: Int32s) -> UInt64s:
        """The channel of each copy; shape (n,), or (1,) when all go to one task."""
        distinct, index = np.unique(tasks, return_inverse=True)
        named = np.array([_channel(self._component.id, stream, int(task)) for task in distinct], dtype=np.uint64)
        return named if len(distinct) == 1 else named[index]

    def _routes_of(self, stream: str) -> list[_Route]:
        routes = self._routes.get(stream)
        if routes is None:
            routes = [self._route_to(sub) for sub in self._plan.topology.subscribers(self._component.id, stream)]
            self._routes[stream] = routes
        return routes

    def _route_to(self, subscription: Subscription) -> _Route:
        bolt = self._plan.topology.components[subscription.subscriber]
        is_fused = self._plan.level_of[bolt.id] == self._outputs.level
        if isinstance(subscription.grouping, Direct):
            return _Route(subscription, None, is_fused)
        stream = self._component.streams[subscription.stream]
        # Fused bolts get their tuples without leaving the partition: only the tasks that live here can be chosen.
        targets = self._plan.hosted(bolt, self._outputs.partition) if is_fused else bolt.task_ids
        chooser = make_chooser(
            subscription.grouping, fields=stream.fields, targets=targets, source_task=self._task,
            context=self._plan.context(self._component, self._task), stream=stream.name,
        )  # fmt: skip
        return _Route(subscription, chooser, is_fused)

    def _targets(self, subscription: Subscription) -> tuple[int, ...]:
        return self._plan.topology.components[subscription.subscriber].task_ids


def charge(rows: InboundRows, parents: Int64s, channels: UInt64s) -> Int64s:
    """Make one edge for each copy and charge it to its parent; returns the edges, zero where unanchored.

    Args:
        rows: Where the parents stand; their ordinals and ack values move on.
        parents: The row each copy is anchored to, shape (n,); -1 for none. Any order.
        channels: The channel of each copy, shape (n,) or (1,).
    """
    if not len(parents):
        return parents
    order = None if (parents[1:] >= parents[:-1]).all() else np.argsort(parents, kind="stable")
    if order is not None:
        edges = np.empty_like(parents)
        edges[order] = charge(rows, parents[order], channels if len(channels) == 1 else channels[order])
        return edges
    unanchored = int(np.searchsorted(parents, 0))
    if unanchored:
        channels = channels if len(channels) == 1 else channels[unanchored:]
        charged = charge(rows, parents[unanchored:], channels)
        return np.concatenate((np.zeros(unanchored, dtype=np.int64), charged))
    starts = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
    lengths = np.diff(np.r_[starts, len(parents)])
    rank = np.arange(len(parents)) - np.repeat(starts, lengths)
    edges = edge_ids(rows.folds[parents], channels, rows.ordinals[parents] + rank)
    charged_rows = parents[starts]
    rows.ordinals[charged_rows] += lengths
    rows.ack_values[charged_rows] ^= np.bitwise_xor.reduceat(edges, starts)
    return edges


def _joined(lineage: Lineage, copies: Int64s, joins: Mapping[int, Sequence[Tuple]], channels: UInt64s) -> Lineage:
    """Give the copies that have several anchors, or anchors of other frames, their lineage."""
    plain = lineage.sparse()
    maps: list[dict[int, int]] = []
    attempts: dict[int, int] = {}
    for copy, emitted in enumerate(copies.tolist()):
        anchors = joins.get(emitted)
        if anchors is None:
            maps.append(plain.anchors(copy))
            continue
        channel = channels[:1] if len(channels) == 1 else channels[copy : copy + 1]
        mapped: dict[int, int] = {}
        for anchor in anchors:
            rows: InboundRows = anchor._rows  # type: ignore[assignment]  # noqa: SLF001  # the engine's own rows
            edge = int(charge(rows, np.array([anchor._row]), channel)[0])  # noqa: SLF001
            for root in rows.anchors_of(anchor._row):  # noqa: SLF001
                mapped[root] = mapped.get(root, 0) ^ edge
                attempts[root] = anchor.attempt
        maps.append(mapped)
    if plain.pair_attempts is not None:
        attempts |= dict(zip(plain.roots.tolist(), plain.pair_attempts.tolist(), strict=True))
    return Sparse.of_anchors(maps, attempts)


def _mixes(parents: Int64s, rows: InboundRows) -> UInt64s:
    """One well-mixed number for each emitted tuple, from its parent and its place: what shuffles choose by."""
    places = np.arange(1, len(parents) + 1, dtype=np.uint64) * _GOLDEN
    if len(rows.folds):
        places += np.where(parents >= 0, rows.folds[parents], np.uint64(0))
    return mix64(places)


def _for_subscriber(tasks: Int32s, targets: Sequence[int]) -> tuple[Int64s, Int32s]:
    """Which directly emitted tuples are for one subscriber."""
    mine = np.flatnonzero(np.isin(tasks, np.asarray(targets, dtype=np.int32)))
    return mine, tasks[mine]
