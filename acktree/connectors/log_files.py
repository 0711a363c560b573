"""Reads the lines of a log that grows and is rotated, for ``FollowFileSpout``.

Rules of this file
------------------
1. Every rotated file is read, or known to have been read: the position has the marks of those that were.
2. The position is the end of the last line that was returned. Reading resumes there, in the file that has
   this content, whatever its name is by then.
3. Where lines may be missing, or come again, a report says so. It is not raised: reading continues with what
   is there.
4. How long a file has not changed is measured here, from one call to the next. No time of a file is compared
   with a clock.

``log_folder.py`` says which file is which.
"""

from __future__ import annotations

import codecs
import errno
import os
import time
import zlib
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final

from acktree import ConnectorError
from acktree.connectors.log_folder import (
    DAMAGES,
    NOTHING,
    SIGN_BYTES,
    UNREADABLE,
    LogFile,
    LogFolder,
    Look,
    Mark,
    Position,
    ends_of,
    head_of,
    open_log_file,
)

__all__ = ["LogReader"]

_READ_BYTES: Final = 1 << 18
_COARSEST_SECS: Final = 3.0
"""Two changes within this time may leave the same time at a file; some file systems count 2 seconds."""
_LONGEST_CHARACTER: Final = 8


class LogReader:
    """Reads a log from a position on.

    Args:
        path: Where the log is written.
        encoding: Pieces of a long line end between characters of this encoding.
        rotated: A pattern of the names that rotation gives its older files, such as ``app-*.log``; None: the
            log's name followed by numbers or a date.
        wait_secs: How long a file that was renamed is read after its size has last changed, as this reader
            has seen it.
        max_line_bytes: A longer line comes in pieces of at most this size, or of one character.
        position: Where to go on; None: at the beginning of the file at ``path``.

    Attributes:
        position: The end of the last line that ``read`` returned; None before the log was opened.
        reports: Where lines may be missing or come again. The caller reads and empties the list.
    """

    def __init__(
        self,
        path: Path,
        *,
        encoding: str = "utf-8",
        rotated: str | None = None,
        wait_secs: float = 5.0,
        max_line_bytes: int = 1 << 20,
        position: Position | None = None,
    ) -> None:
        self.path, self.position = path, position
        self.reports: list[ConnectorError] = []
        self._encoding, self._has_byte_order_mark = encoding, codecs.lookup(encoding).name == "utf-8"
        self._folder = LogFolder(path, rotated)
        self._wait_secs, self._max_line_bytes = wait_secs, max_line_bytes
        self._file: BinaryIO | None = None
        self._is_log = False
        self._buffer = self._tail = b""
        self._has_text = False
        self._sizes: dict[int, tuple[int, float]] = {}
        self._damaged: set[tuple[int, int]] = set()
        self._times: tuple[int, int] = 0, 0
        self._changed_at = 0.0

    def read(self, most: int) -> list[tuple[int, bytes]]:
        """The next lines, at most ``most``, without line ends, each with its offset in the log.

        Raises:
            OSError: The log is not there, or cannot be read.
        """
        if self._file is None:
            self._find()
        while self._file is not None:
            lines = self._take(most)
            if lines:
                return lines
            if self._fill():
                continue
            if not self._is_over():
                return []
            if self._goes_on():
                continue
            lines = self._take_rest()
            if lines:
                return lines
            if not self._go_to_next():
                return []
        return []

    @property
    def unread_bytes(self) -> int:
        """How many bytes of the current file are not read yet, as far as it is known."""
        with suppress(OSError):
            if self._is_log:
                return max(0, self.path.stat().st_size - self._place.mark.size)
        return len(self._buffer)

    def go_back(self, position: Position | None) -> None:
        """Resume from an earlier position of ``read``."""
        self.close()
        self.position = position

    def close(self) -> None:
        """Close the file; the next ``read`` looks for it again."""
        file, self._file, self._buffer = self._file, None, b""
        if file is not None:
            file.close()

    @property
    def _place(self) -> Position:
        return self.position or Position(0, NOTHING, b"", ())

    # --- lines of the current file ----------------------------------------------------------------------

    def _take(self, most: int) -> list[tuple[int, bytes]]:
        """Lines that were read ahead; of a line that is too long a piece."""
        *lines, rest = self._buffer.split(b"\n", most)
        if (
            len(self._buffer) > self._max_line_bytes
            and max(map(len, lines), default=0) > self._max_line_bytes
        ):
            short = list(takewhile(self._is_short, lines))
            if not short:
                return self._take_piece(lines[0])
            lines = short
        elif not lines and len(rest) > self._max_line_bytes + _LONGEST_CHARACTER:
            return self._moved([rest[: self._end_of_piece(rest)]], 0)
        return self._moved(lines, 1)

    def _is_short(self, line: bytes) -> bool:
        return len(line.removesuffix(b"\r")) <= self._max_line_bytes

    def _take_piece(self, line: bytes) -> list[tuple[int, bytes]]:
        end = self._end_of_piece(line)
        is_all = end >= len(line.removesuffix(b"\r"))
        return self._moved([line], 1) if is_all else self._moved([line[:end]], 0)

    def _end_of_piece(self, line: bytes) -> int:
        """Where the first piece of a line ends: between characters, of which it has at least one."""
        make = codecs.getincrementaldecoder(self._encoding)
        for size in range(self._max_line_bytes, self._max_line_bytes + _LONGEST_CHARACTER - 1):
            decoder, piece = make("backslashreplace"), line[:size]
            decoder.decode(piece)
            end = len(piece) - len(decoder.getstate()[0])
            if end > 0:
                return end
        return self._max_line_bytes

    def _take_rest(self) -> list[tuple[int, bytes]]:
        """The last line of a complete file, where it has no line end."""
        return self._moved([self._buffer], 0) if self._buffer else []

    def _moved(self, lines: list[bytes], end: int) -> list[tuple[int, bytes]]:
        """These lines with their offsets; moves the position to their end."""
        if not lines:
            return []
        is_first = not self._place.mark.size
        at, numbered = self._place.total, []
        for line in lines:
            numbered.append((at, line))
            at += len(line) + end
        if end and b"\r" in self._buffer:
            numbered = [(offset, line.removesuffix(b"\r")) for offset, line in numbered]
        if is_first and self._has_byte_order_mark:
            numbered[0] = numbered[0][0], numbered[0][1].removeprefix(codecs.BOM_UTF8)
        self._move(at - self._place.total)
        return numbered

    def _move(self, length: int) -> None:
        """Move the position over bytes that were read ahead."""
        assert self._file is not None
        read, self._buffer = self._buffer[:length], self._buffer[length:]
        base, mark, head, done = self._place
        head = (head + read[:SIGN_BYTES])[:SIGN_BYTES]
        self._tail = (self._tail + read[-SIGN_BYTES:])[-SIGN_BYTES:]
        checks = zlib.crc32(head), zlib.crc32(self._tail)
        self.position = Position(base, Mark(mark.inode, mark.size + length, *checks), head, done)

    # --- bytes of the current file ----------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read ahead; True if reading can continue. After a truncation the file's copy is opened."""
        assert self._file is not None
        if not self._is_log:
            return self._fill_from_rotated(self._file)
        if self._go_behind():
            return True
        # The known bytes are read too: if they have changed the file was truncated, even if it has grown
        # since.
        head = self._place.head
        self._file.seek(0)
        is_same = self._file.read(len(head)) == head
        known = (self._tail + self._buffer)[-SIGN_BYTES:]
        self._file.seek(self._place.mark.size + len(self._buffer) - len(known))
        read = self._file.read(len(known) + _READ_BYTES)
        if is_same and read.startswith(known):
            self._add(read[len(known) :])
            return len(read) > len(known)
        self.close()
        self._find(is_changed=True)
        return True

    def _fill_from_rotated(self, file: BinaryIO) -> bool:
        """Read ahead in a rotated file. A damaged one ends at the damage."""
        try:
            # `read` of a compressed file would discard the lines before the damage; `read1` returns them.
            read: bytes = getattr(file, "read1", file.read)(_READ_BYTES)
        except DAMAGES:
            here = _stat_of(file)
            self._note_damage(here.st_ino, here.st_size, "the rotated file that is read is damaged")
            return False
        self._add(read)
        return bool(read)

    def _add(self, read: bytes) -> None:
        """Keep bytes that were read ahead, but not the zeros that a file begins with.

        A program that does not append writes behind them where it was, after ``copytruncate``.
        """
        self._buffer += read
        if self._has_text or not self._buffer:
            return
        zeros = len(self._buffer) - len(self._buffer.lstrip(b"\0"))
        if zeros and not self._place.mark.size:
            what = "the file begins with zeros, which are left out: its program does not append, as `>>` does"
            self._report(what, "let the program append, or rotate by renaming")
        self._move(zeros)
        self._has_text = bool(self._buffer)

    def _note_damage(self, inode: int, size: int, what: str) -> None:
        if (inode, size) not in self._damaged:
            self._damaged.add((inode, size))
            self._report(f"{what}, and lines of it that cannot be read are left out")

    # --- which file -------------------------------------------------------------------------------------

    def _go_behind(self) -> bool:
        """Open the rotated file, if the log was written and rotated before anything of it was read."""
        assert self._file is not None
        if self._place.mark.size or self._buffer:
            return False  # then the known bytes show it
        if not self._may_have_changed(_stat_of(self._file)):
            return False
        folder = self._look()
        file = self._oldest(folder)
        if file is None or self._is_written(file):
            return False
        self._open(file, folder.known.get(file, NOTHING), folder)
        return True

    def _look(self) -> Look:
        """Look at the folder: for the file of the position, or of a part of a first line."""
        place, read = self._place, self._buffer
        here = place.mark
        if not here.size and read:
            checks = zlib.crc32(read[:SIGN_BYTES]), zlib.crc32(read[-SIGN_BYTES:])
            here = Mark(here.inode, len(read), *checks)
        found = self._folder.look(here, place.done)
        for file in found.rotated:
            self._is_quiet(file.inode, file.size)
        inodes = {here.inode, *(file.inode for file in found.rotated)}
        self._sizes = {inode: seen for inode, seen in self._sizes.items() if inode in inodes}
        return found

    def _may_have_changed(self, file: os.stat_result) -> bool:
        """Whether the folder is worth a look: it or the open file has changed, or not long ago."""
        times = self.path.parent.stat().st_ctime_ns, file.st_ctime_ns
        now = time.monotonic()
        if times != self._times:
            self._times, self._changed_at = times, now
        return now - self._changed_at < self._wait_secs + _COARSEST_SECS

    def _find(self, *, is_changed: bool = False) -> None:
        """Open the file of the position, whatever its name is by now; else the next one.

        Args:
            is_changed: Whether what was read is no longer in that file.
        """
        folder = self._look()
        if self.position is None:
            self._begin(folder)
            return
        if folder.current is not None:
            self._open(folder.current, self.position.mark, folder)
            return
        if self.position.mark.size:
            self._give_up(folder, is_changed=is_changed)
        self._open_next(folder)

    def _begin(self, folder: Look) -> None:
        """Open the log at its beginning. The rotated files that are there are older, and are not read."""
        if folder.log is None:
            raise _missing(self.path)
        for file in folder.unread():
            with suppress(*UNREADABLE):
                folder.known[file] = file.whole()
        self._open(folder.log, NOTHING, folder)

    def _give_up(self, folder: Look, *, is_changed: bool) -> None:
        """Report that the bytes of the position are gone; the next file is read from its beginning."""
        log, place = folder.log, self._place
        unread = folder.unread()
        if log is None and not unread:
            raise _missing(self.path)
        if is_changed or place.mark.inode in {file.inode for file in folder.files}:
            self._report("the file was truncated or edited, so lines of it may be missing, or come again")
            # What was written between the copy and the truncation is not in the copy, and may have been read.
            copy = next(filter(self._is_beginning, unread), None)
            if copy is not None:
                folder.known[copy] = copy.whole()
        else:
            self._report("the file that was read last is gone, and so may be lines of it that were not read")
        self.position = Position(place.total, NOTHING, b"", place.done)

    def _is_beginning(self, file: LogFile) -> bool:
        """Whether a file is a copy of the beginning of what was read, as far as the first bytes show it."""
        place = self._place
        with suppress(*UNREADABLE):
            head = head_of(file.path)
            return bool(head) and file.length <= place.mark.size and place.head.startswith(head)
        return False

    def _is_over(self) -> bool:
        """Whether the file is complete: the next one is there, and this one did not change for a while."""
        assert self._file is not None
        here = _stat_of(self._file)
        try:
            there = self.path.stat()
        except FileNotFoundError:  # renamed, and the next one is not there yet
            if self._is_log or not self._may_have_changed(here):
                return False
        else:
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                self._is_log = True
                return False
        return self._is_quiet(here.st_ino, here.st_size)

    def _is_quiet(self, inode: int, size: int) -> bool:
        """Whether a rotated file has had this size for a while, as far as this reader has seen it."""
        now = time.monotonic()
        seen, since = self._sizes.get(inode, (size, now))
        if seen != size:
            since = now
        self._sizes[inode] = size, since
        return now - since >= self._wait_secs

    def _goes_on(self) -> bool:
        """Open a copy that has replaced this file, and has more lines or may get more."""
        folder, mark = self._look(), self._place.mark
        current = folder.current
        if current is None or current.inode == mark.inode or not (current.is_log or current.has_more(mark)):
            return False
        self._open(current, mark, folder)
        return True

    def _go_to_next(self) -> bool:
        """Open the file after this one, which is complete. False if it is not there yet."""
        folder = self._look()
        is_gone = folder.current is None and self._place.mark.size > 0
        if not self._open_next(folder):
            return False
        if is_gone:
            what = "another file has replaced the log, and the one that was read is not beside it"
            what += ": if it was edited, lines come again"
            self._report(what, "rotate by renaming in the folder, or name its rotated files with `rotated`")
        return True

    def _open_next(self, folder: Look) -> bool:
        """Open the oldest rotated file that is not read, else the log. False if there is none yet."""
        file = self._oldest(folder) or folder.log
        if file is None and self._file is None:
            raise _missing(self.path)
        if file is None or self._is_written(file):
            return False
        self._open(file, folder.known.get(file, NOTHING), folder)
        return True

    def _oldest(self, folder: Look) -> LogFile | None:
        return next((file for file in folder.unread() if self._has_lines(file)), None)

    def _is_written(self, file: LogFile) -> bool:
        """Whether it is a compressed file that may not be complete yet."""
        if not file.is_packed or self._is_quiet(file.inode, file.size):
            return False
        self._changed_at = time.monotonic()  # look again
        return True

    def _has_lines(self, file: LogFile) -> bool:
        """Whether anything can be read of a rotated file."""
        if (file.inode, file.size) in self._damaged:
            return False
        try:
            return bool(head_of(file.path))
        except PermissionError:
            self._note_damage(file.inode, file.size, f"the rotated file {file.path.name} may not be read")
        except DAMAGES:
            if not self._is_quiet(file.inode, file.size):
                return True
            self._note_damage(file.inode, file.size, f"the rotated file {file.path.name} is damaged")
        return False

    def _open(self, file: LogFile, mark: Mark, folder: Look) -> None:
        """Open a file behind what was read of it; none, if it was renamed since the look at the folder."""
        self.close()
        try:
            opened = open_log_file(file.path)
        except FileNotFoundError:
            return
        try:
            if _stat_of(opened).st_ino != file.inode:
                opened.close()
                return
            head, self._tail = ends_of(opened, mark.size)
            opened.seek(mark.size)
        except BaseException:
            opened.close()
            raise
        self._file, self._is_log, self._has_text = opened, file.is_log, bool(head.strip(b"\0"))
        mark = Mark(file.inode, mark.size, zlib.crc32(head), zlib.crc32(self._tail))
        self.position = Position(self._place.total - mark.size, mark, head, folder.done_beside(file))

    def _report(self, what: str, fix: str | None = None) -> None:
        keep = "keep rotated files until they are read, as `delaycompress` and a larger `rotate` do"
        self.reports.append(ConnectorError(what, f"the log {self.path}", fix or keep))


def _missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such file", str(path))


def _stat_of(file: BinaryIO) -> os.stat_result:
    return os.fstat(file.fileno())
