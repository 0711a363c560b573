"""Operators' orders to a run, such as Debug: the driver's copy, and how it becomes data of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Final

from acktree.core.tracking.sampling import Steps
from acktree.errors import MisuseError, nearest
from acktree.logs import logger
from acktree.tasks.plan import Plan
from acktree.tasks.watch_order import WatchOrder
from acktree.texts import error_text
from acktree.traces.recorder import TraceRecorder

__all__ = ["Watch"]

log = logger("acktree")

_MOST_STEPS: Final = 8
"""How many changes of the share are known: each level and partition is told them in each micro-batch."""
_ALL: Final = 100


class Watch:
    """The order of operators of one run. Any thread may change it.

    Args:
        plan: What runs.
        recorder: Records the traces in the driver.
        send: Makes an order data of the micro-batches from now on.
        next_sequences: Spout task -> the sequence that its next message gets.
    """

    def __init__(
        self,
        plan: Plan,
        recorder: TraceRecorder,
        send: Callable[[WatchOrder], object],
        next_sequences: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._plan = plan
        self._next_sequences = next_sequences
        self._has_rows = any(spout.is_dataframe for spout in plan.topology.spouts)
        self._recorder, self._send = recorder, send
        self._lock = Lock()
        self._order = WatchOrder(recorder.rate)

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
            self._obeyed(replace(self._order, debug=debug))

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
            self._obeyed(WatchOrder(rate, self._order.debug))
            self._recorder.set_rate(rate)

    def keep_pace(self) -> None:
        """Trace a smaller share while very many messages are traced, and the whole share again later.

        Not where rows of DataFrames are messages: those have no sequences, and a micro-batch of them alone
        reads no order.
        """
        if self._recorder.pace.proposed is None or self._has_rows:
            return
        with self._lock:
            pace = self._recorder.pace
            if pace.proposed is None:  # an operator has asked for another share meanwhile
                return
            divisor, lead = pace.proposed
            steps = self._further_steps(divisor, lead)
            try:
                self._obeyed(replace(self._order, trace_steps=steps))
            except Exception as error:  # noqa: BLE001  # a full disk: traces must not stop the run
                log.debug("traces: another share is not ordered yet: %s", error_text(error))
                pace.refused()
                return
            self._recorder.divide(steps)
        log.info("traces: a share of %g of the messages is traced from now on", self._recorder.rate)

    def _further_steps(self, divisor: int, lead: int) -> Steps:
        """The steps of each spout task, with one more.

        The earliest need not be known: the messages before are taken for those of the whole share, and what
        levels record of messages that are not stored is left out.
        """
        steps: dict[int, list[tuple[int, int]]] = {}
        for task, sequence in self._next_sequences().items():
            before = [*self._order.trace_steps.get(task, ())][1 - _MOST_STEPS :]
            first = sequence + lead if not before else max(sequence + lead, before[-1][0] + 1)
            steps[task] = [*before, (first, divisor)]
        return steps

    def _obeyed(self, order: WatchOrder) -> None:
        """Make an order data of the micro-batches, and hold it."""
        self._send(order)
        self._order = order
