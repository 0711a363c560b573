"""How the files of a checkpoint are written and deleted, and how Spark's log beside them is read.

A file that a checkpoint must not lose is written under a temporary name and then published: it counts from
then on. In a checkpoint that is a folder, publishing is a rename. In one at a URL, ``mirror.py`` writes the
file there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from acktree.checkpoint.location import hadoop_path
from acktree.errors import CheckpointError
from acktree.system.private_files import DISK, UNPUBLISHED, Disk
from acktree.texts import is_number


class Files:
    """The files of a checkpoint that is a folder.

    Attributes:
        disk: All files are read and written through it.
        survives_power_cut: Whether a file is synced to the medium before anything depends on it. False: the
            operating system writes it to the medium at some later time.
        is_seen: Whether executors see the folder, and may read from it and write to it.
        lost: Why nothing can be written any more; None while all is well.
    """

    disk: Disk = DISK
    survives_power_cut: bool = False
    is_seen = True
    lost: CheckpointError | None = None

    def __init__(self, disk: Disk = DISK, *, survives_power_cut: bool = False) -> None:
        """Use a disk; by default the machine's."""
        self.disk, self.survives_power_cut = disk, survives_power_cut

    def write(self, file: Path, content: bytes) -> Path:
        """Write a file atomically; an earlier one of that name is replaced."""
        with self._removed_on_error(file):
            return self.publish(self.prepare(file, content), file)

    def prepare(self, file: Path, content: bytes) -> Path:
        """Write a file under its temporary name, for :meth:`publish`; returns that name."""
        new = _beside(file)
        self.disk.write(new, content, sync=self.survives_power_cut)
        return new

    def write_pieces(self, file: Path, pieces: Iterable[bytes | memoryview]) -> Path:
        """Write a file piece by piece: see :meth:`write`, and ``Disk.write_pieces``."""
        new = _beside(file)
        with self._removed_on_error(file):
            self.disk.write_pieces(new, pieces, sync=self.survives_power_cut)
            return self.publish(new, file)

    @contextmanager
    def _removed_on_error(self, file: Path) -> Iterator[None]:
        """Delete the unpublished file if the block raises: on a full disk each try would leave one more."""
        try:
            yield
        except OSError:
            with suppress(OSError):
                self.disk.remove(_beside(file))
            raise

    def read(self, file: Path) -> bytes:
        """The content of a published file."""
        return self.disk.read(file)

    def mapped(self, file: Path) -> memoryview:
        """The same, memory-mapped; the file may be deleted meanwhile."""
        return self.disk.mapped(file)

    def publish(self, new: Path, file: Path) -> Path:
        """Give a file that was prepared its name, atomically; durable when this returns."""
        self.disk.rename(new, file)
        return file

    def publish_all(self, prepared: Sequence[tuple[Path, Path]]) -> None:
        """Publish files of which any may be there without the others: (temporary name, name) of each."""
        for new, file in prepared:
            self.publish(new, file)

    def remove(self, file: Path) -> None:
        """Delete a file, if it is there."""
        self.disk.remove(file)

    def sync_names(self, folder: Path) -> None:
        """With ``survives_power_cut``: sync what was published in a folder and removed from it."""
        if self.survives_power_cut:
            self.disk.sync_folder(folder)

    def sync_all(self, folder: Path) -> None:
        """With ``survives_power_cut``: sync all that was written up to now, Spark's part too."""
        if self.survives_power_cut:
            self.disk.sync_all(folder)

    def shown(self, folder: Path) -> Path | str:
        """The checkpoint's folder or URL, as messages show it."""
        return folder

    def make_spark_folder(self, folder: Path) -> str:
        """Make the folder of Spark's part private, before Spark makes it by the umask; returns its URL."""
        self.disk.make_folder(folder)
        return hadoop_path(folder)

    def leave_spark_folder(self, folder: Path) -> None:
        """Make what Spark wrote private: a session of the user's has written it with other rights."""
        self.disk.make_all_private(folder)

    def logged(self, folder: Path) -> Iterable[str]:
        """The names in one of Spark's logs; none where it is not there."""
        if not self.disk.exists(folder):
            return []
        return [name for name in self.disk.names(folder) if is_number(name[:1])]

    def read_log(self, file: Path) -> str:
        """An entry of one of Spark's logs."""
        return self.disk.read(file).decode()

    def is_logged(self, file: Path) -> bool:
        """Whether an entry of one of Spark's logs is there."""
        return self.disk.exists(file)

    def begin(self, on_lost: Callable[[], None]) -> None:
        """Recovery is over; from now on ``on_lost`` is called, once, when :attr:`lost` is set."""

    def check(self) -> None:
        """Check that this driver may still write.

        Raises:
            CheckpointError: It may not: see :attr:`lost`.
        """

    def explained(self, error: BaseException) -> BaseException:
        """The cause of a failure of the query: the error itself, or that the files cannot be reached."""
        return error

    def close(self) -> None:
        """Release them for the next driver. A second call does nothing."""


def _beside(file: Path) -> Path:
    """The temporary name of a file that is not published yet."""
    return file.with_name(f"{UNPUBLISHED}{file.name}")


FOLDER: Final = Files()
"""The default: a local folder."""


@contextmanager
def explaining(folder: Path) -> Iterator[None]:
    """Say what to do about a folder in the place of a file, or the reverse.

    Raises:
        CheckpointError: The block meets one.
    """
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise CheckpointError(
            f"what an earlier run stored cannot be read: {error}",
            f"the folder {folder.name} of the checkpoint",
            "move what is not acktree's out of the checkpoint, or take the checkpoint from a copy",
        ) from error
