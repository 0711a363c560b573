"""The metrics of users, on disk: a file for each micro-batch that changed some.

::

    metrics/000000000042    all of them after that micro-batch, as JSON

Written before the sink returns, as the acker's files are: what is here of a micro-batch that was never
committed is thrown away at a restart, and that micro-batch brings its increments again.
"""

from __future__ import annotations

from pathlib import Path

from acktree.checkpoint.files import FOLDER, UNPUBLISHED, Files

__all__ = ["FileMetricsLog"]


class FileMetricsLog:
    """The metrics of a checkpoint. The folder is made with the first file."""

    def __init__(self, folder: Path, last_committed: int, files: Files = FOLDER) -> None:
        """Take up what an earlier driver left.

        Args:
            folder: The checkpoint's folder.
            last_committed: The last micro-batch that Spark has committed.
            files: How a file comes to be there.
        """
        self._folder, self._files = folder / "metrics", files
        self._kept = self._committed(last_committed)

    def recover(self) -> bytes:
        """The metrics as of the last committed micro-batch; empty if there are none."""
        return self._files.read(self._kept[-1]) if self._kept else b""

    def write(self, batch_id: int, table: bytes) -> None:
        """Store the metrics as of a micro-batch that is not committed yet."""
        self._files.disk.make_folder(self._folder)
        file = self._files.write(self._folder / f"{batch_id:012d}", table)
        for old in self._kept[:-1]:  # the last one is of a micro-batch that is committed by now
            self._files.remove(old)
        self._kept = [*self._kept[-1:], file]

    def _committed(self, last_committed: int) -> list[Path]:
        """The files that count, ascending; what else is there goes."""
        if not self._files.disk.exists(self._folder):
            return []
        found: list[Path] = []
        for name in sorted(self._files.disk.names(self._folder)):
            file = self._folder / name
            if name.startswith(UNPUBLISHED) or (name.isdigit() and int(name) > last_committed):
                self._files.remove(file)
            elif name.isdigit():  # a file of somebody else's stays, and is not read
                found.append(file)
        return found
