"""What a task remembers, in files: the format, and the store that a worker reads and writes.

::

    state/heads/000000000041                  the newest file of each task after that micro-batch: JSON
    state/7/000000000041-5f0c9a3e1b2d4c6a     what task 7 changed in that micro-batch

A task remembers named blobs. Its files form a *chain*. A blob is what the newest file in the chain that names
it says. A task has its number for ever, so its files are found whatever level and partition it is on.

Rules of this file
------------------
1. A file has a name of its own and never changes. It counts when the driver has named it in the head of its
   micro-batch, before Spark commits that. So attempts of one task do not meet, even if nobody knows that one
   of them still runs, and a micro-batch that runs again begins with the head of the one before it.
2. A new file takes in the newest files of its chain while they are at most twice its size. So a chain has few
   files, and what is stored is written again only after as much has changed.
3. A deleted blob is named as deleted while its chain has older files.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

from acktree.core.packing import int64s, pack, unpack
from acktree.core.state.store import StateStore
from acktree.errors import CheckpointError
from acktree.private_files import DISK, Disk

__all__ = [
    "HEADS",
    "ChainFile",
    "ChainStore",
    "blobs_of",
    "chain_from",
    "file_name",
    "head_name",
    "read_head",
]

HEADS: Final = "heads"
"""The folder of heads; every folder beside it is a task's."""
_BEGIN: Final = b"acktree\x01"
_END: Final = struct.Struct("<qq")
"""At the end of a file: the index's length and checksum."""
_TAKEN_IN: Final = 2
"""A file of at most so many times the size of the new one is taken in."""
_ALIGNED: Final = 8
_DELETED: Final = -1
_MOST_TASKS: Final = 1024
"""Of how many tasks a process keeps the indexes."""


class ChainFile(NamedTuple):
    """One file of a chain: its name, and the bytes of its blobs."""

    name: str
    size: int


class _Span(NamedTuple):
    """Where a blob is in its file."""

    offset: int
    length: int
    checksum: int


class _Index(NamedTuple):
    """What a file says: its blobs, None for one that is deleted; the files before it, oldest first."""

    spans: Mapping[str, _Span | None]
    before: tuple[ChainFile, ...]
    size: int


_indexes: Final[dict[Path, dict[str, _Index]]] = {}
"""The indexes that this process has read or written, by folder: its next micro-batch needs most of them."""


def head_name(batch_id: int) -> str:
    """The file of a micro-batch's head, in :data:`HEADS`."""
    return f"{batch_id:012d}"


def file_name(batch_id: int, attempt: str | None = None) -> str:
    """A name for a file that nobody else writes.

    Args:
        batch_id: The micro-batch.
        attempt: 16 hexadecimal digits; None for some at random.
    """
    return f"{head_name(batch_id)}-{attempt or secrets.token_hex(8)}"


def read_head(state: Path, batch_id: int, disk: Disk = DISK) -> dict[str, str]:
    """The newest file of each task after a micro-batch; a task that remembers nothing is not there.

    Raises:
        CheckpointError: It is not there, or cannot be read.
    """
    file = state / HEADS / head_name(batch_id)
    try:
        return dict(json.loads(disk.read(file)))
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise _unreadable(file, error) from error


