"""The envelope of a durable file: a damaged, foreign or misplaced one is noticed when it is read.

::

    8 bytes   the magic, with the version of the envelope
    8 bytes   the number that the file's name has
    8 bytes   the length of the content
    n bytes   the content
    4 bytes   CRC-32 of all before it
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from acktree.checkpoint.files import Files
from acktree.core.packing import Buffer
from acktree.errors import CheckpointError

_MAGIC: Final = b"acktree1"
_HEAD: Final = struct.Struct("<8sqq")
_SUM: Final = struct.Struct("<I")


def damaged(what: str, file: Path) -> CheckpointError:
    """The error for a file that cannot be used."""
    fix = "nothing was deleted: take the checkpoint from a copy, or begin a new one"
    return CheckpointError(f"a file of the checkpoint {what}", str(file), fix)


def missing(file: Path) -> CheckpointError:
    """The error for a file that should be there."""
    return damaged("is missing", file)


def sealed(number: int, content: Buffer) -> bytes:
    """Content in its envelope."""
    return b"".join(sealed_pieces(number, content))


def sealed_pieces(number: int, content: Buffer) -> tuple[bytes, Buffer, bytes]:
    """The same in three pieces, so that the content is not copied; the last one has the checksum."""
    head = _HEAD.pack(_MAGIC, number, len(content))
    return head, content, _SUM.pack(zlib.crc32(content, zlib.crc32(head)))


def number_of(blob: Buffer) -> int:
    """The number in an envelope; 0 for what is too short to be one, which :func:`opened` refuses."""
    return int(_HEAD.unpack_from(blob)[1]) if len(blob) >= _HEAD.size else 0


def checksum_of(blob: Buffer) -> int:
    """The checksum in an envelope."""
    (checksum,) = _SUM.unpack(blob[-_SUM.size :])
    return int(checksum)


def opened(blob: Buffer, number: int, file: Path) -> memoryview:
    """The content of an envelope, without a copy.

    Args:
        blob: The envelope.
        number: The number in the file's name.
        file: The file, for the error.

    Raises:
        CheckpointError: It is not the envelope of this number, or it is damaged.
    """
    if fault := _fault(blob, number):
        raise damaged(fault, file)
    return memoryview(blob)[_HEAD.size : -_SUM.size]


def read(file: Path, files: Files) -> memoryview:
    """A file's content, not checked; read when it is looked at.

    Raises:
        CheckpointError: It is not there, or cannot be read.
    """
    try:
        return files.mapped(file)
    except FileNotFoundError as error:
        raise missing(file) from error
    except OSError as error:
        raise damaged(f"cannot be read: {error}", file) from error


def opened_all(file: Path, count: int, files: Files) -> Iterator[tuple[memoryview, memoryview]]:
    """The envelopes of a file with a number of them, numbered from 0, and the content of each.

    Raises:
        CheckpointError: It is not there, or it is not what was written.
    """
    blob = read(file, files)
    at = 0
    for number in range(count):
        end = at + _size_at(blob, at)
        yield blob[at:end], opened(blob[at:end], number, file)
        at = end
    if at != len(blob):
        raise damaged(f"has {len(blob):,} bytes where {at:,} were written", file)


def _size_at(blob: memoryview, at: int) -> int:
    """The size of an envelope, as its head says; of the rest where that is cut off."""
    rest = len(blob) - at
    if rest < _HEAD.size:
        return rest
    _, _, length = _HEAD.unpack_from(blob, at)
    return min(rest, max(0, int(length)) + _HEAD.size + _SUM.size)


def _fault(blob: Buffer, number: int) -> str:
    """What is wrong with an envelope; empty for nothing."""
    if len(blob) < _HEAD.size + _SUM.size:
        return f"is cut off after {len(blob)} bytes" if len(blob) else "is empty"
    magic, its_number, length = _HEAD.unpack_from(blob)
    size = _HEAD.size + length + _SUM.size
    faults = {
        "was not written by this version of acktree": magic != _MAGIC,
        f"has the content of number {its_number}": its_number != number,
        f"has {len(blob):,} bytes where {size:,} were written": len(blob) != size,
    }
    first_fault = next((fault for fault, is_so in faults.items() if is_so), "")
    if not first_fault and zlib.crc32(memoryview(blob)[: -_SUM.size]) != checksum_of(blob):
        return "is damaged: its checksum is another one"
    return first_fault
