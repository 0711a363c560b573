"""Files of several parts, as :func:`~acktree.core.packing.pack` puts them, written and read part by part."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from acktree.core.data.values import batch_from_bytes
from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, int64s, pack, unpack
from acktree.mapped_files import mapped
from acktree.private_files import PRIVATE_FILE
from acktree.tasks.payloads import Payload


def write_parts(file: Path, parts: Iterable[Int64s | Buffer]) -> None:
    """Write parts one after the other, for the owner alone; the file is what ``pack(*parts)`` gives."""
    opened = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, PRIVATE_FILE)
    with os.fdopen(opened, "wb") as stream:
        os.fchmod(opened, PRIVATE_FILE)
        nothing = pack()
        stream.write(nothing)  # the number of parts is known at the end
        count = 0
        for part in parts:
            stream.write(pack(part)[len(nothing) :])
            count += 1
        stream.seek(0)
        stream.write(count.to_bytes(len(nothing), "little"))


def payloads_in(file: Path) -> Iterator[Payload]:
    """What a file of roots and batches, in turn, holds: views; a page is loaded when it is looked at."""
    parts = unpack(mapped(file))
    for roots, values in zip(parts[::2], parts[1::2], strict=True):
        yield int64s(roots), batch_from_bytes(values)
