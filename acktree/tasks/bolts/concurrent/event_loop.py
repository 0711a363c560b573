"""The event loop and the threads of one process. Concurrent bolts run on them.

There is one loop for each process, and it is kept: a client that belongs to a loop works from one micro-batch
to the next. The loop runs on the thread that runs the level, and only while calls are open. A forked child
has a loop and threads of its own.

Threads are daemons: a thread that never returns does not keep its process from ending.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_Job = Callable[[], bool]
"""Runs on a thread; returns whether the thread may serve further jobs."""

_STOPPED: Final = "loop stopped"
"""Stands in what asyncio raises where user code has called the loop's ``stop()``."""
_hosts: dict[int, Host] = {}
"""By process id. A forked child keeps its parent's entry, so that no finaliser closes what both share."""


class Host:
    """The loop of this process, and its threads for calls that block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads(self.start))
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._idle = 0
        self._kept: set[asyncio.Task[Any]] = set()

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end, on this thread.

        Where this thread runs another loop already (a notebook, an asynchronous test), it is run on a thread
        of its own, since a thread runs one loop at a time.
        """
        if not _runs_a_loop():
            return self._run(main)
        results: list[Callable[[], _T]] = []
        here = copy_context()
        runner = threading.Thread(
            target=lambda: results.append(_outcome(lambda: here.run(self._run, main))), daemon=True
        )
        runner.start()
        runner.join()
        return results[0]()

    def _run(self, main: Coroutine[Any, Any, _T]) -> _T:
        with self._turn:  # of two threads with a LocalCluster each, one runs the loop
            task = self._loop.create_task(main)
            try:
                while True:
                    try:
                        return self._loop.run_until_complete(task)
                    except RuntimeError as error:
                        if task.done() or _STOPPED not in str(error):
                            raise
                    # A call has stopped the loop, which is not its own: all calls go on.
            except BaseException:
                if task.cancel():  # the loop was stopped by a signal, say
                    self.keep(task)
                raise

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that was cancelled until it has ended: the loop itself holds no task."""
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def start(self, job: _Job) -> None:
        """Run a job on an idle thread, or on a new one."""
        with self._lock:
            is_free = self._idle > 0
            self._idle -= is_free
        if not is_free:  # before the job is there: if no thread can be started, nothing is left to be run
            threading.Thread(target=self._serve, name="acktree-call", daemon=True).start()
        self._jobs.put(job)

    def _serve(self) -> None:
        while self._jobs.get()():
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Close the loop; called when the process ends."""
        if not self._loop.is_running():
            self._loop.close()


class _Threads(ThreadPoolExecutor):
    """The executor of ``asyncio.to_thread``: a thread for each call, as many as there are calls.

    The loop's own has six on two cores. Each call that never returns would keep one of them from all
    micro-batches that follow, and the last one would keep the process from ending.
    """

    def __init__(self, start: Callable[[_Job], None]) -> None:
        super().__init__()
        self._start = start

    def submit(self, function: Callable[..., _T], /, *given: Any, **named: Any) -> Future[_T]:  # noqa: ANN401
        called: Future[_T] = Future()

        def run() -> bool:
            if called.set_running_or_notify_cancel():
                try:
                    called.set_result(function(*given, **named))
                except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
                    called.set_exception(error)
            return True

        self._start(run)
        return called


class _Interrupted(SystemExit):
    """Raised in a thread whose call is not awaited any more; ends it without a traceback."""


class ThreadCall:
    """One call of a function on a thread.

    Attributes:
        result: Set on the loop when the function has returned or raised.
    """

    def __init__(self, function: Callable[[], None], context: Context) -> None:
        """Start the call. Must be made on the loop.

        Args:
            function: The function.
            context: The context in which it is called.
        """
        self._loop = asyncio.get_running_loop()
        self._function, self._context = function, context
        self._ident: int | None = None
        self._is_interrupted = False
        self._lock = threading.Lock()
        self.result: asyncio.Future[None] = self._loop.create_future()
        host().start(self._run)

    def interrupt(self) -> None:
        """End the thread as soon as it runs Python code again. Code that blocks is not interrupted."""
        with self._lock:
            if self._ident is not None:
                self._is_interrupted = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._ident), ctypes.py_object(_Interrupted)
                )

    def _run(self) -> bool:
        raised: BaseException | None = None
        try:
            with self._lock:
                self._ident = threading.get_ident()
            self._context.run(self._function)
        except BaseException as error:  # noqa: BLE001  # what user code raises is data
            raised = error
        with self._lock:
            self._ident = None
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._set, raised)
        # The exception may still be on its way: a thread that was interrupted serves no other call.
        return not self._is_interrupted

    def _set(self, raised: BaseException | None) -> None:
        if self.result.done():  # cancelled: it is not awaited any more
            return
        if raised is None:
            self.result.set_result(None)
        elif isinstance(raised, StopIteration):  # a future refuses it
            reported = RuntimeError("execute raised StopIteration")
            reported.__cause__ = raised
            self.result.set_exception(reported)
        else:
            self.result.set_exception(raised)


def host() -> Host:
    """The host of this process; made at the first call."""
    pid = os.getpid()
    if pid not in _hosts:
        _hosts[pid] = Host()
    return _hosts[pid]


def _runs_a_loop() -> bool:
    """Whether a loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _outcome(run: Callable[[], _T]) -> Callable[[], _T]:
    """Call a function; returns a function that returns its result or raises what it raised."""
    try:
        result = run()
    except BaseException as error:  # noqa: BLE001  # raised where the result is wanted
        raised = error

        def fail() -> _T:
            raise raised

        return fail
    return lambda: result


def _close() -> None:
    if os.getpid() in _hosts:
        _hosts[os.getpid()].close()


_CLOSED_AT_EXIT: Final = atexit.register(_close)
