"""Files: a log that grows, a folder of files, and Parquet files. Needs no extra.

Rules of this file
------------------
1. A spout reads where the driver runs; a sink writes where the workers run.
2. A file is deleted only where the user has asked for it (``done=None``).

Source: ours. A folder used as a queue is also known as a spool directory.
"""

from __future__ import annotations

import codecs
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
from acktree.connectors.log_files import LogReader
from acktree.connectors.log_folder import Position, open_regular
from acktree.connectors.message_names import KeyFrom, LabelFrom, MessageNames, names_by_row
from acktree.connectors.parquet_files import ParquetSink, as_connector_errors

__all__ = ["FolderSpout", "FollowFileSpout", "ParquetSink"]

_MOST_LINES: Final = 1000
"""One ``next_tuple`` of a FollowFileSpout emits at most this number of lines."""
_LONGEST_LINE: Final = 1 << 28
"""A byte becomes up to four characters, and a column of Arrow holds 2 GiB."""

_OF_THE_FILE: Final = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors that concern one file, and not the folder or the process."""

_LARGEST: Final = (1 << 31) - (1 << 20)
"""A file with more bytes is not emitted: a column of Arrow holds 2 GiB."""

_FileId = tuple[str, int, int, int]
"""(name, mtime in nanoseconds, size in bytes, ctime in nanoseconds)

