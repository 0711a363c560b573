"""What a task remembers, in files: the format, and the store that a worker reads and writes.

::

    state/7/000000000041-5f0c9a3e1b2d4c6a     what task 7 changed in that micro-batch

A task remembers named blobs. Its files form a *chain*. A blob is what the newest file in the chain that names
it says. A task has its number for ever, so its files are found whatever level and partition it is on.

Rules of this file
------------------
1. A file has a name of its own and never changes. It counts when the driver has named it in the commit log
   (memory_log.py), before Spark commits. So attempts of one task do not meet, even if nobody knows that one
   of them still runs, and a micro-batch that runs again begins with what the commit before it names.
2. A new file takes in the newest files of its chain while they are at most twice its size, or mostly dead. So
   a chain has few files, and what is stored is written again only after as much has changed.
3. A deleted blob is named as deleted while its chain has older files.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

from acktree.checkpoint.logs.commit_log import file_of
from acktree.core.packing import int64s, pack, unpack
from acktree.core.state.store import StateStore
from acktree.errors import CheckpointError
from acktree.system.private_files import DISK, Disk

FILE_NAME: Final = re.compile(r"\d{12,}-[0-9a-f]{16}", re.ASCII)
"""A name that :func:`file_name` gives."""
_BEGIN: Final = b"acktree\x01"
_END: Final = struct.Struct("<qq")
"""At the end of a file: the index's length and checksum."""
_TAKEN_IN: Final = 2
"""A new file takes in older ones that are at most this many times its size."""
_ALIGNED: Final = 8
_ENTRY_BYTES: Final = 40
"""About what a name takes in an index, beside its letters."""
_DELETED: Final = -1
_MOST_WRITTEN: Final = 1 << 20
"""The most bytes that a store keeps of what it has written; a blob counts each time it is written. With more
it drops all of them, and reads from the files what it is asked for."""
_MOST_TASKS: Final = 1024
"""Of how many tasks a process keeps the indexes."""


class ChainFile(NamedTuple):
    """One file of a chain: its name, and its bytes without padding."""

    name: str
    size: int


class _Span(NamedTuple):
    """Where a blob is in its file."""

    offset: int
    length: int
    checksum: int


class _Stored(NamedTuple):
    """A blob that a file has."""

    file: str
    span: _Span


class _Index(NamedTuple):
    """What a file says: its blobs, None for one that is deleted; the files before it, oldest first."""

    spans: Mapping[str, _Span | None]
    before: tuple[ChainFile, ...]
    size: int


_known: Final[dict[Path, dict[str, _Index]]] = {}
"""By task the indexes of its chain, as this process knows it: its next micro-batch needs most of them."""


def file_name(batch_id: int, attempt: str | None = None) -> str:
    """A name for a file that nobody else writes.

    Args:
        batch_id: The micro-batch.
        attempt: 16 hexadecimal digits; None for some at random.
    """
    return f"{file_of(batch_id)}-{attempt or secrets.token_hex(8)}"


def chain_from(folder: Path, newest: str, disk: Disk = DISK) -> tuple[ChainFile, ...]:
    """The chain that a file is the newest of, oldest first. The index of each file is read.

    Raises:
        CheckpointError: A file is not there, or damaged.
    """
    return tuple(ChainFile(name, index.size) for name, index in _indexes_of(folder, newest, disk).items())


def blobs_of(folder: Path, name: str, disk: Disk = DISK) -> Iterator[tuple[str, bytes]]:
    """All blobs of the task whose newest file this is.

    Raises:
        CheckpointError: A file is not there, or damaged.
    """
    store = ChainStore(folder, name, disk)
    for blob_name in store.names():
        blob = store.get(blob_name)
        if blob is not None:
            yield blob_name, blob


class ChainStore(StateStore):
    """The memory of one task, in one micro-batch or from one to the next. Threads may read at the same time.

    Whoever keeps it after :meth:`commit` reads what was written there, as one that is opened anew does. So it
    must be dropped where the written file does not count.
    """

    def __init__(self, folder: Path, newest: str | None, disk: Disk = DISK) -> None:
        """Read it as it was before a micro-batch.

        Args:
            folder: The task's folder.
            newest: Its newest file; None where it remembers nothing.
            disk: Files are read and written through it.
        """
        self._folder, self._disk = folder, disk
        self._indexes = {} if newest is None else _indexes_of(folder, newest, disk)
        self._views: dict[str, memoryview] = {}
        self._changed: dict[str, bytes | None] = {}
        self._written: dict[str, bytes | None] = {}
        """What the last commits have written, so that it is not read."""
        self._written_bytes = 0

    def get(self, name: str) -> bytes | None:
        for blobs in (self._changed, self._written):
            if name in blobs:
                return blobs[name]
        for file, index in reversed(self._indexes.items()):
            if name in index.spans:
                span = index.spans[name]
                return None if span is None else bytes(self._blob(file, span))
        return None

    def put(self, name: str, blob: bytes) -> None:
        self._changed[name] = blob

    def delete(self, name: str) -> None:
        self._changed[name] = None

    def names(self) -> Iterator[str]:
        """The names of all blobs, and of some that are deleted."""
        yield from dict.fromkeys(name for index in self._indexes.values() for name in index.spans)

    def commit(self, name: str) -> tuple[ChainFile, ...] | None:
        """Write what has changed; returns the chain from now on, None where nothing has changed.

        Args:
            name: The new file; see :func:`file_name`.

        Raises:
            OSError: The disk refuses. Nothing counts then.
        """
        if not self._changed:
            return None
        kept: dict[str, _Index] = dict(self._indexes)
        blobs: dict[str, bytes | _Stored | None] = dict(self._changed)
        size = sum(_size_of(blob_name, len(blob or b"")) for blob_name, blob in self._changed.items())
        while kept:
            file, index = next(reversed(kept.items()))
            if index.size > _TAKEN_IN * size and not _is_mostly_dead(index, blobs, size):
                break
            del kept[file]
            for blob_name, span in index.spans.items():
                if blob_name not in blobs:
                    blobs[blob_name] = None if span is None else _Stored(file, span)
                    size += _size_of(blob_name, 0 if span is None else span.length)
        if not kept:
            blobs = {blob_name: blob for blob_name, blob in blobs.items() if blob is not None}
            if not blobs:
                self._go_on_from({})
                return ()
        self._disk.make_folder(self._folder)
        before = tuple(ChainFile(file, index.size) for file, index in kept.items())
        written = ((blob_name, self._bytes(blob)) for blob_name, blob in blobs.items())
        index = _write(self._folder / name, written, before, self._disk)
        self._go_on_from(kept | {name: index})
        return (*before, ChainFile(name, index.size))

    def _go_on_from(self, chain: dict[str, _Index]) -> None:
        """The memory is in these files from now on."""
        _remember(self._folder, chain)
        self._indexes = chain
        self._views = {file: view for file, view in self._views.items() if file in chain}
        self._written |= self._changed
        self._written_bytes += sum(_size_of(name, len(blob or b"")) for name, blob in self._changed.items())
        if self._written_bytes > _MOST_WRITTEN:
            self._written, self._written_bytes = {}, 0
        self._changed = {}

    def _bytes(self, blob: bytes | _Stored | None) -> bytes | memoryview | None:
        return self._blob(*blob) if isinstance(blob, _Stored) else blob

    def _blob(self, file: str, span: _Span) -> memoryview:
        view = self._views.get(file)
        if view is None:
            view = self._views[file] = _mapped(self._folder / file, self._disk)
        blob = view[span.offset : span.offset + span.length]
        if len(blob) != span.length or crc32(blob) != span.checksum:
            raise _unreadable(self._folder / file, "its content is damaged")
        return blob


