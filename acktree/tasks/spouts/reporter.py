"""The numbers and the errors of one spout task."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from acktree.core.stats.counters import NO_STREAM, Counters, What
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.numbers import Outage
from acktree.core.tracking.verdicts import Failure, FailureKind
from acktree.system.stopped_by import pass_on
from acktree.tasks.failures import failure_of
from acktree.tasks.spouts.host import SpoutHost


class Reporter:
    """Counts what happens in one spout task, and reports what its user code raises.

    Attributes:
        component: The spout.
        task: The task's id.
        counters: What was counted.
        own: Of that, what no micro-batch decided: errors, latencies, messages that never reached one, and why
            the spout was not asked.
        complete_ms: The complete latencies of the acked messages, in milliseconds.
    """

    def __init__(self, component: str, task: int, host: SpoutHost) -> None:
        """Start with zero; errors, and what a log shall say, go to a host."""
        self.counters, self.own = Counters(), Counters()
        self.complete_ms = Histogram()
        self.component, self.task, self._host = component, task, host

    def count(self, stream: str, what: What, n: int) -> None:
        """Count what happened in the task itself."""
        self.count_verdicts(stream, what, n)
        self.own.add(self.component, self.task, stream, what, n)

    def count_verdicts(self, stream: str, what: What, n: int) -> None:
        """Count messages whose verdict was delivered. The sink has counted them with their micro-batch."""
        self.counters.add(self.component, self.task, stream, what, n)

    def count_failed(self, stream: str, failure: Failure, n: int, *, is_own: bool = False) -> None:
        """Count messages that failed or timed out.

        Args:
            is_own: They never reached a micro-batch. The sink has counted all others with theirs.
        """
        cause = None if failure.kind is FailureKind.TIMED_OUT else failure.cause
        for counters in (self.counters, self.own) if is_own else (self.counters,):
            counters.add_failed(self.component, self.task, stream, cause, n)

    def add_complete_latency(self, stream: str, total_ms: float, count: int) -> None:
        """Add messages that took this time together from their emit to their ack."""
        for counters in (self.counters, self.own):
            counters.add_latency(
                self.component, self.task, stream, latency="complete_ms", total_ms=total_ms, samples=count
            )

    def add_not_asked(self, why: str, secs: float) -> None:
        """Add the time for which the spout was not asked for messages, for one reason."""
        for counters in (self.counters, self.own):
            counters.add_not_asked(self.component, self.task, why, secs)

    def error(self, error: BaseException) -> None:
        """Count and report an error."""
        self.count(NO_STREAM, "errors", 1)
        self._host.report(self.component, self.task, failure_of(error, self.component))

    def note_acked(self, count: int, now_ms: int) -> None:
        """Let the host know that messages were acked."""
        self._host.note_acked(self.component, count, now_ms)

    def note_superseded(self, count: int) -> None:
        """Let the host know that messages were ACKED unwritten, since newer ones were written."""
        self._host.note_superseded(self.component, count)

    def note_failed(
        self, count: int, named: Iterable[tuple[object, int]], failure: Failure, most_attempts: int | None
    ) -> None:
        """Let the host know that attempts failed, with the id and the attempt of each that is known."""
        self._host.note_failed(self.component, count, named, failure, most_attempts)

    def note_away(self, outage: Outage) -> None:
        """Let the host know that what bolts need is away."""
        self._host.note_away(self.component, self.task, outage)

    def note_recovered(self, outage: Outage, now_ms: int) -> None:
        """Let the host know that what the task waited for works again."""
        self._host.note_recovered(self.component, self.task, outage, now_ms)

    def note_overwritten(self, attribute: str) -> None:
        """Let the host know that ``open`` has set a remembered attribute to another value."""
        self._host.note_overwritten(self.component, attribute)

    def call(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call what may raise; what it raises is reported."""
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on(error)
            self.error(error)
