"""One bolt task in one micro-batch: its copy of the user's bolt, fed with frames.

Rules of this file
------------------
1. User code is only called here (bolts) and in ``tasks/spouts`` (spouts), and whatever it raises is data: the
   tuples at hand fail with it, the others go on.
2. What was emitted, acked or remembered before an exception is kept; FAILED wins over an ack before it.
3. A copy lives for one micro-batch: unpickle, prepare, restore memory, execute, flush, save memory, cleanup.
4. The engine acks rows after ``flush`` where the bolt overrides it, and otherwise after ``execute``.

Source: Storm's ``executor/bolt/BoltExecutor`` and ``topology/BasicBoltExecutor``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from acktree.bolt import AnyBolt
from acktree.config import Config
from acktree.core.data.context import Clock, TaskContext
from acktree.core.data.frames import Frame
from acktree.core.data.hooks import TaskHook
from acktree.core.data.reading import Column
from acktree.core.data.values import unpickled_columns
from acktree.core.ids import Int64s
from acktree.core.state.store import Below, StateStore
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import (
    AcktreeError,
    BoltError,
    ExecuteTimeoutError,
    KilledWorkerError,
    MisuseError,
    ProtocolError,
)
from acktree.tasks.bolts.forgotten import Left, error_of, tracked_among
from acktree.tasks.bolts.guard import FlushGuard, Guard
from acktree.tasks.bolts.memory import TaskMemory
from acktree.tasks.bolts.outlets import Outlets, Unfit
from acktree.tasks.bolts.outputs import Outputs
from acktree.tasks.bolts.pieces import pieces_of
from acktree.tasks.bolts.router import Emission, Router
from acktree.tasks.bolts.row_names import Names
from acktree.tasks.bolts.rows import ACKED, FAILED, OPEN, InboundRows, account_of, ack_open, open_among
from acktree.tasks.bolts.tracing import note_reason
from acktree.tasks.bolts.watch import BoltWatch, columns_to_show, watch_of
from acktree.tasks.failures import failure_of
from acktree.tasks.own_metrics import grown_metrics, task_services
from acktree.texts import error_text
from acktree.topology.model import Component

_MS: Final = 1000.0
KILLERS: Final[Mapping[FailureCause, type[AcktreeError]]] = {
    FailureCause.KILLED_WORKER: KilledWorkerError,
    FailureCause.HUNG: ExecuteTimeoutError,
}
"""What a tuple fails with that is not executed any more."""
_MEND: Final = "run the bolt on this tuple alone, outside of Spark, to see what it does"


class Collector(Protocol):
    """What the engine asks of any kind of collector."""

    def close(self) -> None:
        """Refuse from now on whatever user code says."""


class BoltTask(ABC):
    """What all kinds of bolt have in common."""

    contract: ClassVar[type[AnyBolt]]
    """The base class whose hooks this kind of task calls."""
    decodes = True
    """Whether the bolt takes Python values."""
    together = False
    """Whether rows of a frame are executed in one call, or at once."""
    acks = True
    """Whether the engine acks what did not fail; else the bolt does."""

    def __init__(
        self,
        bolt: Any,  # noqa: ANN401  # it quacks as its kind does, which the kinds of task know
        component: Component,
        task: int,
        outputs: Outputs,
        store: StateStore | None,
    ) -> None:
        """Prepare the task's copy of the bolt.

        Args:
            bolt: The copy, or the exception that unpickling it raised.
            store: The state of this partition; None on a level where nothing is remembered.
        """
        self.component, self.task, self.outputs = component, task, outputs
        self.plan = outputs.plan
        self.outlets = Outlets(component, outputs.plan)
        self.router = Router(component, task, outputs)
        self.memory: TaskMemory | None = None
        self.unsavable: Exception | None = None
        """Why what the bolt remembers must not be saved in this micro-batch."""
        self.broken: Exception | None = bolt if isinstance(bolt, Exception) else None
        self.bolt = bolt
        self.flushes = _overrides(bolt, "flush", self.contract)
        self.seen: list[InboundRows] = []
        """All rows of this micro-batch, if a later hook or the save of the memory may fail them."""
        self.started: list[float] = []
        """When each of ``seen`` was begun, by a stopwatch in seconds."""
        self.left_open: list[InboundRows] = []
        """Rows of this micro-batch of which the bolt has left some open."""
        self.owner: Collector = self.make_collector()
        self.services = task_services(self.plan.worker.resources)
        clock = Clock(outputs.clock_ms)
        self.context = self.plan.context(component, task, clock, self.services)
        self.watch: BoltWatch | None = watch_of(self.plan, self.context, self._report, acks=self.acks)
        """Calls task hooks; None without hooks."""
        if self.broken is None:
            self.broken = self._raised_in("prepare", lambda: self._begin(store))
        else:
            self._report(self.broken)

    def _begin(self, store: StateStore | None) -> None:
        self.services.add_hook = self._add_hook
        try:
            self.prepare(self.plan.config, self.context)
        finally:
            self.services.close()
        if self.component.remembers:
            if store is None:
                raise ProtocolError(
                    f"bolt {self.component.id!r} remembers, and is on a level without state",
                    f"level {self.outputs.level}",
                    "this is a bug in acktree: please report it",
                )
            corner = Below(store, f"task/{self.task}/")
            self.memory = TaskMemory(self.component.remembers, corner, self.owner)
            self.memory.restore(self.bolt)
        guard = FlushGuard if self.flushes else Guard
        self.guard = guard(self.bolt, self.component.remembers, self.component.id)

    def _add_hook(self, hook: TaskHook) -> None:
        if self.watch is None:
            self.watch = BoltWatch(self.plan, self.context, self._report, acks=self.acks)
        self.watch.add(hook)

    @abstractmethod
    def make_collector(self) -> Collector:
        """Make the collector; it is also the name under which this task owns its rows."""

    @abstractmethod
    def prepare(self, config: Config, context: TaskContext) -> None:
        """Call the bolt's own ``prepare``."""

    @abstractmethod
    def execute(self, frame: Frame, rows: InboundRows) -> None:
        """Run the bolt on every row; afterwards each row's fate is set."""

    def measure(self, rows: InboundRows, spent_ms: float) -> None:
        """Count how long what was acked took from its execute to its ack. All rows took ``spent_ms``."""

    def count_processed(self, rows: InboundRows, total_ms: float, acked: int) -> None:
        """Count tuples of a stream that were processed, and the time that they took together."""
        if rows.component != "__system":
            source = f"{rows.component}:{rows.stream}"
            counters = self.outputs.counters
            counters.add_latency(self.component.id, self.task, source, "process_ms", total_ms, acked)

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
        monitor, count = self.outputs.monitor, len(frame.lineage)
        names = monitor.names_of(frame, self.task, moves=self._is_made_here(frame))
        left_out = {left.row: left for left in monitor.left_out(names)}
        borders = {0, count, *monitor.cuts(names)}
        for row in left_out:
            borders |= {row, row + 1}
        for start, end in pairwise(sorted(borders)):
            part = frame if end - start == count else frame.rows(np.arange(start, end))
            left = left_out.get(start)
            if left is None:
                self._run_marked(part, names.part(start, end))
            else:
                error = KILLERS[left.cause](left.reason, f"bolt {self.component.id!r}", _MEND)
                self._run(part, (), error)
                self._report(error)

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

    def _run_marked(self, frame: Frame, names: Names) -> None:
        self._run_by_halves(frame, names)
        self.outputs.monitor.end()

    def _run_by_halves(self, frame: Frame, names: Names) -> None:
        """Run a frame; if some value cannot be given to the bolt, halve it until its tuple fails alone."""
        count = len(frame.lineage)
        self.outputs.monitor.begin(self.component, names, together=self.together)
        try:
            given, columns = self.readable(frame)
        except MisuseError as error:
            if count <= 1:
                refused = self._with_place(error, frame)
                self._run(frame, (), refused)
                self._report(refused)
                return
        else:
            self._run_part(given, columns, names)
            return
        for start, end in pairwise((0, count // 2, count)):
            self._run_by_halves(frame.rows(np.arange(start, end)), names.part(start, end))

    def _with_place(self, error: MisuseError, frame: Frame) -> MisuseError:
        where = f"tuples of {frame.component!r}, stream {frame.stream!r}, for {self.component.id!r}"
        reported = MisuseError(error.what, f"{error.where}, {where}", error.fix)
        reported.__cause__ = error
        return reported

    def _run_part(self, frame: Frame, columns: Sequence[Column], names: Names) -> None:  # noqa: ARG002  # marked before
        """Run a frame that can be given to the bolt."""
        self._run(frame, columns, None)

    def _run(self, frame: Frame, columns: Sequence[Column], refused: Exception | None) -> None:
        if refused is not None and self.watch is not None:
            columns = columns_to_show(frame)
        rows = self._account(frame, columns)
        started = perf_counter()
        if refused is None:
            self.execute(frame, rows)
            self.outputs.monitor.sending()
        else:
            self.fail_rows(rows, np.arange(len(rows.lineage)), refused)
        spent_ms = (perf_counter() - started) * _MS
        if rows.traced is not None:
            rows.traced.note_batch(started, spent_ms)
        self._count_executed(rows, spent_ms)
        self.measure(rows, spent_ms)
        self.send(rows)
        self._close(rows)

    def _account(self, frame: Frame, columns: Sequence[Column]) -> InboundRows:
        """The account of a frame's rows."""
        stream = self.plan.topology.components[frame.component].streams[frame.stream]
        rows = InboundRows(
            frame.component, frame.stream, frame.source_tasks, stream.fields, frame.lineage, columns
        )
        rows.owner = self.owner
        self.outputs.tracer.watch(rows, self.component.id, self.task)
        if self.memory is not None or self.flushes:
            self.seen.append(rows)
            self.started.append(perf_counter())
        return rows

    def _count_executed(self, rows: InboundRows, spent_ms: float) -> None:
        counters, count, source = self.outputs.counters, len(rows.lineage), f"{rows.component}:{rows.stream}"
        counters.add(self.component.id, self.task, source, "executed", count)
        counters.add_latency(self.component.id, self.task, source, "execute_ms", spent_ms, count)

    def _close(self, rows: InboundRows) -> None:
        """Called when rows were executed, and what they emitted and acked was sent."""
        if not self.acks and OPEN in rows.fate:
            self.left_open.append(rows)
        source = f"{rows.component}:{rows.stream}"
        self.outputs.counters.add(self.component.id, self.task, source, "failed", rows.fate.count(FAILED))
        if self.watch is not None and self.memory is None and not self.flushes:
            self.watch.forget(rows)

    def tick(self, secs: float) -> None:
        """Let the bolt tick; what it emits hangs on nothing, what it raises is reported."""
        if self.broken is not None:
            return
        rows = InboundRows.of_clock(secs)
        rows.owner = self.owner
        for call in (lambda: self.call_tick(rows), self.guard.check_all):
            self._raised_in("tick", call)
        self.send(rows)

    def flush(self) -> None:
        """Let the bolt flush. Then the engine acks what is open; or fails it, if ``flush`` raised."""
        rows = InboundRows.of_clock(0)
        rows.owner = self.owner
        error = self._raised_in("flush", lambda: self.call_flush(rows))
        if error is None and isinstance(self.guard, FlushGuard):
            error = self._raised_in("flush", self.guard.check_flushed)
        unfit = self.send(rows)
        if error is None and unfit and self.acks:
            error = unfit[0].error
        for given, started in zip(self.seen, self.started, strict=True):
            self._settle_flushed(given, error, started)

    def _settle_flushed(self, rows: InboundRows, error: Exception | None, started: float) -> None:
        """Fail or ack what is still open of some rows. ``error``: what ``flush`` raised."""
        still_open = np.flatnonzero(np.frombuffer(rows.fate, dtype=np.uint8) == OPEN)
        if error is not None:
            self.fail_rows(rows, still_open, error)
            source = f"{rows.component}:{rows.stream}"
            self.outputs.counters.add(self.component.id, self.task, source, "failed", len(still_open))
        elif self.acks:
            ack_open(rows)
            self.count_processed(rows, (perf_counter() - started) * _MS * len(still_open), len(still_open))
            self.report_acked(rows)

    def finish(self) -> None:
        """Flush, save what is remembered and let go of the bolt.

        Raises:
            BaseException: The state store did: then nothing of this micro-batch counts, and it is run again.
        """
        if self.broken is None:
            self._finish()
        if self.watch is not None:
            self.watch.end()
        self.outputs.metrics(self.component.id, self.task, grown_metrics(self.services, self._report))

    def _finish(self) -> None:
        if self.flushes:
            self.flush()
        memory = self.memory
        if memory is not None:
            error = self.unsavable or self._raised_by(lambda: memory.draft(self.bolt))
            if error is None:
                self._report_forgotten(memory.forgotten(self.left_open))
                memory.commit()
            else:
                self._fail_unsaved(memory, error)
        elif self.left_open:
            self._report_forgotten((rows, open_among(rows)) for rows in self.left_open)
        self.owner.close()
        self._raised_in("cleanup", self.call_cleanup)

    def moved_tuples(self) -> Sequence[tuple[InboundRows, int]]:
        """Tuples of earlier micro-batches whose account changed in this one: rows, and which of them."""
        return () if self.memory is None else self.memory.moved_tuples()

    def _report_forgotten(self, left: Iterable[Left]) -> None:
        """Report tuples that nobody can ack any more; fail them if the configuration says so."""
        forgotten = [*tracked_among(left)]
        if not forgotten:
            return
        error = error_of(forgotten, self.component.id, self.task)
        self._report(error)
        for rows, which in forgotten:
            if self.plan.config.fail_forgotten:
                self.fail_rows(rows, np.array(which), error)
                source = f"{rows.component}:{rows.stream}"
                self.outputs.counters.add(self.component.id, self.task, source, "failed", len(which))
            else:
                self.outputs.forgotten(self.component.id, rows.lineage.roots_of(np.array(which)))

    def _fail_unsaved(self, memory: TaskMemory, error: Exception) -> None:
        """What the user keeps does not pickle, so the memory stays as it was before this micro-batch.

        All that this micro-batch brought fails. So does a tuple held from an earlier one, if it was acked,
        failed or emitted from: what left cannot be called back, and its account would hand out the same edges
        again.
        """
        for rows in self.seen:
            self.fail_rows(rows, np.arange(len(rows.lineage)), error)
        for rows, row in memory.moved_tuples():
            if rows.fate[row] != FAILED:
                self._count_failed_elsewhere(rows)
            self.fail_rows(rows, np.array([row]), error)
        self._report(error)

    def _count_failed_elsewhere(self, rows: InboundRows) -> None:
        """Count one failed tuple of other rows than those at hand, whose failures are counted together."""
        source = f"{rows.component}:{rows.stream}"
        self.outputs.counters.add(self.component.id, self.task, source, "failed", 1)

    @abstractmethod
    def emissions(self) -> tuple[list[Emission], list[Unfit]]:
        """What was emitted since last asked, and what of it cannot travel."""

    def send(self, rows: InboundRows) -> Sequence[Unfit]:
        """Route what was emitted over these rows, then report to the acker what was acked.

        Returns:
            What could not be sent; what it was anchored to has failed.
        """
        unfit = self.route_emitted(rows)
        self.report_acked(rows)
        return unfit

    def route_emitted(self, rows: InboundRows) -> Sequence[Unfit]:
        """Route what was emitted over these rows, before any of them is reported as acked.

        Returns:
            What could not be sent; what it was anchored to has failed.
        """
        emissions, unfit = self.emissions()
        for emission in (piece for each in emissions for piece in pieces_of(each)):
            chosen = None if self.watch is None else self.watch.chosen
            for emitted, error in self.router.route(emission, rows, chosen).items():
                anchors = emission.joins.get(emitted, ())
                unfit.append(Unfit(int(emission.parents[emitted]), anchors, error))
            if self.watch is not None:
                self.watch.emitted(emission, is_batch=not self.decodes)
        for refused in unfit:
            self._refuse(refused, rows)
        return unfit

    def report_acked(self, rows: InboundRows) -> None:
        """Report to the acker which rows were acked since the last report."""
        if self.watch is not None:
            self.watch.report(rows)
        acked = rows.fate.count(ACKED)
        if acked and rows.component != "__system":
            source = f"{rows.component}:{rows.stream}"
            self.outputs.counters.add(self.component.id, self.task, source, "acked", acked)
        deltas = rows.newly_acked()
        if deltas is not None:
            self.outputs.ack(*deltas)

    def fail_rows(self, rows: InboundRows, which: Int64s, error: Exception | None, reason: str = "") -> None:
        """Fail rows, all for one reason, whatever was said of them before."""
        if self.watch is not None:
            self.watch.note(rows)
        for row in which.tolist():
            rows.fate[row] = FAILED
        failure = failure_of(error, self.component.id, reason)
        note_reason(rows, which.tolist(), failure)
        self.outputs.fail(rows.lineage.roots_of(which), failure)

    def blame(self, rows: InboundRows, row: int) -> None:
        """Something that is watched may have changed: if it has, the tuple that did it fails."""
        try:
            self.guard.check()
        except MisuseError as error:
            self.raised(rows, np.array([row]), error)

    def watch_all(self, rows: InboundRows) -> None:
        """After a frame: the same for what is too large to be looked at each time."""
        error = self._raised_by(self.guard.check_all)
        if error is not None:
            self.raised(rows, np.arange(len(rows.lineage)), error)

    def raised(self, rows: InboundRows, which: Int64s, error: Exception) -> None:
        """User code raised over these rows: they fail, and it is reported."""
        self.fail_rows(rows, which, error)
        self._report(error)

    def _refuse(self, unfit: Unfit, rows: InboundRows) -> None:
        """An emitted tuple cannot be delivered: what it hangs on fails."""
        for anchor in unfit.anchors:
            anchored, row = account_of(anchor)
            if anchored is not rows and anchored.fate[row] != FAILED and not anchor.is_tick:
                self._count_failed_elsewhere(anchored)
            self.fail_rows(anchored, np.array([row]), unfit.error)
        if unfit.parent >= 0:
            self.fail_rows(rows, np.array([unfit.parent]), unfit.error)
        self._report(unfit.error)

    def _raised_in(self, hook: str, call: Callable[[], None]) -> Exception | None:
        """What a hook raised that has no tuple to blame; reported with the hook's name."""
        self.outputs.monitor.enter(self.component, hook)
        error = self._raised_by(call)
        self.outputs.monitor.end()
        if error is None or isinstance(error, AcktreeError):  # ours say where already
            reported = error
        else:
            reported = BoltError(
                f"bolt {self.component.id!r} raised in {hook}(): {error_text(error)}",
                f"task {self.task}",
                "mend what the exception says; the topology goes on, and the hook is called again",
            )
            reported.__cause__ = error
        if reported is not None:
            self._report(reported)
        return error

    def _raised_by(self, call: Callable[[], None]) -> Exception | None:
        try:
            call()
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  # user code
            return error
        return None

    def _report(self, error: Exception) -> None:
        self.outputs.error(self.component.id, self.task, failure_of(error, self.component.id))


def _overrides(bolt: object, hook: str, contract: type[AnyBolt]) -> bool:
    """Whether the class of a bolt has a hook of its own."""
    empty = getattr(contract, hook)
    return getattr(type(bolt), hook, empty) is not empty
