"""What bolts remember in files, micro-batch by micro-batch: which files count, and which are deleted.

Workers write the files, and tell their names with the rows of the micro-batch. The sink writes the head
before it returns, so before Spark commits. A restart deletes the heads of micro-batches that were never
committed, and all files that no head names: of attempts that failed, and of those micro-batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from acktree.checkpoint.files import FOLDER, Files, committed_files
from acktree.checkpoint.memory_files import (
    HEADS,
    ChainStore,
    blobs_of,
    chain_from,
    file_name,
    head_name,
    part_name,
    read_head,
)
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.private_files import DISK, Disk

__all__ = ["MemoryLog", "PartOfBatch", "stored_blobs"]

_Names = dict[str, tuple[str, ...]]
"""The names of a part's chain, the newest last."""
_PART: Final = re.compile(r"\d+-\d+", re.ASCII)
_FILE: Final = re.compile(r"\d{12,}-[0-9a-f]{16}", re.ASCII)
_SWEEP: Final = 1024
"""After this number of micro-batches files of attempts that failed are deleted."""


class PartOfBatch:
    """What a level remembers in a partition, in one micro-batch.

    Attributes:
        store: What it remembers; changes are written by :meth:`commit`.
    """

    def __init__(
        self, state: Path, level: int, partition: int, batch_id: int, first_batch: int, disk: Disk = DISK
    ) -> None:
        """Open it as it was after the micro-batch before.

        Args:
            state: The folder of heads and parts.
            first_batch: The first micro-batch of the generation, before which nothing is remembered.

        Raises:
            CheckpointError: A file is not there, or damaged.
        """
        self._level, self._partition, self._batch_id = level, partition, batch_id
        self._part = part_name(level, partition)
        head = read_head(state, batch_id - 1, disk) if batch_id > first_batch else {}
        self.store = ChainStore(state / self._part, head.get(self._part), disk)

    def commit(self, attempt: str | None = None) -> list[WireRow]:
        """Write what has changed. Returns the row that tells the driver; none where nothing has.

        Args:
            attempt: See :func:`file_name`.

        Raises:
            OSError: The disk refuses.
        """
        chain = self.store.commit(file_name(self._batch_id, attempt))
        if chain is None:
            return []
        told = json.dumps([self._part, [file.name for file in chain]]).encode()
        return [WireRow(0, SINK_LEVEL, Kind.MEMORY, self._partition, self._level, 0, told, b"")]


def stored_blobs(state: Path, batch_id: int) -> Iterable[tuple[str, bytes]]:
    """The named blobs of all parts after a micro-batch.

    Raises:
        CheckpointError: A file is not there, or damaged.
    """
    for part, newest in read_head(state, batch_id).items():
        yield from blobs_of(state / part, newest)


class MemoryLog:
    """The heads of one generation of the checkpoint."""

    def __init__(self, state: Path, first_batch: int, last_committed: int, files: Files = FOLDER) -> None:
        """Recover what an earlier driver left.

        Args:
            state: The folder of heads and parts; made if it is not there.
            first_batch: The first micro-batch of the generation.
            last_committed: The last micro-batch that Spark has committed.
            files: How heads are written.

        Raises:
            CheckpointError: The head of the last committed micro-batch cannot be read, or a file of it.
        """
        self._state, self._files = state, files
        self._batch_id = last_committed
        files.disk.make_folder(state / HEADS)
        heads = committed_files(files, state / HEADS, last_committed, first_batch=first_batch)
        self._now: _Names = {}
        if last_committed >= first_batch:
            self._now = {
                part: tuple(file.name for file in chain_from(state / part, newest, files.disk))
                for part, newest in read_head(state, last_committed, files.disk).items()
            }
        self._before = self._now
        for old in heads:
            if old.name != head_name(last_committed):
                files.remove(old)
        self._sweep(None)

    def keep(self, batch_id: int, rows: Iterable[WireRow]) -> None:
        """Write the head of a micro-batch that is not committed yet; again, if it is the last one.

        Args:
            rows: Its rows of kind MEMORY.

        Raises:
            OSError: The disk refuses.
        """
        is_again = batch_id == self._batch_id
        before = self._before if is_again else self._now
        told = {str(part): tuple(names) for part, names in (json.loads(row.head) for row in rows)}
        now = {part: names for part, names in (before | told).items() if names}
        newest = {part: names[-1] for part, names in now.items()}
        self._files.write(self._state / HEADS / head_name(batch_id), json.dumps(newest).encode())
        if not is_again:
            self._forget(self._before, self._now)
        self._before, self._now, self._batch_id = before, now, batch_id
        if batch_id % _SWEEP == 0:
            self._sweep(batch_id)

    def _forget(self, before: _Names, now: _Names) -> None:
        """Delete what only the head before the last committed one names, and that head."""
        for part, names in before.items():
            if now.get(part) is not names:
                for name in {*names}.difference(now.get(part, ())):
                    self._files.remove(self._state / part / name)
        self._files.remove(self._state / HEADS / head_name(self._batch_id - 1))

    def _sweep(self, before: int | None) -> None:
        """Delete files that neither of the last two heads names; all, or those of earlier micro-batches."""
        disk = self._files.disk
        for part in disk.names(self._state):
            if not _PART.fullmatch(part):
                continue
            kept = {*self._before.get(part, ()), *self._now.get(part, ())}
            for name in disk.names(self._state / part):
                is_earlier = before is None or name < head_name(before)
                if is_earlier and name not in kept and _FILE.fullmatch(name):
                    disk.remove(self._state / part / name)
