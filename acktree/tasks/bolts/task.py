"""One bolt task in one micro-batch: its copy of the user's bolt, fed with frames.

Rules of this file
------------------
1. What a bolt's methods raise is data: the tuples being executed fail with it, the others go on. ``kinds.py``
   and ``concurrent_kinds.py`` call ``execute``; the other methods are called here.
2. What was emitted, acked or remembered before an exception is kept; FAILED wins over an ack before it.
3. A copy lives for one micro-batch: unpickle, prepare, restore memory, execute, flush, save memory, cleanup.
   In real time it may stay, prepared: see ``prepared.py``.
4. The engine acks rows after ``flush`` where the bolt overrides it, and otherwise after ``execute``.

Source: Storm's ``executor/bolt/BoltExecutor`` and ``topology/BasicBoltExecutor``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, ClassVar, Final

import numpy as np

from acktree.bolt import AnyBolt
from acktree.config import Config
from acktree.core.data.context import Clock, TaskContext
from acktree.core.data.frames import Frame
from acktree.core.data.reading import Column
from acktree.core.data.values import unpickled_columns
from acktree.core.state.store import Below, StateStore
from acktree.errors import AcktreeError, MisuseError, ProtocolError
from acktree.logs.log_lines import Roots, standing
from acktree.tasks.bolts.collectors import Collector
from acktree.tasks.bolts.guard import FlushGuard, Guard
from acktree.tasks.bolts.memory import TaskMemory
from acktree.tasks.bolts.observer import Observer
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.outputs.outlets import Outlets, Unfit
from acktree.tasks.bolts.prepared import Prepared
from acktree.tasks.bolts.rows.frame_rows import (
    FAILED,
    OPEN,
    InboundRows,
    Left,
    ack_open,
    forgotten_error,
    open_among,
    tracked_among,
)
from acktree.tasks.bolts.rows.monitor import left_out_error, parts_of
from acktree.tasks.bolts.rows.row_names import Names
from acktree.tasks.bolts.rows.row_results import RowResults
from acktree.tasks.own_metrics import grown_metrics, task_services
from acktree.texts import error_text
from acktree.topology.model import Component

_MS: Final = 1000.0


class BoltTask(ABC):
    """What all kinds of bolt have in common."""

    collector: Collector
    contract: ClassVar[type[AnyBolt]]
    """The base class whose hooks this kind of task calls."""
    decodes = True
    """Whether the bolt takes Python values."""
    together = False
    """Whether rows of a frame are executed in one call, or at once."""
    keeps_copies = True
    """Whether a prepared copy may stay: see ``prepared.py``."""
    acks = True
    """Whether the engine acks what did not fail; else the bolt does."""

    def __init__(
        self,
        bolt: Any,  # noqa: ANN401  # each kind of task has its own kind of bolt
        component: Component,
        task: int,
        outputs: Outputs,
        store: StateStore | None,
        *,
        are_questions: bool = False,
        prepared: Prepared | None = None,
    ) -> None:
        """Prepare the task's copy of the bolt.

        Args:
            bolt: The copy, or the exception that unpickling it raised.
            store: The state of this partition; None on a level where nothing is remembered.
            are_questions: Whether an exactly-once bolt is given questions alone. It does not flush.
            prepared: What stayed of the task in the epoch before; ``bolt`` is its copy.
        """
        self.component, self.task, self.outputs = component, task, outputs
        self.plan = outputs.plan
        self.outlets = Outlets(component, outputs.plan)
        self.results = RowResults(component, task, outputs)
        self.observers, self.report = self.results.observers, self.results.error
        self.memory: TaskMemory | None = None
        self.unsavable: BaseException | None = None
        """Why what the bolt remembers must not be saved in this micro-batch."""
        self.broken: BaseException | None = bolt if isinstance(bolt, BaseException) else None
        self.bolt = bolt
        self.are_questions = are_questions
        self.flushes = not are_questions and _overrides(bolt, "flush", self.contract)
        self.seen: list[InboundRows] = []
        """All rows of this micro-batch, if a later hook or the save of the memory may fail them."""
        self.started: list[float] = []
        """When each of ``seen`` was begun, by a stopwatch in seconds."""
        self.left_open: list[InboundRows] = []
        """Rows of this micro-batch of which the bolt has left some open."""
        if prepared is None:
            self.owner: Collector = self.make_collector()
            self.services = task_services(self.plan.worker.resources)
            self.clock = Clock(outputs.clock_ms, outputs.batch_id)
            self.context = self.plan.context(component, task, self.clock, self.services)
        else:
            self.owner = self.take_collector(prepared.collector)
            self.services, self.clock, self.context = prepared.services, prepared.clock, prepared.context
            self.clock.now_ms, self.clock.txid = outputs.clock_ms, outputs.batch_id
        for observer in outputs.observers:
            observer.task_begun(self)
        if self.broken is None:
            self.broken = self.results.raised_in("prepare", lambda: self._begin(store, prepared))
        else:
            self.results.error(self.broken)

    def _begin(self, store: StateStore | None, prepared: Prepared | None) -> None:
        hooks = len(self.observers)
        try:
            if prepared is None:
                self.prepare(self.plan.config, self.context)
        finally:
            self.services.close()
        knows_epoch = prepared is None and self.clock.was_read
        self._is_as_any = not knows_epoch and len(self.observers) == hooks
        if self.component.remembers:
            if store is None:
                raise ProtocolError(
                    f"bolt {self.component.id!r} remembers, and is on a level without state",
                    f"level {self.outputs.level}",
                    "this is a bug in acktree: please report it",
                )
            below = Below(store, f"task/{self.task}/")
            now_ms = self.outputs.clock_ms
            self.memory = TaskMemory(
                self.component.remembers, below, self.owner, late_ms=self.plan.late_ms(now_ms), now_ms=now_ms,
                kept={} if prepared is None else prepared.states,
            )  # fmt: skip
            self.memory.restore(self.bolt)
        if prepared is not None:
            self.guard = prepared.guard
            return
        guard = FlushGuard if _overrides(self.bolt, "flush", self.contract) else Guard
        self.guard = guard(self.bolt, self.component.remembers, self.component.id)

    def tuple_observers(self) -> list[Observer]:
        """The observers that are told of each tuple."""
        return [observer for observer in self.observers if observer.sees_tuples]

    @abstractmethod
    def make_collector(self) -> Collector:
        """Make ``collector``; it is also the name under which this task owns its rows."""

    def take_collector(self, collector: Any) -> Collector:  # noqa: ANN401  # each kind of task has its own
        """Go on with the collector that a prepared copy was given."""
        collector.reopen(self.outlets, self.outputs)
        self.collector = collector
        return self.collector

    def prepare(self, config: Config, context: TaskContext) -> None:
        """Call the bolt's own ``prepare``."""
        self.hook(self.bolt.prepare, config, context)

    @abstractmethod
    def execute(self, frame: Frame, rows: InboundRows) -> None:
        """Run the bolt on every row; afterwards each row's fate is set."""

    def measure(self, rows: InboundRows, spent_ms: float) -> None:
        """Count how long what was acked took from its execute to its ack. All rows took ``spent_ms``."""

    @abstractmethod
    def call_tick(self, rows: InboundRows) -> None:
        """Call the bolt's own ``tick``."""

    @abstractmethod
    def call_flush(self, rows: InboundRows) -> None:
        """Call the bolt's own ``flush``. ``rows`` replace a frame's rows and belong to no message."""

    def call_cleanup(self) -> None:
        """Call the bolt's own ``cleanup``."""
        self.hook(self.bolt.cleanup)

    def hook(self, hook: Callable[..., object], *given: object) -> None:
        """Call one of the bolt's hooks, ``execute`` aside."""
        hook(*given)

    def run(self, frame: Frame) -> None:
        """Execute the tuples of one frame, all of them for this task."""
        if self.broken is not None:
            self._run(frame, (), self.broken)
            return
        monitor = self.outputs.monitor
        all_names = monitor.names_of(frame, self.task, moves=self._is_made_here(frame))
        for part, names, left_out in parts_of(frame, all_names, monitor):
            if left_out is None:
                self._run_marked(part, names)
            else:
                error = left_out_error(left_out, self.component.id)
                self._run(part, (), error)
                self.results.error(error)

    def _is_made_here(self, frame: Frame) -> bool:
        """Whether a bolt of this level made a frame: it may make another one when the level runs again."""
        component = self.plan.topology.components[frame.component]
        return component.kind == "bolt" and self.plan.level_of[component.id] == self.outputs.level

    def readable(self, frame: Frame) -> tuple[Frame, Sequence[Column]]:
        """The frame in the form that the bolt takes, and the values of each field for bolts that take tuples.

        Raises:
            MisuseError: Some value of the frame cannot be given to the bolt.
        """
        return frame, unpickled_columns(frame.values)

    def _read(self, frame: Frame) -> tuple[Frame, Sequence[Column]]:
        """:meth:`readable`. Whatever is raised of a value becomes a MisuseError: the topology goes on."""
        try:
            return self.readable(frame)
        except (AcktreeError, MemoryError):
            raise
        except Exception as cause:
            raise MisuseError(
                f"the values cannot be read: {error_text(cause)}",
                f"columns {frame.values.schema.names}",
                "emit values of other types, or cast the columns before",
            ) from cause

    def _run_marked(self, frame: Frame, names: Names) -> None:
        self._run_by_halves(frame, names)
        self.outputs.monitor.end()

    def _run_by_halves(self, frame: Frame, names: Names) -> None:
        """Run a frame; if some value cannot be given to the bolt, halve it until its tuple fails alone."""
        count = len(frame.lineage)
        self.outputs.monitor.begin(self.component, names, together=self.together)
        try:
            given, columns = self._read(frame)
        except MisuseError as error:
            if count <= 1:
                refused = self._with_place(error, frame)
                self._run(frame, (), refused)
                self.results.error(refused)
                return
        else:
            self._run_part(given, columns, names)
            return
        for start, end in pairwise((0, count // 2, count)):
            self._run_by_halves(frame.rows(np.arange(start, end)), names.part(start, end))

    def _with_place(self, error: MisuseError, frame: Frame) -> MisuseError:
        where = f"tuples of {frame.component!r}, stream {frame.stream!r}, for {self.component.id!r}"
        reported = MisuseError(error.what, ", ".join(filter(None, (error.where, where))), error.fix)
        reported.__cause__ = error
        return reported

    def _run_part(self, frame: Frame, columns: Sequence[Column], names: Names) -> None:  # noqa: ARG002  # marked before
        """Run a frame that can be given to the bolt."""
        self._run(frame, columns, None)

    def _run(self, frame: Frame, columns: Sequence[Column], refused: BaseException | None) -> None:
        if refused is not None and self.tuple_observers():
            columns = _columns_to_show(frame)
        rows = self._account(frame, columns)
        started = perf_counter()
        if refused is None:
            with standing(self.results.place, self.roots_in(rows)):
                self.execute(frame, rows)
            self.outputs.monitor.sending()
        else:
            in_hook = refused is self.broken
            self.results.fail(rows, np.arange(len(rows.lineage)), refused, in_hook=in_hook)
        spent_ms = (perf_counter() - started) * _MS
        if rows.timer is not None:
            rows.timer.note_batch(started, spent_ms)
        self.results.count_executed(rows, spent_ms)
        self.measure(rows, spent_ms)
        self.send(rows)
        self._close(rows)

    def roots_in(self, rows: InboundRows) -> Roots | None:
        """The roots of the row that is being executed, for the log; None where rows are executed together."""
        if self.together:
            return None
        mark = self.outputs.monitor.mark
        return lambda: rows.lineage.roots_of(np.array([mark[0]])).tolist() if mark[0] >= 0 else []

    def _account(self, frame: Frame, columns: Sequence[Column]) -> InboundRows:
        """The account of a frame's rows."""
        stream = self.plan.topology.components[frame.component].streams[frame.stream]
        source = self.plan.topology.components[frame.component].gated or frame.component
        rows = InboundRows(
            source, frame.stream, task_ids=frame.source_tasks, fields=stream.fields, lineage=frame.lineage,
            columns=columns,
        )  # fmt: skip
        rows.owner = self.owner
        if self.are_questions:
            rows.are_questions = True
        for observer in self.observers:
            observer.received(rows, self.component.id, self.task)
        if self.memory is not None or self.flushes:
            self.seen.append(rows)
            self.started.append(perf_counter())
        return rows

    def _close(self, rows: InboundRows) -> None:
        """Called when rows were executed, and what they emitted and acked was sent."""
        if not self.acks and OPEN in rows.fate:
            self.left_open.append(rows)
        self.results.count(rows, "failed", rows.fate.count(FAILED))
        if self.memory is None and not self.flushes:
            for observer in self.observers:
                observer.closed(rows)

    def tick(self, secs: float) -> None:
        """Let the bolt tick; what it emits has no anchor, what it raises is reported."""
        if self.broken is not None:
            return
        rows = InboundRows.of_clock(secs)
        rows.owner = self.owner
        for call in (lambda: self.call_tick(rows), self.guard.check_all):
            self.results.raised_in("tick", call)
        self.send(rows)

    def flush(self) -> None:
        """Let the bolt flush. Then the engine acks what is open; or fails it, if ``flush`` raised."""
        rows = InboundRows.of_clock(0)
        rows.owner = self.owner
        error = self.results.raised_in("flush", lambda: self.call_flush(rows))
        if error is None and isinstance(self.guard, FlushGuard):
            error = self.results.raised_in("flush", self.guard.check_flushed)
        unfit = self.send(rows)
        if error is None and unfit and self.acks:
            error = unfit[0].error
        for given, started in zip(self.seen, self.started, strict=True):
            self._close_flushed(given, error, started)

    def _close_flushed(self, rows: InboundRows, error: BaseException | None, started: float) -> None:
        """Fail or ack what is still open of some rows. ``error``: what ``flush`` raised."""
        still_open = np.flatnonzero(np.frombuffer(rows.fate, dtype=np.uint8) == OPEN)
        if error is not None:
            self.results.fail(rows, still_open, error, in_hook=True)
            self.results.count(rows, "failed", len(still_open))
        elif self.acks:
            ack_open(rows)
            count = len(still_open)
            self.results.count_processed(rows, (perf_counter() - started) * _MS * count, count)
            self.results.report_acked(rows)

    def finish(self) -> None:
        """Flush, save what the bolt remembers, and clean up.

        Raises:
            BaseException: The state store did: then nothing of this micro-batch counts, and it is run again.
        """
        if self.broken is None:
            self._finish()
        for observer in self.observers:
            observer.task_ended(self)
        self.outputs.metrics(self.component.id, self.task, grown_metrics(self.services, self.results.error))

    def _finish(self) -> None:
        if self.flushes:
            self.flush()
        memory = self.memory
        if memory is not None:
            error = self.unsavable or self.results.raised_by(lambda: memory.draft(self.bolt))
            if error is None:
                self._report_forgotten(memory.forgotten(self.left_open))
                memory.commit()
                held = memory.held_count, memory.oldest_held_ms, memory.oldest_open
                self.outputs.held(self.component.id, self.task, *held)
            else:
                self._fail_unsaved(memory, error)
        elif self.left_open:
            self._report_forgotten((rows, open_among(rows)) for rows in self.left_open)
        self.owner.close()
        if self.outputs.stock is not None and self._stays:
            self.outputs.stock[self.component.id, self.task] = Prepared(
                self.bolt,
                self.owner,
                self.context,
                clock=self.clock,
                services=self.services,
                guard=self.guard,
                states={} if memory is None or self.plan.is_exact else memory.staying,
            )
        else:
            self.results.raised_in("cleanup", self.call_cleanup)

    @property
    def _stays(self) -> bool:
        """Whether the copy may be given the tuples of the next epoch: it is as a fresh one would be."""
        is_bound = self.component.exactly_once or _overrides(self.bolt, "flush", self.contract)
        return self.keeps_copies and self._is_as_any and not is_bound and not self.results.has_raised

    def moved_tuples(self) -> Sequence[tuple[InboundRows, int]]:
        """Tuples of earlier micro-batches whose account changed in this one: rows, and which of them."""
        return () if self.memory is None else self.memory.moved_tuples()

    def _report_forgotten(self, left: Iterable[Left]) -> None:
        """Report tuples that can no longer be acked; fail them if the configuration says so."""
        forgotten = [*tracked_among(left)]
        if not forgotten:
            return
        error = forgotten_error(forgotten, self.component.id, self.task)
        self.results.error(error)
        for rows, which in forgotten:
            if self.plan.config.fail_forgotten:
                self.results.fail(rows, np.array(which), error)
                self.results.count(rows, "failed", len(which))
            else:
                self.outputs.forgotten(self.component.id, rows.lineage.roots_of(np.array(which)))

    def _fail_unsaved(self, memory: TaskMemory, error: BaseException) -> None:
        """What the user keeps does not pickle, so the memory stays as it was before this micro-batch.

        All that this micro-batch brought fails. So does a tuple held from an earlier one, if it was acked,
        failed or emitted from: what left cannot be called back, and its account would hand out the same edges
        again.
        """
        for rows in self.seen:
            self.results.count(rows, "failed", len(rows.fate) - rows.fate.count(FAILED))
            self.results.fail(rows, np.arange(len(rows.lineage)), error)
        for rows, row in memory.moved_tuples():
            if rows.fate[row] != FAILED:
                self.results.count(rows, "failed", 1)  # rows of this frame are counted together
            self.results.fail(rows, np.array([row]), error)
        self.results.error(error)

    def send(self, rows: InboundRows) -> Sequence[Unfit]:
        """Route what was emitted over these rows, then report to the acker what was acked.

        Returns:
            What could not be sent; what it was anchored to has failed.
        """
        unfit = self.route_emitted(rows)
        self.results.report_acked(rows)
        return unfit

    def route_emitted(self, rows: InboundRows) -> Sequence[Unfit]:
        """Route what was emitted over these rows.

        Returns:
            What could not be sent; what it was anchored to has failed.
        """
        return self.results.route(*self.collector.take(), rows)

    def check_changes(self, rows: InboundRows, row: int) -> None:
        """Something that is watched may have changed: if it has, the tuple that did it fails."""
        try:
            self.guard.check()
        except MisuseError as error:
            self.results.raised(rows, np.array([row]), error)

    def check_all_changes(self, rows: InboundRows) -> None:
        """After a frame: the same for what is too large to be looked at each time."""
        error = self.results.raised_by(self.guard.check_all)
        if error is not None:
            self.results.raised(rows, np.arange(len(rows.lineage)), error)


def _columns_to_show(frame: Frame) -> Sequence[Column]:
    """The values of a frame that the bolt is not given, for observers; nulls if they cannot be read."""
    try:
        return unpickled_columns(frame.values)
    except MisuseError:
        return [[None] * len(frame.lineage) for _ in frame.values.schema]


def _overrides(bolt: object, hook: str, contract: type[AnyBolt]) -> bool:
    """Whether the class of a bolt has a hook of its own."""
    empty = getattr(contract, hook, None)
    return empty is not None and getattr(type(bolt), hook, empty) is not empty
