"""Records what happens to the tuples of traced messages in one level, partition and micro-batch.

Two kinds of facts are written, and joined by (root, edge) where they are stored:

* a *link*, when a tuple is emitted: its parents, where it goes, and a preview of its values;
* an *execution*, when its task is done with it: when, how long, and its fate.

Rules of this file
------------------
1. Only tuples of sampled roots cost anything per tuple; see ``core/tracking/sampling.py``.
2. A second run writes facts with the same keys.
3. Nothing is unpickled for a preview: a pickled value is shown by its size.
4. Facts are bounded: for each message, and for the level. What is left out is counted by message and bolt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from math import isfinite
from time import perf_counter
from typing import Any, Final, ParamSpec

import pyarrow as pa

from acktree.core.data.frames import Frame
from acktree.core.data.tuples import Tuple
from acktree.core.data.values import pickled_fields
from acktree.core.ids import Int64s
from acktree.core.tracking.sampling import sampled_pairs
from acktree.core.tracking.verdicts import Failure
from acktree.logs import logger
from acktree.tasks.bolts.rows import FATES, InboundRows, account_of
from acktree.tasks.bolts.traced_rows import TracedRow, TracedRows
from acktree.tasks.watch_order import WatchOrder
from acktree.texts import bounded, error_text, short_repr

__all__ = ["MOST_TUPLES", "Tracer", "note_reason", "previews", "recording"]

log = logger("acktree")

MOST_TUPLES: Final = 1000
"""The most tuples of a message that are recorded; the others are counted by component."""
_MOST_FACTS: Final = 20_000
"""The most links, and the most executions, of one level, partition and micro-batch."""
_MOST_FAILED: Final = 100
"""How many failed tuples of a message are recorded beyond these limits, by each level and partition."""
_MOST_FIELDS: Final = 20
_MOST_TEXT: Final = 80
_MOST_REASON: Final = 500
_EXACT: Final = 1 << 53
"""Larger integers are shown as text: JSON's readers in browsers round them."""


Given = ParamSpec("Given")


def recording(method: Callable[Given, None]) -> Callable[Given, None]:
    """Let a method fail nothing: what is only recorded must not stop a level. The error is logged."""

    @wraps(method)
    def guarded(*given: Given.args, **named: Given.kwargs) -> None:
        try:
            method(*given, **named)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # values that Python cannot represent, for example
            log.warning("%s recorded less: %s", method.__qualname__, error_text(error))

    return guarded


