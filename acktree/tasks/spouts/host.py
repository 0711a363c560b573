"""The interface between a spout task and its host: the driver of a Spark query, or ``LocalCluster``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from acktree.core.spouts.pending import MessageIds
from acktree.core.stats.numbers import Outage
from acktree.core.tracking.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.keys import Keys
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


def _do_nothing(*_: object) -> None:
    """Used by a host without a store of dead letters and without a limit of them."""


def _say_nothing(
    _spout: str, _count: int, _named: Iterable[tuple[object, int]], _failure: Failure, _most: int | None
) -> None:
    """Used by a host that keeps no log."""


def _note_nothing(_spout: str, _attribute: str) -> None:
    """Used by a host that has no earlier runs, or keeps no log."""


def _none_of_them(_: Sequence[int]) -> frozenset[int]:
    """Used by a host that has no earlier runs."""
    return frozenset()


def _none_traced() -> float:
    """Used by a host that records no traces."""
    return 0.0


def _none_watched() -> None:
    """Used by a host that takes no orders."""


@dataclass(frozen=True)
class SpoutHost:
    """What the host gives to a spout task.

    Attributes:
        inbox: Stores the task's messages.
        record: Stores dead letters durably before it returns. Raises DeadLetterLimitError when the limit is
            reached, and other errors when the store cannot be written.
        report: Called with every error of user code: (component, task, failure).
        reserve: Called with the first unreserved sequence, before a message gets it. Reserves a block durably
            and returns the first sequence behind it.
        note_acked: Called with the number of acked messages of a spout: (component, count, now_ms).
        mark_settled: Called with the ids of the dead letters whose redrive is finished, and the time.
        letters_among: Returns those of the given roots that are dead letters. Called at recovery; an
            exception stops the run before it begins.
        wake: Lets ``next_tuple`` of a spout task be called again at once. Any thread may call it.
        note_emitted: Called with each chunk of tracked messages that was handed over, their message ids, and
            the traceparents of some by message id.
        note_failed: Called with messages whose attempt failed: (component, count, the id and the attempt of
            each as far as they are known, the failure, how many attempts a message has).
        note_recovered: Called when what a spout task waited for works again: (component, task, what was
            away, now_ms).
        note_away: Called when what bolts need is away, and messages of a spout task wait for it: (component,
            task, what is away, now_ms).
        note_overwritten: Called when ``open`` of a spout has set a remembered attribute to another value than
            that of the earlier run: (component, attribute).
        trace_rate: Returns the share of messages that is traced.
        max_traces_per_sec: How many messages of a spout task are traced in a second by the rate; None: no
            limit.
        max_retries_traced_per_sec: How many attempts after the first of a spout task are traced in a second;
            None: no limit.
        watched: Returns the messages that operators watch; None for none.
        keys: The keys of messages, of all spout tasks.
    """

    inbox: Inbox
    record: Callable[[Sequence[GivenUpRecord]], None]
    report: Callable[[str, int, Failure], None]
    reserve: Callable[[int], int]
    note_acked: Callable[[str, int, int], None] = _do_nothing
    mark_settled: Callable[[Sequence[int], int], None] = _do_nothing
    letters_among: Callable[[Sequence[int]], frozenset[int]] = _none_of_them
    wake: Callable[[int], None] = _do_nothing
    note_failed: Callable[[str, int, Iterable[tuple[object, int]], Failure, int | None], None] = _say_nothing
    note_emitted: Callable[[Chunk, MessageIds, Mapping[int, str]], None] = _do_nothing
    note_recovered: Callable[[str, int, Outage, int], None] = _do_nothing
    note_away: Callable[[str, int, Outage, int], None] = _do_nothing
    note_overwritten: Callable[[str, str], None] = _note_nothing
    trace_rate: Callable[[], float] = _none_traced
    max_traces_per_sec: float | None = None
    max_retries_traced_per_sec: float | None = None
    watched: Callable[[], WatchedNames | None] = _none_watched
    keys: Keys = field(default_factory=Keys)
