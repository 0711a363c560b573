"""What a spout task needs from whoever runs it, on Spark or in ``LocalCluster``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from acktree.core.verdicts import Failure
from acktree.tasks.chunk import Chunk
from acktree.tasks.retries import LastWill


class Inbox(Protocol):
    """Where chunks go: same number, same bytes, until nobody needs them."""

    def append(self, chunks: Sequence[Chunk]) -> int:
        """Hand over chunks, all or none; returns the number of the first, the others follow."""

    def read(self, number: int) -> Chunk:
        """A chunk that was not released."""

    def has_room(self) -> bool:
        """Whether spouts may emit."""

    @property
    def chunk_rows(self) -> int:
        """How many messages a chunk shall have at most."""

    def release(self, number: int) -> None:
        """The spout task that appended it needs the chunk no more."""


@dataclass(frozen=True)
class Surroundings:
    """What a spout task is given by whoever runs it.

    Attributes:
        inbox: Where its messages go.
        bury: Makes dead letters durable before it returns; raises if it cannot.
        report: Told of every error of user code: (component, task, failure).
        reserve: Told, before any message gets it, the first sequence not reserved yet; returns the next.
    """

    inbox: Inbox
    bury: Callable[[Sequence[LastWill]], None]
    report: Callable[[str, int, Failure], None]
    reserve: Callable[[int], int]
