"""What operators want to see of a run: the driver's copy, and how it becomes data of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from acktree.tasks.watch_order import WatchOrder
from acktree.traces.recorder import TraceRecorder

__all__ = ["Watch"]


class Watch:
    """The order of operators of one run. Any thread may change it.

    Args:
        recorder: Records the traces in the driver.
        send: Makes an order data of the micro-batches from now on.
    """

    def __init__(self, recorder: TraceRecorder, send: Callable[[WatchOrder], object]) -> None:
        self._recorder, self._send = recorder, send
        self._lock = Lock()
        self._order = WatchOrder(recorder.rate)

    @property
    def order(self) -> WatchOrder:
        """What holds now."""
        return self._order

    def set_rate(self, rate: float) -> None:
        """Trace another share of the messages that are emitted from now on."""
        with self._lock:
            order = WatchOrder(rate, self._order.debug)
            self._send(order)
            self._order = order
            self._recorder.set_rate(rate)