The ctime cannot be set by a program, so a file that replaces another under the same name, with the same size
and mtime, still has another id.
"""


class FollowFileSpout(Spout):
    r"""The lines of a log that grows, as ``["line"]``, from the beginning of the file on.

    Args:
        path: The log, where the driver runs. It may appear later.
        encoding: Its encoding, in which a line ends with the byte 10. A byte that does not belong to it is
            kept as ``\xNN``. A UTF-8 byte order mark at the beginning of a file is left out.
        rotated: A pattern of the names of rotated files beside the log, such as ``app-*.log``. None: the
            log's name followed by numbers or a date, also with ``.gz``.
        rotate_wait_secs: A file that was rotated is read until its size has not changed for this time, since
            a program may still write into it. Then the next file begins.
        max_line_bytes: A longer line is emitted in pieces of at most this size, which end between characters;
            at most 256 MiB.
        label: What people call a line, as of a ``RabbitMQSpout``: ``"body:order"`` of a line that is a JSON
            object, or a function of ``{"line"}``.
        key: What names the message, from the same places: see ``key`` of ``emit``. A line needs none to be
            emitted once; it is for a log that has the same event in several lines.

    The message id is the line's offset in the log, in bytes from where reading began; all files of the log
    are counted as one. The position is saved with the lines, so after a restart each line is emitted once.
    This holds also where the log was rotated or replaced by a copy meanwhile, as long as the rotated files
    are there; a report says where lines may be missing or come again. The last line of a file is emitted when
    its line end is written, or when the file is complete. Give the spout a ``Retry``: without one a line
    whose tuple fails is lost.
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
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        where = f"FollowFileSpout({os.fspath(path)!r})"
        if _ends_otherwise(encoding):
            what = f"encoding={encoding!r} is not known, or ends lines with other bytes than 10"
            raise ConfigError(what, where, "give one such as utf-8 or latin-1")
        if rotate_wait_secs < 0 or not 1 <= max_line_bytes <= _LONGEST_LINE:
            what = f"rotate_wait_secs is {rotate_wait_secs!r} and max_line_bytes {max_line_bytes!r}"
            raise ConfigError(what, where, "give 0 seconds or more, and 1 byte to 256 MiB")
        self._names = MessageNames(where, label, key, body="line")
        self.path, self.encoding = Path(path), encoding
        # The codec utf-8-sig would remove a mark at each line; the reader does so where a file begins.
        self._codec = codecs.lookup(encoding).name.removesuffix("-sig")
        self.rotated, self.rotate_wait_secs = rotated, rotate_wait_secs
        self.max_line_bytes = max_line_bytes
        self.position: tuple[Any, ...] | None = None
        """The end of the last line that was emitted. For this spout only."""
        self._line_bytes = 100.0

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Note the position to resume from; ``next_tuple`` opens the log."""
        if len(context.task_ids(context.component_id)) > 1:
            what = "several tasks would each emit every line of the log"
            raise ConfigError(what, f"spout {context.component_id!r}", "set its parallelism to 1")
        self._collector, self._limit = collector, context.max_spout_pending
        position = None if self.position is None else Position.of(self.position, f"the log {self.path}")
        self._reader = LogReader(
            self.path,
            encoding=self._codec,
            rotated=self.rotated,
            wait_secs=self.rotate_wait_secs,
            max_line_bytes=self.max_line_bytes,
            position=position,
        )

    def next_tuple(self) -> None:
        """Emit the lines that are there, as one batch."""
        before = self._reader.position
        room = _MOST_LINES if self._limit is None else self._limit - self._collector.pending_count
        try:
            with as_connector_errors(f"the log {self.path}", may_appear=True):
                placed = self._reader.read(max(1, min(room, _MOST_LINES)))
        except ConnectorError:
            self._reader.close()
            raise
        while self._reader.reports:
            self._collector.report_error(self._reader.reports.pop())
        if placed:
            self._emit(placed, before)

    def _emit(self, placed: Sequence[tuple[int, bytes]], before: Position | None) -> None:
        try:
            lines = [line.decode(self._codec, "backslashreplace") for _, line in placed]
            places = np.array([place for place, _ in placed], dtype=np.int64)
            names = self._names.of_all((({"line": line}, {}) for line in lines), self._collector.report_error)
            batch = pa.record_batch({"line": pa.array(lines, pa.string())})
            self._collector.emit_batch(batch, places, **names_by_row(names))
        except BaseException:  # the next call reads them again
            self._reader.go_back(before)
            raise
        assert self._reader.position is not None
        self.position = self._reader.position.plain()
        self._line_bytes = sum(len(line) + 1 for _, line in placed) / len(placed)

    def lag(self) -> int | None:
        """Estimate how many lines of the file are not read: its bytes, by the length of the last lines."""
        return int(self._reader.unread_bytes / self._line_bytes)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def _ends_otherwise(encoding: str) -> bool:
    try:
        return b"\n".decode(encoding) != "\n"
    except (LookupError, UnicodeError):
        return True


class FolderSpout(Spout):
    """The files of a folder, each as one message ``["path", "content"]``; ``content`` is bytes.

    Args:
        folder: Where files arrive. Folders in it are not looked into; names that begin with a dot or an
            underscore are left alone: a program still writes them.
        pattern: Which names are messages, such as ``*.csv``.
        done: The folder that a file is moved to when its message is acked, on the same file system. None: the
            file is deleted.
        given_up: The folder that a file is moved to when a ``Retry`` gives it up; acktree keeps no dead
            letter then. None: acktree's dead letter is the copy, and the file is treated as one that is done.
        settle_secs: A file is taken when the spout has seen it unchanged for this time. Give 0 if files are
            renamed into the folder when they are complete, which is better.
        label: What people call a file, as of a ``RabbitMQSpout``: ``"name"``, its name in the folder;
            ``"body:order"`` of a file that is a JSON object; or a function of ``{"path", "content"}``.
        key: What names the message, from the same places: see ``key`` of ``emit``. With ``"name"`` a file is
            done at once if another one of that name was done before.

    The folder is the queue: a file in it is not done yet. So a restart needs no list of files that were read,
    and each file is emitted until it is acked. Without a ``Retry`` a file that failed is emitted again at
    once. Give each file a unique name: a file that is replaced or changed (also its mode) while it is
    processed stays in the folder, and becomes a new message. A file that cannot be read is reported once and
    left there; so is one of nearly 2 GiB or more, which goes to ``given_up`` if that is given. Several tasks
    divide the files among themselves.
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
        label: LabelFrom | None = None,
        key: KeyFrom | None = None,
    ) -> None:
        self.folder, self.pattern, self.settle_secs = Path(folder), pattern, settle_secs
        self.done = None if done is None else Path(done)
        self.given_up = None if given_up is None else Path(given_up)
        self.own_dead_letters = given_up is not None
        self._where = f"the folder {self.folder}"
        self._names = MessageNames(self._where, label, key, body="content", properties=("name",))
        if settle_secs < 0:
            raise ConfigError(f"settle_secs is {settle_secs!r}", self._where, "give 0 seconds or more")
        if self.folder in (self.done, self.given_up):
            what = "files that are done would stay in the folder, and be emitted again"
            raise ConfigError(what, self._where, "give another folder, such as one named done inside of it")
        self._ahead: deque[_FileId] = deque()
        self._open: set[_FileId] = set()
        self._unreadable: set[_FileId] = set()
        self._attempts: dict[_FileId, int] = {}
        self._seen: dict[_FileId, float] = {}
        self._look_after = 0.0

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """See that the folders are there, and that files can be moved between them."""
        self._collector, self._index = collector, context.task_index
        self._count = len(context.task_ids(context.component_id))
        for folder in (self.folder, self.done, self.given_up):
            if folder is not None:
                with as_connector_errors(f"the folder {folder}"):
                    is_elsewhere = folder.stat().st_dev != self.folder.stat().st_dev
                if is_elsewhere:
                    what, fix = (
                        "files cannot be moved to another file system at once",
                        "give a folder on the same",
                    )
                    raise ConnectorError(what, f"the folder {folder}", fix)

    def next_tuple(self) -> None:
        """Emit the oldest file that is not open."""
        with as_connector_errors(self._where):
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
        """How many files the last look at the folder found that are not emitted yet."""
        return len(self._ahead)

    def _look(self) -> None:
        """Note which files are there, the oldest first."""
        began = time.monotonic()
        found: list[_FileId] = []
        seen: dict[_FileId, float] = {}
        skipped = self._open | self._unreadable
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # somebody else took it
                    if self._is_mine(entry.name) and entry.is_file():
                        file_id = _file_id(entry.name, entry.stat())
                        since = seen[file_id] = self._seen.get(file_id, began)
                        if began - since >= self.settle_secs and file_id not in skipped:
                            found.append(file_id)
        self._seen = seen
        self._unreadable &= (
            seen.keys()
        )  # a change, also of the mode, gives the file a new id: it is tried again
        self._ahead.extend(sorted(found, key=lambda each: (each[1], each[0])))
        now = time.monotonic()
        self._look_after = now + 20 * (now - began)  # at most a twentieth of the time is spent looking

    def _is_mine(self, name: str) -> bool:
        return (
            not name.startswith((".", "_"))
            and fnmatch.fnmatch(name, self.pattern)
            and zlib.crc32(os.fsencode(name)) % self._count == self._index
        )

    def _emit(self, file_id: _FileId) -> None:
        path = self.folder / file_id[0]
        try:
            with open_regular(path) as file:
                stat = os.fstat(file.fileno())
                is_too_large = stat.st_size > _LARGEST
                content = b"" if is_too_large else file.readall()
                stat = os.fstat(file.fileno())
        except FileNotFoundError:  # somebody else took it
            return
        except OSError as error:
            if error.errno not in _OF_THE_FILE:
                raise
            fix = "let the driver's user read it, or take it away; the other files go on"
            self._leave(file_id, f"a file cannot be read: {error.strerror}", fix)
            return
        if _file_id(file_id[0], stat) != file_id:
            return  # it has changed: the next look at the folder finds it under its new id
        if is_too_large:
            what = f"a file has {stat.st_size:,} bytes, more than one message may have ({_LARGEST:,})"
            self._leave(
                file_id, what, "split it, or read its lines with another spout; the other files go on"
            )
            if self.given_up is not None:
                self._take_away(file_id, self.given_up)
            return
        attempt = self._attempts.get(file_id, 1)
        names = self._names.of(
            {"path": str(path), "content": content}, self._collector.report_error, {"name": file_id[0]}
        )
        self._collector.emit([str(path), content], file_id, attempt=attempt, label=names.label, key=names.key)
        self._attempts.pop(file_id, None)
        self._open.add(file_id)

    def _leave(self, file_id: _FileId, what: str, fix: str) -> None:
        """Report a file that cannot be emitted; it is not tried again until it changes."""
        self._unreadable.add(file_id)
        where = f"the file {self.folder / file_id[0]}"
        self._collector.report_error(ConnectorError(what, where, fix, can_retry=True))

    def _take_away(self, file_id: _FileId, where_to: Path | None) -> None:
        path = self.folder / file_id[0]
        with as_connector_errors(self._where), suppress(FileNotFoundError):
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
    """The path in another folder, with a number appended if a file of that name is there already."""
    path, number = folder / name, 1
    if not folder.is_dir():  # a later FileNotFoundError would mean that the file is gone
        raise NotADirectoryError(20, "there is no such folder", str(folder))
    while path.exists():
        path, number = folder / f"{name}.{number}", number + 1
    return path
