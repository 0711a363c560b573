"""Runs the calls of a bolt's tasks at once: coroutines on the loop, or a function on threads.

Each task has as many workers as calls of it may run at once; a worker takes one call after another, in the
order of the rows. A call that takes longer than the execute timeout is given up: it has failed, another
worker takes its place, and what it does later has no effect. A coroutine is cancelled. A thread cannot be
ended from outside while it blocks: it stays until it returns or its process ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from time import perf_counter
from typing import Final, Protocol

from acktree.errors import BoltError, ExecuteTimeoutError
from acktree.logs.log_lines import Place, stand
from acktree.system.stopped_by import pass_on
from acktree.tasks.bolts.concurrent.calls import Call, Unit, current_call
from acktree.tasks.bolts.concurrent.event_loop import host
from acktree.tasks.bolts.concurrent.steps import MarkedSteps
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor

_LOOKS_PER_TIMEOUT: Final = 4
_LONGEST_PAUSE_SECS: Final = 1.0
_STALL_SECS: Final = 0.05
"""When the loop wakes later than this, some step has blocked it; that time counts for no call."""


class CallingTask(Protocol):
    """What a task of a concurrent bolt offers."""

    name: str
    units: list[Unit]
    concurrency: int
    in_threads: bool
    place: Place

    def call(self, call: Call) -> Awaitable[None]:
        """Begin a call of ``execute``."""

    def check(self, call: Call) -> None:
        """Called after each step of a call, and after its end: has it changed what it must not?"""

    def give_up(self, call: Call) -> bool:
        """Called when a call has taken too long. False if its process cannot go on."""


def run_calls(tasks: Sequence[CallingTask], timeout_secs: float | None, monitor: ExecutionMonitor) -> None:
    """Run all calls of some tasks of one bolt. What they recorded is not carried out yet.

    Args:
        tasks: The tasks. Their calls run at the same time, each task with its own limit.
        timeout_secs: The execute timeout of one call.
        monitor: Marks what is executed.
    """
    if any(unit.calls for task in tasks for unit in task.units):
        host().run(_Calls(timeout_secs, monitor).run(tasks))


class _Worker:
    """Runs one call after another; marks the steps of the current one."""

    def __init__(self, calls: _Calls, task: CallingTask, queue: Iterator[Call]) -> None:
        self._calls, self.task, self.queue = calls, task, queue
        self.call: Call | None = None
        self.stalled_secs = 0.0
        work = self._calls.work(self)
        coroutine = work if task.in_threads else MarkedSteps(work, self)
        self.running: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self.running.add_done_callback(self._calls.worker_ended)

    def resume(self) -> bool:
        call = self.call
        if call is None or call.is_over:
            return call is None
        self._calls.monitor.resume(call.unit.names, call.row)
        return True

    def pause(self) -> None:
        self._calls.monitor.pause()
        if self.call is not None and not self.call.is_over:
            self.task.check(self.call)


class _Calls:
    """The calls that run at once."""

    def __init__(self, timeout_secs: float | None, monitor: ExecutionMonitor) -> None:
        self._timeout_secs, self.monitor = timeout_secs, monitor
        self._stalled_secs = 0.0
        self._left = 0
        self._running: dict[Call, _Worker] = {}  # in the order in which they began
        self._done: asyncio.Future[None]
        self._workers: list[_Worker] = []

    async def run(self, tasks: Sequence[CallingTask]) -> None:
        """Run all calls to their end."""
        self._done = asyncio.get_running_loop().create_future()
        for task in tasks:
            calls = [call for unit in task.units for call in unit.calls]
            queue = iter(calls)
            self._left += len(calls)
            self._workers += [_Worker(self, task, queue) for _ in range(min(task.concurrency, len(calls)))]
        try:
            while self._left:
                await self._wait()
                if self._done.done():
                    self._done.result()
                self.monitor.beat()
                self._give_up_late()
        finally:
            for call in self._running:  # only if something is raised here
                call.is_over = True
            for worker in self._workers:
                if worker.running.cancel():
                    host().keep(worker.running)
        await asyncio.sleep(0)  # what was cancelled closes its connections

    async def work(self, worker: _Worker) -> None:
        """Run calls of a worker's queue until none is left, or one was given up."""
        stand(worker.task.place)
        for call in worker.queue:
            worker.call = call
            current_call.set(call)
            call.began, worker.stalled_secs = perf_counter(), self._stalled_secs
            self._running[call] = worker
            if not worker.task.in_threads:
                worker.resume()
            error: BaseException | None = None
            try:
                await worker.task.call(call)
            except asyncio.CancelledError:
                if call.is_over:
                    raise
                error = _cancelled(worker.task)
            except BaseException as raised:  # noqa: BLE001  # user code
                if isinstance(raised, KeyboardInterrupt | SystemExit):
                    self.monitor.resume(call.unit.names, call.row)
                pass_on(raised)
                error = raised
            if call.is_over:
                return  # it was given up, and another worker has this one's place
            self._end(call, error)
            worker.task.check(call)
            if worker.running.cancelling():  # what its call has not caught must not cancel the next one
                self._workers.append(_Worker(self, worker.task, worker.queue))
                return

    async def _wait(self) -> None:
        """Wait until all calls have ended, or until one may have to be given up."""
        secs = self._timeout_secs
        if secs is None:
            await asyncio.wait({self._done})
            return
        oldest = max((self._age_secs(*running) for running in self._running.items()), default=0.0)
        pause = max(0.001, min(secs - oldest, secs / _LOOKS_PER_TIMEOUT, _LONGEST_PAUSE_SECS))
        before = perf_counter()
        await asyncio.wait({self._done}, timeout=pause)
        late = perf_counter() - before - pause
        if late > _STALL_SECS:
            self._stalled_secs += late

    def _age_secs(self, call: Call, worker: _Worker) -> float:
        """How long a call runs, less the time in which it waited for memory or a step blocked the loop."""
        now, since = perf_counter(), call.waiting_since
        waited = call.waited_secs + (0.0 if since is None else now - since)
        return now - call.began - waited - (self._stalled_secs - worker.stalled_secs)

    def _give_up_late(self) -> None:
        if self._timeout_secs is None:
            return
        for call, worker in list(self._running.items()):
            if self._age_secs(call, worker) < self._timeout_secs:
                continue
            self._end(call, _took_too_long(worker.task, self._timeout_secs))
            worker.running.cancel()
            if not worker.task.give_up(call):
                self.monitor.end_process(call.unit.names, call.row)
            self._workers.append(_Worker(self, worker.task, worker.queue))

    def worker_ended(self, running: asyncio.Task[None]) -> None:
        """Called when a worker has ended. An exception raised here ends the level; no tuple fails for it.

        Without the exception the call of that worker would never end.
        """
        raised = None if running.cancelled() else running.exception()
        if raised is None or self._done.done() or isinstance(raised, KeyboardInterrupt | SystemExit):
            return  # the loop itself raises the last two
        self._done.set_exception(raised)

    def _end(self, call: Call, error: BaseException | None) -> None:
        call.is_over, call.error = True, call.error or error
        call.spent_ms = (perf_counter() - call.began) * 1000
        del self._running[call]
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(None)


def _took_too_long(task: CallingTask, secs: float) -> ExecuteTimeoutError:
    left = "; its thread stays until it returns" if task.in_threads else ""
    return ExecuteTimeoutError(
        f"execute took longer than execute_timeout_secs={secs:g}{left}",
        f"bolt {task.name!r}",
        "give the client a timeout of its own, or allow more: set_bolt(...).set_execute_timeout_secs(...)",
    )


def _cancelled(task: CallingTask) -> BoltError:
    return BoltError(
        "execute was cancelled",
        f"bolt {task.name!r}",
        "a task or a library cancelled the coroutine: catch asyncio.CancelledError where that is meant",
    )
