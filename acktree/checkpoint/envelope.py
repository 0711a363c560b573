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
from pathlib import Path
from typing import Final

from acktree.core.packing import Buffer
from acktree.errors import CheckpointError

__all__ = ["checksum_of", "opened", "sealed"]

_MAGIC: Final = b"acktree1"
_HEAD: Final = struct.Struct("<8sqq")
_SUM: Final = struct.Struct("<I")


def sealed(number: int, content: Buffer) -> bytes:
    """Content in its envelope."""
    head = _HEAD.pack(_MAGIC, number, len(content))
    return b"".join((head, content, _SUM.pack(zlib.crc32(content, zlib.crc32(head)))))


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
        raise CheckpointError(
            f"a file of the checkpoint {fault}",
            str(file),
            "nothing was deleted: take the checkpoint from a copy, or begin a new one",
        )
    return memoryview(blob)[_HEAD.size : -_SUM.size]


def _fault(blob: Buffer, number: int) -> str:
    """What is wrong with an envelope; empty for nothing."""
    if len(blob) < _HEAD.size + _SUM.size:
        return f"is cut off after {len(blob)} bytes" if len(blob) else "is empty"
    magic, its_number, length = _HEAD.unpack_from(blob)
    size = _HEAD.size + length + _SUM.size
    faults = {
        "was not written by this version of acktree": magic != _MAGIC,
        f"has the content of number {its_number}": its_number != number,
        f"has {len(blob):,} bytes, and was written with {size:,}": len(blob) != size,
    }
    found = next((fault for fault, is_so in faults.items() if is_so), "")
    if not found and zlib.crc32(memoryview(blob)[: -_SUM.size]) != checksum_of(blob):
        return "is damaged: its checksum is another one"
    return found
