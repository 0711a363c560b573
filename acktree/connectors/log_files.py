"""Reads the lines of a log that grows and is rotated, for ``FollowFileSpout``.

Rules of this file
------------------
1. A file is identified by its content: its first bytes, and the bytes before the position. Rotation reuses
   names and inode numbers, and a copy of a file has others.
2. The position is the end of the last line that was returned. Reading resumes there, in the file that has
   this content, whatever its name is by then.
3. Rotated files are ordered by the time of their last change.
4. Where lines may be missing, a report says so. It is not raised: reading continues with what is there.

Source: logrotate's manual page (rename, ``copytruncate``), and how Filebeat and Vector identify files.
"""

from __future__ import annotations

import gzip
import os
import re
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from acktree import ConnectorError

__all__ = ["LogReader", "Position"]

_SIGN_BYTES: Final = 256
"""A file is identified by at most this number of bytes at its beginning, and as many before the position."""
_READ_BYTES: Final = 1 << 18
_ROTATED: Final = r"[._-]\d[\d._:T-]*(\.gz)?"
"""What logrotate and others append: ``.1``, ``-20240501``, ``.2024-05-01_12``, ``.2.gz``."""
_MOST_DONE: Final = 32
_DAMAGES: Final = (gzip.BadGzipFile, EOFError, zlib.error)
"""What a truncated or damaged compressed file raises."""


class Position(NamedTuple):
    """A place in the log.

    Attributes:
        base: Bytes of all files that were read before this one.
        offset: Bytes of this file that were read.
        head: Its first bytes, 256 at most.
        tail: The bytes before ``offset``, 256 at most.
        mtime_ns: When it was last changed, as last seen.
        inode: Its inode number. A renamed file keeps it, a copy has another, and a later file may reuse it.
    """

    base: int = 0
    offset: int = 0
    head: bytes = b""
    tail: bytes = b""
    mtime_ns: int = 0
    inode: int = 0

    def after(self, read: bytes, stat: os.stat_result) -> Position:
        """The position after some more bytes of the file."""
        head = (self.head + read[:_SIGN_BYTES])[:_SIGN_BYTES] if len(self.head) < _SIGN_BYTES else self.head
        tail = (self.tail + read[-_SIGN_BYTES:])[-_SIGN_BYTES:]
        offset = self.offset + len(read)
        return Position(self.base, offset, head, tail, stat.st_mtime_ns, stat.st_ino)

    def is_in(self, path: Path) -> bool:
        """Whether a file has the content that was read up to here."""
        with suppress(OSError, EOFError, zlib.error), _opened(path) as file:
            if file.read(len(self.head)) != self.head:
                return False
            file.seek(self.offset - len(self.tail))
            return file.read(len(self.tail)) == self.tail
        return False

    def was_read_from(self, path: Path) -> bool:
        """Whether this is the end of a rotated file, or of what was compressed into it."""
        is_it = path.suffix == ".gz" or path.stat().st_ino == self.inode
        return bool(self.offset) and is_it and self.is_in(path)


