"""The numbers and the errors of one spout task."""

from __future__ import annotations

from collections.abc import Callable

from acktree.core.stats.counters import NO_STREAM, Counters, What
from acktree.core.stats.histograms import Histogram
from acktree.core.tracking.verdicts import Failure, FailureKind
from acktree.stopped_by import pass_on
from acktree.tasks.failures import failure_of

__all__ = ["Reporter"]


class Reporter:
    """Counts what happens in one spout task, and reports what its user code raises.

    Attributes:
        counters: What was counted.
        own: Of that, what no micro-batch decided: errors, latencies, messages that never reached one, and why
            the spout was not asked.
        complete_ms: The complete latencies of the acked messages, in milliseconds.
    """

    def __init__(self, component: str, task: int, report: Callable[[str, int, Failure], None]) -> None:
        """Start with zero.

        Args:
            report: Called with every error: (component, task, failure).
        """
        self.counters, self.own = Counters(), Counters()
        self.complete_ms = Histogram()
        self._component, self._task, self._report = component, task, report

    def count(self, stream: str, what: What, n: int) -> None:
        """Count what happened in the task itself."""
        self.count_verdicts(stream, what, n)
        self.own.add(self._component, self._task, stream, what, n)

    def count_verdicts(self, stream: str, what: What, n: int) -> None:
        """Count messages whose verdict was delivered. The sink has counted them with their micro-batch."""
        self.counters.add(self._component, self._task, stream, what, n)

    def count_failed(self, stream: str, failure: Failure, n: int, *, is_own: bool = False) -> None:
        """Count messages that failed or timed out.

        Args:
            is_own: They never reached a micro-batch. The sink has counted all others with theirs.
        """
        cause = None if failure.kind is FailureKind.TIMED_OUT else failure.cause
        for counters in (self.counters, self.own) if is_own else (self.counters,):
            counters.add_failed(self._component, self._task, stream, cause, n)

    def add_complete_latency(self, stream: str, total_ms: float, count: int) -> None:
        """Add messages that took this time together from their emit to their ack."""
        for counters in (self.counters, self.own):
            counters.add_latency(self._component, self._task, stream, "complete_ms", total_ms, count)

    def add_not_asked(self, why: str, secs: float) -> None:
        """Add the time for which the spout was not asked for messages, for one reason."""
        for counters in (self.counters, self.own):
            counters.add_not_asked(self._component, self._task, why, secs)

    def error(self, error: BaseException) -> None:
        """Count and report an error."""
        self.count(NO_STREAM, "errors", 1)
        self._report(self._component, self._task, failure_of(error, self._component))

    def call(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call what may raise; what it raises is reported."""
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            self.error(error)
