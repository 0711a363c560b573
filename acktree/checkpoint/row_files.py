"""Files of several parts, as :func:`~acktree.core.packing.pack` puts them, written and read part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from acktree.checkpoint.files import FOLDER, Files
from acktree.core.data.values import batch_from_bytes
from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, int64s, pack, unpack
from acktree.tasks.payloads import Payload

_HEAD_BYTES: Final = len(pack())


def write_parts(file: Path, parts: Iterable[Int64s | Buffer], files: Files = FOLDER) -> Path:
    """Write parts one after the other, atomically; the file is what ``pack(*parts)`` returns."""
    return files.write_pieces(file, (pack(part)[_HEAD_BYTES:] for part in parts), _head)


def _head(count: int) -> bytes:
    """The header of a packing: the number of its parts."""
    return count.to_bytes(_HEAD_BYTES, "little")


def payloads_in(file: Path, files: Files = FOLDER) -> Iterator[Payload]:
    """The payloads in a file of alternating roots and batches. They are views of the mapped file."""
    parts = unpack(files.mapped(file))
    for roots, values in zip(parts[::2], parts[1::2], strict=True):
        yield int64s(roots), batch_from_bytes(values)
