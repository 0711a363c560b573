"""Which tuple is being executed, and which are left alone: what finds the message that kills its worker.

A level that runs in LocalCluster, or for the first time on Spark, has nothing to leave alone. On Spark a
worker that dies leaves its mark behind; see ``spark/isolation``.

Storm has no counterpart: its worker dies, the tuple is replayed, and the next worker dies.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass

from acktree.core.data.frames import Frame
from acktree.core.tracking.verdicts import FailureCause
from acktree.tasks.bolts.row_names import Names
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


class ExecutionMonitor:
    """Stands by while a level is executed. This one only watches the clock's hand move.

    Attributes:
        mark: ``mark[0]`` is the row that is being executed; whoever executes a row writes it there first.
    """

    def __init__(self) -> None:
        self.mark: MutableSequence[int] | memoryview = [-1]

    def names_of(self, frame: Frame, task: int, *, moves: bool) -> Names:  # noqa: ARG002  # nobody asks
        """What the rows of a frame are called; its frames are named in the order in which they are executed.

        Args:
            task: Who executes it.
            moves: Whether its rows may stand elsewhere in the next run: a bolt of the same level made it.
        """
        return Names(len(frame))

    def begin(self, component: Component, names: Names, *, together: bool) -> None:
        """Rows are executed next.

        Args:
            component: The bolt that executes them.
            names: What they are called.
            together: Whether they are executed in one call; else each is marked first.
        """

    def sending(self) -> None:
        """They were executed, and what they emitted is made ready: it may be any of them that is too much."""

    def end(self) -> None:
        """That is done, too."""

    def enter(self, component: Component, hook: str) -> None:
        """A hook that has no tuple to blame is called, such as ``prepare`` or ``flush``; then ``end``."""

    def left_out(self, names: Names) -> Sequence[LeftOut]:  # noqa: ARG002  # nobody died here
        """The rows of a frame that are not to be executed, ascending."""
        return ()

    def cuts(self, names: Names) -> Sequence[int]:  # noqa: ARG002  # nobody died here
        """Where a frame must be cut, ascending: some row of it killed a worker, and it is not known which."""
        return ()
