"""Isolation for a task that stays, and runs one micro-batch after the other (real time).

Its mark is one file, which is opened once; ``isolation.py`` opens one for each micro-batch, which takes
longer than a level takes for one message. Spark tries no task again there. The query starts again, and a new
task finds in the file over which micro-batch the one before it died, if it did. What it finds it gives the
name that a mark of that micro-batch has, and isolates that one as usual.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from acktree.core.data.frames import WireRow
from acktree.core.state.store import StateStore
from acktree.spark.worker.isolation import UNGUARDED, Run
from acktree.spark.worker.marks import MARK, MarkingMonitor, Suspects, batch_of, run_of
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor


class StayingMonitor:
    """The mark and the watchdog of one level in one partition, from micro-batch to micro-batch."""

    def __init__(
        self, folder: Path, level: int, partition: int, timeout_secs: float | None, run_number: int
    ) -> None:
        """Take over what the task before this one has left.

        Args:
            folder: The folder of marks.
            timeout_secs: ``execute_timeout_secs``.
            run_number: A number of the topology's run; not 0.
        """
        self._folder, self._place = folder, f"{level}.{partition}"
        self._timeout_secs, self._run_number = timeout_secs, run_number
        self._monitor: MarkingMonitor | None = None
        self._is_guarded = UNGUARDED not in os.environ
        if self._is_guarded:
            self._take_over()

    def run(self, batch_id: int, level: Run, store: StateStore | None = None) -> Iterable[WireRow]:
        """Run the level over a micro-batch that no task before this one has run."""
        if not self._is_guarded:
            return [*level(ExecutionMonitor(), store)]
        if self._monitor is None:
            self._monitor = MarkingMonitor(
                self._file("mark"),
                Suspects(self._file("suspects")),
                self._timeout_secs,
                stays=True,
                is_seen=True,
            )
        self._monitor.begin_batch(batch_id, self._run_number)
        try:
            with self._monitor.on_watch():
                return [*level(self._monitor, store)]
        finally:
            self._monitor.end_batch()

    def close(self) -> None:
        """Close the file, and end the watchdog. A second call does nothing."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.close()

    def _take_over(self) -> None:
        """Rename a mark of a task that died: one that still runs does not write into the new file."""
        mark, hung = self._file("mark"), self._file("hung")
        blob = mark.read_bytes() if mark.exists() else b""
        if len(blob) >= MARK.size and run_of(blob) == self._run_number:
            died_over = batch_of(blob)
            for file in (hung, mark):  # the mark last: it counts
                if file.exists():
                    file.rename(self._folder / f"{died_over}.{self._place}{file.suffix}")
        else:
            for file in (hung, mark):
                with suppress(FileNotFoundError):
                    file.unlink()

    def _file(self, what: str) -> Path:
        return self._folder / f"stays.{self._place}.{what}"
