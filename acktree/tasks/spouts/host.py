"""What a spout task needs from whoever runs it, on Spark or in ``LocalCluster``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from acktree.core.tracking.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.retries import GivenUpRecord


class Inbox(Protocol):
    """Where chunks go: same number, same bytes, until nobody needs them."""

    def append(self, chunks: Sequence[Chunk]) -> int:
        """Hand over chunks, all or none; returns the number of the first, the others follow."""

    def read(self, number: int) -> Chunk:
        """A chunk that was not released."""

    def room(self, wanted: int = 1) -> int:
        """How many messages a spout task may have that it did not hand over yet; it may emit below that.

        Args:
            wanted: Fewer are looked at twice, more are not asked for.
        """

    @property
    def chunk_rows(self) -> int:
        """How many messages a chunk shall have at most."""

    def release(self, number: int) -> None:
        """The spout task that appended it needs the chunk no more."""


def _do_nothing(*_: object) -> None:
    """Neither a limit of dead letters nor a store of them."""


def _none_of_them(_: Sequence[int]) -> frozenset[int]:
    """Who runs it has no earlier runs."""
    return frozenset()


@dataclass(frozen=True)
class SpoutHost:
    """What a spout task is given by whoever runs it.

    Attributes:
        inbox: Where its messages go.
        bury: Makes dead letters durable before it returns; raises if it cannot, DeadLetterLimitError if they
            are too many.
        report: Told of every error of user code: (component, task, failure).
        reserve: Told, before any message gets it, the first sequence not reserved yet; returns the next.
        note_acked: Told how many messages of a spout were acked: (component, count, now_ms).
        settle: Told which dead letters' redrive came to its end, and when.
        letters_among: Those of some roots that are dead letters; asked of what an earlier run left. What it
            raises stops the run before it begins.
        wake: Lets a spout task be asked again at once. From any thread.
    """

    inbox: Inbox
    record: Callable[[Sequence[GivenUpRecord]], None]
    report: Callable[[str, int, Failure], None]
    reserve: Callable[[int], int]
    note_acked: Callable[[str, int, int], None] = _do_nothing
    settle: Callable[[Sequence[int], int], None] = _do_nothing
    letters_among: Callable[[Sequence[int]], frozenset[int]] = _none_of_them
    wake: Callable[[int], None] = _do_nothing
