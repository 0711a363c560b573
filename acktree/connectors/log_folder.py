"""The files of a log: the one that is written, and those that rotation has made of it.

Rules of this file
------------------
1. A file is identified by its inode number and by its content: its first bytes, and the last that were read.
   Rotation reuses names and inode numbers, and a copy of a file has another inode number.
2. A time of a file is compared with that of other files only, and only to order files whose names do not say
   their order.

A file is known again by its inode number, if the bytes that were read are still in it. If no file has that
number, one file that has the bytes is its copy: a rotated one, else the log. So two logs with equal content
are two files, as long as both are there.

Source: logrotate's manual page (rename, ``copytruncate``), and how Filebeat and Vector identify files.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from acktree import ConnectorError

__all__ = [
    "DAMAGES",
    "NOTHING",
    "SIGN_BYTES",
    "UNREADABLE",
    "LogFile",
    "LogFolder",
    "Look",
    "Mark",
    "Position",
    "ends_of",
    "head_of",
    "open_log_file",
    "open_regular",
]

SIGN_BYTES: Final = 256
"""A file is identified by at most this number of its first bytes, and of the last bytes that were read."""
DAMAGES: Final = (gzip.BadGzipFile, EOFError, zlib.error)
"""What a truncated or damaged compressed file raises."""
UNREADABLE: Final = (FileNotFoundError, PermissionError, *DAMAGES)
"""Errors for which a file is left out. Any other error, of a disk for example, is raised: the file may hold
what was read, and to leave it out would bring its lines again."""
_ROTATED: Final = r"[._-]\d[\d._:T-]*(\.gz)?"
"""What logrotate and others append: ``.1``, ``-20240501``, ``.2024-05-01_12``, ``.2.gz``."""
_NUMBER: Final = re.compile(r"[._-](\d{1,3})")
_DATE_DIGITS: Final = 6
_GZIP_SIZES: Final = 1 << 32
"""A compressed file ends with the number of its bytes, modulo this."""
_MOST_LISTINGS: Final = 10


class Mark(NamedTuple):
    """What of a file was read, and how the file is known again.

    Attributes:
        inode: Its inode number. A renamed file keeps it, a copy has another, and a later file may reuse it.
        size: Bytes of it that were read.
        head: A checksum of the first of them, 256 at most.
        tail: A checksum of the last of them, 256 at most; 0: not known.
    """

    inode: int = 0
    size: int = 0
    head: int = 0
    tail: int = 0

    def is_in(self, path: Path) -> bool:
        """Whether a file begins with the bytes that were read."""
        with open_log_file(path) as file:
            head, tail = ends_of(file, self.size)
        length = min(self.size, SIGN_BYTES)
        is_whole = (len(head), len(tail)) == (length, length)
        return is_whole and zlib.crc32(head) == self.head and self.tail in (0, zlib.crc32(tail))


NOTHING: Final = Mark()


class Position(NamedTuple):
    """A place in the log.

    Attributes:
        base: Bytes of all files that were read before this one.
        mark: What was read of this file.
        head: The first bytes of it, 256 at most.
        done: Marks of the other files beside the log, which were read, or were older when reading began.
    """

    base: int
    mark: Mark
    head: bytes
    done: tuple[Mark, ...]

    @property
    def total(self) -> int:
        """Bytes that were read of all files."""
        return self.base + self.mark.size

    def plain(self) -> tuple[Any, ...]:
        """The position in types of Python alone, as a checkpoint keeps it."""
        return self.base, tuple(self.mark), self.head, tuple(map(tuple, self.done))

    @classmethod
    def of(cls, plain: Sequence[Any], where: str) -> Position:
        """The position that ``plain`` returned.

        Raises:
            ConnectorError: It is not one.
        """
        try:
            base, mark, head, done = plain
            return cls(base, Mark(*mark), head, tuple(Mark(*each) for each in done))
        except (TypeError, ValueError) as error:
            what = "the position that the checkpoint has was written by another version of acktree"
            fix = "go on with that version, or read the log from its beginning with a new checkpoint"
            raise ConnectorError(what, where, fix) from error


class LogFile(NamedTuple):
    """A file of the log, as a look at the folder found it.

    Attributes:
        path: One of its names.
        inode: Its inode number.
        size: Bytes that it has.
        length: The same, uncompressed; for a compressed file modulo 4 GiB, and as it says itself.
        changed_ns: When it was last changed. Compared only with that of other files.
        is_log: Whether it is the file that has the log's name.
    """

    path: Path
    inode: int
    size: int
    length: int
    changed_ns: int
    is_log: bool

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed."""
        return self.path.suffix == ".gz"

    def holds(self, mark: Mark) -> bool:
        """Whether this is the file of a mark, or a copy of it."""
        if not self.is_packed:
            return self.length >= mark.size and mark.is_in(self.path)
        head = head_of(self.path)[: min(mark.size, SIGN_BYTES)]
        if zlib.crc32(head) != mark.head:
            return False
        # To look at a compressed file's end takes as long as to read all of it.
        return self.inode == mark.inode or self.length == mark.size % _GZIP_SIZES or mark.is_in(self.path)

    def has_more(self, mark: Mark) -> bool:
        """Whether not all of it was read."""
        if self.is_packed and mark.size:
            return self.inode != mark.inode and self.length != mark.size % _GZIP_SIZES
        return self.length > mark.size

    def whole(self) -> Mark:
        """A mark for all that is in it."""
        if self.is_packed:
            return Mark(self.inode, self.length, zlib.crc32(head_of(self.path)))
        with open_regular(self.path) as file:
            head, tail = ends_of(file, self.length)
        return Mark(self.inode, self.length, zlib.crc32(head), zlib.crc32(tail))


