"""What the driver of a run does for its spout tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from acktree.core.spouts.pending import MessageIds
from acktree.core.stats.numbers import Outage, ReportedError
from acktree.core.tracking.verdicts import Failure
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.driver.run import Run
from acktree.driver.spouts.spout_threads import now_ms
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.retries import GivenUpRecord
from acktree.tasks.spouts.watched_ids import WatchedNames


class DriverHost(SpoutHost):
    """The host of all spout tasks of a run."""

    def __init__(self, run: Run, recorder: DeadLetterRecorder) -> None:
        """Use the parts of a run, and its recorder of dead letters."""
        super().__init__(run.inbox, run.keys.keys)
        self.max_traces_per_sec = run.plan.max_traces_per_sec
        self.max_retries_traced_per_sec = run.plan.max_retries_traced_per_sec
        self._run, self._recorder, self._checkpoint = run, recorder, run.checkpoint

    def record(self, records: Sequence[GivenUpRecord]) -> None:
        """Store dead letters."""
        self._recorder.record(records)

    def report(self, component: str, task: int, failure: Failure) -> None:
        """Keep an error of user code for operators."""
        error = ReportedError(component, task, failure.reason, now_ms(), failure.traceback)
        self._run.errors.add(error)

    def reserve(self, first: int) -> int:
        """Reserve a block of sequences in the checkpoint."""
        return self._checkpoint.reserve(first)

    def letters_among(self, roots: Sequence[int]) -> frozenset[int]:
        """Which of these roots the store of dead letters has."""
        return self._recorder.letters_among(roots)

    def mark_settled(self, letters: Sequence[int], now_ms: int) -> None:
        """The redrive of these dead letters is finished, and so is the order to send them."""
        self._recorder.mark_settled(letters, now_ms)
        self._checkpoint.drop_settled(letters)

    def wake(self, task: int) -> None:
        """Let the task's thread call ``next_tuple`` at once."""
        self._run.threads.wake_task(task)

    def note_acked(self, component: str, count: int, now_ms: int) -> None:
        """Count acked messages: the limit of dead letters is a share of them."""
        self._recorder.acked(component, count, now_ms)

    def note_superseded(self, component: str, count: int) -> None:
        """Log it."""
        self._run.log.superseded(component, count)

    def note_failed(
        self,
        component: str,
        count: int,
        named: Iterable[tuple[object, int]],
        failure: Failure,
        most_attempts: int | None,
    ) -> None:
        """Log failed attempts."""
        self._run.log.failed(component, count, named, failure, most_attempts)

    def note_emitted(self, chunk: Chunk, message_ids: MessageIds, parents: Mapping[int, str]) -> None:
        """Record those messages of a chunk that are traced."""
        self._run.traces.emitted(chunk, message_ids, parents)

    def note_recovered(self, component: str, task: int, outage: Outage, now_ms: int) -> None:
        """Log that it works again."""
        self._run.log.recovered(component, task, outage, now_ms)

    def note_away(self, component: str, task: int, outage: Outage) -> None:
        """Log that it is away."""
        self._run.log.away(component, task, outage)

    def note_overwritten(self, component: str, attribute: str) -> None:
        """Log a warning."""
        self._run.log.overwritten(component, attribute)

    def trace_rate(self) -> float:
        """The share that operators or the configuration have set."""
        return self._run.traces.rate

    def watched(self) -> WatchedNames | None:
        """The messages that operators watch now."""
        return self._run.watched.names