def chain_from(folder: Path, name: str, disk: Disk = DISK) -> tuple[ChainFile, ...]:
    """The chain that a file is the newest of, oldest first.

    Raises:
        CheckpointError: The file is not there, or damaged.
    """
    index = _index_of(folder / name, disk)
    return (*index.before, ChainFile(name, index.size))


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
    """The memory of one task in one micro-batch. Threads may read at the same time."""

    def __init__(self, folder: Path, newest: str | None, disk: Disk = DISK) -> None:
        """Read it as it was before a micro-batch.

        Args:
            folder: The task's folder.
            newest: Its newest file; None where it remembers nothing.
            disk: Files are read and written through it.
        """
        self._folder, self._disk = folder, disk
        self._chain = () if newest is None else chain_from(folder, newest, disk)
        self._views: dict[str, memoryview] = {}
        self._changed: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        if name in self._changed:
            return self._changed[name]
        for file in reversed(self._chain):
            spans = self._spans(file)
            if name in spans:
                span = spans[name]
                return None if span is None else bytes(self._blob(file, span))
        return None

    def put(self, name: str, blob: bytes) -> None:
        self._changed[name] = blob

    def delete(self, name: str) -> None:
        self._changed[name] = None

    def names(self) -> Iterator[str]:
        """The names of all blobs, and of some that are deleted."""
        yield from dict.fromkeys(name for file in self._chain for name in self._spans(file))

    def commit(self, name: str) -> tuple[ChainFile, ...] | None:
        """Write what has changed; returns the chain from now on, None where nothing has changed.

        Args:
            name: The new file; see :func:`file_name`.

        Raises:
            OSError: The disk refuses. Nothing counts then.
        """
        if not self._changed:
            return None
        kept, spans = [*self._chain], dict[str, tuple[ChainFile, _Span] | None]()
        size = sum(len(blob) for blob in self._changed.values() if blob is not None)
        while kept and kept[-1].size <= _TAKEN_IN * size:
            taken = kept.pop()
            for each, span in self._spans(taken).items():
                if each not in self._changed and each not in spans:
                    spans[each] = None if span is None else (taken, span)
                    size += 0 if span is None else span.length
        blobs: dict[str, bytes | tuple[ChainFile, _Span] | None] = {**spans, **self._changed}
        if not kept:
            blobs = {each: blob for each, blob in blobs.items() if blob is not None}
            if not blobs:
                return ()
        self._disk.make_folder(self._folder)
        file = self._folder / name
        index = _write(file, ((each, self._bytes(blob)) for each, blob in blobs.items()), kept, self._disk)
        _note(file, index)
        return (*kept, ChainFile(name, index.size))

    def _bytes(self, blob: bytes | tuple[ChainFile, _Span] | None) -> bytes | memoryview | None:
        return self._blob(*blob) if isinstance(blob, tuple) else blob

    def _spans(self, file: ChainFile) -> Mapping[str, _Span | None]:
        return _index_of(self._folder / file.name, self._disk).spans

    def _blob(self, file: ChainFile, span: _Span) -> memoryview:
        view = self._views.get(file.name)
        if view is None:
            view = self._views[file.name] = _mapped(self._folder / file.name, self._disk)
        blob = view[span.offset : span.offset + span.length]
        if len(blob) != span.length or crc32(blob) != span.checksum:
            raise _unreadable(self._folder / file.name, "its content is damaged")
        return blob


def _write(
    file: Path, blobs: Iterable[tuple[str, bytes | memoryview | None]], before: list[ChainFile], disk: Disk
) -> _Index:
    spans: dict[str, _Span | None] = {}
    size = 0

    def pieces() -> Iterator[bytes | memoryview]:
        nonlocal size
        at = len(_BEGIN)
        for name, blob in blobs:
            if blob is None:
                spans[name] = None
                continue
            spans[name] = _Span(at, len(blob), crc32(blob))
            padding = bytes(-len(blob) % _ALIGNED)
            yield blob
            yield padding
            at += len(blob) + len(padding)
            size += len(blob)
        columns = np.array([span or (0, _DELETED, 0) for span in spans.values()], dtype=np.int64)
        index = pack(
            json.dumps([[*spans], before, size]).encode(), *columns.reshape(-1, len(_Span._fields)).T
        )
        yield index
        yield _END.pack(len(index), crc32(index))

    disk.write_pieces(file, pieces(), lambda _: _BEGIN)
    return _Index(spans, tuple(before), size)


def _index_of(file: Path, disk: Disk) -> _Index:
    index = _indexes.get(file.parent, {}).get(file.name)
    if index is None:
        index = _read_index(file, disk)
        _note(file, index)
    return index


def _note(file: Path, index: _Index) -> None:
    """Keep an index, and those of the files before it: no other belongs to the chain any more."""
    if file.parent not in _indexes and len(_indexes) >= _MOST_TASKS:
        _indexes.clear()
    known = _indexes.get(file.parent, {})
    kept = {name: known[name] for name, _ in index.before if name in known}
    _indexes[file.parent] = kept | {file.name: index}


def _read_index(file: Path, disk: Disk) -> _Index:
    view = _mapped(file, disk)
    try:
        length, checksum = _END.unpack_from(view, len(view) - _END.size)
        packed = view[len(view) - _END.size - length : len(view) - _END.size]
        if bytes(view[: len(_BEGIN)]) != _BEGIN or len(packed) != length or crc32(packed) != checksum:
            raise _unreadable(file, "its content is damaged")
        said, *columns = unpack(packed)
        names, before, size = json.loads(bytes(said))
        rows = zip(*(int64s(column).tolist() for column in columns), strict=True)
        spans = {
            name: None if row[1] == _DELETED else _Span(*row) for name, row in zip(names, rows, strict=True)
        }
        return _Index(spans, tuple(ChainFile(*each) for each in before), size)
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
        "bring the checkpoint back from a copy; or forget all memory: `python -m acktree reset-state`",
    )