class Tracer:
    """The facts of one level, partition and micro-batch.

    Attributes:
        rate: The share of messages that are traced; 0 for none.
    """

    def __init__(self, rate: float, now_ms: Callable[[], int], *, is_tracking: bool = True) -> None:
        """Nothing is recorded yet.

        Args:
            now_ms: The time, in milliseconds since 1970; in ``LocalCluster`` its clock.
            is_tracking: Whether messages have roots.
        """
        self.rate, self.is_tracking = rate, is_tracking
        self._now_ms = now_ms
        self._start, self._start_ms = perf_counter(), now_ms()
        self._accounts: list[tuple[str, int, InboundRows]] = []
        # As JSON: the garbage collector looks at containers, and beside thousands of young values often.
        self._links: list[str] = []
        self._executions: list[str] = []
        self._linked: Counter[int] = Counter()
        self._watched: Counter[int] = Counter()
        self._watched_count = 0
        self._more: Counter[tuple[int, str]] = Counter()

    def obey(self, order: WatchOrder) -> None:
        """Take what operators watch. Called before anything is recorded."""
        if self.is_tracking:
            self.rate = order.trace_rate

    @recording
    def watch(self, rows: InboundRows, component: str, task: int) -> None:
        """Note which rows of a frame are traced, before its tuples are executed."""
        if self.rate <= 0:
            return
        rows_at, roots, edges = sampled_pairs(rows.lineage, self.rate)
        if not len(rows_at):
            return
        pairs: list[TracedRow] = []
        surplus: list[TracedRow] = []
        for pair in map(TracedRow, rows_at.tolist(), roots.tolist(), edges.tolist()):
            self._watched[pair.root] += 1
            self._watched_count += 1
            fits = self._watched[pair.root] <= MOST_TUPLES and self._watched_count <= _MOST_FACTS
            (pairs if fits else surplus).append(pair)
        rows.traced = TracedRows(pairs, surplus, len(rows.lineage))
        self._accounts.append((component, task, rows))

    @recording
    def watch_messages(self, rows: InboundRows, component: str, values: pa.RecordBatch) -> None:
        """Note which messages of a spout are traced, before they are routed; each is the root of its tree."""
        self.watch(rows, component, -1)
        self._accounts.clear()  # they are not executed here
        if rows.traced is None:
            return
        shown = previews(values, [pair.row for pair in rows.traced.pairs])
        for (row, root, edge), each in zip(rows.traced.pairs, shown, strict=True):
            task = rows.task_of(row)
            self._links.append(
                json.dumps((root, edge, [], component, task, rows.stream, component, task, each))
            )

    @recording
    def link(
        self,
        frame: Frame,
        parents: Int64s,
        emitted: Int64s | None,
        joins: Mapping[int, Sequence[Tuple]],
        rows: InboundRows,
    ) -> None:
        """Record the tuples of a frame that hang on traced messages.

        Args:
            frame: The frame, as it leaves.
            parents: The row that each of its tuples is anchored to; -1 for none, or for one in ``joins``.
            emitted: The emitted tuple that each is a copy of; None if there is one copy of each, in order.
            joins: Emitted tuple -> its anchors, where there are several.
            rows: The frame that ``parents`` counts in.
        """
        if self.rate <= 0:
            return
        found: list[int] = []
        facts: list[str] = []
        above = _edges_by_row(rows.traced)
        for row, root, edge in _listed(sampled_pairs(frame.lineage, self.rate)):
            anchors = joins.get(row if emitted is None else int(emitted[row]), ())
            if anchors:
                over = [under[root] for under in map(_anchors_of, anchors) if root in under]
            else:
                over = [above[at] for at in [(int(parents[row]), root)] if at in above]
            if not over:  # another root of a row that has several
                continue
            self._linked[root] += 1
            if self._linked[root] <= MOST_TUPLES and len(self._links) + len(found) < _MOST_FACTS:
                found.append(row)
                facts.append(json.dumps((root, edge, over, *_places(frame, row))))
        shown = map(json.dumps, previews(frame.values, found))
        self._links += [f"{fact[:-1]}, {values}]" for fact, values in zip(facts, shown, strict=True)]

    @recording
    def end_bolt(self, held: Iterable[tuple[str, int, InboundRows, int]] = ()) -> None:
        """Record the fates of all rows that were noted, when the tasks of a bolt are done with them.

        Args:
            held: Tuples of earlier micro-batches whose fate changed: (component, task, rows, row).
        """
        accounts, self._accounts = self._accounts, []
        for component, task, rows in accounts:
            traced = rows.traced
            assert traced is not None, "only these are noted"
            for pair in traced.pairs:
                self._execution(component, task, rows, traced, pair)
            self._count_surplus(component, task, rows, traced)
        if self.rate <= 0:
            return
        for component, task, rows, row in held:
            for each, root, edge in _listed(sampled_pairs(rows.lineage, self.rate)):
                if each == row:
                    execution = (
                        root,
                        edge,
                        component,
                        task,
                        self._start_ms,
                        None,
                        1,
                        _fate_of(rows, row),
                        "",
                    )
                    self._executions.append(json.dumps(execution))

    def _execution(
        self, component: str, task: int, rows: InboundRows, traced: TracedRows, pair: TracedRow
    ) -> None:
        row = pair.row
        began = traced.began.get(row)
        took_ms = traced.took_ms.get(row)
        execution = (
                pair.root, pair.edge, component, task,
                self._start_ms if began is None else self._at_ms(began),
                0 if took_ms is None else round(took_ms, 3),
                traced.together, _fate_of(rows, row), traced.reasons.get(row, ""),
        )  # fmt: skip
        self._executions.append(json.dumps(execution))

    def _count_surplus(self, component: str, task: int, rows: InboundRows, traced: TracedRows) -> None:
        failed: Counter[int] = Counter()
        for pair in traced.surplus:
            if _fate_of(rows, pair.row) == "failed" and failed[pair.root] < _MOST_FAILED:
                failed[pair.root] += 1
                self._execution(component, task, rows, traced, pair)
            elif len(self._more) < _MOST_FACTS or (pair.root, component) in self._more:
                self._more[pair.root, component] += 1

    def _at_ms(self, moment: float) -> int:
        """A moment of the stopwatch as a time; always the start where the clock is fixed, as in a test."""
        if self._now_ms() == self._start_ms:
            return self._start_ms
        return self._start_ms + round((moment - self._start) * 1000)

    def body(self) -> bytes:
        """All facts, for the driver; empty for none."""
        if not (self._links or self._executions or self._more):
            return b""
        more = json.dumps([(root, component, count) for (root, component), count in self._more.items()])
        links, executions = ", ".join(self._links), ", ".join(self._executions)
        return f'{{"links": [{links}], "executions": [{executions}], "more": {more}}}'.encode()


