"""Files of staged values: where executors see the checkpoint, the driver touches roots and not values.

::

    staged/000000000041-5f0c9a3e1b2d4c6a     envelopes: what one task staged in that micro-batch

Rules of this file
------------------
1. A task writes the values that it stages in a micro-batch to a file of its own, which never changes, before
   its rows leave. The rows, and the sections of the commit log, name a place in it. So attempts do not meet,
   and a micro-batch that runs again has other files.
2. Rows of few bytes carry their values, as all do at a URL and where the disk refuses.
3. A file counts as long as the log names it. It is deleted when the first commit that names it no more is
   final; a restart deletes all files that the last commit does not name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from acktree.checkpoint.envelope import checksum_of, damaged, missing, opened, read, sealed_pieces
from acktree.checkpoint.files import FOLDER, Files, explaining
from acktree.checkpoint.logs.commit_log import file_of
from acktree.checkpoint.memory_files import FILE_NAME, file_name
from acktree.core.data.frames import Kind, WireRow
from acktree.core.packing import Buffer, pack, unpack
from acktree.system.private_files import DISK, Disk

__all__ = ["FOLDER_NAME", "Place", "StagedFiles", "put_apart"]

FOLDER_NAME: Final = "staged"
"""The folder of these files in a checkpoint."""
_LARGE: Final = 16 << 10
"""Values of fewer bytes stay in their row."""


class Place(NamedTuple):
    """Where values are: in an envelope of a file.

    Attributes:
        file: The file's name.
        number: The micro-batch, which is the number of the envelope.
        at: The envelope's first byte.
        size: The envelope's length.
        checksum: The envelope's.
    """

    file: str
    number: int
    at: int
    size: int
    checksum: int

    def to_bytes(self) -> bytes:
        """For a row, or a section."""
        return json.dumps(self).encode()

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Place:
        """Read what :meth:`to_bytes` wrote."""
        return cls(*json.loads(bytes(blob)))


def put_apart(
    folder: str | None,
    batch_id: int,
    rows: Iterable[WireRow],
    disk: Disk = DISK,
    *,
    attempt: str | None = None,
    least_bytes: int = _LARGE,
) -> Iterator[WireRow]:
    """The output rows of a task; large values that it has staged are in a file, and their rows say where.

    Args:
        folder: The folder of these files; None where the rows carry all values.
        batch_id: The number of the micro-batch in the checkpoint.
        disk: The file is written through it.
        attempt: See :func:`file_name`.
        least_bytes: Rows of fewer bytes keep their values.
    """
    large: list[WireRow] = []
    for row in rows:
        if folder is not None and row.kind == Kind.STAGED and len(row.body) >= least_bytes:
            large.append(row)
        else:
            yield row
    if folder is not None and large:
        yield from _in_file(Path(folder) / file_name(batch_id, attempt), batch_id, large, disk)


def _in_file(file: Path, batch_id: int, rows: list[WireRow], disk: Disk) -> list[WireRow]:
    """Write the values of rows to a file; returns the rows that say where they are."""
    named: list[WireRow] = []

    def pieces() -> Iterator[Buffer]:
        at = 0
        for row in rows:
            *groups, values = unpack(row.body)
            envelope = sealed_pieces(batch_id, values)
            place = Place(file.name, batch_id, at, sum(map(len, envelope)), checksum_of(envelope[-1]))
            named.append(row._replace(body=pack(*groups, b"", place.to_bytes())))
            at += place.size
            yield from envelope

    try:
        disk.write_pieces(file, pieces())
    except OSError:  # no room: the rows carry their values
        with suppress(OSError):
            disk.remove(file)
        return rows
    return named


class StagedFiles:
    """The files of one checkpoint, as the driver reads and deletes them."""

    def __init__(self, folder: Path, files: Files = FOLDER) -> None:
        """Use a folder; :meth:`forget` makes it.

        Args:
            folder: The folder of these files.
            files: How they are read and deleted.
        """
        self._folder, self._files = folder, files

    def values(self, place: Place) -> memoryview:
        """The values at a place; a view of the mapped file. Any thread may call it.

        Raises:
            CheckpointError: The file is not there, damaged, or another one.
        """
        file = self._folder / place.file
        envelope = read(file, self._files)[place.at : place.at + place.size]
        values = opened(envelope, place.number, file)
        if checksum_of(envelope) != place.checksum:
            raise damaged("is another one than was written", file)
        return values

    def forget(self, named: Collection[str], before: int | None = None) -> None:
        """Delete the files that are not named: those of micro-batches before a number, or all.

        Also those of attempts that failed, and of what was never committed. What is not acktree's stays. A
        folder that somebody has deleted is made again, if no file of it is named.

        Raises:
            CheckpointError: The folder was deleted, with files that are named.
        """
        with explaining(self._folder):
            try:
                names = self._files.disk.names(self._folder)
            except FileNotFoundError as error:
                if named:
                    raise missing(self._folder / min(named)) from error
                self._files.disk.make_folder(self._folder)
                return
            gone = [
                name
                for name in filter(FILE_NAME.fullmatch, names)
                if name not in named and (before is None or name < file_of(before))
            ]
            if gone and before is None:
                # A run that ends writes its last commit once more, which may name fewer files, and does not
                # sync it. After a power cut the one before it may be there, and name what is deleted here.
                self._files.sync_all(self._folder)
            for name in gone:
                self._files.remove(self._folder / name)
