"""When a ``DataFrameSpout`` with ``ends=True`` has ended: a micro-batch found nothing new in its source.

Rules of this file
------------------
1. Spark runs no micro-batch without new data, and so does not say that there is none. When the query is idle
   one more is run, by an entry without content.
2. Offsets are compared, not rows: a micro-batch whose rows were all filtered is not the last one.
"""

from __future__ import annotations

import time
from typing import Final

from acktree.checkpoint.inbox_files import ChunkKind
from acktree.driver.query import Query
from acktree.driver.run import Run
from acktree.tasks.spouts.dataframe import DataFrameTask

_LOOK_SECS: Final = 0.2
"""The shortest time between two questions to Spark."""
_LONGEST_PAUSE_SECS: Final = 1.0
"""The longest time between two calls of ``look``, while a DataFrame may end."""


class EndingFrames:
    """Ends the spouts of DataFrames that end, when Spark has read all of them."""

    def __init__(self, run: Run) -> None:
        """Watch a run; :meth:`look` does the rest."""
        self._run = run
        self._asked = -1
        self._due = 0.0

    def look(self, query: Query) -> None:
        """End the spouts if the last micro-batch found nothing new; else let one more run when idle.

        Spark runs none without new data, and so would not say that there is none.
        """
        run, frames = self._run, self._open()
        now, batch_id = time.monotonic(), run.results.progress.batch_id
        if not frames or now < self._due:
            return
        self._due = now + _LOOK_SECS
        if not run.checkpoint.is_committed(batch_id):
            return
        if query.has_read_all():
            for task in frames:
                task.end()
        elif batch_id > self._asked and run.inbox.is_drained:
            self._asked = batch_id
            run.inbox.append_control(ChunkKind.BEAT, {})

    @property
    def longest_pause_secs(self) -> float | None:
        """How long the supervisor may wait before the next :meth:`look`; None where none is needed."""
        return _LONGEST_PAUSE_SECS if self._open() else None

    def _open(self) -> list[DataFrameTask]:
        """The tasks to end; none unless all DataFrames end and none of them has ended."""
        tasks = [thread.task for thread in self._run.threads.by_task.values()]
        frames = [task for task in tasks if isinstance(task, DataFrameTask)]
        return frames if all(task.ends and not task.has_ended for task in frames) else []
