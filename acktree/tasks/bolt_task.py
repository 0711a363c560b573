"""One bolt task in one micro-batch: its copy of the user's bolt, fed with frames.

Rules of this file
------------------
1. User code is only called here (bolts) and in ``spout_task`` (spouts), and whatever it raises is data: the
   tuples at hand fail with it, the others go on.
2. What was emitted, acked or remembered before an exception stands; FAILED wins over an ack before it.
3. A copy lives for one micro-batch: unpickle, prepare, restore memory, execute, save memory, cleanup.

Source: Storm's ``executor/bolt/BoltExecutor`` and ``topology/BasicBoltExecutor``.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from time import perf_counter
from typing import Any, Final

import numpy as np

from acktree.bolt import ArrowBolt, BasicBolt
from acktree.core.frames import Frame
from acktree.core.state import Below, StateStore
from acktree.core.tuples import Tuple
from acktree.core.values import native_batch
from acktree.core.verdicts import FailureCause
from acktree.errors import MisuseError
from acktree.tasks.collectors import ArrowCollector, BasicCollector, HandCollector, Outlets
from acktree.tasks.guard import Guard
from acktree.tasks.memory import TaskMemory
from acktree.tasks.outputs import Outputs, failure_of
from acktree.tasks.router import Emission, Router
from acktree.tasks.rows import ACKED, FAILED, OPEN, InboundRows
from acktree.topology.model import Component

_MS: Final = 1000.0


class BoltTask(ABC):
    """What all kinds of bolt have in common."""

    decodes = True
    """Whether the bolt takes Python values."""

    def __init__(
        self, bolt: Any, component: Component, task: int, outputs: Outputs, store: StateStore | None
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
        self.broken: Exception | None = None
        self.bolt = bolt
        self._seen: list[InboundRows] = []
        try:
            if isinstance(bolt, Exception):
                raise bolt
            self.prepare(self.plan.config, self.plan.context(component, task))
            if component.remembers:
                assert store is not None, "a remembering bolt opens a level with state"
                self.memory = TaskMemory(component.remembers, Below(store, f"task/{task}/"))
                self.memory.restore(self.bolt)
            self.guard = Guard(self.bolt, component.remembers, component.id)
        except Exception as error:  # noqa: BLE001  # user code: every tuple of this task fails with it
            self.broken = error
            self._report(error)

    @abstractmethod
    def prepare(self, config: Any, context: Any) -> None:
        """Call the bolt's own ``prepare``."""

    @abstractmethod
    def execute(self, frame: Frame, rows: InboundRows) -> None:
        """Run the bolt on every row; afterwards each row's fate is set."""

    @abstractmethod
    def call_tick(self, rows: InboundRows) -> None:
        """Call the bolt's own ``tick``."""

    def run(self, frame: Frame) -> None:
        """Execute the tuples of one frame, all of them for this task."""
        stream = self.plan.topology.components[frame.component].streams[frame.stream]
        decode = self.decodes and self.broken is None
        rows = InboundRows.of_frame(frame, stream.fields, decode=decode)
        count, source = len(rows.lineage), f"{frame.component}:{frame.stream}"
        if self.memory is not None:
            self._seen.append(rows)
        started = perf_counter()
        if self.broken is None:
            self.execute(frame, rows)
        else:
            self.fail_rows(rows, np.arange(count), self.broken)
        counters, name = self.outputs.counters, self.component.id
        counters.add(name, self.task, source, "executed", count)
        counters.add_latency(name, self.task, source, "execute_ms", (perf_counter() - started) * _MS, count)
        self.send(rows)
        counters.add(name, self.task, source, "failed", rows.fate.count(FAILED))

    def tick(self, secs: float) -> None:
        """Let the bolt tick; what it emits hangs on nothing, what it raises is reported."""
        if self.broken is not None:
            return
        rows = InboundRows.of_clock(secs)
        try:
            self.call_tick(rows)
            self.guard.check()
        except Exception as error:  # noqa: BLE001  # user code
            self._report(error)
        rows.fate[0] = OPEN  # to ack a tick is harmless
        self.send(rows)

    def finish(self) -> None:
        """Save what is remembered and let go of the bolt."""
        if self.broken is not None:
            return
        try:
            if self.memory is not None:
                self.memory.save(self.bolt)
        except Exception as error:  # noqa: BLE001  # what the user keeps will not pickle
            for rows in self._seen:
                self.fail_rows(rows, np.arange(len(rows.lineage)), error)
            self._report(error)
        try:
            self.bolt.cleanup()
        except Exception as error:  # noqa: BLE001  # user code
            self._report(error)

    def emissions(self) -> list[Emission]:
        """What was emitted since last asked."""
        return self.outlets.take()

    def send(self, rows: InboundRows) -> None:
        """Route what was emitted over these rows, then tell the acker what was acked."""
        for emission in self.emissions():
            refused = self.router.route(emission, rows)
            for emitted, error in refused.items():
                self._refuse(emission, emitted, error, rows)
        self.report_acked(rows)

    def report_acked(self, rows: InboundRows) -> None:
        """Tell the acker which rows were acked since it was told last."""
        acked = rows.fate.count(ACKED)
        if acked and rows.component != "__system":
            source = f"{rows.component}:{rows.stream}"
            self.outputs.counters.add(self.component.id, self.task, source, "acked", acked)
        deltas = rows.newly_acked()
        if deltas is not None:
            self.outputs.ack(*deltas)

    def fail_rows(
        self, rows: InboundRows, which: np.ndarray[Any, Any], error: Exception | None, reason: str = ""
    ) -> None:
        """Fail rows, all for one reason, whatever was said of them before."""
        for row in which.tolist():
            rows.fate[row] = FAILED
        cause = FailureCause.EXCEPTION
        if error is None:
            cause = FailureCause.FAILED_BY_BOLT
        elif isinstance(error, MisuseError):
            cause = FailureCause.MISUSE
        self.outputs.fail(rows.lineage.roots_of(which), failure_of(error, self.component.id, reason, cause))

    def _refuse(self, emission: Emission, emitted: int, error: Exception, rows: InboundRows) -> None:
        """A custom grouping raised on an emitted tuple: what it hangs on fails."""
        for anchor in emission.joins.get(emitted, ()):
            anchored: InboundRows = anchor._rows  # type: ignore[assignment]  # noqa: SLF001  # the engine's own rows
            self.fail_rows(anchored, np.array([anchor._row]), error)  # noqa: SLF001
        parent = int(emission.parents[emitted])
        if parent >= 0:
            self.fail_rows(rows, np.array([parent]), error)
        self._report(error)

    def _report(self, error: Exception) -> None:
        self.outputs.error(self.component.id, self.task, failure_of(error, self.component.id))


