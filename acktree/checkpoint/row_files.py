"""Files of rows of DataFrames: roots and values in pieces, each in an envelope (envelope.py)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from acktree.checkpoint.envelope import checksum_of, damaged, opened_all, sealed
from acktree.checkpoint.files import FOLDER, Files
from acktree.core.data.values import batch_from_bytes, batch_to_bytes
from acktree.core.packing import int64s, pack, unpack
from acktree.tasks.payloads import Payload


class RowFile(NamedTuple):
    """What is known of a file of rows; a section of the commit log has it.

    Attributes:
        pieces: How many pieces it has.
        checksum: CRC-32 of the checksums of their envelopes.
    """

    pieces: int
    checksum: int


NO_FILE: Final = RowFile(0, 0)
"""Without rows there is no file."""


def write_rows(file: Path, rows: Iterable[Payload], files: Files = FOLDER) -> RowFile:
    """Write rows piece by piece, atomically; they are read once."""
    pieces = iter(rows)
    first = next(pieces, None)
    if first is None:
        return NO_FILE
    count = checksum = 0

    def counted() -> Iterator[bytes]:
        nonlocal count, checksum
        for roots, values in chain([first], pieces):
            envelope = sealed(count, pack(roots, batch_to_bytes(values)))
            count, checksum = count + 1, _added(checksum, envelope)
            yield envelope

    files.write_pieces(file, counted())
    return RowFile(count, checksum)


def rows_in(file: Path, written: RowFile, files: Files = FOLDER) -> Iterator[Payload]:
    """The rows of a file, in pieces; views of the mapped file.

    Raises:
        CheckpointError: It is not there, damaged, or another one. The last is known after the last piece.
    """
    if not written.pieces:
        return
    checksum = 0
    for envelope, content in opened_all(file, written.pieces, files):
        checksum = _added(checksum, envelope)
        roots, values = unpack(content)
        yield int64s(roots), batch_from_bytes(values)
    if checksum != written.checksum:
        raise damaged("is another one than was written", file)


def _added(checksum: int, envelope: bytes | memoryview) -> int:
    return zlib.crc32(checksum_of(envelope).to_bytes(4, "little"), checksum)
