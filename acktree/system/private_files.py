"""Creates files and folders that only their owner can access, with any umask.

acktree writes users' messages, and pickles that it reads again: anyone who can write there can run code in
the user's driver. So each new folder has mode 0700 and each new file 0600. Existing folders keep their mode.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Final

from acktree.system.forks import close_in_children, note_closed

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
UNPUBLISHED: Final = "new-"
"""The prefix of the temporary name of a file that is not published yet."""
_REPLACING: Final = Lock()
"""Held while a file has its temporary name, which is always the same one: a process that dies leaves one file
at most, which the next one overwrites."""


def xdg_folder(name: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that a variable such as ``XDG_CACHE_HOME`` names; None where it names none.

    A relative path is none, as the XDG Base Directory Specification says: it would be another folder for each
    current one.
    """
    folder = Path(environment.get(name) or "")
    return folder if folder.is_absolute() else None


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    try:
        folder.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return  # another process created it meanwhile
    folder.chmod(PRIVATE_FOLDER)  # an unusual umask may also remove the owner's permissions


def make_private_file(file: Path) -> bool:
    """Create an empty file; False if it exists, which is then not opened."""
    try:
        made = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE)
    except FileExistsError:
        return False
    try:
        os.fchmod(made, PRIVATE_FILE)
    finally:
        os.close(made)
    return True


def make_all_private(folder: Path) -> None:
    """Make a folder and its content private, after another program wrote it with other permissions."""
    for at, _, names in os.walk(folder):
        rights = [(Path(at), PRIVATE_FOLDER), *((Path(at, name), PRIVATE_FILE) for name in names)]
        for path, mode in rights:
            with suppress(FileNotFoundError):  # the other program may still delete files
                if stat.S_IMODE(path.lstat().st_mode) != mode and not path.is_symlink():
                    path.chmod(mode)


def write_private(file: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file, and overwrite an existing one.

    Args:
        file: The file.
        content: Its new content.
        sync: Whether to sync the file, so that it survives a power cut when this returns.
    """
    opened = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, PRIVATE_FILE)
    with os.fdopen(opened, "wb") as stream:
        os.fchmod(opened, PRIVATE_FILE)
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(opened)


def mapped(path: Path, at: int = 0, length: int | None = None, flags: int = 0) -> memoryview:
    """Part of a file, read when it is looked at; the file may be deleted meanwhile.

    Args:
        at: Where it begins.
        length: Its bytes; None for all that follow.
        flags: More flags of ``mmap``.
    """
    with _open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size - at if length is None else length
        if not size:
            return memoryview(b"")
        before = at % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            file.fileno(), before + size, mmap.MAP_SHARED | flags, mmap.PROT_READ, offset=at - before
        )
    return memoryview(pages)[before:]


def _open_regular(path: Path) -> FileIO:
    """Open a file to be read. A FIFO in its place is refused: it would wait for its writer.

    Raises:
        OSError: There is no such file, or it is something else.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(mode := os.fstat(opened).st_mode):
        return open(opened, "rb", buffering=0)  # noqa: PTH123  # of a descriptor
    os.close(opened)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a file but a FIFO, a socket or a device", str(path))


class Disk:
    """The file operations of everything durable. All of it goes through one of these, and nowhere else.

    A test puts a simulated disk in its place, which loses and tears what was not synced.
    """

    def write(self, file: Path, content: bytes, *, sync: bool = False) -> None:
        """Write a whole file; with ``sync`` its content is on the medium when this returns."""
        write_private(file, content, sync=sync)

    def replace(self, file: Path, content: bytes, *, sync: bool = False) -> None:
        """Write a whole file: a reader finds the old content or the new one. Any thread may call it."""
        new = file.with_name(f"{UNPUBLISHED}{file.name}")
        with _REPLACING:
            try:
                self.write(new, content, sync=sync)
                self.rename(new, file)
            except OSError:
                with suppress(OSError):
                    self.remove(new)
                raise

    def write_pieces(self, file: Path, pieces: Iterable[bytes | memoryview], *, sync: bool = False) -> None:
        """Write a whole file piece by piece, as :meth:`write` does."""
        opened = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, PRIVATE_FILE)
        with os.fdopen(opened, "wb") as stream:
            os.fchmod(opened, PRIVATE_FILE)
            for piece in pieces:
                stream.write(piece)
            if sync:
                stream.flush()
                os.fsync(opened)

    def read(self, file: Path) -> bytes:
        """A file's content; FileNotFoundError where there is none."""
        with _open_regular(file) as opened:
            return opened.readall()

    def mapped(self, file: Path) -> memoryview:
        """A file's content, read when it is looked at; the file may be deleted meanwhile."""
        return mapped(file)

    def size(self, file: Path) -> int:
        """A file's size in bytes."""
        return file.stat().st_size

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in any order; FileNotFoundError where there is no folder."""
        return os.listdir(folder)  # noqa: PTH208  # names are wanted, a Path for each costs

    def exists(self, file: Path) -> bool:
        """Whether a file or folder is there."""
        return file.exists()

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, replacing one that may be there: a reader finds one or the other."""
        old.rename(new)

    def remove(self, file: Path) -> None:
        """Delete a file, if it is there."""
        file.unlink(missing_ok=True)

    def remove_tree(self, folder: Path) -> None:
        """Delete a folder and all in it, if it is there."""
        shutil.rmtree(folder, ignore_errors=True)

    def remove_empty(self, folder: Path) -> None:
        """Delete a folder; OSError if it is not there, or something is in it."""
        folder.rmdir()

    def make_folder(self, folder: Path) -> None:
        """Make a private folder, if it is not there."""
        make_private_folder(folder)

    def make_all_private(self, folder: Path) -> None:
        """Make a folder and all in it private, where another program wrote it with rights of its own."""
        make_all_private(folder)

    def make_file(self, file: Path) -> bool:
        """Make an empty private file; False if there is one."""
        return make_private_file(file)

    def can_others_write(self, folder: Path) -> bool:
        """Whether a user other than the owner may write to a folder."""
        return bool(folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH))

    def lock(self, file: Path) -> int:
        """Lock a file for this process, and not for what it forks. See :meth:`unlock`.

        Raises:
            BlockingIOError: Another one holds it.
            FileNotFoundError: It was deleted before it was locked.
        """
        descriptor = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.stat()
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, FileNotFoundError):
                raise
            raise BlockingIOError(error.errno, error.strerror, str(file)) from error
        close_in_children(descriptor)
        return descriptor

    def write_locked(self, descriptor: int, content: bytes) -> None:
        """Write the whole content of a file that :meth:`lock` locked."""
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)

    def unlock(self, descriptor: int) -> None:
        """Unlock what :meth:`lock` returned."""
        note_closed(descriptor)
        os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Put a folder's names on the medium: what was made, renamed and deleted in it."""
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def sync_all(self, folder: Path) -> None:
        """Put all of a folder on the medium, with whatever else its file system has not written yet.

        Linux does it in one call. Elsewhere each file below the folder is synced, and each folder.
        """
        if _syncfs is None:
            _sync_each(folder)
            return
        opened = os.open(folder, os.O_RDONLY)
        try:
            if _syncfs(opened):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(folder))
        finally:
            os.close(opened)


def _sync_each(folder: Path) -> None:
    for above, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync_file(Path(above, name))
        DISK.sync_folder(Path(above))


def _sync_file(file: Path) -> None:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return
        opened = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return  # it was deleted meanwhile
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _find_syncfs() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        syncfs: Callable[[int], int] = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    return syncfs


_syncfs: Final = _find_syncfs()

DISK: Final = Disk()
"""The machine's."""
