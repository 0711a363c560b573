"""How the files of a checkpoint come to be there and go, and how Spark's log beside them is read.

What a checkpoint must not lose is written beside its place, and counts once it was put into it. Where the
checkpoint is a folder that is a rename; where it is at a URL, ``mirror.py`` has it there before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from acktree.checkpoint.location import hadoop_path
from acktree.errors import CheckpointError
from acktree.private_files import make_all_private, make_private_folder


class Files:
    """The files of a checkpoint that is a folder.

    Attributes:
        is_seen: Whether executors see the folder, and may read from it and write to it.
        lost: Why nothing that is put counts any more; None while all is well.
    """

    is_seen = True
    lost: CheckpointError | None = None

    def place(self, new: Path, file: Path) -> Path:
        """Let a file that was written beside its place be there; durable, and seen whole or not at all."""
        return new.rename(file)

    def remove(self, file: Path) -> None:
        """Let a file go, if it is there."""
        file.unlink(missing_ok=True)

    def shown(self, folder: Path) -> Path | str:
        """What a person calls the checkpoint's folder."""
        return folder

    def make_spark_folder(self, folder: Path) -> str:
        """Make Spark's part private, before Spark makes it as the umask says; returns what Spark calls it."""
        make_private_folder(folder)
        return hadoop_path(folder)

    def leave_spark_folder(self, folder: Path) -> None:
        """Make what Spark wrote private: in a session of the user's it has the rights that Spark gave it."""
        make_all_private(folder)

    def logged(self, folder: Path) -> Iterable[str]:
        """The names in one of Spark's logs; none where it is not there."""
        return [file.name for file in folder.glob("[0-9]*")]

    def read_log(self, file: Path) -> str:
        """An entry of one of Spark's logs."""
        return file.read_text()

    def is_logged(self, file: Path) -> bool:
        """Whether an entry of one of Spark's logs is there."""
        return file.exists()

    def begin(self, on_lost: Callable[[], None]) -> None:
        """Recovery is over; from now on ``on_lost`` is called, once, when :attr:`lost` is set."""

    def check(self) -> None:
        """See that what is done now may count.

        Raises:
            CheckpointError: It may not: see :attr:`lost`.
        """

    def told(self, error: BaseException) -> BaseException:
        """What a failure of the query comes to: the error itself, or that the files cannot be reached."""
        return error

    def close(self) -> None:
        """Let the next driver have them. A second call does nothing."""


FOLDER: Final = Files()
"""Where nothing more is known about a folder than that it is one."""
