"""Bolts with ``async def process`` in acktree's own process: tuples of one task are processed at once.

Rules of this file
------------------
1. What holds for ``async def execute`` holds here (``tasks/bolts/concurrent``): calls begin in the order of
   the tuples and end in any order, and what they emit, ack and fail takes effect in the first order.
2. An emit without anchors is anchored to the tuple of the call that it is made in, also from a task or an
   ``asyncio.to_thread`` that the call started. What a call raises is handled for its tuple alone.
3. Between two ``await`` no other code of the component runs, so its attributes need no lock.
4. A call that was given up fails its tuple. If it goes on all the same, it goes on with an object that no
   later micro-batch uses.

This module awaits the user's ``process`` and ``process_tick``, and calls no other code outside of acktree:
the watchdog interrupts user code here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from acktree import Config, ExecuteTimeoutError, MisuseError, OutputCollector, Outputs, TaskContext, Tuple
from acktree.multilang.hosts import BoltHost
from acktree.pystorm.bodies import is_async, most_at_once
from acktree.pystorm.bolt import Bolt, ack_unclosed, current_tups, refuse_unrun
from acktree.pystorm.component import Tuple as ComponentTuple
from acktree.pystorm.hosted import HostedBolt, Live, Program, tuple_of

__all__ = ["AsyncHostedBolt", "hosted_bolt"]


def hosted_bolt(program: Program, outputs: Outputs, tick_secs: float | None = None) -> HostedBolt:
    """The bolt of acktree that runs a component class."""
    kind = AsyncHostedBolt if is_async(program.kind) else HostedBolt
    return kind(program, outputs, tick_secs)


class AsyncHostedBolt(HostedBolt):
    """A bolt that is a component class with ``async def process``."""

    def __init__(self, program: Program, outputs: Outputs, tick_secs: float | None = None) -> None:
        super().__init__(program, outputs, tick_secs)
        self.max_concurrency = most_at_once(program.kind)

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        super().prepare(config, context, collector)
        self._open_calls: set[str] = set()
        from asyncio import current_task  # noqa: PLC0415  # child processes import this module, and need no loop

        self._current_task = current_task

    async def execute(self, tup: Tuple) -> None:
        host = self._host or self._begin()
        live, running = self._live, self._current_task()
        host.execute(tup)
        message = live.calls.delivered
        current: list[ComponentTuple] = []
        current_tups.set(current)
        self._open_calls.add(message["id"])
        try:
            await _process(live.component, message, current)
        except BaseException as error:
            if isinstance(error, ExecuteTimeoutError) or not isinstance(error, Exception):
                host.unclosed.pop(message["id"], None)
                raise  # acktree fails the tuple, whatever the component would do
            component = live.component
            with component._reader_lock, component._writer_lock:  # noqa: SLF001  # pystorm's, in emit()'s order
                component._pending_commands.clear()  # noqa: SLF001  # if it was not read
                self._handle(host, error, current or [tuple_of(message)])
        finally:
            self._open_calls.discard(message["id"])
            if running is not None and running.cancelling():  # given up: acktree fails the tuple
                host.unclosed.pop(message["id"], None)

    async def tick(self, tup: Tuple) -> None:
        await self.execute(tup)

    def flush(self, collector: OutputCollector) -> None:
        left_behind = {*self._open_calls}
        self._open_calls.clear()
        for name in left_behind:
            self._host.unclosed.pop(name, None)  # type: ignore[union-attr]  # it has begun
        super().flush(collector)
        if left_behind:
            self._place().live = None

    def _delivering(self, live: Live) -> Callable[[Any], None]:
        """What notes messages to the component: the call that a tuple is for reads it."""

        def note(message: Any) -> None:
            if type(message) is list:
                live.calls.inbox.append(message)
            else:
                live.calls.delivered = message

        return note

    def _taking(self, live: Live, host: BoltHost) -> Callable[[Any], None]:
        """What takes messages of the component: one at a time, for its threads may send some."""

        def take(message: object) -> None:
            with live.component._writer_lock:  # noqa: SLF001  # pystorm's
                try:
                    host.take(message)
                except MisuseError as error:
                    tups = current_tups.get(())
                    if tups and tups[0].id not in self._open_calls:  # nobody may ever see what this raises
                        host.warn_once("has a task or a thread that goes on after process(): ", error.what)
                    raise

        return take


async def _process(component: Bolt, message: Any, current: list[ComponentTuple]) -> None:
    """Process a tuple or a tick, as ``_run()`` does. ``current`` gets it when it was read."""
    component._pending_commands.append(message)  # noqa: SLF001  # where lists for other threads do not come
    tup = component.read_tuple()
    current.append(tup)
    returned: Any = component.process_tick(tup) if component.is_tick(tup) else component.process(tup)
    if inspect.isawaitable(returned):
        await returned
    elif returned is not None:
        refuse_unrun(component, returned)
    ack_unclosed(component, tup)
