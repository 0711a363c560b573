"""Scratch files: contents of large rows, if driver and workers run on one machine.

Spark copies a byte from one level to the next about ten times: into the JVM, into a row, through the sort and
the compression of a shuffle, and back into Python. On one machine a large row's bytes are written once to a
file in Spark's scratch folder, and the row carries the file's name and an offset. The receiving worker maps
the file. Spark still moves every row, and runs a failed task again with the same rows.

Rules of this file
------------------
1. A file belongs to one attempt of one Spark task of one micro-batch and is never changed. So failed attempts
   do not affect the rows of others.
2. A file is deleted when a later micro-batch runs, because its own is committed by then.
3. If the disk is full, and on a cluster, rows carry their bytes themselves.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext

from acktree.core.data.frames import WireRow
from acktree.system.private_files import mapped

ELSEWHERE: Final = 1 << 16
"""Added to the kind of a row whose head and body are in a file."""
_POPULATE: Final = getattr(mmap, "MAP_POPULATE", 0)
"""Loads the pages of a file that is read as a whole; Linux alone has it."""
LARGE: Final = 16 << 10
"""Rows of fewer bytes carry them themselves."""
_OURS: Final = re.compile(r"(?:new-)?(\d+)\.\d+\.\d+\.(?:\d+|mark|suspects|hung|raised|waits)", re.ASCII)
"""A name that begins with a micro-batch: of a scratch file, or of a file of ``marks.py``."""


def name_of(batch_id: int, level: int, partition: int, attempt: int) -> str:
    """The name of a task's file.

    Args:
        batch_id: Spark's number of the micro-batch, or of the epoch.
        attempt: A number that no other attempt has for this level, partition and micro-batch.
    """
    return f"{batch_id}.{level}.{partition}.{attempt}"


def put(folder: str | None, level: int, rows: Iterable[WireRow]) -> Iterator[WireRow]:
    """The output rows of a Spark task in its micro-batch; large ones are written to a file."""
    if folder is None:
        return iter(rows)
    context = TaskContext.get()
    assert context is not None, "levels run in Spark tasks"
    batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
    return put_into(folder, name_of(batch_id, level, context.partitionId(), context.taskAttemptId()), rows)


def put_into(folder: str, name: str, rows: Iterable[WireRow]) -> Iterator[WireRow]:
    """The output rows of a task; large ones are written to a file of this name, which is new."""
    file: int | None = None
    at = 0
    try:
        for row in rows:
            size = len(row.head) + len(row.body)
            if size < LARGE:
                yield row
                continue
            try:
                if file is None:
                    file = os.open(Path(folder) / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
                _write(file, row.head, at)
                _write(file, row.body, at + len(row.head))
            except OSError:  # no room, or no folder: Spark carries it
                yield row
                continue
            location = json.dumps((name, at, len(row.head), len(row.body))).encode()
            yield row._replace(kind=int(row.kind) + ELSEWHERE, head=location, body=b"")
            at += size
    finally:
        if file is not None:
            os.close(file)


def take(folder: str | None, rows: Iterable[WireRow]) -> Iterator[WireRow]:
    """The rows with their contents; bodies are views of the files. A view is unmapped with its row."""
    for row in rows:
        yield row if row.kind < ELSEWHERE else _taken(folder, row, _POPULATE)


def look(folder: str | None, row: WireRow) -> WireRow:
    """The same for one row of which little is read: pages are loaded at their first access."""
    return row if row.kind < ELSEWHERE else _taken(folder, row, 0)


def _taken(folder: str | None, row: WireRow, flags: int) -> WireRow:
    assert folder is not None, "rows are put elsewhere only where there is a folder"
    name, at, head, size = json.loads(row.head)
    view = mapped(Path(folder) / name, at, head + size, flags)
    body: Any = view[head:]  # read like bytes, and not copied
    return row._replace(kind=row.kind - ELSEWHERE, head=bytes(view[:head]), body=body)


def forget_before(folder: Path, batch_id: int) -> None:
    """Delete the files of micro-batches before this one; a file that is not acktree's stays."""
    for file in folder.iterdir():
        ours = _OURS.fullmatch(file.name)
        if ours and int(ours[1]) < batch_id:
            with suppress(FileNotFoundError):
                file.unlink()


def _write(file: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