class Look(NamedTuple):
    """What a look at the folder found.

    Attributes:
        files: The rotated files, the oldest first, and the log if it is there.
        known: The marks of those that were read, at least in part.
        current: The file that holds what the position says, or a copy of it.
    """

    files: list[LogFile]
    known: dict[LogFile, Mark]
    current: LogFile | None

    @property
    def log(self) -> LogFile | None:
        """The file that has the log's name; None if it is not there."""
        return next((file for file in self.files if file.is_log), None)

    @property
    def rotated(self) -> list[LogFile]:
        """The files that do not have the log's name."""
        return [file for file in self.files if not file.is_log]

    def unread(self) -> list[LogFile]:
        """The rotated files of which not all was read, the oldest first, without the current file."""
        return [
            file
            for file in self.rotated
            if file != self.current and file.has_more(self.known.get(file, NOTHING))
        ]

    def done_beside(self, file: LogFile) -> tuple[Mark, ...]:
        """The marks of the other files."""
        return tuple(mark for other, mark in self.known.items() if other != file)


class LogFolder:
    """The folder of a log.

    Args:
        path: Where the log is written.
        rotated: A pattern of the names of rotated files; None: the log's name followed by numbers or a date.
    """

    def __init__(self, path: Path, rotated: str | None) -> None:
        self._path, self._rotated = path, rotated

    def look(self, here: Mark, done: tuple[Mark, ...]) -> Look:
        """Find the files of the log, and what is known of them.

        Args:
            here: The mark of the file that is read.
            done: Those of the others that are known.
        """
        files = self._files()
        marks = [mark for mark in (here, *done) if mark.size]
        known: dict[LogFile, Mark] = {}
        for is_copy in (False, True):
            for file in files:
                for mark in marks:
                    may_be = _may_be_copy(file, mark, here) if is_copy else file.inode == mark.inode
                    if may_be and file not in known and _holds(file, mark):
                        known[file] = mark
                marks = [mark for mark in marks if mark is not known.get(file)]
        current = next((file for file, mark in known.items() if mark is here), None)
        for file, mark in known.items():
            known[file] = mark._replace(inode=file.inode)
        return Look(files, known, current)

    def _files(self) -> list[LogFile]:
        """The rotated files, the oldest first, and the log; each once, whatever its names are."""
        found = self._listed()
        for _ in range(_MOST_LISTINGS):  # a file that is renamed meanwhile may be missing
            before, found = found, self._listed()
            if {path: each.st_ino for path, each in before.items()} == {
                path: each.st_ino for path, each in found.items()
            }:
                break
        inodes = set()
        files = []
        if self._path in found:
            files.append(_file_of(self._path, found[self._path], is_log=True))
            inodes.add(files[0].inode)
        rotated = []
        for path, each in found.items():
            is_packed_too = path.suffix == ".gz" and path.with_suffix("") in found
            if each.st_ino not in inodes and not is_packed_too:
                inodes.add(each.st_ino)
                rotated.append(_file_of(path, each, is_log=False))
        return [*_oldest_first(rotated, self._path.name), *files]

    def _listed(self) -> dict[Path, os.stat_result]:
        """The log, whatever it is, and regular files with names of rotated ones."""
        found = {}
        for path in self._matching():
            with suppress(OSError):
                each = path.stat()
                if stat.S_ISREG(each.st_mode):
                    found[path] = each
        with suppress(FileNotFoundError):
            found[self._path] = self._path.stat()
        return found

    def _matching(self) -> Iterator[Path]:
        if self._rotated is not None:
            yield from self._path.parent.glob(self._rotated)
            return
        wanted = re.compile(re.escape(self._path.name) + _ROTATED)
        yield from (path for path in self._path.parent.iterdir() if wanted.fullmatch(path.name))


