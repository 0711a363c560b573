"""Files read through the operating system's page cache, without a copy."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

__all__ = ["mapped"]


def mapped(path: Path, at: int = 0, length: int | None = None, flags: int = 0) -> memoryview:
    """Map a part of a file into memory, to be read on access; the file may be deleted meanwhile.

    Args:
        path: The file.
        at: The first byte.
        length: The number of bytes; None for all that follow.
        flags: Additional flags of ``mmap``.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size - at if length is None else length
        if not size:
            return memoryview(b"")
        before = at % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            file.fileno(), before + size, mmap.MAP_SHARED | flags, mmap.PROT_READ, offset=at - before
        )
    return memoryview(pages)[before:]
