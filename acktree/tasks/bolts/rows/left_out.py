"""Which rows of a frame are left out of execution: those that killed a worker or did not return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from acktree.core.data.frames import Frame
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import AcktreeError, ExecuteTimeoutError, KilledWorkerError
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor, LeftOut
from acktree.tasks.bolts.rows.row_names import Names

__all__ = ["error_of", "parts_of"]

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


def error_of(left: LeftOut, component: str) -> AcktreeError:
    """The error of a row that is left out."""
    return _KILLERS[left.cause](
        left.reason,
        f"bolt {component!r}",
        "run the bolt on this tuple alone, outside of Spark, to see what it does",
    )
