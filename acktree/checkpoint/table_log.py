"""Tables that only grow, on disk: a file for each micro-batch that changed one.

::

    metrics/000000000042    all metrics of users after that micro-batch, as JSON
    counts/000000000042     the counts of all runs after that micro-batch, as JSON, compressed

Written before the sink returns, as the acker's files are: what is here of a micro-batch that was never
committed is thrown away at a restart, and that micro-batch brings its increments again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acktree.checkpoint.files import FOLDER, Files, committed_files
from acktree.errors import CheckpointError

__all__ = ["FileCountLog", "FileMetricsLog"]


class FileTableLog:
    """A table in a folder of the checkpoint. The folder is made with the first file.

    Attributes:
        name: The folder.
        what: What the table has, for errors.
        deleted: What follows when the folder is deleted.
    """

    name: str
    what: str
    deleted: str

    def __init__(self, folder: Path, last_committed: int, files: Files = FOLDER) -> None:
        """Take up what an earlier driver left.

        Args:
            folder: The checkpoint's folder.
            last_committed: The last micro-batch that Spark has committed.
            files: How a file comes to be there.

        Raises:
            CheckpointError: The folder cannot be read.
        """
        self._folder, self._files = folder / self.name, files
        self._kept = self._committed(last_committed)

    def recover(self) -> bytes:
        """The table as of the last committed micro-batch; empty if there is none.

        Raises:
            CheckpointError: It cannot be read.
        """
        if not self._kept:
            return b""
        with self._explained():
            stored = self._files.read(self._kept[-1])
        if not stored:
            raise self.unreadable(f"{self._kept[-1].name} is empty")
        return stored

    def write(self, batch_id: int, table: bytes) -> None:
        """Store the table as of a micro-batch that is not committed yet; again, if it is the last one."""
        self._files.disk.make_folder(self._folder)
        file = self._files.write(self._folder / f"{batch_id:012d}", table)
        if self._kept[-1:] == [file]:
            return
        for old in self._kept[:-1]:  # the last one is of a micro-batch that is committed by now
            self._files.remove(old)
        self._kept = [*self._kept[-1:], file]

    @classmethod
    def unreadable(cls, why: object) -> CheckpointError:
        """The error for a table that cannot be read."""
        return CheckpointError(
            f"the {cls.what} that an earlier run stored cannot be read: {why}",
            f"the folder {cls.name} of the checkpoint",
            f"delete that folder: {cls.deleted}, and nothing else changes",
        )

    def _committed(self, last_committed: int) -> list[Path]:
        with self._explained():
            if not self._files.disk.exists(self._folder):
                return []
            return committed_files(self._files, self._folder, last_committed)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.unreadable(error) from error


class FileMetricsLog(FileTableLog):
    """The metrics of users."""

    name, what, deleted = "metrics", "metrics", "metrics of your own then begin at 0"


class FileCountLog(FileTableLog):
    """The counts of all runs."""

    name, what, deleted = "counts", "counts of all runs", "`:all-time` then begins at 0"
