"""Records what happens to the tuples of traced messages in one level, partition and micro-batch.

Two kinds of facts are written, and joined by (root, edge) when they are read:

* a *link*, when a tuple is emitted: its parents, where it goes, and a preview of its values;
* an *execution*, when its task is done with it: when, how long, and its fate.

Rules of this file
------------------
1. Only tuples of traced messages cost anything per tuple: those whose attempt has the mark ``CHOSEN``.
2. A second run writes facts with the same keys.
3. Facts are bounded: for each message, and for the level. What is left out is counted by message and bolt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from time import perf_counter
from typing import Any, Final, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.frames import Kind
from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer
from acktree.core.tracking.sampling import traced_pairs
from acktree.core.tracking.trace_facts import EXECUTION, HELD, LINK, Bolt, Place, TraceFacts
from acktree.core.tracking.verdicts import Failure
from acktree.logs.loggers import logger
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.observer import ObservedTask, Observer, Routed
from acktree.tasks.bolts.rows.frame_rows import ACKED, FAILED, OPEN, REPORTED, InboundRows, account_of
from acktree.tasks.bolts.rows.row_timer import RowTimer
from acktree.tasks.observers.previews import preview_columns
from acktree.texts import bounded, error_text

log = logger("acktree")

MOST_TUPLES: Final = 1000
"""The most tuples of a message that are recorded; the others are counted by component."""
MOST_FACTS: Final = 20_000
"""The most links, and the most executions, of one level, partition and micro-batch."""
_MOST_FAILED: Final = 100
"""How many failed tuples of a message are recorded beyond these limits, by each level and partition."""
_MOST_REASON: Final = 500

Given = ParamSpec("Given")
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.void]


def recording(method: Callable[Given, None]) -> Callable[Given, None]:
    """Let a method fail nothing: what is only recorded must not stop a level. The error is logged."""

    @wraps(method)
    def guarded(*given: Given.args, **named: Given.kwargs) -> None:
        try:
            method(*given, **named)
        except BaseException as error:  # noqa: BLE001  # values that Python cannot represent, for example
            pass_on(error)
            log.warning("%s recorded less: %s", method.__qualname__, error_text(error))

    return guarded


class Quota:
    """How many tuples of each message are recorded, and how many of all."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept = 0
        self._few: list[Int64s] = []

    def kept(self, roots: Int64s) -> Bools | None:
        """Which of these tuples are recorded, given by their roots, shape (n,); None for all."""
        if self._kept + len(roots) <= min(MOST_TUPLES, MOST_FACTS):
            self._few.append(roots)  # no message can have too many
            self._kept += len(roots)
            return None
        if self._few:
            few, self._few, self._kept = np.concatenate(self._few), [], 0
            self._counted(few)
        return self._counted(roots)

    def _counted(self, roots: Int64s) -> Bools | None:
        """The same, counting each message."""
        found, at, counts = np.unique(roots, return_inverse=True, return_counts=True)
        keys = found.tolist()
        before = np.array([self._seen.get(key, 0) for key in keys], np.int64)
        after = before + counts
        self._seen.update(zip(keys, after.tolist(), strict=True))
        if after.max() <= MOST_TUPLES and self._kept + len(roots) <= MOST_FACTS:
            self._kept += len(roots)
            return None
        order = np.argsort(at, kind="stable")
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))
        nth = np.empty(len(roots), np.int64)
        nth[order] = np.arange(len(roots)) - np.repeat(starts, counts)
        fits: Bools = nth + before[at] < MOST_TUPLES
        fits &= self._kept + np.cumsum(fits) <= MOST_FACTS
        self._kept += int(np.count_nonzero(fits))
        return fits


class Pairs(NamedTuple):
    """Tuples, each under one of its roots: three arrays, shape (m,), by row."""

    rows: Int64s
    roots: Int64s
    edges: Int64s

    def where(self, mask: Bools) -> Pairs:
        """The pairs where a mask is true."""
        return Pairs(*(each[mask] for each in self))


