"""Calls the user's ``execute``: the three kinds of bolt task (``BasicBolt``, ``Bolt``, ``ArrowBolt``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from sys import getrefcount
from time import perf_counter

import numpy as np
import pyarrow as pa

from acktree.bolt import ArrowBolt, BasicBolt, Bolt
from acktree.config import Config
from acktree.core.data.codes import plain
from acktree.core.data.context import TaskContext
from acktree.core.data.frames import Frame
from acktree.core.data.reading import Column
from acktree.core.data.tuples import Tuple
from acktree.core.data.values import native_batch
from acktree.core.ids import mix64
from acktree.errors import ProtocolError, Unavailable
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.collectors import (
    ArrowCollector,
    BasicCollector,
    Collector,
    HandCollector,
    TimingCollector,
)
from acktree.tasks.bolts.observer import Observer
from acktree.tasks.bolts.outputs.outlets import Unfit
from acktree.tasks.bolts.rows.frame_rows import ACKED, OPEN, InboundRows, ack_open
from acktree.tasks.bolts.task import BoltTask


class BasicBoltTask(BoltTask):
    """Runs a ``BasicBolt``: a row is acked when ``execute`` returns and failed when it raises."""

    collector: BasicCollector
    contract = BasicBolt

    def make_collector(self) -> Collector:
        self.collector = BasicCollector(self.component, self.task, self.outlets, self.outputs)
        return self.collector

    def execute(self, frame: Frame, rows: InboundRows) -> None:  # noqa: ARG002  # the rows have its values
        collector, execute = self.collector, self.bolt.execute
        for observer in self.tuple_observers():
            execute = _observed(execute, observer, rows)
        guard, watches = self.guard, self.guard.watches
        collector.rows = rows
        mark = self.outputs.monitor.mark  # says which row is executed, should its process die
        # One handle serves all rows until user code keeps it: to make one for each took half the time.
        tup = rows.handle(0)
        unshared = getrefcount(tup)
        for row in rows.steps():
            if getrefcount(tup) != unshared:
                tup = rows.handle(row)
            mark[0] = tup._row = collector.row = row  # noqa: SLF001  # its handle of the row before
            try:
                execute(tup, collector)
            except BaseException as error:  # noqa: BLE001  # user code
                pass_on(error)
                self.results.raised(rows, np.array([row]), error)
            if watches and guard.may_have_changed():  # after a raise too: else the next row would fail for it
                self.check_changes(rows, row)
        self.check_all_changes(rows)
        if not self.flushes:
            ack_open(rows)

    def measure(self, rows: InboundRows, spent_ms: float) -> None:
        acked = rows.fate.count(ACKED)  # each when its own execute returned
        self.results.count_processed(rows, spent_ms * acked / len(rows.fate), acked)

    def call_tick(self, rows: InboundRows) -> None:
        self.collector.rows, self.collector.row = rows, -1
        self.hook(self.bolt.tick, rows.handle(0), self.collector)

    def call_flush(self, rows: InboundRows) -> None:
        self.collector.rows, self.collector.row = rows, -1
        self.hook(self.bolt.flush, self.collector)


class HandBoltTask(BoltTask):
    """Runs a ``Bolt``, which acks by hand: only it says what is acked, in this micro-batch or a later one."""

    collector: HandCollector
    contract = Bolt
    acks = False

    def make_collector(self) -> Collector:
        self.collector = self._collector_kind()(self.component, self.task, self.outlets, self.outputs)
        return self.collector

    def take_collector(self, collector: HandCollector) -> Collector:
        collector.__class__ = self._collector_kind()  # the bolt has this very object
        if isinstance(collector, TimingCollector):
            collector.took = defaultdict(list)
        return super().take_collector(collector)

    def _collector_kind(self) -> type[HandCollector]:
        return TimingCollector if self.is_sampled() else HandCollector

    def is_sampled(self) -> bool:
        """Whether this task is timed in this micro-batch: a share of them is, the same when it runs again."""
        drawn = int(mix64(np.array([self.outputs.clock_ms], dtype=np.uint64) + np.uint64(self.task))[0])
        return drawn < self.plan.config.stats_sample_rate * 2.0**64

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.hook(self.bolt.prepare, config, context, self.collector)

    def execute(self, frame: Frame, rows: InboundRows) -> None:  # noqa: ARG002  # the rows have its values
        execute, guard, watches = self.bolt.execute, self.guard, self.guard.watches
        if isinstance(self.collector, TimingCollector):
            execute = _timed(execute, rows)
        for observer in self.tuple_observers():
            execute = _observed(execute, observer, rows)
        rows.came_ms = self.outputs.clock_ms
        mark = self.outputs.monitor.mark  # says which row is executed, should its process die
        self.collector.rows = rows
        tup = rows.handle(0)  # for all rows, as above; a bolt that holds tuples gets new ones
        unshared = getrefcount(tup)
        for row in rows.steps():
            if getrefcount(tup) != unshared:
                tup = rows.handle(row)
            mark[0] = tup._row = row  # noqa: SLF001
            try:
                execute(tup)
            except BaseException as error:  # noqa: BLE001  # user code
                pass_on(error)
                self.results.raised(rows, np.array([row]), error)
            if watches and guard.may_have_changed():  # after a raise too: else the next row would fail for it
                self.check_changes(rows, row)
        self.check_all_changes(rows)

    def call_tick(self, rows: InboundRows) -> None:
        self.collector.rows = rows
        self.hook(self.bolt.tick, rows.handle(0))

    def call_flush(self, rows: InboundRows) -> None:
        self.collector.rows = rows
        self.hook(self.bolt.flush, self.collector)

    def send(self, rows: InboundRows) -> Sequence[Unfit]:
        unfit = super().send(rows)
        self.report_elsewhere()
        return unfit

    def report_elsewhere(self) -> None:
        """Tell the acker what was acked of other frames, and count how long acks took."""
        elsewhere = list(self.collector.elsewhere.values())
        self.collector.elsewhere.clear()
        for others in elsewhere:
            self.results.report_acked(others)
        if isinstance(self.collector, TimingCollector):
            for acked, took_ms in self.collector.took.items():
                self.results.count_processed(acked, sum(took_ms), len(took_ms))
            self.collector.took.clear()


class ArrowBoltTask(BoltTask):
    """Runs an ``ArrowBolt``: a batch at a time, and an exception fails the batch."""

    collector: ArrowCollector
    contract = ArrowBolt
    decodes = False
    together = True

    def make_collector(self) -> Collector:
        self.collector = ArrowCollector(self.component, self.task, self.outlets, self.outputs)
        return self.collector

    def readable(self, frame: Frame) -> tuple[Frame, Sequence[Column]]:
        return replace(frame, values=native_batch(plain(frame.values))), ()

    def execute(self, frame: Frame, rows: InboundRows) -> None:
        collector, count = self.collector, len(rows.lineage)
        collector.row_count, collector.failed = count, {}
        began = perf_counter()
        for call in (lambda: self._execute_batch(frame.values), self.guard.check_all):
            error = self.results.raised_by(call)
            if error is not None:
                self.results.raised(rows, np.arange(count), error)
        spent_ms = (perf_counter() - began) * 1000
        for observer in self.observers:
            observer.executed_batch(rows, frame.values, spent_ms)
        by_reason: dict[str, list[int]] = {}
        for row, reason in collector.failed.items():
            if rows.fate[row] == OPEN:
                by_reason.setdefault(reason, []).append(row)
        for reason, which in by_reason.items():
            self.results.fail(rows, np.array(sorted(which)), None, reason)
        if not self.flushes:
            ack_open(rows)

    def measure(self, rows: InboundRows, spent_ms: float) -> None:
        acked = rows.fate.count(ACKED)  # all when the batch was through
        self.results.count_processed(rows, spent_ms * acked, acked)

    def _execute_batch(self, values: pa.RecordBatch) -> None:
        returned = self.bolt.execute_batch(values, self.collector)
        if isinstance(returned, Unavailable):
            raise returned

    def call_tick(self, rows: InboundRows) -> None:
        raise ProtocolError(
            f"a tick of {rows.values[0]} for ArrowBolt {self.component.id!r}, which has none",
            "create_topology() refuses tick_secs there",
            "this is a bug in acktree: please report it",
        )

    def call_flush(self, rows: InboundRows) -> None:  # noqa: ARG002  # nothing emitted here has a parent
        self.collector.row_count, self.collector.failed = 0, {}
        self.hook(self.bolt.flush, self.collector)


def _observed(execute: Callable[..., None], observer: Observer, rows: InboundRows) -> Callable[..., None]:
    """``execute``; an observer is called after each call has returned or raised."""

    def executed(tup: Tuple, *given: object) -> None:
        row, began = tup._row, perf_counter()  # noqa: SLF001
        try:
            execute(tup, *given)
        finally:
            observer.executed(rows, row, (perf_counter() - began) * 1000)

    return executed


def _timed(execute: Callable[[Tuple], None], rows: InboundRows) -> Callable[[Tuple], None]:
    """``execute``, noting when each row began."""
    began = rows.began

    def noting(tup: Tuple) -> None:
        began[tup._row] = perf_counter()  # noqa: SLF001
        execute(tup)

    return noting
