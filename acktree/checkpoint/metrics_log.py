"""The metrics of users, on disk: a file for each micro-batch that changed some.

::

    metrics/000000000042    all of them after that micro-batch, as JSON

Written before the sink returns, as the acker's files are: what is here of a micro-batch that was never
committed is thrown away at a restart, and that micro-batch brings its increments again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acktree.checkpoint.files import FOLDER, Files, committed_files
from acktree.errors import CheckpointError

__all__ = ["FileMetricsLog", "unreadable"]


class FileMetricsLog:
    """The metrics of a checkpoint. The folder is made with the first file."""

    def __init__(self, folder: Path, last_committed: int, files: Files = FOLDER) -> None:
        """Take up what an earlier driver left.

        Args:
            folder: The checkpoint's folder.
            last_committed: The last micro-batch that Spark has committed.
            files: How a file comes to be there.

        Raises:
            CheckpointError: The folder cannot be read.
        """
        self._folder, self._files = folder / "metrics", files
        self._kept = self._committed(last_committed)

    def recover(self) -> bytes:
        """The metrics as of the last committed micro-batch; empty if there are none.

        Raises:
            CheckpointError: They cannot be read.
        """
        if not self._kept:
            return b""
        with _explained():
            stored = self._files.read(self._kept[-1])
        if not stored:
            raise unreadable(f"{self._kept[-1].name} is empty")
        return stored

    def write(self, batch_id: int, table: bytes) -> None:
        """Store the metrics as of a micro-batch that is not committed yet."""
        self._files.disk.make_folder(self._folder)
        file = self._files.write(self._folder / f"{batch_id:012d}", table)
        for old in self._kept[:-1]:  # the last one is of a micro-batch that is committed by now
            self._files.remove(old)
        self._kept = [*self._kept[-1:], file]

    def _committed(self, last_committed: int) -> list[Path]:
        with _explained():
            if not self._files.disk.exists(self._folder):
                return []
            return committed_files(self._files, self._folder, last_committed)


def unreadable(why: object) -> CheckpointError:
    """The error for metrics that cannot be read."""
    return CheckpointError(
        f"the metrics that an earlier run stored cannot be read: {why}",
        "the folder metrics of the checkpoint",
        "delete that folder: metrics of your own then begin at 0, and nothing else changes",
    )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(error) from error