class BasicBoltTask(BoltTask):
    """Runs a ``BasicBolt``: a row is acked when ``execute`` returns and failed when it raises."""

    def prepare(self, config: Any, context: Any) -> None:
        self.collector = BasicCollector(self.component, self.task, self.outlets, self.outputs)
        self.bolt.prepare(config, context)

    def execute(self, frame: Frame, rows: InboundRows) -> None:
        collector, execute, guard = self.collector, self.bolt.execute, self.guard
        collector.rows = rows
        for row, values in enumerate(rows.values):
            collector.row = row
            try:
                execute(Tuple(values, rows, row), collector)
                if guard.watches:
                    guard.check()
            except Exception as error:  # noqa: BLE001  # user code
                self.fail_rows(rows, np.array([row]), error)
                self._report(error)
        if guard.watches:
            try:
                guard.check_all()
            except MisuseError as error:
                self.fail_rows(rows, np.arange(len(rows.values)), error)
        _ack_the_rest(rows)

    def call_tick(self, rows: InboundRows) -> None:
        self.collector.rows, self.collector.row = rows, -1
        self.bolt.tick(rows.tuple(0), self.collector)


class HandBoltTask(BoltTask):
    """Runs a ``Bolt``: only it says what is acked, in this micro-batch or a later one."""

    def prepare(self, config: Any, context: Any) -> None:
        self.collector = HandCollector(self.component, self.task, self.outlets, self.outputs)
        self.bolt.prepare(config, context, self.collector)

    def execute(self, frame: Frame, rows: InboundRows) -> None:
        execute, guard = self.bolt.execute, self.guard
        self.collector.rows = rows
        for row, values in enumerate(rows.values):
            try:
                execute(Tuple(values, rows, row))
                if guard.watches:
                    guard.check()
            except Exception as error:  # noqa: BLE001  # user code
                self.fail_rows(rows, np.array([row]), error)
                self._report(error)
        if guard.watches:
            try:
                guard.check_all()
            except MisuseError as error:
                self.fail_rows(rows, np.arange(len(rows.values)), error)

    def call_tick(self, rows: InboundRows) -> None:
        self.collector.rows = rows
        self.bolt.tick(rows.tuple(0))

    def send(self, rows: InboundRows) -> None:
        super().send(rows)
        for elsewhere in self.collector.elsewhere.values():
            self.report_acked(elsewhere)
        self.collector.elsewhere.clear()


class ArrowBoltTask(BoltTask):
    """Runs an ``ArrowBolt``: a batch at a time, and an exception fails the batch."""

    decodes = False

    def prepare(self, config: Any, context: Any) -> None:
        self.collector = ArrowCollector(self.component, self.task, self.outlets, self.outputs)
        self.bolt.prepare(config, context)

    def execute(self, frame: Frame, rows: InboundRows) -> None:
        collector, count = self.collector, len(rows.lineage)
        collector.row_count, collector.failed = count, {}
        try:
            self.bolt.execute_batch(native_batch(frame.values), collector)
            self.guard.check_all()
        except Exception as error:  # noqa: BLE001  # user code
            self.fail_rows(rows, np.arange(count), error)
            self._report(error)
        by_reason: dict[str, list[int]] = {}
        for row, reason in collector.failed.items():
            if rows.fate[row] == OPEN:
                by_reason.setdefault(reason, []).append(row)
        for reason, which in by_reason.items():
            self.fail_rows(rows, np.array(sorted(which)), None, reason)
        _ack_the_rest(rows)

    def call_tick(self, rows: InboundRows) -> None:
        raise AssertionError("create_topology() refuses tick_secs on an ArrowBolt")

    def emissions(self) -> list[Emission]:
        emissions, self.collector.emissions = self.collector.emissions, []
        return emissions


def bolt_task(component: Component, task: int, outputs: Outputs, store: StateStore | None) -> BoltTask:
    """The task of a bolt, of the kind that the bolt is."""
    try:
        bolt = pickle.loads(outputs.plan.pickles[component.id])
    except Exception as error:  # noqa: BLE001  # what it needs cannot be imported here: its tuples fail with that
        bolt = error
    kind: type[BoltTask] = HandBoltTask
    if isinstance(bolt, ArrowBolt):
        kind = ArrowBoltTask
    elif isinstance(bolt, BasicBolt):
        kind = BasicBoltTask
    return kind(bolt, component, task, outputs, store)


def _ack_the_rest(rows: InboundRows) -> None:
    fate = np.frombuffer(rows.fate, dtype=np.uint8)
    fate[fate == OPEN] = ACKED
