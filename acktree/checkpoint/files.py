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
from acktree.private_files import DISK, Disk

UNPLACED: Final = "new-"
"""How the name of a file begins that was written beside its place and not put there yet."""


class Files:
    """The files of a checkpoint that is a folder.

    Attributes:
        disk: What all of it is read and written by.
        survives_power_cut: Whether what counts is on the medium before anything is built on it. False: it
            is on the medium whenever the operating system puts it there.
        is_seen: Whether executors see the folder, and may read from it and write to it.
        lost: Why nothing that is put counts any more; None while all is well.
    """

    disk: Disk = DISK
    survives_power_cut: bool = False
    is_seen = True
    lost: CheckpointError | None = None

    def __init__(self, disk: Disk = DISK, *, survives_power_cut: bool = False) -> None:
        """Work on a disk; by default the machine's."""
        self.disk, self.survives_power_cut = disk, survives_power_cut

    def write(self, file: Path, content: bytes) -> Path:
        """Write a file that is there whole or not at all, in the place of one that may be there."""
        return self.place(self.prepare(file, content), file)

    def prepare(self, file: Path, content: bytes) -> Path:
        """Write a file beside its place, for :meth:`place`; returns where."""
        new = _beside(file)
        self.disk.write(new, content, sync=self.survives_power_cut)
        return new

    def write_pieces(
        self, file: Path, pieces: Iterable[bytes | memoryview], head: Callable[[int], bytes]
    ) -> Path:
        """Write a file piece by piece: see :meth:`write`, and ``Disk.write_pieces``."""
        new = _beside(file)
        self.disk.write_pieces(new, pieces, head, sync=self.survives_power_cut)
        return self.place(new, file)

    def read(self, file: Path) -> bytes:
        """What a file holds that was placed."""
        return self.disk.read(file)

    def mapped(self, file: Path) -> memoryview:
        """The same, read when it is looked at; the file may go meanwhile."""
        return self.disk.mapped(file)

    def place(self, new: Path, file: Path) -> Path:
        """Let a file that was written beside its place be there; durable, and seen whole or not at all."""
        self.disk.rename(new, file)
        return file

    def remove(self, file: Path) -> None:
        """Let a file go, if it is there."""
        self.disk.remove(file)

    def sync_names(self, folder: Path) -> None:
        """Where power cuts are survived: what was placed in a folder, and removed, stays so."""
        if self.survives_power_cut:
            self.disk.sync_folder(folder)

    def sync_all(self, folder: Path) -> None:
        """Where power cuts are survived: all that was written up to now stays, Spark's part too."""
        if self.survives_power_cut:
            self.disk.sync_all(folder)

    def shown(self, folder: Path) -> Path | str:
        """What a person calls the checkpoint's folder."""
        return folder

    def make_spark_folder(self, folder: Path) -> str:
        """Make Spark's part private, before Spark makes it as the umask says; returns what Spark calls it."""
        self.disk.make_folder(folder)
        return hadoop_path(folder)

    def leave_spark_folder(self, folder: Path) -> None:
        """Make what Spark wrote private: in a session of the user's it has the rights that Spark gave it."""
        self.disk.make_all_private(folder)

    def logged(self, folder: Path) -> Iterable[str]:
        """The names in one of Spark's logs; none where it is not there."""
        if not self.disk.exists(folder):
            return []
        return [name for name in self.disk.names(folder) if name[:1].isdigit()]

    def read_log(self, file: Path) -> str:
        """An entry of one of Spark's logs."""
        return self.disk.read(file).decode()

    def is_logged(self, file: Path) -> bool:
        """Whether an entry of one of Spark's logs is there."""
        return self.disk.exists(file)

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


def _beside(file: Path) -> Path:
    """Where a file is written before it is placed."""
    return file.with_name(f"{UNPLACED}{file.name}")


FOLDER: Final = Files()
"""Where nothing more is known about a folder than that it is one."""