class TracedRows(RowTimer):
    """The traced tuples of one frame; they are timed.

    Attributes:
        pairs: Each traced row under each of its traced roots, by row.
        surplus: The same, of messages that have too many tuples: only failed ones are recorded.
        reasons: Row -> why it was failed.
    """

    __slots__ = ("pairs", "reasons", "surplus")

    def __init__(self, pairs: Pairs, surplus: Pairs, count: int) -> None:
        super().__init__(pairs.rows, count)
        self.pairs, self.surplus = pairs, surplus
        self.reasons: dict[int, str] = {}


class Tracer(Observer):
    """The facts of one level, partition and micro-batch."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Nothing is recorded yet.

        Args:
            now_ms: The time, in milliseconds since 1970; in ``LocalCluster`` its clock.
        """
        self._now_ms = now_ms
        self._start, self._start_ms = perf_counter(), now_ms()
        self._accounts: dict[int, list[InboundRows]] = {}
        self._links: list[Rows] = []
        self._parents: list[Int64s] = []
        self._shown: list[Sequence[object]] = []
        self._places: dict[Place, int] = {}
        self._executions: list[Rows] = []
        self._executed = 0
        self._reasons: dict[int, str] = {}
        self._bolts: dict[Bolt, int] = {}
        self._links_kept, self._executions_kept = Quota(), Quota()
        self._more: Counter[tuple[int, str]] = Counter()

    @recording
    def received(self, rows: InboundRows, component: str, task: int) -> None:  # noqa: ARG002  # known at the end
        if self._note_traced(rows) is not None:
            self._accounts.setdefault(task, []).append(rows)

    def _note_traced(self, rows: InboundRows) -> TracedRows | None:
        """Note which rows of a frame are traced; None for none."""
        pairs = Pairs(*traced_pairs(rows.lineage))
        if not len(pairs.rows):
            return None
        kept = self._executions_kept.kept(pairs.roots)
        surplus = pairs.where(np.zeros(len(pairs.rows), np.bool_) if kept is None else ~kept)
        rows.timer = traced = TracedRows(
            pairs if kept is None else pairs.where(kept), surplus, len(rows.lineage)
        )
        return traced

    @recording
    def opened(self, rows: InboundRows, component: str, values: pa.RecordBatch) -> None:
        traced = self._note_traced(rows)
        if traced is None:
            return
        pairs = traced.pairs  # each message is the root of its tree
        tasks = np.broadcast_to(np.asarray(rows.task_ids), len(rows.lineage))[pairs.rows]
        shown = preview_columns(values, pairs.rows)
        self._add_links(pairs, (component, rows.stream, component), (tasks, tasks), None, shown)

    @recording
    def routed(self, routed: Routed) -> None:
        frame, parents, emitted, joins, rows = routed
        traced = _traced(rows)
        if traced is None and not joins:
            return
        among = None if traced is None or joins else np.flatnonzero(traced.mask[parents])
        pairs = Pairs(*traced_pairs(frame.lineage, among))
        if not len(pairs.rows):
            return
        over = _edges_above(pairs, parents, emitted, joins, traced)
        anchored = over.counts > 0  # else another root of a row that has several
        if not anchored.all():
            pairs, over = pairs.where(anchored), over.where(anchored)
        if not len(pairs.rows):
            return
        kept = self._links_kept.kept(pairs.roots)
        if kept is not None:
            pairs, over = pairs.where(kept), over.where(kept)
        shown = preview_columns(frame.values, pairs.rows)
        sources, tasks = (
            np.broadcast_to(np.asarray(each), len(frame.lineage))[pairs.rows]
            for each in (frame.source_tasks, frame.tasks)
        )
        self._add_links(
            pairs, (frame.component, frame.stream, frame.subscriber), (sources, tasks), over, shown
        )

    def _add_links(
        self,
        pairs: Pairs,
        names: tuple[str, str, str],
        tasks: tuple[Int32s, Int32s],
        over: _Above | None,
        shown: Sequence[Sequence[object]],
    ) -> None:
        """Add the links of tuples, all of one source, stream and receiver.

        Args:
            tasks: Who emitted and who receives each.
            over: Their parents; None for messages.
            shown: Their values, field by field.
        """
        source, stream, component = names
        both = np.stack(tasks, axis=1)
        at = np.zeros(len(both), np.int64)
        if (both == both[:1]).all():
            found = both[:1]
        else:
            found, at = np.unique(both, axis=0, return_inverse=True)
        places = [
            self._places.setdefault(Place(source, one, stream, component, other), len(self._places))
            for one, other in found.tolist()
        ]
        links = np.empty(len(pairs.rows), LINK)
        links["root"], links["edge"] = pairs.roots, pairs.edges
        links["place"] = np.array(places, np.int32)[at.reshape(-1)]
        links["parents"] = 0 if over is None else over.counts
        self._links.append(links)
        if over is not None:
            self._parents.append(over.edges)
        self._shown.append((len(links), *shown))

    @recording
    def failed(self, rows: InboundRows, which: Sequence[int], failure: Failure) -> None:
        """Note why traced rows were failed; of several reasons the first."""
        traced = _traced(rows)
        if traced is not None:
            words = bounded(failure.reason, _MOST_REASON)
            for row in which:
                if traced.mask[row]:
                    traced.reasons.setdefault(row, words)

    @recording
    def task_ended(self, task: ObservedTask) -> None:
        """Record the fates of all traced rows of a task."""
        component, number = task.context.component_id, task.context.task_id
        for rows in self._accounts.pop(number, ()):
            traced = _traced(rows)
            assert traced is not None, "only these are noted"
            began_ms, took_ms = self._times(traced)
            self._add_executions((component, number, rows), traced.pairs, began_ms, took_ms, traced.together)
            if len(traced.surplus.rows):
                self._count_surplus(component, number, rows, traced)
        of_rows: dict[int, Pairs] = {}
        for rows, row in task.moved_tuples():
            if id(rows) not in of_rows:
                of_rows[id(rows)] = Pairs(*traced_pairs(rows.lineage))
            pairs = of_rows[id(rows)]
            row_pairs = pairs.where(pairs.rows == row)
            if len(row_pairs.rows):
                self._add_executions((component, number, rows), row_pairs, self._start_ms, np.nan, 1)

    def _times(self, traced: TracedRows) -> tuple[Int64s | int, Floats | float]:
        """When the traced rows were executed, and how long."""
        call = traced.call or (self._start, 0.0)
        if not traced.took_ms:
            return self._at_ms(call[0]), round(call[1], 3)
        rows = traced.pairs.rows.tolist()
        began = [self._at_ms(traced.began.get(row, call[0])) for row in rows]
        took = [traced.took_ms.get(row, call[1]) for row in rows]
        return np.array(began, np.int64), np.round(took, 3)

    def _add_executions(
        self,
        where: tuple[str, int, InboundRows],
        pairs: Pairs,
        began_ms: Int64s | int,
        took_ms: Floats | float,
        together: int,
    ) -> None:
        component, task, rows = where
        executions = np.empty(len(pairs.rows), EXECUTION)
        executions["root"], executions["edge"] = pairs.roots, pairs.edges
        executions["began_ms"], executions["took_ms"] = began_ms, took_ms
        executions["bolt"] = self._bolts.setdefault(Bolt(component, task, together), len(self._bolts))
        executions["fate"] = _fates_of(rows, pairs.rows)
        traced = _traced(rows)
        if traced is not None and (reasons := traced.reasons):
            self._reasons |= {
                self._executed + at: reasons[row]
                for at, row in enumerate(pairs.rows.tolist())
                if row in reasons
            }
        self._executions.append(executions)
        self._executed += len(executions)

    def _count_surplus(self, component: str, task: int, rows: InboundRows, traced: TracedRows) -> None:
        """Record what failed of the surplus, and count the others."""
        surplus, failed = traced.surplus, Counter[int]()
        recorded = np.zeros(len(surplus.rows), np.bool_)
        fates = _fates_of(rows, surplus.rows)
        for at, root in enumerate(surplus.roots.tolist()):
            if fates[at] == FAILED and failed[root] < _MOST_FAILED:
                failed[root] += 1
                recorded[at] = True
            elif len(self._more) < MOST_FACTS or (root, component) in self._more:
                self._more[root, component] += 1
        if recorded.any():
            pairs = surplus.where(recorded)
            alone = TracedRows(pairs, surplus, len(rows.lineage))
            alone.began, alone.took_ms, alone.call = traced.began, traced.took_ms, traced.call
            began_ms, took_ms = self._times(alone)
            self._add_executions((component, task, rows), pairs, began_ms, took_ms, traced.together)

    def _at_ms(self, moment: float) -> int:
        """A moment of the stopwatch as a time; always the start where the clock is fixed, as in a test."""
        if self._now_ms() == self._start_ms:
            return self._start_ms
        return self._start_ms + round((moment - self._start) * 1000)

    def driver_rows(self) -> Iterator[tuple[Kind, bytes, Buffer]]:
        """All facts as one row; none for none."""
        if not (self._links or self._executions or self._more):
            return
        facts = TraceFacts(
            [*self._places], _joined(self._links, LINK), parents=_joined(self._parents, np.dtype(np.int64)),
            bolts=[*self._bolts], executions=_joined(self._executions, EXECUTION), reasons=self._reasons,
            more=[(root, component, count) for (root, component), count in self._more.items()],
            shown_json=json.dumps(self._shown).encode(),
        )  # fmt: skip
        yield Kind.TRACE, b"", facts.to_bytes()


