"""Operators' orders to a run, such as Debug: the driver's copy, and how it becomes data of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from acktree.errors import MisuseError, nearest
from acktree.logs import logger
from acktree.tasks.plan import Plan
from acktree.tasks.watch_order import WatchOrder
from acktree.texts import error_text
from acktree.traces.recorder import TraceRecorder

__all__ = ["Watch"]

log = logger("acktree")

_ALL: Final = 100


class Watch:
    """The order of operators of one run. Any thread may change it.

    Args:
        plan: What runs.
        recorder: Records the traces in the driver.
        send: Makes an order data of the micro-batches from now on.
    """

    def __init__(self, plan: Plan, recorder: TraceRecorder, send: Callable[[WatchOrder], object]) -> None:
        self._plan = plan
        self._recorder, self._send = recorder, send
        self._lock = Lock()
        self._order = WatchOrder(recorder.rate)
        self._has_rows = any(spout.is_dataframe for spout in plan.topology.spouts)

    @property
    def order(self) -> WatchOrder:
        """What holds now."""
        return self._order

    def set_debug(self, *, on: bool, component: str | None, percent: float) -> None:
        """Log the tuples that a component emits, or all that are not named; or stop that.

        Args:
            component: None for all that are not named. Switching those off switches all off.
            percent: The share of messages whose tuples are logged, above 0 and up to 100.

        Raises:
            MisuseError: There is no such component or share, or the settings say that nothing is logged.
        """
        self._refuse(on=on, component=component, percent=percent)
        with self._lock:
            debug = dict(self._order.debug) if component is not None or on else {}
            if on:
                debug[component or ""] = percent / 100
            elif component is not None:
                debug.pop(component, None)
                if "" in debug:
                    debug[component] = 0.0
            order = WatchOrder(self._order.trace_rate, debug)
            self._send(order)
            self._order = order

    def _refuse(self, *, on: bool, component: str | None, percent: float) -> None:
        if on and self._plan.config.eventlogger_executors == 0:
            raise MisuseError(
                "the settings say that no tuple is ever logged",
                "Config(eventlogger_executors=0)",
                "submit it with eventlogger_executors=None, or any other number",
            )
        known = self._plan.topology.components
        if component is not None and component not in known:
            raise MisuseError(f"there is no component {component!r:.60}", "debug", nearest(component, known))
        if not 0 < percent <= _ALL:
            raise MisuseError(f"{percent!r:.40} is no percentage", "debug", "give more than 0, up to 100")

    def set_rate(self, rate: float) -> None:
        """Trace another share of the messages that are emitted from now on."""
        with self._lock:
            self._trace(rate)
            self._recorder.set_rate(rate)

    def keep_pace(self) -> None:
        """Trace a smaller share while very many messages are recorded, and the whole share again later.

        Not where rows of DataFrames are messages: a micro-batch of them alone has no order, so it would
        trace another share.
        """
        if self._recorder.proposed_rate == self._order.trace_rate or self._has_rows:
            return
        with self._lock:
            rate = self._recorder.proposed_rate  # an operator may have asked for another share meanwhile
            try:
                self._trace(rate)
            except Exception as error:  # noqa: BLE001  # a full disk: traces must not stop the run
                log.warning("traces: the share of %g is not ordered yet: %s", rate, error_text(error))
                self._recorder.keep_pace(is_ordered=False)
                return
            self._recorder.keep_pace()
        log.info("traces: a share of %g of the messages is traced now", rate)

    def _trace(self, rate: float) -> None:
        order = WatchOrder(rate, self._order.debug)
        self._send(order)
        self._order = order
