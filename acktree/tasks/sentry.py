"""Which tuple is being executed, and which are left alone: what finds the message that kills its worker.

A level that runs in LocalCluster, or for the first time on Spark, has nothing to leave alone. On Spark a
worker that dies leaves its mark behind; see ``spark/isolation``.

Storm has no counterpart: its worker dies, the tuple is replayed, and the next worker dies.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from acktree.core.frames import Frame
from acktree.core.ids import UInt64s, mix64
from acktree.core.verdicts import FailureCause


@dataclass(frozen=True)
class LeftOut:
    """A row that is not executed any more.

    Attributes:
        row: Its place in the frame.
        cause: What it did to its worker.
        reason: The same in words.
    """

    row: int
    cause: FailureCause
    reason: str


class Sentry:
    """Stands by while a level is executed. This one only watches the clock's hand move.

    Attributes:
        mark: ``mark[0]`` is the row that is being executed; whoever executes a row writes it there first.
    """

    def __init__(self) -> None:
        self.mark: MutableSequence[int] | memoryview = [-1]

    def begin(self, names: UInt64s, *, together: bool) -> None:
        """Rows are executed next.

        Args:
            names: One number for each row, the same whenever it is executed: :func:`names_of`.
            together: Whether they are executed in one call; else each is marked first.
        """

    def sending(self) -> None:
        """They were executed, and what they emitted is made ready: it may be any of them that is too much."""

    def end(self) -> None:
        """That is done, too."""

    def left_out(self, names: UInt64s) -> Sequence[LeftOut]:  # noqa: ARG002  # nobody died here
        """The rows of a frame that are not to be executed, ascending."""
        return ()

    def cuts(self, names: UInt64s) -> Sequence[int]:  # noqa: ARG002  # nobody died here
        """Where a frame must be cut, ascending: some row of it killed a worker, and it is not known which."""
        return ()


def names_of(frame: Frame, folds: UInt64s, task: int) -> UInt64s:
    """A number for each row of a frame, the same in every run of its micro-batch; shape (n,).

    A tracked row has one already; an untracked one is named by its place.
    """
    if folds.all():
        return folds
    said = f"{frame.component}\0{frame.stream}\0{frame.source_task}\0{frame.sequence}\0{task}"
    place = np.uint64(int.from_bytes(blake2b(said.encode(), digest_size=8).digest(), "little"))
    named = mix64(np.arange(len(folds), dtype=np.uint64) + place)
    return np.where(folds == 0, named, folds)
