"""Files: a log that grows, a folder of files, and Parquet files. Needs no extra.

Rules of this file
------------------
1. A spout reads where the driver runs; a sink writes where the workers run.
2. Nothing is deleted that the user did not say may be deleted.

Source: ours. A folder that is a queue is what mail systems call a spool directory.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import time
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree import (
    Config,
    ConfigError,
    ConnectorError,
    Failure,
    Spout,
    SpoutOutputCollector,
    TaskContext,
)
from acktree.connectors.log_files import LogReader, Position
from acktree.connectors.parquet_files import ParquetSink, told

__all__ = ["FolderSpout", "FollowFileSpout", "ParquetSink"]

_MOST_LINES: Final = 1000
"""One ``next_tuple`` of a FollowFileSpout emits at most this number of lines."""

_OF_THE_FILE: Final = (errno.EACCES, errno.EPERM, errno.EIO)
"""What is wrong with one file, and not with the folder or the process."""

_FileId = tuple[str, int, int, int]
"""(name, time of the last change in nanoseconds, bytes, time of the last change of the file's own record)

The last is the system's and cannot be set: a file that takes another's name, bytes and time has another one.
"""


class FollowFileSpout(Spout):
    r"""The lines of a log that grows, as ``["line"]``, from the beginning of the file on.

    Args:
        path: The log, where the driver runs. It may appear later.
        encoding: Its encoding, in which a line ends with the byte 10. A byte that does not belong to it is
            kept as ``\xNN``.
        rotated: A pattern of the names of rotated files beside the log, such as ``app-*.log``. None: the
            log's name followed by numbers or a date, also with ``.gz``.
        rotate_wait_secs: A file that was rotated is read until it has not changed for this time, since a
            program may still write into it. Then the next file begins.
        max_line_bytes: A longer line is emitted in pieces of about this size.

    The message id is the line's place in the log, in bytes from where reading began; all files of the log are
    counted as one. The position is saved with the lines, so a restart emits each line once, also where the
    log was rotated meanwhile, as long as the rotated files are there. A last line is emitted when its end is
    there, or when its file is over. Give the spout a ``Retry``: without one a line whose tuple fails is gone.
    """

    outputs = ["line"]
    redelivers = False
    remembers = ("position",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encoding: str = "utf-8",
        rotated: str | None = None,
        rotate_wait_secs: float = 5.0,
        max_line_bytes: int = 1 << 20,
    ) -> None:
        where = f"FollowFileSpout({os.fspath(path)!r})"
        if _ends_otherwise(encoding):
            what = f"encoding={encoding!r} is not known, or ends lines with other bytes than 10"
            raise ConfigError(what, where, "give one such as utf-8 or latin-1")
        if rotate_wait_secs < 0 or max_line_bytes < 1:
            what = f"rotate_wait_secs is {rotate_wait_secs!r} and max_line_bytes {max_line_bytes!r}"
            raise ConfigError(what, where, "give 0 seconds or more, and at least 1 byte")
        self.path, self.encoding = Path(path), encoding
        self.rotated, self.rotate_wait_secs = rotated, rotate_wait_secs
        self.max_line_bytes = max_line_bytes
        self.position: tuple[Any, ...] | None = None
        """Behind the last line that was emitted; not for others."""
        self._line_bytes = 100.0

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Note where to go on; the log is opened by ``next_tuple``."""
        if len(context.task_ids(context.component_id)) > 1:
            what = "several tasks would each emit every line of the log"
            raise ConfigError(what, f"spout {context.component_id!r}", "set its parallelism to 1")
        self._collector, self._limit = collector, context.max_spout_pending
        self._reader = LogReader(
            self.path,
            rotated=self.rotated,
            wait_secs=self.rotate_wait_secs,
            max_line_bytes=self.max_line_bytes,
            position=None if self.position is None else Position(*self.position),
        )

    def next_tuple(self) -> None:
        """Emit the lines that are there, as one batch."""
        before = self._reader.position
        room = _MOST_LINES if self._limit is None else self._limit - self._collector.pending_count
        try:
            with told(f"the log {self.path}", may_appear=True):
                placed = self._reader.read(max(1, min(room, _MOST_LINES)))
        except ConnectorError:
            self._reader.close()
            raise
        while self._reader.reports:
            self._collector.report_error(self._reader.reports.pop())
        if placed:
            self._emit(placed, before)

    def _emit(self, placed: Sequence[tuple[int, bytes]], before: Position) -> None:
        try:
            lines = [line.removesuffix(b"\r").decode(self.encoding, "backslashreplace") for _, line in placed]
            places = np.array([place for place, _ in placed], dtype=np.int64)
            self._collector.emit_batch(pa.record_batch({"line": pa.array(lines, pa.string())}), places)
        except BaseException:  # they are read again by the next call
            self._reader.go_back(before)
            raise
        self.position = tuple(self._reader.position)
        self._line_bytes = sum(len(line) + 1 for _, line in placed) / len(placed)

    def lag(self) -> int | None:
        """Estimate how many lines of the file are not read: its bytes, by the length of the last lines."""
        return int(self._reader.unread_bytes / self._line_bytes)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def _ends_otherwise(encoding: str) -> bool:
    try:
        return "\n".encode(encoding) != b"\n"
    except LookupError:
        return True


class FolderSpout(Spout):
    """The files of a folder, each as one message ``["path", "content"]``; ``content`` is bytes.

    Args:
        folder: Where files arrive. Folders in it are not looked into; names that begin with a dot or an
            underscore are files that somebody still writes.
        pattern: Which names are messages, such as ``*.csv``.
        done: The folder that a file is moved to when its message is acked, on the same file system. None: the
            file is deleted.
        given_up: The folder that a file is moved to when a ``Retry`` gives it up; acktree keeps no dead
            letter then. None: acktree's dead letter is the copy, and the file goes where those go that are
            done.
        settle_secs: A file is taken when it has not changed for this time. 0 if files are renamed into the
            folder when they are complete, which is better.

    The folder is the queue: what is in it is not done. So a restart needs no list of what was read, and each
    file is processed until it is acked. Without a ``Retry`` a file that failed is emitted again at once. Give
    each file a name of its own: a file that is replaced or changed while it is processed (also its mode)
    stays, and comes as a new message. A file that cannot be read is reported once and left there. Several
    tasks divide the files among them.
    """

    outputs = ["path", "content"]

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        pattern: str = "*",
        done: str | os.PathLike[str] | None,
        given_up: str | os.PathLike[str] | None = None,
        settle_secs: float = 1.0,
    ) -> None:
        self.folder, self.pattern, self.settle_secs = Path(folder), pattern, settle_secs
        self.done = None if done is None else Path(done)
        self.given_up = None if given_up is None else Path(given_up)
        self.own_dead_letters = given_up is not None
        self._where = f"the folder {self.folder}"
        if settle_secs < 0:
            raise ConfigError(f"settle_secs is {settle_secs!r}", self._where, "give 0 seconds or more")
        if self.folder in (self.done, self.given_up):
            what = "files that are done would stay in the folder, and be emitted again"
            raise ConfigError(what, self._where, "give another folder, such as one named done inside of it")
        self._ahead: deque[_FileId] = deque()
        self._open: set[_FileId] = set()
        self._unreadable: set[_FileId] = set()
        self._attempts: dict[_FileId, int] = {}
        self._look_after = 0.0

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """See that the folders are there, and that files can be moved between them."""
        self._collector, self._index = collector, context.task_index
        self._count = len(context.task_ids(context.component_id))
        for folder in (self.folder, self.done, self.given_up):
            if folder is not None:
                with told(f"the folder {folder}"):
                    is_elsewhere = folder.stat().st_dev != self.folder.stat().st_dev
                if is_elsewhere:
                    what, fix = (
                        "files cannot be moved to another file system at once",
                        "give a folder on the same",
                    )
                    raise ConnectorError(what, f"the folder {folder}", fix)

    def next_tuple(self) -> None:
        """Emit the oldest file that is not open."""
        with told(self._where):
            if not self._ahead and time.monotonic() >= self._look_after:
                self._look()
            if self._ahead:
                self._emit(self._ahead.popleft())

    def ack(self, message_id: Any) -> None:  # noqa: ANN401  # as it was emitted
        """Move the file away, or delete it."""
        self._take_away(message_id, self.done)

    def fail(self, message_id: Any, failure: Failure) -> None:  # noqa: ANN401
        """Emit the file again; move it away if it was given up."""
        if failure.final:
            self._take_away(message_id, self.given_up or self.done)
        else:
            self._attempts[message_id] = failure.attempt + 1
            self._open.discard(message_id)

    def lag(self) -> int | None:
        """Say how many files were found and not emitted when the folder was last looked at."""
        return len(self._ahead)

    def _look(self) -> None:
        """Note which files are there, the oldest first."""
        began, newest = time.monotonic(), time.time_ns() - int(self.settle_secs * 1e9)
        found: list[_FileId] = []
        seen: set[_FileId] = set()
        closed = self._open | self._unreadable
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # somebody else took it
                    if self._is_mine(entry.name) and entry.is_file():
                        stat = entry.stat()
                        file_id = _file_id(entry.name, stat)
                        seen.add(file_id)
                        if stat.st_mtime_ns <= newest and file_id not in closed:
                            found.append(file_id)
        self._unreadable &= seen  # a change, also of the mode, makes another id: it is tried again
        self._ahead.extend(sorted(found, key=lambda each: (each[1], each[0])))
        now = time.monotonic()
        self._look_after = now + 20 * (now - began)  # a folder of many files takes a while

    def _is_mine(self, name: str) -> bool:
        return (
            not name.startswith((".", "_"))
            and fnmatch.fnmatch(name, self.pattern)
            and zlib.crc32(os.fsencode(name)) % self._count == self._index
        )

    def _emit(self, file_id: _FileId) -> None:
        path = self.folder / file_id[0]
        try:
            with path.open("rb") as file:
                content, stat = file.read(), os.fstat(file.fileno())
        except FileNotFoundError:  # somebody else took it
            return
        except OSError as error:
            if error.errno not in _OF_THE_FILE:
                raise
            self._unreadable.add(file_id)
            fix = "let the driver's user read it, or take it away; the other files go on"
            what = f"a file cannot be read: {error.strerror}"
            self._collector.report_error(ConnectorError(what, f"the file {path}", fix, can_retry=True))
            return
        if _file_id(file_id[0], stat) != file_id:
            return  # it has changed; whoever looks next sees the new one
        attempt = self._attempts.get(file_id, 1)
        self._collector.emit([str(path), content], message_id=file_id, attempt=attempt)
        self._attempts.pop(file_id, None)
        self._open.add(file_id)

    def _take_away(self, file_id: _FileId, where_to: Path | None) -> None:
        path = self.folder / file_id[0]
        with told(self._where), suppress(FileNotFoundError):
            stat = path.stat()
            if _file_id(file_id[0], stat) == file_id:
                if where_to is None:
                    path.unlink()
                else:
                    path.rename(_free_name(where_to, file_id[0]))
        self._open.discard(file_id)


def _file_id(name: str, stat: os.stat_result) -> _FileId:
    return name, stat.st_mtime_ns, stat.st_size, stat.st_ctime_ns


def _free_name(folder: Path, name: str) -> Path:
    """The name in another folder; with a number behind it if an earlier file of that name is there."""
    path, number = folder / name, 1
    if not folder.is_dir():  # else "not found" would be taken for a file that is gone
        raise NotADirectoryError(20, "there is no such folder", str(folder))
    while path.exists():
        path, number = folder / f"{name}.{number}", number + 1
    return path
