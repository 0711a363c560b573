"""The router: turns emitted tuples into the frames that subscribers receive, with targets, edges and lineage.

Rules of this file
------------------
1. Every delivered copy has its own edge for every anchor. Copies of one parent that go to the same partition
   share one number, the XOR of their edges, from which each edge can be derived. Each copy uses one ordinal
   of its anchor, so no two edges of an anchor are equal, whatever the grouping does.
2. Nothing depends on the arrival order between tasks or on randomness: a second run makes the same edges.
   An unanchored tuple has no parent to choose its task by; the micro-batch's clock and its position decide.
3. An anchor named twice counts once.
4. If a custom grouping raises, or a value cannot be hashed, the tuples concerned are refused and the others
   are delivered.

Source: Storm's ``daemon/GrouperFactory``, ``executor/bolt/BoltOutputCollectorImpl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.data.batches import taken
from acktree.core.data.choosers import Choice, Chooser, make_chooser
from acktree.core.data.codes import coded, plain
from acktree.core.data.context import Clock
from acktree.core.data.frames import SMALL, Frame
from acktree.core.data.groupings import Direct, Fields, PartialKey
from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int32s, Int64s, UInt64s, channel_id, mix64, mix64_one
from acktree.core.runs import rows_by_number, starts_of_runs
from acktree.core.tracking.lineage import Lineage, Sparse
from acktree.core.tracking.lineage_runs import Runs
from acktree.errors import MisuseError, ProtocolError
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.observer import Emitted, Observer, Routed
from acktree.tasks.bolts.outputs.emission import Emission
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.rows.frame_rows import InboundRows, account_of
from acktree.texts import error_text
from acktree.topology.model import Component, Subscription

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MASK: Final = (1 << 64) - 1

_Piece = tuple[int, int, int]
"""A target partition, the first of its copies and the one after its last: they are sorted by partition."""

_channel = lru_cache(maxsize=65536)(channel_id)


@dataclass(frozen=True, eq=False)
class _Route:
    """A subscription and its chooser: None for direct grouping, an exception if making it raised."""

    subscription: Subscription
    chooser: Chooser | BaseException | None


@dataclass(frozen=True, eq=False)
class _Copies:
    """Copies of emitted tuples for one subscriber; n copies.

    Attributes:
        batch: The values, n rows.
        parents: The row that each is anchored to, shape (n,), as in an :class:`Emission`.
        tasks: The target task of each, shape (n,).
        emitted: The emitted row that each is a copy of, shape (n,); None if there is one copy of each, in
            order.
    """

    batch: pa.RecordBatch
    parents: Int64s
    tasks: Int32s
    emitted: Int64s | None

    @property
    def emitted_rows(self) -> Int64s:
        """The emitted row that each is a copy of, shape (n,)."""
        return np.arange(len(self.tasks)) if self.emitted is None else self.emitted

    def taken(self, order: Int64s) -> _Copies:
        """The copies in another order."""
        emitted = order if self.emitted is None else self.emitted.take(order)
        return _Copies(taken(self.batch, order), self.parents.take(order), self.tasks.take(order), emitted)

    def slice(self, start: int, end: int) -> _Copies:
        """The copies from ``start`` up to, and without, ``end``."""
        positions = slice(start, end)
        emitted = np.arange(start, end) if self.emitted is None else self.emitted[positions]
        return _Copies(
            self.batch.slice(start, end - start), self.parents[positions], self.tasks[positions], emitted
        )


class Router:
    """Routes the tuples of one task to the subscribers of its streams."""

    def __init__(
        self,
        component: Component,
        task: int,
        outputs: Outputs,
        observers: Sequence[Observer],
        chunk_at: int | None = None,
    ) -> None:
        """Make the router of one task.

        Args:
            component: The task's component.
            task: The task.
            outputs: Where frames go.
            observers: See what is emitted and routed; more may be added later.
            chunk_at: For a slice of a spout's messages: the sequence of its first row, which is then the
                number of every frame. None for a bolt: its frames are numbered from 0.
        """
        self._component, self._task, self._outputs = component, task, outputs
        self._plan, self._observers = outputs.plan, observers
        self._sequence, self._step = (0, 1) if chunk_at is None else (chunk_at, 0)
        self._routes: dict[str, list[_Route]] = {}
        # Unanchored tuples are spread by the sequence for a spout, and by the clock and position for a bolt.
        self._place = 0 if chunk_at is None else chunk_at
        moment = outputs.clock_ms if chunk_at is None else 0
        self._unanchored = np.uint64(mix64_one(mix64_one(moment) + task & _MASK))

    def route(self, emission: Emission, rows: InboundRows) -> Mapping[int, BaseException]:
        """Make frames of an emission, and add the edges of its copies to the sums of their anchors.

        Args:
            emission: The emitted tuples.
            rows: The frame whose rows ``emission.parents`` names.

        Returns:
            Emitted row -> exception, for rows that a grouping raised on. These were not delivered to the
            subscriber of that grouping.
        """
        choices = self._choices(emission, rows) if emission.batch.num_rows else []
        for observer in self._observers:
            observer.emitted(Emitted(self._component.id, self._task, emission, rows, choices))
        refused: dict[int, BaseException] = {}
        for choice in choices:
            refused |= choice.refused
        return refused

    def _choices(self, emission: Emission, rows: InboundRows) -> list[Choice]:
        """Make frames for each subscriber; returns which tasks were chosen."""
        count, choices = emission.batch.num_rows, list[Choice]()
        self._outputs.counters.add(self._component.id, self._task, emission.stream, "emitted", count)
        topology = self._plan.topology
        gates_of = topology.gates_of_answers if rows.are_questions else topology.gates
        for gate in gates_of(self._component.id, emission.stream):
            self._outputs.stage(gate, groups_of(emission, rows), plain(emission.batch))
            self._outputs.counters.add(self._component.id, self._task, emission.stream, "transferred", count)
        routes = self._routes_of(emission.stream)
        if not rows.are_questions:
            routes = [route for route in routes if not route.subscription.answers_only]
        needs_mixes = any(
            isinstance(route.chooser, Chooser) and route.chooser.needs_mixes for route in routes
        )
        mixes = self._mixes(emission.parents, rows) if needs_mixes else np.zeros(count, dtype=np.uint64)
        for route in routes:
            try:
                choice = self._route_over(route, emission, rows, mixes)
            except (ProtocolError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001  # a column that Arrow does not handle
                choice = _no_targets(count, self._not_routed(emission, error))
            choices.append(choice)
        return choices

    def _route_over(self, route: _Route, emission: Emission, rows: InboundRows, mixes: UInt64s) -> Choice:
        """Make frames for one subscriber, and return which tasks were chosen."""
        sent = self._coded(route, emission)
        choice = self._choose(route, sent, mixes)
        if len(choice.tasks):
            self._outputs.counters.add(
                self._component.id, self._task, emission.stream, "transferred", len(choice.tasks)
            )
            self._dispatch(route, sent, rows, choice.rows, choice.tasks)
        return choice

    def _not_routed(self, emission: Emission, error: Exception) -> Exception:
        """Why no tuple of an emission was sent. Some may have been: all fail, whatever becomes of those."""
        if isinstance(error, MisuseError):
            return error
        refused = MisuseError(
            f"a batch of tuples cannot be sent: {error_text(error)}",
            f"component {self._component.id!r}, stream {emission.stream!r}, {emission.batch.schema.names}",
            "emit columns of other types: column.cast(pa.string()) and the like",
        )
        refused.__cause__ = error
        return refused

    def _coded(self, route: _Route, emission: Emission) -> Emission:
        """The emission with the fields coded by which a subscriber groups it; it is on another level then."""
        grouping = route.subscription.grouping
        if emission.tasks is not None or not isinstance(grouping, Fields | PartialKey):
            return emission
        batch = coded(emission.batch, grouping.fields, self._plan.partitions, SMALL)
        return emission if batch is emission.batch else replace(emission, batch=batch)

    def _choose(self, route: _Route, emission: Emission, mixes: UInt64s) -> Choice:
        if emission.tasks is not None:
            is_mine = np.isin(emission.tasks, np.asarray(self._targets(route.subscription), dtype=np.int32))
            return Choice(np.flatnonzero(is_mine), emission.tasks[is_mine])
        if route.chooser is None:
            raise ProtocolError(
                f"emit() on stream {emission.stream!r} was not refused, although a direct grouping reads it",
                f"component {self._component.id!r}",
                "this is a bug in acktree: please report it",
            )
        if isinstance(route.chooser, BaseException):
            return _no_targets(len(mixes), route.chooser)
        return _choose_by_halves(route.chooser, emission.batch, mixes)

    def _mixes(self, parents: Int64s, rows: InboundRows) -> UInt64s:
        """A hash for each emitted tuple, by which shuffle groupings choose a task; shape (n,).

        It is made of the tuple's parent and its index among the children of that parent. For an unanchored
        tuple it is made of its index among all unanchored tuples of the task.
        """
        folds = np.append(rows.folds, np.uint64(0))[parents]  # -1 takes the zero
        places = rows.ordinal + _ranks(parents)
        loose = np.flatnonzero(folds == 0)
        places[loose] = np.arange(self._place, self._place + len(loose))
        self._place += len(loose)
        folds[loose] = self._unanchored
        return mix64(folds + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN)

    def _dispatch(
        self, route: _Route, emission: Emission, rows: InboundRows, emitted: Int64s | None, tasks: Int32s
    ) -> None:
        """Make one frame for each partition that hosts a target task."""
        batch, parents = emission.batch, emission.parents
        if emitted is not None:
            batch, parents = taken(batch, emitted), parents[emitted]
        copies = _Copies(batch, parents, tasks, emitted)
        partitions = self._plan.partition_of.take(tasks)
        first = int(partitions[0])
        pieces = [(first, 0, len(tasks))]
        if (partitions != first).any():
            order, counts = rows_by_number(partitions, self._plan.partitions)
            copies = copies.taken(order)
            present = np.flatnonzero(counts)
            ends = np.cumsum(counts[present])
            starts = ends - counts[present]
            pieces = list(zip(present.tolist(), starts.tolist(), ends.tolist(), strict=True))
        self._frames(route, emission, copies, pieces, rows)

    def _frames(
        self, route: _Route, emission: Emission, copies: _Copies, pieces: Sequence[_Piece], rows: InboundRows
    ) -> None:
        """Make and send a frame for each partition: at once, if the copies of all of them are in bundles."""
        bundles = None if emission.joins else self._bundles(emission.stream, copies, pieces, rows)
        if bundles is None and len(pieces) > 1:  # it may be one partition's copies that are not: try each
            for partition, start, end in pieces:
                mine = copies.slice(start, end)
                self._frames(route, emission, mine, [(partition, 0, end - start)], rows)
            return
        lineage: Lineage | None = bundles
        if lineage is None:
            channel = _channel(self._component.id, emission.stream, pieces[0][0])
            lineage = _lineage_of(copies, emission.joins, rows, channel)
        whole = self._frame(route, emission, copies, lineage)
        for observer in self._observers:
            observer.routed(Routed(whole, copies.parents, copies.emitted, emission.joins, rows))
        if bundles is None or len(pieces) == 1:
            self._send(pieces[0][0], whole)
            return
        parts = bundles.pieces(np.array([start for _, start, _ in pieces[1:]]))
        for (partition, start, end), part in zip(pieces, parts, strict=True):
            self._send(partition, self._frame(route, emission, copies.slice(start, end), part))

    def _bundles(
        self, stream: str, copies: _Copies, pieces: Sequence[_Piece], rows: InboundRows
    ) -> Runs | None:
        """The lineage of the copies of all partitions, with the siblings in each partition as a bundle.

        Returns:
            A run begins where a partition does. None if there are no such bundles: rows with several roots or
            none, unanchored copies, or copies not in the order of their parents.
        """
        parents, lineage = copies.parents, rows.lineage
        if not isinstance(lineage, Runs):
            return None
        cuts = np.array([start for _, start, _ in pieces[1:]], dtype=np.int64)
        firsts = starts_of_runs(parents, cuts)
        heads, at = parents[firsts[:-1]], np.searchsorted(firsts, cuts)
        rises = heads[1:] > heads[:-1]
        rises[at - 1] = True
        if heads.min() < 0 or not rises.all():
            return None
        bounds = np.concatenate(([0], at, [len(heads)]))
        counts = (bounds[1:] - bounds[:-1]).tolist()
        channels = [
            (_channel(self._component.id, stream, partition), count, end - start)
            for (partition, start, end), count in zip(pieces, counts, strict=True)
        ]
        return lineage.bundles(heads, firsts, rows.edges_below(heads, channels), at)

    def _frame(self, route: _Route, emission: Emission, copies: _Copies, lineage: Lineage) -> Frame:
        tasks = copies.tasks
        return Frame(
            self._component.id, emission.stream, route.subscription.subscriber, source_tasks=self._task,
            sequence=self._sequence, tasks=int(tasks[0]) if (tasks == tasks[0]).all() else tasks,
            values=copies.batch, lineage=lineage,
        )  # fmt: skip

    def _send(self, partition: int, frame: Frame) -> None:
        if len(frame) <= SMALL:  # it may be joined with others, whose number goes by their size
            values = plain(frame.values)
            frame = frame if values is frame.values else replace(frame, values=values)
        self._outputs.frame(partition, frame)
        self._sequence += self._step

    def _routes_of(self, stream: str) -> list[_Route]:
        routes = self._routes.get(stream)
        if routes is None:
            subscribers = self._plan.topology.subscribers(self._component.id, stream)
            routes = self._routes[stream] = [self._route_to(subscription) for subscription in subscribers]
        return routes

    def _route_to(self, subscription: Subscription) -> _Route:
        bolt = self._plan.topology.components[subscription.subscriber]
        if isinstance(subscription.grouping, Direct):
            return _Route(subscription, None)
        stream, targets = self._component.streams[subscription.stream], bolt.task_ids
        if self._plan.level_of[bolt.id] == self._outputs.level:
            # Same level: tuples do not leave the partition, so only the tasks of this partition can be
            # chosen.
            targets = self._plan.hosted(bolt, self._outputs.partition)
        try:
            chooser = make_chooser(
                subscription.grouping,
                fields=stream.fields,
                targets=targets,
                source_task=self._task,
                context=self._plan.context(self._component, self._task, Clock(self._outputs.clock_ms)),
                stream=stream.name,
            )
        except ProtocolError:
            raise
        except BaseException as error:  # noqa: BLE001  # a custom grouping's prepare is user code
            pass_on(error)
            return _Route(subscription, error)
        return _Route(subscription, chooser)

    def _targets(self, subscription: Subscription) -> tuple[int, ...]:
        return self._plan.topology.components[subscription.subscriber].task_ids


def _lineage_of(
    copies: _Copies, joins: Mapping[int, Sequence[Tuple]], rows: InboundRows, channel: np.uint64
) -> Lineage:
    """Make the edges of the copies of one frame one by one, and add them to the sums of their anchors."""
    parents = copies.parents
    if rows.is_untracked and not joins:
        return Sparse.untracked(len(parents))
    plain = rows.lineage.children(parents, charge(rows, parents, channel))
    return _joined(plain, copies.emitted_rows, joins, channel) if joins else plain


def charge(rows: InboundRows, parents: Int64s, channel: np.uint64) -> Int64s:
    """Make an edge for each copy and add it to its parent's sum. Returns the edges, 0 for unanchored copies.

    Args:
        rows: The account of the parents; it is changed.
        parents: The row that each copy is anchored to, shape (n,); -1 for none. Any order.
        channel: The channel: emitting component, stream and target partition.
    """
    anchored = np.flatnonzero(parents >= 0)
    edges = np.zeros_like(parents)
    edges[anchored] = rows.edges_one_by_one(parents[anchored], channel)
    return edges


def _ranks(parents: Int64s) -> Int64s:
    """For each item, how many earlier items have the same parent; shape (n,)."""
    starts = starts_of_runs(parents)
    starts, lengths = starts[:-1], np.diff(starts)
    if (parents[starts[1:]] < parents[starts[:-1]]).any():
        order = np.argsort(parents, kind="stable")
        ranks = np.empty_like(parents)
        ranks[order] = _ranks(parents[order])
        return ranks
    return np.arange(len(parents)) - np.repeat(starts, lengths)


def _no_targets(count: int, error: BaseException) -> Choice:
    """A choice that refuses all of ``count`` tuples because of one error."""
    none = np.zeros(0, dtype=np.int64)
    return Choice(none, none.astype(np.int32), dict.fromkeys(range(count), error))


def _choose_by_halves(chooser: Chooser, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:
    """Choose tasks for a batch, in halves if that raises, so that only the tuples that raise are refused."""
    middle = batch.num_rows // 2
    try:
        return chooser.choose(batch, mixes)
    except MisuseError as error:
        if not middle:
            return _no_targets(1, error)
    halves = [
        _choose_by_halves(chooser, batch.slice(0, middle), mixes[:middle]),
        _choose_by_halves(chooser, batch.slice(middle), mixes[middle:]),
    ]
    lengths = (middle, batch.num_rows - middle)
    rows = [
        (np.arange(length) if half.rows is None else half.rows) + first
        for half, length, first in zip(halves, lengths, (0, middle), strict=True)
    ]
    refused = {row + first: error for half, first in zip(halves, (0, middle), strict=True)
               for row, error in half.refused.items()}  # fmt: skip
    return Choice(np.concatenate(rows), np.concatenate([half.tasks for half in halves]), refused)


def _joined(
    lineage: Lineage, copies: Int64s, joins: Mapping[int, Sequence[Tuple]], channel: np.uint64
) -> Lineage:
    """The lineage of copies of which some have several anchors, or anchors in other frames."""
    plain = lineage.sparse()
    maps: list[dict[int, int]] = []
    attempts: dict[int, int] = {}
    for copy, emitted in enumerate(copies.tolist()):
        if emitted not in joins:
            maps.append(plain.anchors(copy))
            attempts |= plain.root_attempts(copy)
            continue
        mapped: dict[int, int] = {}
        for anchor in joins[emitted]:
            rows, row = account_of(anchor)
            edge = int(charge(rows, np.array([row]), channel)[0])
            for root in rows.anchors_of(row):
                mapped[root] = mapped.get(root, 0) ^ edge
            attempts |= rows.lineage.root_attempts(row)
        maps.append(mapped)
    return Sparse.of_anchors(maps, attempts)


def groups_of(emission: Emission, rows: InboundRows) -> tuple[Int64s, Int64s, Int64s]:
    """Emitted tuples in groups that hang on the same roots.

    Returns:
        The number of tuples of each group, the number of its roots, and the roots of all groups.
    """
    count, joins = len(emission.parents), emission.joins
    cuts = {cut for row in joins for cut in (row, row + 1) if 0 < cut < count}
    starts = starts_of_runs(emission.parents, np.array(sorted(cuts), dtype=np.int64))
    heads = emission.parents[starts[:-1]]
    is_anchored = heads >= 0
    degrees = np.zeros(len(heads), dtype=np.int64)
    degrees[is_anchored], roots = rows.lineage.roots_by_row(heads[is_anchored])
    if joins:
        by_group = np.split(roots, np.cumsum(degrees)[:-1])
        for row, anchors in joins.items():
            accounts = [account_of(anchor) for anchor in anchors]
            found = [parent.lineage.roots_of(np.array([at])) for parent, at in accounts]
            by_group[int(starts.searchsorted(row))] = np.unique(np.concatenate([roots[:0], *found]))
        return np.diff(starts), np.array([len(each) for each in by_group]), np.concatenate(by_group)
    if (degrees == 1).all():  # children of several tuples of one message
        merged = starts_of_runs(roots)
        starts, degrees, roots = starts[merged], degrees[merged[:-1]], roots[merged[:-1]]
    return np.diff(starts), degrees, roots
