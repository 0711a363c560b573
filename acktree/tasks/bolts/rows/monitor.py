"""The execution monitor: notes which row is being executed, and names the rows to leave out.

It finds the message that kills its worker. In ``LocalCluster``, and in a first run on Spark, no row is left
out. On Spark the execution mark of a worker that died is read by the next attempt; see
``spark/worker/isolation.py``.

Storm has no counterpart: its worker dies, the tuple is replayed, and the next worker dies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from acktree.core.data.frames import Frame
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import AcktreeError, ConnectorError, ExecuteTimeoutError, KilledWorkerError
from acktree.tasks.bolts.rows.row_names import Names
from acktree.topology.model import Component


@dataclass(frozen=True)
class LeftOut:
    """A row that is not executed, because it killed or blocked its worker before.

    Attributes:
        row: Its index in the frame.
        cause: Why it is left out.
        reason: The cause as a text for people.
    """

    row: int
    cause: FailureCause
    reason: str


class ExecutionMonitor:
    """A monitor that does nothing; ``MarkingMonitor`` overrides its methods on Spark.

    Attributes:
        mark: ``mark[0]`` is the index of the row that is being executed. The bolt task writes it before it
            executes the row.
        searches: Whether a worker has died over this level: frames whose rows are executed at once are then
            executed one after another, so that the row can be found.
        may_have_run: Whether another process may have executed this level in this micro-batch before.
    """

    searches = False
    may_have_run = False

    def __init__(self) -> None:
        self.mark: MutableSequence[int] | memoryview = [-1]

    def names_of(self, frame: Frame, task: int, *, moves: bool) -> Names:  # noqa: ARG002  # no names here
        """The names of a frame's rows. Called for the frames in the order of execution.

        Args:
            frame: The frame.
            task: The task that executes it.
            moves: Whether its rows may have other positions in the next run: a bolt of the same level made
                it.
        """
        return Names(len(frame))

    def begin(self, component: Component, names: Names, *, together: bool) -> None:
        """Called before rows are executed.

        Args:
            component: The bolt that executes them.
            names: The names of the rows.
            together: Whether they are executed in one call. Otherwise each row is marked before its call.
        """

    def begin_calls(self, component: Component) -> None:
        """Called before rows of several frames are executed at once; instead of ``begin``."""

    def resume(self, names: Names, row: int) -> None:
        """Called before a step of a row that is executed at the same time as others.

        Args:
            names: The names of the rows of its frame.
            row: Its index there.
        """

    def pause(self) -> None:
        """Called after such a step. If the worker dies now, any of the rows may be the cause."""

    def beat(self) -> None:
        """Called several times in each execute timeout while rows are executed at once.

        If it is not called for that long, some row blocks all others.
        """

    def end_process(self, names: Names, row: int) -> None:
        """Called for a row that cannot be given up while its process goes on. May return, and do nothing."""

    def sending(self) -> None:
        """Called after the rows were executed, before their emitted tuples are encoded and routed.

        If the worker dies now, any of the rows may be the cause.
        """

    def end(self) -> None:
        """Called when the emitted tuples were routed, or when a hook has returned."""

    def waits(self, component: str, task: int, error: ConnectorError, tries: int) -> bool:  # noqa: ARG002
        """Called while a sink's task waits for a server, before each pause.

        Args:
            component: The sink.
            task: Its task.
            error: Why it waits.
            tries: How often it has asked.

        Returns:
            Whether it may wait as long as it takes. In the process of a test nothing would end that.
        """
        return False

    def waits_no_more(self) -> None:
        """Called when it has an answer, or gives up."""

    def enter(self, component: Component, hook: str) -> None:
        """Called before a hook that works on no one tuple: ``prepare``, ``tick``, ``flush`` or ``cleanup``.

        Those of a sink are ``open``, ``last_mark``, ``write`` and ``close``.
        """

    def left_out(self, names: Names) -> Sequence[LeftOut]:  # noqa: ARG002  # no worker died here
        """The rows that must not be executed, ascending."""
        return ()

    def cuts(self, names: Names) -> Sequence[int]:  # noqa: ARG002  # no worker died here
        """Where to cut a frame, ascending. A frame is cut when an unknown row of it killed a worker."""
        return ()


_KILLERS: Final[Mapping[FailureCause, type[AcktreeError]]] = {
    FailureCause.KILLED_WORKER: KilledWorkerError,
    FailureCause.HUNG: ExecuteTimeoutError,
}
"""The error of a tuple that is no longer executed, by the cause."""


def parts_of(
    frame: Frame, names: Names, monitor: ExecutionMonitor
) -> Iterator[tuple[Frame, Names, LeftOut | None]]:
    """Cut a frame where the monitor marks it and around each row to leave out.

    Returns:
        The parts in their order, each with its names, and the reason if its one row is left out.
    """
    count = len(frame.lineage)
    left_out = {left.row: left for left in monitor.left_out(names)}
    borders = {0, count, *monitor.cuts(names)}
    for row in left_out:
        borders |= {row, row + 1}
    for start, end in pairwise(sorted(borders)):
        part = frame if end - start == count else frame.rows(np.arange(start, end))
        yield part, names.part(start, end), left_out.get(start)


def left_out_error(left: LeftOut, component: str) -> AcktreeError:
    """The error of a row that is left out."""
    return _KILLERS[left.cause](
        left.reason,
        f"bolt {component!r}",
        "run the bolt on this tuple alone, outside of Spark, to see what it does",
    )
