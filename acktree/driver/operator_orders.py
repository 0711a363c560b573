"""Operators' orders to a run, such as Debug: the driver's copy, and how it becomes data of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from acktree.errors import MisuseError, nearest
from acktree.tasks.broadcast import OperatorOrder
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.watched_ids import WatchedIds
from acktree.traces.recorder import TraceRecorder

_ALL: Final = 100


class OperatorOrders:
    """The order of operators in one run. Any thread may change it.

    Args:
        plan: What runs.
        recorder: Records the traces in the driver.
        send: Makes an order data of the micro-batches from now on.
        watched: The messages that are watched, as spout tasks see them.
    """

    def __init__(
        self,
        plan: Plan,
        recorder: TraceRecorder,
        send: Callable[[OperatorOrder], object],
        watched: WatchedIds,
    ) -> None:
        self._plan, self._watched = plan, watched
        self._recorder, self._send = recorder, send
        self._lock = Lock()
        self._order = OperatorOrder(recorder.rate)

    @property
    def order(self) -> OperatorOrder:
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
            order = OperatorOrder(self._order.trace_rate, debug)
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
            order = OperatorOrder(rate, self._order.debug)
            self._send(order)
            self._order = order
            self._recorder.set_rate(rate)

    def watch_messages(self, message_ids: Iterable[object], secs: float) -> None:
        """Trace the next attempts of these messages for some seconds, whatever the rate is.

        Raises:
            MisuseError: No ids, too many or no such time; or no message can be traced.
        """
        if not self._plan.is_tracking:
            raise MisuseError(
                "the topology has no ackers, so none of its messages is traced",
                "traces.watch(), Config(acker_executors=0)",
                "submit it with acker_executors=None, or any other number",
            )
        if self._recorder.store is None:
            raise MisuseError(
                "this run stores no traces: its log says why",
                "traces.watch()",
                "delete traces.sqlite in the checkpoint if it is damaged, and submit the topology again",
            )
        self._watched.add(message_ids, secs)
