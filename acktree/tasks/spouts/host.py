"""The interface between a spout task and its host: the driver of a Spark query, or ``LocalCluster``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from acktree.core.spouts.pending import MessageIds
from acktree.core.stats.numbers import Outage
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.keys.key_table import Keys
from acktree.tasks.spouts.retries import GivenUpRecord
from acktree.tasks.spouts.watched_ids import WatchedNames


class Inbox(Protocol):
    """Stores chunks. A number returns the same bytes until its chunk is released."""

    def append(self, chunks: Sequence[Chunk], parked: Sequence[Chunk] = ()) -> int:
        """Store all of the chunks or none. Returns the number of the first; the others follow it.

        Args:
            chunks: Those that run.
            parked: Those that do not: they are kept until they are released. They come after the others.
        """

    def read(self, number: int) -> Chunk:
        """Read a chunk that was not released."""

    def room(self, wanted: int = 1) -> int:
        """How many messages a spout task may buffer before it hands them over.

        Args:
            wanted: How many the caller needs. If fewer are free, the free space is measured again.
        """

    @property
    def chunk_rows(self) -> int:
        """The largest number of messages in a chunk."""

    def release(self, number: int) -> None:
        """Release a chunk: the spout task that appended it does not read it again."""


class SpoutHost(ABC):
    """What a spout task asks of its host. The driver of a Spark query has one, ``LocalCluster`` another.

    What is not abstract does nothing here: so it is for a host without earlier runs, logs, traces and orders
    of operators.

    Attributes:
        inbox: Stores the task's messages.
        keys: The keys of messages, of all spout tasks.
        max_traces_per_sec: How many messages of a spout task are traced in a second by the rate; None: no
            limit.
        max_retries_traced_per_sec: How many attempts after the first of a spout task are traced in a second;
            None: no limit.
    """

    max_traces_per_sec: float | None = None
    max_retries_traced_per_sec: float | None = None

    def __init__(self, inbox: Inbox, keys: Keys | None = None) -> None:
        """Use an inbox; and keys of one's own, unless others are given."""
        self.inbox, self.keys = inbox, Keys() if keys is None else keys

    @abstractmethod
    def record(self, records: Sequence[GivenUpRecord]) -> None:
        """Store dead letters durably.

        Raises:
            DeadLetterLimitError: The limit is reached.
            Exception: The store cannot be written.
        """

    @abstractmethod
    def report(self, component: str, task: int, failure: Failure) -> None:
        """Report an error of user code."""

    @abstractmethod
    def reserve(self, first: int) -> int:
        """Reserve a block of sequences durably, before a message gets one of them.

        Args:
            first: The first sequence that is not reserved.

        Returns:
            The first sequence behind the block.
        """

    def letters_among(self, roots: Sequence[int]) -> frozenset[int]:
        """Which of these roots are dead letters. Asked at recovery; an exception stops the run."""
        del roots
        return frozenset()

    def mark_settled(self, letters: Sequence[int], now_ms: int) -> None:
        """The redrive of these dead letters is finished."""

    def wake(self, task: int) -> None:
        """Let ``next_tuple`` of a spout task be called again at once. Any thread may call it."""

    def note_acked(self, component: str, count: int, now_ms: int) -> None:
        """Messages of a spout were acked: ``count`` of them."""

    def note_superseded(self, component: str, count: int) -> None:
        """``count`` messages of a gate are ACKED unwritten: newer rows with their keys were written."""

    def note_failed(
        self,
        component: str,
        count: int,
        named: Iterable[tuple[object, int]],
        failure: Failure,
        most_attempts: int | None,
    ) -> None:
        """Attempts of messages failed.

        Args:
            component: The spout.
            count: How many.
            named: The id and the attempt of each, as far as they are known.
            failure: Why.
            most_attempts: How many attempts a message has; None: the spout decides.
        """

    def note_emitted(self, chunk: Chunk, message_ids: MessageIds, parents: Mapping[int, str]) -> None:
        """A chunk of tracked messages was handed over.

        Args:
            chunk: The chunk.
            message_ids: The id of each message.
            parents: The traceparents of some, by message.
        """

    def note_recovered(self, component: str, task: int, outage: Outage, now_ms: int) -> None:
        """What a spout task waited for works again."""

    def note_away(self, component: str, task: int, outage: Outage) -> None:
        """What bolts need is away, and messages of a spout task wait for it."""

    def note_overwritten(self, component: str, attribute: str) -> None:
        """``open`` has set a remembered attribute to another value than that of the earlier run."""

    def trace_rate(self) -> float:
        """The share of messages that is traced."""
        return 0.0

    def watched(self) -> WatchedNames | None:
        """The messages that operators watch; None for none."""
        return None
