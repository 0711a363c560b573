"""Which tuple is being executed, and which are left alone: what finds the message that kills its worker.

A level that runs in LocalCluster, or for the first time on Spark, has nothing to leave alone. On Spark a
worker that dies leaves its mark behind; see ``spark/isolation``.

Storm has no counterpart: its worker dies, the tuple is replayed, and the next worker dies.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from acktree.core.frames import Frame
from acktree.core.verdicts import FailureCause
from acktree.topology.model import Component


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

    def begin(self, component: Component, first: int, count: int, *, together: bool) -> None:
        """Rows are executed next.

        Args:
            component: The bolt that executes them.
            first: The name of the first; those after it are numbered on from there.
            count: How many.
            together: Whether they are executed in one call; else each is marked first.
        """

    def sending(self) -> None:
        """They were executed, and what they emitted is made ready: it may be any of them that is too much."""

    def end(self) -> None:
        """That is done, too."""

    def enter(self, component: Component, hook: str) -> None:
        """A hook that has no tuple to blame is called: ``prepare``, ``tick`` or ``cleanup``; then ``end``."""

    def left_out(self, first: int, count: int) -> Sequence[LeftOut]:  # noqa: ARG002  # nobody died here
        """The rows of a frame that are not to be executed, ascending; the frame's rows are named so."""
        return ()

    def cuts(self, first: int, count: int) -> Sequence[int]:  # noqa: ARG002  # nobody died here
        """Where a frame must be cut, ascending: some row of it killed a worker, and it is not known which."""
        return ()


def name_of(frame: Frame, task: int) -> int:
    """The name of a frame's first row, the same in every run of its micro-batch; 0 to 2**62 - 1."""
    texts = (frame.component, frame.stream, frame.subscriber)
    said = repr((*texts, frame.source, frame.sequence, task)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(said, digest_size=8).digest()) >> 2