def note_reason(rows: InboundRows, which: Iterable[int], failure: Failure) -> None:
    """Note why traced rows were failed; of several reasons the first."""
    traced = rows.traced
    if traced is not None:
        words = bounded(failure.reason, _MOST_REASON)
        for row in which:
            if traced.mask[row]:
                traced.reasons.setdefault(row, words)


def previews(
    values: pa.RecordBatch, rows: Sequence[int], most_text: int = _MOST_TEXT
) -> Iterator[list[object]]:
    """The values of some rows for display, as JSON has them; long texts are shortened.

    Pickled values are shown by their size.
    """
    if not rows:
        return
    taken, hidden = values.take(pa.array(rows, pa.int64())), pickled_fields(values)
    columns = [
        [_shown(value, most_text, is_hidden=name in hidden) for value in _python_values(column)]
        for name, column in zip(values.schema.names[:_MOST_FIELDS], taken.columns, strict=False)
    ]
    for row in zip(*columns, strict=True):
        yield list(row)


def _python_values(column: pa.Array) -> Sequence[Any]:
    """The values of a column; a text in the place of each that Python cannot represent."""
    try:
        values: list[Any] = column.to_pylist()
    except Exception:  # noqa: BLE001  # a date beyond 9999, a text that is not UTF-8, an unknown time zone, ...
        if len(column) > 1:
            return [value for at in range(len(column)) for value in _python_values(column.slice(at, 1))]
        return [f"<{column.type}, not representable>"]
    return values


def _shown(value: Any, most_text: int, *, is_hidden: bool) -> object:  # noqa: ANN401  # any value that Arrow has
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < _EXACT):
        return value
    if is_hidden:
        return f"<pickled, {len(value)} bytes>"
    if isinstance(value, str):
        return bounded(value, most_text).encode("utf-8", "replace").decode()
    if isinstance(value, float) and isfinite(value):
        return value
    return short_repr(value)


def _listed(pairs: tuple[Int64s, Int64s, Int64s]) -> Iterable[tuple[int, int, int]]:
    """(row, root, edge) of each pair, as Python's integers."""
    return zip(*(each.tolist() for each in pairs), strict=True)


def _places(frame: Frame, row: int) -> tuple[str, int, str, str, int]:
    """Who emitted a tuple, on which stream, and who receives it: component and task."""
    sources, tasks = frame.source_tasks, frame.tasks
    source = sources if isinstance(sources, int) else int(sources[row])
    task = tasks if isinstance(tasks, int) else int(tasks[row])
    return frame.component, source, frame.stream, frame.subscriber, task


def _fate_of(rows: InboundRows, row: int) -> str:
    fate = FATES[rows.fate[row]]
    return "held" if fate == "open" and row in rows.held_id else fate


def _edges_by_row(traced: TracedRows | None) -> dict[tuple[int, int], int]:
    """(row, root) -> edge of traced rows."""
    return {} if traced is None else {(row, root): edge for row, root, edge in traced.pairs}


def _anchors_of(anchor: Tuple) -> dict[int, int]:
    rows, row = account_of(anchor)
    return rows.anchors_of(row)
