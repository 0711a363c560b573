"""Tasks of concurrent bolts: ``async def execute``, or ``execute`` on threads.

They differ from sequential tasks in one thing: rows are executed at once, and what they asked for is carried
out afterwards in the order of the rows. See ``calls.py`` for the rule, ``concurrency.py`` for the execution.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from acktree.core.data.frames import Frame
from acktree.core.data.reading import Column
from acktree.core.state.store import StateStore
from acktree.errors import MisuseError
from acktree.logs.log_lines import Place
from acktree.tasks.bolts.collectors import Collector
from acktree.tasks.bolts.concurrent.calls import (
    Call,
    LentCollector,
    RecordingCollector,
    RecordingHandCollector,
    Unit,
    current_call,
)
from acktree.tasks.bolts.concurrent.concurrency import run_calls
from acktree.tasks.bolts.concurrent.event_loop import ThreadCall, host
from acktree.tasks.bolts.concurrent.steps import awaited, call_hook
from acktree.tasks.bolts.concurrent.turns import Turns
from acktree.tasks.bolts.kinds import BasicBoltTask, HandBoltTask
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.rows.frame_rows import ACKED, InboundRows, ack_open
from acktree.tasks.bolts.rows.row_names import Names
from acktree.tasks.bolts.task import BoltTask
from acktree.topology.component import Component


class ConcurrentTask(BoltTask):
    """What both kinds of concurrent task have in common; goes before the sequential kind."""

    together = True
    keeps_copies = False

    def __init__(
        self,
        bolt: Any,  # noqa: ANN401  # as of any task
        component: Component,
        task: int,
        outputs: Outputs,
        store: StateStore | None,
        *,
        are_questions: bool = False,
    ) -> None:
        self.name, self.in_threads = component.id, component.threads is not None
        self.concurrency = component.threads or component.max_concurrency or 1
        self.units: list[Unit] = []
        self.turns = Turns()
        self._threads: dict[Call, ThreadCall] = {}
        self.place = Place(outputs.plan.topology.name, component.id, task, outputs.batch_id)
        self.place.roots = _roots_of_call
        super().__init__(bolt, component, task, outputs, store, are_questions=are_questions)
        if self.broken is None and self.in_threads and component.remembers:
            self.turns.watch(self.bolt, component.remembers)

    def hook(self, hook: Callable[..., object], *given: object) -> None:
        """Call a hook. An asynchronous bolt's is called on the loop, so that it can make clients there."""
        if self.in_threads:
            super().hook(hook, *given)
        else:
            host().run(call_hook(hook, *given))

    def _run_part(self, frame: Frame, columns: Sequence[Column], names: Names) -> None:
        self.units.append(Unit(self._account(frame, columns), names))
        if self.outputs.monitor.searches:
            run_together([self])

    def begin_calls(self) -> None:
        """Called before the calls of all units run."""
        self.turns.begin()

    def call(self, call: Call) -> Awaitable[None]:
        """Begin a call of ``execute``."""
        execute, given = self.bolt.execute, self.given(call)
        if not self.in_threads:
            return awaited(execute, *given)
        started = ThreadCall(partial(self._call_here, call, execute, given), copy_context())
        self._threads[call] = started
        return started.result

    def _call_here(self, call: Call, execute: Callable[..., None], given: Sequence[object]) -> None:
        """Called on the thread of a call."""
        try:
            execute(*given)
        finally:
            call.has_returned = True
            self.turns.give_back(call)

    def given(self, call: Call) -> Sequence[object]:
        """The arguments of ``execute``."""
        raise NotImplementedError

    def check(self, call: Call) -> None:
        """Fail a call that has changed an attribute that the bolt does not remember."""
        if self.guard.watches and self.guard.may_have_changed():
            try:
                self.guard.check()
            except MisuseError as error:
                call.error = call.error or error

    def give_up(self, call: Call) -> bool:
        """Leave a thread behind. False if it may still change what the bolt remembers."""
        thread = self._threads.get(call)
        if thread is None:
            return True
        if self.turns.leave_behind(call, thread.interrupt):
            return True
        self.unsavable = call.error
        self.turns.give_back(call)
        return False

    def carry_out(self) -> None:
        """Called when all calls have ended: do what they recorded, emits first, row by row."""
        units, self.units = self.units, []
        self.turns.end()
        if not units:
            return
        self._threads.clear()
        self.outputs.monitor.sending()
        for unit in units:
            self._emit(unit)
        changed = self.results.raised_by(self.guard.check_all)
        for unit in units:
            self._take_effect(unit)
            if changed is not None:
                self.results.raised(unit.rows, np.arange(len(unit.calls)), changed)
        for unit in units:
            self._conclude(unit)
        self.outputs.monitor.end()

    def _emit(self, unit: Unit) -> None:
        """Route what the calls of some rows emitted."""
        for call in unit.calls:
            self.turn_to(call)
            for emit in call.emits:
                call.error = self.results.raised_by(emit) or call.error
        self.route_emitted(unit.rows)

    def _take_effect(self, unit: Unit) -> None:
        """Carry out what the calls of some rows said otherwise, and fail those that raised."""
        for call in unit.calls:
            for effect in call.effects:
                effect()
            if call.error is not None:
                self.results.raised(unit.rows, np.array([call.row]), call.error)

    def _conclude(self, unit: Unit) -> None:
        """Ack what is acked by the engine, and count."""
        rows = unit.rows
        if self.acks and not self.flushes:
            ack_open(rows)
        if rows.timer is not None:
            for call in unit.calls:
                rows.timer.note_call(call.row, call.began, call.spent_ms)
        self.results.count_executed(rows, unit.spent_ms)
        for observer in self.tuple_observers():
            for call in unit.calls:
                observer.executed(rows, call.row, call.spent_ms)
        if self.acks:
            acked_ms = [call.spent_ms for call in unit.calls if rows.fate[call.row] == ACKED]
            self.results.count_processed(rows, sum(acked_ms), len(acked_ms))
        self.results.report_acked(rows)
        self._close(rows)

    def turn_to(self, call: Call) -> None:
        """Let the collector of the task speak for this call."""
        raise NotImplementedError


