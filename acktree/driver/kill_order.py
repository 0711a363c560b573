"""The order to kill a run: how long open messages are waited for, as the newest order says."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class KillOrder:
    """Given from any thread, as often as somebody likes; carried out once, by the run's supervisor.

    A further order sets a new wait, shorter or longer, that begins anew: as in Storm. It needs no thread.
    """

    def __init__(self) -> None:
        """Nothing is ordered yet."""
        self._lock = Lock()
        self._deadline: float | None = None
        self._is_closed = False

    @property
    def is_given(self) -> bool:
        """Whether somebody has ordered it."""
        return self._deadline is not None

    def give(self, wait_secs: float) -> float:
        """Order it, in place of any earlier order.

        Args:
            wait_secs: How long open messages are waited for, from now on.

        Returns:
            The wait that counts: 0 where the run stops already, which no order changes.
        """
        with self._lock:
            if self._is_closed:
                return 0.0
            self._deadline = time.monotonic() + wait_secs
            return wait_secs

    def close(self) -> None:
        """The run stops: no order changes that."""
        with self._lock:
            self._is_closed = True

    def left_secs(self) -> float | None:
        """For how long open messages are still waited for, at most; None where nothing is ordered."""
        deadline = self._deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def is_due(self, is_idle: Callable[[], bool]) -> bool:
        """Whether the run is to stop now. If so, no later order counts.

        Args:
            is_idle: Whether no message is open. It is asked without a lock: an order does not wait for it.
        """
        if self._is_closed:
            return True
        deadline = self._deadline
        if deadline is None or (time.monotonic() < deadline and not is_idle()):
            return False
        with self._lock:
            if self._deadline is deadline:  # no newer order came meanwhile
                self._is_closed = True
        return self._is_closed