def open_regular(path: Path) -> FileIO:
    """Open a file to be read. A FIFO is refused: it would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb", buffering=0)  # noqa: PTH123  # of a descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a file but a FIFO, a socket or a device", str(path))


def open_log_file(path: Path) -> BinaryIO:
    """Open a file of a log to be read; a compressed one is uncompressed."""
    file = open_regular(path)
    if path.suffix != ".gz":
        return file
    packed = gzip.GzipFile(fileobj=file, mode="rb")
    packed.myfileobj = file  # so that it is closed, too
    return cast("BinaryIO", packed)


def ends_of(file: BinaryIO, size: int) -> tuple[bytes, bytes]:
    """The first and the last bytes of this number of bytes, 256 each at most. Less if it has less."""
    head = file.read(min(size, SIGN_BYTES))
    file.seek(max(0, size - SIGN_BYTES))
    return head, file.read(min(size, SIGN_BYTES))


def head_of(path: Path) -> bytes:
    """The first bytes of a file of a log, 256 at most."""
    with open_log_file(path) as file:
        return file.read(SIGN_BYTES)


def _holds(file: LogFile, mark: Mark) -> bool:
    with suppress(*UNREADABLE):
        return file.holds(mark)
    return False


def _may_be_copy(file: LogFile, mark: Mark, here: Mark) -> bool:
    """Whether its size allows it; a copy of the current file may have more lines, and be the log itself."""
    return mark is here or not (file.is_log or file.has_more(mark))


def _file_of(path: Path, each: os.stat_result, *, is_log: bool) -> LogFile:
    length = each.st_size
    if path.suffix == ".gz" and not is_log:
        with suppress(OSError), open_regular(path) as file:
            file.seek(-4, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little")
    return LogFile(
        path, each.st_ino, size=each.st_size, length=length, changed_ns=each.st_mtime_ns, is_log=is_log
    )


def _oldest_first(rotated: list[LogFile], log: str) -> list[LogFile]:
    """By numbers, of which 1 is the newest; else by dates of one form; else by the times of last changes."""
    ends = {file: file.path.name.removesuffix(".gz").removeprefix(log) for file in rotated}
    numbers = {file: int(found[1]) for file, end in ends.items() if (found := _NUMBER.fullmatch(end))}
    if len(numbers) == len(ends):
        return sorted(rotated, key=lambda file: -numbers[file])
    forms = {re.sub(r"\d", "0", end) for end in ends.values()}
    if len(forms) == 1 and forms.pop().count("0") >= _DATE_DIGITS:
        return sorted(rotated, key=lambda file: ends[file])
    return sorted(rotated, key=lambda file: (file.changed_ns, ends[file]))