def _roots_of_call() -> list[int]:
    """The roots of the row whose call this is, for the log."""
    call = current_call.get(None)
    return [] if call is None else call.unit.rows.lineage.roots_of(np.array([call.row])).tolist()


class ConcurrentBasicTask(ConcurrentTask, BasicBoltTask):
    """Runs a concurrent ``BasicBolt``."""

    def hook(self, hook: Callable[..., object], *given: object) -> None:
        lent = LentCollector(self.collector)
        try:
            super().hook(hook, *(lent if each is self.collector else each for each in given))
        finally:
            lent.close()

    def given(self, call: Call) -> Sequence[object]:
        reset = partial(self.outputs.reset, self.component.id)
        recorder = RecordingCollector(call, self.collector, self.outlets, reset)
        return call.unit.rows.handle(call.row), recorder

    def turn_to(self, call: Call) -> None:
        self.collector.rows, self.collector.row = call.unit.rows, call.row


class ConcurrentHandTask(ConcurrentTask, HandBoltTask):
    """Runs a concurrent ``Bolt``."""

    collector: RecordingHandCollector

    def make_collector(self) -> Collector:
        self.collector = RecordingHandCollector(
            self.component, self.task, self.outlets, self.outputs, is_sampled=self.is_sampled()
        )
        return self.collector

    def hook(self, hook: Callable[..., object], *given: object) -> None:
        with self.collector.in_hook():
            super().hook(hook, *given)

    def _account(self, frame: Frame, columns: Sequence[Column]) -> InboundRows:
        rows = super()._account(frame, columns)
        rows.came_ms = self.outputs.clock_ms
        return rows

    def begin_calls(self) -> None:
        super().begin_calls()
        self.collector.begin(unit.rows for unit in self.units)

    def given(self, call: Call) -> Sequence[object]:
        rows = call.unit.rows
        if self.collector.is_sampled:
            rows.began[call.row] = perf_counter()
        return (rows.handle(call.row),)

    def turn_to(self, call: Call) -> None:
        self.collector.rows = call.unit.rows

    def carry_out(self) -> None:
        self.collector.end()
        super().carry_out()
        self.report_elsewhere()


def run_together(tasks: Sequence[ConcurrentTask]) -> None:
    """Run all calls of some tasks of one bolt at once, and carry out what they recorded."""
    for task in tasks:
        task.begin_calls()
    first = tasks[0]
    secs = first.component.execute_timeout_secs or first.plan.config.execute_timeout_secs
    run_calls(tasks, secs, first.outputs.monitor)
    for task in tasks:
        task.carry_out()
