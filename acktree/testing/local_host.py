"""What ``LocalCluster`` does for its spout tasks, their inbox, and what it watches while its clock stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import tee
from typing import Final

from acktree.core.spouts.pending import MessageIds
from acktree.core.stats.numbers import ReportedError
from acktree.core.tracking.verdicts import Failure
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.run_log import RunLog
from acktree.errors import SpoutError
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.host import Inbox, SpoutHost
from acktree.tasks.spouts.keys.key_table import Keys
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.retries import GivenUpRecord
from acktree.tasks.spouts.watched_ids import WatchedIds, WatchedNames
from acktree.texts import short_repr
from acktree.traces.recorder import TraceRecorder

__all__ = ["LocalHost", "LocalInbox", "Moment"]


_RESERVED: Final = 1 << 28
_MOST_FAILURES: Final = 100
"""How often a message of a spout without a ``Retry`` may fail while the clock stands."""
_MOST_MESSAGES: Final = 1_000_000
"""How many messages may be emitted while the clock stands."""


@dataclass
class Moment:
    """What happens while the clock stands.

    Attributes:
        now_ms: The time.
        emitted: How many messages were emitted, by spout.
        restless: The error of a spout that does not rest before the clock moves.
    """

    now_ms: int = 0
    emitted: Counter[str] = field(default_factory=Counter)
    restless: SpoutError | None = None
    _failures: Counter[tuple[str, object]] = field(default_factory=Counter)

    def count(self, chunks: Iterable[Chunk]) -> None:
        """Count the messages that were emitted."""
        for chunk in chunks:
            self.emitted[chunk.component] += len(chunk)
        if self.emitted.total() >= _MOST_MESSAGES:
            ((spout, count),) = self.emitted.most_common(1)
            self.restless = SpoutError(
                f"spout {spout!r} emitted {count:,} messages at one moment of the clock, and has more",
                f"LocalCluster.advance(), clock at {self.now_ms} ms",
                "let next_tuple return without an emit now and then: raise EndOfStream, "
                "or emit by context.now_ms(); feed a large input in parts, with an advance() after each",
            )

    def note_failed(self, spout: str, message_ids: Iterable[object], failure: Failure) -> None:
        """Count failures of messages of a spout that decides itself whether they are tried again."""
        for message_id in message_ids:
            with suppress(Exception):  # an id that is not hashable, or whose own code raises, is not counted
                self._failures[spout, message_id] += 1
                if self._failures[spout, message_id] >= _MOST_FAILURES:
                    self.restless = SpoutError(
                        f"message {short_repr(id_of(message_id))} of spout {spout!r} failed {_MOST_FAILURES} "
                        f"times at one moment of the clock, at last with: {failure.reason:.300}",
                        f"LocalCluster.advance(), clock at {self.now_ms} ms",
                        "give the spout a Retry, which waits before the next attempt and gives up in the "
                        "end; or let its fail() do so",
                    )


class LocalHost(SpoutHost):
    """The host of all spout tasks of a topology in a ``LocalCluster``. It has no earlier run."""

    def __init__(
        self,
        inbox: Inbox,
        keys: Keys,
        *,
        errors: ErrorLog,
        log: RunLog,
        recorder: DeadLetterRecorder,
        traces: TraceRecorder,
        watched: WatchedIds,
        moment: Callable[[], Moment],
    ) -> None:
        """Use the parts of a topology.

        Args:
            inbox: As the attribute.
            keys: As the attribute.
            errors: Takes what user code raises.
            log: Takes failed messages.
            recorder: Takes dead letters.
            traces: Takes traced messages.
            watched: The messages that operators watch.
            moment: Returns the present moment of the clock.
        """
        super().__init__(inbox, keys)
        self._errors, self._log, self._recorder, self._traces = errors, log, recorder, traces
        self._watched, self._moment = watched, moment

    def record(self, records: Sequence[GivenUpRecord]) -> None:
        """Keep dead letters in memory."""
        self._recorder.record(records)

    def report(self, component: str, task: int, failure: Failure) -> None:
        """Keep an error of user code."""
        now_ms = self._moment().now_ms
        self._errors.add(ReportedError(component, task, failure.reason, now_ms, failure.traceback))

    def reserve(self, first: int) -> int:
        """There is no later run."""
        return first + _RESERVED

    def mark_settled(self, letters: Sequence[int], now_ms: int) -> None:
        """The redrive of these dead letters is finished."""
        self._recorder.mark_settled(letters, now_ms)

    def note_acked(self, component: str, count: int, now_ms: int) -> None:
        """Count acked messages: the limit of dead letters is a share of them."""
        self._recorder.acked(component, count, now_ms)

    def note_failed(
        self,
        component: str,
        count: int,
        named: Iterable[tuple[object, int]],
        failure: Failure,
        most_attempts: int | None,
    ) -> None:
        """Log failed attempts, and count those of messages without a ``Retry``."""
        logged, counted = tee(named)
        self._log.failed(component, count, logged, failure, most_attempts)
        if most_attempts is None:
            self._moment().note_failed(component, (message_id for message_id, _ in counted), failure)

    def note_emitted(self, chunk: Chunk, message_ids: MessageIds, parents: Mapping[int, str]) -> None:
        """Record those messages of a chunk that are traced."""
        self._traces.emitted(chunk, message_ids, parents)

    def trace_rate(self) -> float:
        """The share that the configuration or an order has set."""
        return self._traces.rate

    def watched(self) -> WatchedNames | None:
        """The messages that operators watch now."""
        return self._watched.names


ROUND_MESSAGES: Final = 10_000
"""How many messages of each spout task one round takes at the most: what a micro-batch is to Spark."""


class LocalInbox:
    """Chunks in a dict; room is never scarce, since a round empties it."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}
        self._fresh: list[int] = []
        self._unneeded: set[int] = set()
        self._next = 0

    def append(self, chunks: Sequence[Chunk], parked: Sequence[Chunk] = ()) -> int:
        """Store chunks; they run in the next micro-batch, except parked ones."""
        first = self._next
        for chunk in [*chunks, *parked]:
            self.chunks[self._next] = chunk.to_bytes()
            self._next += 1
        self._fresh += [number for number, chunk in enumerate(chunks, first) if len(chunk)]
        return first

    def read(self, number: int) -> Chunk:
        """Read a chunk that was not released."""
        return Chunk.from_bytes(self.chunks[number])

    def room(self, wanted: int = 1) -> int:
        """As much as is wanted."""
        return wanted  # a round takes all

    @property
    def chunk_rows(self) -> int:
        """How many messages a chunk, and a round of one spout task, holds at the most."""
        return ROUND_MESSAGES

    def release(self, number: int) -> None:
        """Delete a chunk, or let it be deleted once it was taken."""
        if number in self._fresh:
            self._unneeded.add(number)  # after the micro-batch that reads it
        else:
            del self.chunks[number]

    def take(self) -> list[tuple[int, Chunk]]:
        """The chunks that no micro-batch has had, by number."""
        taken = [(number, self.read(number)) for number in self._fresh]
        for number in self._unneeded:
            del self.chunks[number]
        self._fresh, self._unneeded = [], set()
        return taken
