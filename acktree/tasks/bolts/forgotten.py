"""Tuples that a bolt neither acked, failed nor kept: nothing can ack them any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from acktree.errors import MisuseError
from acktree.tasks.bolts.rows.frame_rows import InboundRows

__all__ = ["Left", "error_of", "tracked_among"]

Left = tuple[InboundRows, Sequence[int]]
"""Rows, and which of them are open."""


def tracked_among(left: Iterable[Left]) -> Iterator[Left]:
    """The tuples that belong to a message: no verdict depends on the others."""
    for rows, which in left:
        if which and len(rows.lineage.roots_of(np.array(which))):
            yield rows, which


def error_of(forgotten: Sequence[Left], component: str, task: int) -> MisuseError:
    """The error to report for all of a task and micro-batch."""
    count = sum(len(which) for _, which in forgotten)
    rows, which = forgotten[0]
    return MisuseError(
        f"{count} tuples were neither acked, failed nor kept, and nothing can ack them any more; "
        f"the first is {rows.handle(which[0])!r}",
        f"bolt {component!r}, task {task}",
        "ack or fail each tuple, or keep it in an attribute that the bolt `remembers`; "
        "Config(fail_forgotten=True) fails such tuples at once",
    )