def _size_of(name: str, length: int) -> int:
    """The bytes that a blob takes in a file, with its entry in the index."""
    return _ENTRY_BYTES + len(name) + length


def _is_mostly_dead(index: _Index, newer: Collection[str], size: int) -> bool:
    """Whether little is left of a file beside what changed since. Found out where it is as little work."""
    if len(index.spans) > _TAKEN_IN * len(newer):
        return False
    lengths = (span.length for name, span in index.spans.items() if span is not None and name not in newer)
    return sum(lengths) <= _TAKEN_IN * size


def _write(
    file: Path,
    blobs: Iterable[tuple[str, bytes | memoryview | None]],
    before: tuple[ChainFile, ...],
    disk: Disk,
) -> _Index:
    spans: dict[str, _Span | None] = {}
    size = 0

    def pieces() -> Iterator[bytes | memoryview]:
        nonlocal size
        at = len(_BEGIN)
        yield _BEGIN
        for name, blob in blobs:
            size += _size_of(name, len(blob or b""))
            if blob is None:
                spans[name] = None
                continue
            spans[name] = _Span(at, len(blob), crc32(blob))
            padding = bytes(-len(blob) % _ALIGNED)
            yield blob
            yield padding
            at += len(blob) + len(padding)
        columns = np.array([span or (0, _DELETED, 0) for span in spans.values()], dtype=np.int64)
        index = pack(
            json.dumps([[*spans], before, size, file.name]).encode(),
            *columns.reshape(-1, len(_Span._fields)).T,
        )
        yield index
        yield _END.pack(len(index), crc32(index))

    try:
        disk.write_pieces(file, pieces())
    except BaseException:  # on a full disk each attempt would leave a part of its file
        with suppress(OSError):
            disk.remove(file)
        raise
    return _Index(spans, before, size)


def _indexes_of(folder: Path, newest: str, disk: Disk) -> dict[str, _Index]:
    """The indexes of a chain by file, oldest first."""
    known = _known.get(folder, {})
    last = known.get(newest) or _read_index(folder / newest, disk)
    chain = {file: known.get(file) or _read_index(folder / file, disk) for file, _ in last.before}
    chain[newest] = last
    _remember(folder, chain)
    return chain


def _remember(folder: Path, chain: dict[str, _Index]) -> None:
    if folder not in _known and len(_known) >= _MOST_TASKS:
        _known.clear()
    _known[folder] = chain


def _read_index(file: Path, disk: Disk) -> _Index:
    view = _mapped(file, disk)
    try:
        length, checksum = _END.unpack_from(view, len(view) - _END.size)
        packed = view[len(view) - _END.size - length : len(view) - _END.size]
        if bytes(view[: len(_BEGIN)]) != _BEGIN or len(packed) != length or crc32(packed) != checksum:
            raise _unreadable(file, "its content is damaged")
        said, *columns = unpack(packed)
        names, before, size, name = json.loads(bytes(said))
        if name != file.name:
            raise _unreadable(file, f"it has the content of {name}")
        rows = zip(*(int64s(column).tolist() for column in columns), strict=True)
        spans = {
            name: None if row[1] == _DELETED else _Span(*row) for name, row in zip(names, rows, strict=True)
        }
        return _Index(spans, tuple(ChainFile(*fields) for fields in before), size)
    except (struct.error, ValueError, TypeError) as error:
        raise _unreadable(file, error) from error


def _mapped(file: Path, disk: Disk) -> memoryview:
    try:
        return disk.mapped(file)
    except FileNotFoundError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, why: object) -> CheckpointError:
    return CheckpointError(
        f"what bolts remember cannot be read: {why}",
        str(file),
        "bring the checkpoint back from a copy; or forget all memory: `acktree reset-state CHECKPOINT`",
    )