class LogReader:
    """Reads a log from a position on.

    Args:
        path: Where the log is written.
        rotated: A pattern of the names that rotation gives its older files, such as ``app-*.log``; None: the
            log's name followed by numbers or a date.
        wait_secs: How long a file that was renamed is read after its last change.
        max_line_bytes: A longer line comes in pieces of about this size.
        position: Where to go on; None: at the beginning of the file at ``path``.

    Attributes:
        position: The end of the last line that ``read`` returned.
        reports: Where lines may be missing. The caller reads and empties the list.
    """

    def __init__(
        self,
        path: Path,
        *,
        rotated: str | None = None,
        wait_secs: float = 5.0,
        max_line_bytes: int = 1 << 20,
        position: Position | None = None,
    ) -> None:
        self.path, self.position = path, position or Position()
        self.reports: list[ConnectorError] = []
        self._rotated, self._wait_secs, self._max_line_bytes = rotated, wait_secs, max_line_bytes
        self._file: BinaryIO | None = None
        self._is_at_path = False
        self._buffer = b""
        self._replaced_at: float | None = None
        self._changed_ns = 0
        self._done: deque[Position] = deque(maxlen=_MOST_DONE)
        self._damaged: deque[tuple[int, int]] = deque(maxlen=_MOST_DONE)  # inode and bytes

    def read(self, most: int) -> list[tuple[int, bytes]]:
        """The next lines, at most ``most``, without line ends, each with its offset in the log.

        Raises:
            OSError: The log is not there, or cannot be read.
        """
        if self._file is None:
            self._find()
        while True:
            lines = self._take(most)
            if lines:
                return lines
            if self._fill():
                continue
            if not self._is_over():
                return []
            lines = self._take_rest()
            if lines:
                return lines
            if not self._go_to_next():
                return []

    @property
    def unread_bytes(self) -> int:
        """How many bytes of the current file are not read yet, as far as it is known."""
        with suppress(OSError):
            return (
                max(0, self.path.stat().st_size - self.position.offset)
                if self._is_at_path
                else len(self._buffer)
            )
        return len(self._buffer)

    def go_back(self, position: Position) -> None:
        """Resume from an earlier position of ``read``."""
        self.close()
        self.position = position

    def close(self) -> None:
        """Close the file; the next ``read`` looks for it again."""
        file, self._file, self._buffer = self._file, None, b""
        self._replaced_at = None
        if file is not None:
            file.close()

    def _take(self, most: int) -> list[tuple[int, bytes]]:
        """Lines that were read ahead."""
        *lines, rest = self._buffer.split(b"\n", most)
        if not lines and len(rest) >= self._max_line_bytes:
            return self._moved([rest[: self._max_line_bytes]], 0)
        return self._moved(lines, 1)

    def _take_rest(self) -> list[tuple[int, bytes]]:
        """The last line of a complete file, where it has no line end."""
        return self._moved([self._buffer], 0) if self._buffer else []

    def _moved(self, lines: list[bytes], end: int) -> list[tuple[int, bytes]]:
        """These lines with their offsets; moves the position to their end."""
        if not lines:
            return []
        at, numbered = self.position.base + self.position.offset, []
        for line in lines:
            numbered.append((at, line))
            at += len(line) + end
        length = at - self.position.base - self.position.offset
        assert self._file is not None
        self.position = self.position.after(self._buffer[:length], _stat_of(self._file))
        self._buffer = self._buffer[length:]
        return numbered

    def _fill(self) -> bool:
        """Read ahead; True if reading can continue. After a truncation the file's copy is opened."""
        assert self._file is not None
        if not self._is_at_path:
            return self._fill_from_rotated(self._file)
        if self._was_emptied_unread():
            self._open(self._next_path(), self.position)
            return True
        # The known bytes are read too: if they have changed the file was truncated, even if it has grown
        # since.
        self._file.seek(0)
        is_same = self._file.read(len(self.position.head)) == self.position.head
        known = (self.position.tail + self._buffer)[-_SIGN_BYTES:]
        self._file.seek(self.position.offset + len(self._buffer) - len(known))
        read = self._file.read(len(known) + _READ_BYTES)
        if is_same and read.startswith(known):
            self._buffer += read[len(known) :]
            return len(read) > len(known)
        self._find_copy()
        return True

    def _fill_from_rotated(self, file: BinaryIO) -> bool:
        """Read ahead in a rotated file. A damaged one ends at the damage, unless it is being written."""
        stat = _stat_of(file)
        try:
            # `read` of a compressed file would discard the lines before the damage; `read1` returns them.
            read: bytes = getattr(file, "read1", file.read)(_READ_BYTES)
        except _DAMAGES:
            if time.time() - stat.st_mtime < self._wait_secs:
                raise
            self._note_damage(stat, "the rotated file that is read")
            return False
        self._buffer += read
        return bool(read)

    def _note_damage(self, stat: os.stat_result, which: str) -> None:
        if (stat.st_ino, stat.st_size) not in self._damaged:
            self._damaged.append((stat.st_ino, stat.st_size))
            self._report(f"{which} is damaged, and lines of it that cannot be read are left out")

    def _was_emptied_unread(self) -> bool:
        """Whether the log was written, copied and truncated before anything of it was read."""
        assert self._file is not None
        if self.position.offset or self._buffer:
            return False  # then the known bytes show it
        changed_ns = _stat_of(self._file).st_mtime_ns
        if changed_ns == self._changed_ns:
            return False
        self._changed_ns = changed_ns
        return self._next_path() != self.path

    def _find(self) -> None:
        """Open the file of the position, whatever its name is by now."""
        if not self.position.offset:
            if self.position == Position():  # older files are not read
                self.position = Position(mtime_ns=self.path.stat().st_mtime_ns)
            self._open(self._next_path(), self.position)
            return
        # Two short logs may have the same content: the inode decides then. A copy has another inode, and is
        # last.
        paths = [*self._siblings(), self.path]
        paths.sort(key=lambda path: not path.exists() or path.stat().st_ino != self.position.inode)
        for path in paths:
            if self.position.is_in(path):
                self._open(path, self.position)
                return
        where_to = self._next_path()
        if not where_to.exists():
            raise FileNotFoundError(2, "there is no such file", str(where_to))
        self._report("the file that was read last is gone, and so may be lines of it that were not read")
        self._open(where_to, self._new_file())

    def _find_copy(self) -> None:
        """After a truncation: continue in the copy that was made before it, if there is one."""
        assert self._file is not None
        seen = self.position.after(self._buffer, _stat_of(self._file))
        for path in self._siblings():
            if seen.is_in(path):
                self._open(path, self.position)
                return
        self._report("the file was truncated, and lines of it that were not read are gone")
        self._open(self.path, self._new_file())

    def _is_over(self) -> bool:
        """Whether the file is complete: the next one is there, and this one did not change for a while."""
        assert self._file is not None
        here, now = _stat_of(self._file), time.monotonic()
        if self._is_at_path:
            with suppress(FileNotFoundError):  # renamed, and the next one is not there yet
                there = self.path.stat()
                if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
                    self._replaced_at = now if self._replaced_at is None else self._replaced_at
            if self._replaced_at is None or now - self._replaced_at < self._wait_secs:
                return False
        return time.time() - here.st_mtime >= self._wait_secs

    def _go_to_next(self) -> bool:
        """Open the file after this one. False if it is not there yet."""
        if self.position not in self._done:
            self._done.append(self.position)
        path = self._next_path()
        if not path.exists():
            return False
        self._open(path, self._new_file())
        return True

    def _new_file(self) -> Position:
        position = self.position
        return Position(position.base + position.offset, mtime_ns=position.mtime_ns)

    def _next_path(self) -> Path:
        """The oldest rotated file that is newer than this one and was not read; else the log itself."""
        newer = [
            (path.stat().st_mtime_ns, path)
            for path in self._siblings()
            if path.stat().st_mtime_ns >= self.position.mtime_ns and self._has_lines(path)
        ]
        seen = [self.position, *self._done]
        for _, path in sorted(newer):
            if not any(each.was_read_from(path) for each in seen):
                return path
        return self.path

    def _has_lines(self, path: Path) -> bool:
        """Whether anything can be read of a rotated file."""
        stat = path.stat()
        if (stat.st_ino, stat.st_size) in self._damaged:
            return False
        try:
            return not _is_empty(path)
        except _DAMAGES:
            if time.time() - stat.st_mtime >= self._wait_secs:
                self._note_damage(stat, f"the rotated file {path.name}")
            return False

    def _siblings(self) -> list[Path]:
        """The rotated files, the newest first; a compressed copy only where the original is gone."""
        names = {path.name: path for path in self._matching() if path.is_file() and path != self.path}
        kept = [
            path for name, path in names.items() if name.removesuffix(".gz") == name or name[:-3] not in names
        ]
        return sorted(kept, key=lambda path: -path.stat().st_mtime_ns)

    def _matching(self) -> Iterator[Path]:
        if self._rotated is not None:
            yield from self.path.parent.glob(self._rotated)
            return
        wanted = re.compile(re.escape(self.path.name) + _ROTATED)
        yield from (path for path in self.path.parent.iterdir() if wanted.fullmatch(path.name))

    def _open(self, path: Path, position: Position) -> None:
        """Open a file at the offset of a position."""
        self.close()
        file = _opened(path)
        try:
            file.seek(position.offset)
        except BaseException:
            file.close()
            raise
        self._file, self._is_at_path, self.position = file, path == self.path, position
        stat = _stat_of(file)
        self._changed_ns = stat.st_mtime_ns
        if position.offset:  # it may be a copy of the file that was read before
            self.position = position._replace(mtime_ns=stat.st_mtime_ns, inode=stat.st_ino)

    def _report(self, what: str) -> None:
        fix = "keep rotated files until they are read, as `delaycompress` and a larger `rotate` do"
        self.reports.append(ConnectorError(what, f"the log {self.path}", fix))


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb", buffering=0)


def _is_empty(path: Path) -> bool:
    with _opened(path) as file:
        return not file.read(1)


def _stat_of(file: BinaryIO) -> os.stat_result:
    return os.fstat(file.fileno())