class _Above(NamedTuple):
    """The parents of tuples: how many each has, shape (n,), and their edges, one tuple after the other."""

    counts: Int32s
    edges: Int64s

    def where(self, mask: Bools) -> _Above:
        """The parents of the tuples where a mask is true."""
        return _Above(self.counts[mask], self.edges[np.repeat(mask, self.counts)])


def _edges_above(
    pairs: Pairs,
    parents: Int64s,
    emitted: Int64s | None,
    joins: Mapping[int, Sequence[Tuple]],
    traced: TracedRows | None,
) -> _Above:
    """The edges of the tuples that some tuples are anchored to; see :meth:`Tracer.routed`."""
    if traced is not None and not joins and not len(traced.pairs.rows):  # all of its rows are surplus
        return _Above(np.zeros(len(pairs.rows), np.int32), np.zeros(0, np.int64))
    if traced is not None and not joins and len(traced.pairs.rows) == np.count_nonzero(traced.mask):
        above = traced.pairs  # by row, and each row once
        at = np.searchsorted(above.rows, parents[pairs.rows])
        at[at == len(above.rows)] = 0
        is_anchored = (above.rows[at] == parents[pairs.rows]) & (above.roots[at] == pairs.roots)
        return _Above(is_anchored.astype(np.int32), above.edges[at[is_anchored]])
    by_row = {} if traced is None else {(row, root): edge for row, root, edge in _listed(traced.pairs)}
    over: list[list[int]] = []
    for row, root, _ in _listed(pairs):
        anchors = joins.get(row if emitted is None else int(emitted[row]), ())
        if anchors:
            over.append([under[root] for under in map(_anchors_of, anchors) if root in under])
        else:
            over.append([by_row[at] for at in [(int(parents[row]), root)] if at in by_row])
    edges = [edge for each in over for edge in each]
    return _Above(np.array([len(each) for each in over], np.int32), np.array(edges, np.int64))


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _traced(rows: InboundRows) -> TracedRows | None:
    """Which rows of a frame are traced; None if none is."""
    return rows.timer if isinstance(rows.timer, TracedRows) else None


def _listed(pairs: Pairs) -> Iterable[tuple[int, int, int]]:
    """(row, root, edge) of each pair, as Python's integers."""
    return zip(*(each.tolist() for each in pairs), strict=True)


def _fates_of(rows: InboundRows, which: Int64s) -> npt.NDArray[np.uint8]:
    """The fates of some rows, as indexes of ``trace_facts.FATES``."""
    fates = np.frombuffer(bytes(rows.fate), np.uint8)[which]
    fates[fates == REPORTED] = ACKED
    if rows.held_id:
        is_held = np.array([row in rows.held_id for row in which.tolist()], np.bool_)
        fates[is_held & (fates == OPEN)] = HELD
    return fates


def _anchors_of(anchor: Tuple) -> dict[int, int]:
    rows, row = account_of(anchor)
    return rows.anchors_of(row)
