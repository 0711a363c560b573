"""The files of an inbox: entries, and the notes that driver and source write for each other.

The source reads an inbox with these; entries are written by the driver only, with ``inbox.FileInbox``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from acktree.checkpoint.envelope import damaged, missing, number_of, opened, sealed
from acktree.checkpoint.pace import FIRST
from acktree.core.packing import Buffer
from acktree.system.private_files import DISK, UNPUBLISHED, Disk
from acktree.tasks.chunk import Chunk

TAKEN: Final = "taken"
"""What the source has taken, and how much it takes at once: shows the driver that there is room."""
WAKE: Final = "wake"
"""A named pipe: a byte in it means that there is a new entry."""
HOLD: Final = "hold"
"""While this file is there, the source does not advance."""

WORK: Final = "work"
"""How long the bolts of the source level take for a message: shows whether a few messages are worth
dividing."""
_OFFSET_BITS: Final = 20
_CHANGED: Final = 2.0
"""A measured time is written for the source when it differs from the last one by this factor."""


class ChunkKind(StrEnum):
    """The kind of an inbox entry."""

    DATA = "data"
    PARK = "park"
    TICK = "tick"
    RUN = "run"
    BEAT = "beat"
    WATCH = "watch"
    """What operators watch, from this entry on; kept until a later one is committed."""


_ENTRY: Final = re.compile(rf"(\d{{12,}})\.({'|'.join(ChunkKind)})\.(-?\d+)\.(\d+)", re.ASCII)
"""A name that ``Entry.name`` gives."""


@dataclass(frozen=True)
class Entry:
    """One file of the inbox, from its name."""

    number: int
    kind: ChunkKind
    task: int
    rows: int

    @property
    def name(self) -> str:
        """The file name."""
        return f"{self.number:012d}.{self.kind.value}.{self.task}.{self.rows}"

    @classmethod
    def of_name(cls, name: str) -> Entry | None:
        """Read a file name; None for files that are not entries."""
        ours = _ENTRY.fullmatch(name)
        return None if ours is None else cls(int(ours[1]), ChunkKind(ours[2]), int(ours[3]), int(ours[4]))


@dataclass(frozen=True)
class Taken:
    """What the source wrote last.

    Attributes:
        end: The last number that it gave to a micro-batch.
        allowance: The largest number of messages that it gives to one; a single chunk may exceed it.
    """

    end: int = -1
    allowance: int = FIRST

    def write(self, folder: Path, disk: Disk = DISK) -> None:
        """Write it for the driver."""
        disk.replace(folder / TAKEN, json.dumps((self.end, self.allowance)).encode())

    @classmethod
    def read(cls, folder: Path, disk: Disk = DISK) -> Taken:
        """What was written; that nothing was taken if there is no file."""
        try:
            return cls(*json.loads(disk.read(folder / TAKEN)))
        except FileNotFoundError:
            return cls()


@dataclass(frozen=True)
class Work:
    """What the driver has measured last, for the source.

    Attributes:
        message_ms: How long the bolts of the source level take for a message, in milliseconds.
    """

    message_ms: float

    def differs_much(self, last: Work | None) -> bool:
        """Whether it is to be written, after the last one that was."""
        if last is None:
            return True
        return not 1 / _CHANGED < (self.message_ms + 0.1) / (last.message_ms + 0.1) < _CHANGED

    def write(self, folder: Path, disk: Disk = DISK) -> None:
        """Write it for the source."""
        disk.replace(folder / WORK, json.dumps(self.message_ms).encode())

    @classmethod
    def read(cls, folder: Path, disk: Disk = DISK) -> Work | None:
        """What was written; None if nothing was measured in this run."""
        try:
            return cls(float(json.loads(disk.read(folder / WORK))))
        except FileNotFoundError:
            return None


def entries_after(folder: Path, number: int, disk: Disk = DISK) -> list[Entry]:
    """The entries that follow ``number`` without a gap, ascending."""
    named = map(Entry.of_name, disk.names(folder))
    by_number = {entry.number: entry for entry in named if entry is not None}
    following: list[Entry] = []
    while (number := number + 1) in by_number:
        following.append(by_number[number])
    return following


def newest_watch(names: Iterable[str], end: int) -> Entry | None:
    """The order of operators that holds in a micro-batch that ends with a number: the last up to it."""
    entries = (entry for entry in map(Entry.of_name, names) if entry is not None)
    orders = (entry for entry in entries if entry.kind is ChunkKind.WATCH and entry.number <= end)
    return max(orders, key=lambda entry: entry.number, default=None)


def sealed_entry(number: int, content: Buffer, first: int | None = None) -> bytes:
    """The content of an entry in its envelope, which also says which is the first entry of its group."""
    offset = 0 if first is None else number - first
    return sealed(number << _OFFSET_BITS | offset, content)


def read_entry(folder: Path, entry: Entry, disk: Disk = DISK) -> memoryview:
    """The content of a file of the inbox.

    Raises:
        CheckpointError: It is not there, or it is not what was written.
    """
    return _read(folder / entry.name, entry, disk)[0]


def first_of_group(folder: Path, entry: Entry, disk: Disk = DISK) -> int:
    """The number of the first entry that was appended with an entry; CheckpointError as above."""
    return entry.number - _read(folder / entry.name, entry, disk)[1]


def _read(file: Path, entry: Entry, disk: Disk) -> tuple[memoryview, int]:
    """The content of an entry, and how far it is behind the first of its group."""
    try:
        blob = disk.read(file)
    except FileNotFoundError as error:
        raise missing(file) from error
    except OSError as error:
        raise damaged(f"cannot be read: {error}", file) from error
    offset = number_of(blob) & ((1 << _OFFSET_BITS) - 1)
    return opened(blob, entry.number << _OFFSET_BITS | offset, file), offset


def read_orders(folder: Path, entry: Entry, disk: Disk = DISK) -> dict[str, Any]:
    """What an entry without messages says: a tick, a run, a beat or a watch."""
    return dict(json.loads(bytes(read_entry(folder, entry, disk))))


def read_chunk(folder: Path, entry_name: str, disk: Disk = DISK) -> Chunk:
    """The chunk in a file of the inbox; CheckpointError as for :func:`read_entry`."""
    entry = Entry.of_name(entry_name)
    assert entry is not None, f"the name of a chunk: {entry_name}"
    return Chunk.from_bytes(read_entry(folder, entry, disk))


def waiting_spouts(folder: Path, disk: Disk = DISK) -> frozenset[str]:
    """Spouts with messages in an inbox: messages that did not run yet, or whose chunk is kept."""
    named = map(Entry.of_name, disk.names(folder) if disk.exists(folder) else ())
    kept = [entry for entry in named if entry is not None and (entry.rows or entry.kind is ChunkKind.PARK)]
    return frozenset(read_chunk(folder, entry.name, disk).component for entry in kept)


def is_unpublished(name: str) -> bool:
    """Whether it is the temporary name of a file that is not published; False for files of others."""
    published = name.removeprefix(UNPUBLISHED)
    return published != name and (published in {TAKEN, WORK} or Entry.of_name(published) is not None)


def by_number_and_rows(name: str) -> tuple[int, int]:
    """Sorts file names; what is no entry comes first."""
    entry = Entry.of_name(name)
    return (-1, 0) if entry is None else (entry.number, entry.rows)
