"""What bolts remember in files, micro-batch by micro-batch: which files count, and which are deleted.

Workers write the files, and tell their names with the rows of the micro-batch. The sink writes the head
before it returns, so before Spark commits. A restart deletes the heads of micro-batches that were never
committed, and all files that no head names: of attempts that failed, and of those micro-batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
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
    head_of,
    read_head,
)
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.state.store import StateStore
from acktree.private_files import DISK, Disk

__all__ = ["MemoryLog", "MemoryOfBatch", "stored_blobs"]

_Names = dict[str, tuple[str, ...]]
"""By task the names of its chain, the newest last."""
_TASK: Final = re.compile(r"\d+", re.ASCII)
_FILE: Final = re.compile(r"\d{12,}-[0-9a-f]{16}", re.ASCII)
_SWEEP: Final = 1024
"""After this number of micro-batches files of attempts that failed are deleted."""


class MemoryOfBatch(StateStore):
    """What the tasks of a level remember in a partition, in one micro-batch.

    Names of blobs begin with ``task/N/``, as a level asks for them.
    """

    def __init__(self, state: Path, batch_id: int, disk: Disk = DISK) -> None:
        """Open it as it was after the micro-batch before.

        Args:
            state: The folder of heads, and of the tasks' files.

        Raises:
            CheckpointError: The head of the micro-batch before cannot be read.
        """
        self._state, self._batch_id, self._disk = state, batch_id, disk
        self._head = read_head(state, batch_id - 1, disk)
        self._tasks: dict[str, ChainStore] = {}

    def get(self, name: str) -> bytes | None:
        store, its = self._of(name)
        return store.get(its)

    def put(self, name: str, blob: bytes) -> None:
        store, its = self._of(name)
        store.put(its, blob)

    def delete(self, name: str) -> None:
        store, its = self._of(name)
        store.delete(its)

    def commit(self, partition: int, attempt: str | None = None) -> Iterator[WireRow]:
        """Write what has changed. Returns the rows that tell the driver.

        Args:
            partition: The partition of these tasks.
            attempt: See :func:`file_name`.

        Raises:
            OSError: The disk refuses. Nothing counts then.
        """
        for task, store in self._tasks.items():
            chain = store.commit(file_name(self._batch_id, attempt))
            if chain is not None:
                names = json.dumps([file.name for file in chain]).encode()
                yield WireRow(partition, SINK_LEVEL, Kind.MEMORY, int(task), 0, 0, names, b"")

    def _of(self, name: str) -> tuple[ChainStore, str]:
        _, task, its = name.split("/", 2)
        store = self._tasks.get(task)
        if store is None:
            store = ChainStore(self._state / task, self._head.get(task), self._disk)
            store = self._tasks.setdefault(task, store)  # threads may ask for it at the same time
        return store, its


def stored_blobs(state: Path, batch_id: int) -> Iterator[tuple[int, str, bytes]]:
    """What each task remembers after a micro-batch, as (task, name, blob).

    Raises:
        CheckpointError: A file is not there, or damaged.
    """
    for task, newest in read_head(state, batch_id).items():
        yield from ((int(task), name, blob) for name, blob in blobs_of(state / task, newest))


class MemoryLog:
    """The heads of one generation of the checkpoint."""

    def __init__(self, state: Path, first_batch: int, last_committed: int, files: Files = FOLDER) -> None:
        """Recover what an earlier driver left.

        Args:
            state: The folder of heads, and of the tasks' files; made if it is not there.
            first_batch: The first micro-batch in which something could be remembered.
            last_committed: The last micro-batch that Spark has committed.
            files: How heads are written.

        Raises:
            CheckpointError: The head of the last committed micro-batch cannot be read, or a file of it.
        """
        self._state, self._files, self._batch_id = state, files, last_committed
        files.disk.make_folder(state / HEADS)
        if last_committed < first_batch:
            self._write(last_committed, {})
        heads = committed_files(files, state / HEADS, last_committed)
        self._now: _Names = {
            task: tuple(file.name for file in chain_from(state / task, newest, files.disk))
            for task, newest in read_head(state, last_committed, files.disk).items()
        }
        self._before = self._now
        for old in heads[:-1]:
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
        told = {str(row.source): tuple(json.loads(row.head)) for row in rows}
        now = {task: names for task, names in (before | told).items() if names}
        self._write(batch_id, now)
        if not is_again:
            self._forget(self._before, self._now)
        self._before, self._now, self._batch_id = before, now, batch_id
        if batch_id % _SWEEP == 0:
            self._sweep(batch_id)

    def _write(self, batch_id: int, chains: _Names) -> None:
        newest = {task: names[-1] for task, names in chains.items()}
        self._files.write(self._state / HEADS / head_name(batch_id), head_of(newest))

    def _forget(self, before: _Names, now: _Names) -> None:
        """Delete what only the head before the last committed one names, and that head."""
        for task, names in before.items():
            if now.get(task) is not names:
                for name in {*names}.difference(now.get(task, ())):
                    self._files.remove(self._state / task / name)
        self._files.remove(self._state / HEADS / head_name(self._batch_id - 1))

    def _sweep(self, before: int | None) -> None:
        """Delete files that neither of the last two heads names; all, or those of earlier micro-batches."""
        disk = self._files.disk
        for task in filter(_TASK.fullmatch, disk.names(self._state)):
            kept = {*self._before.get(task, ()), *self._now.get(task, ())}
            for name in filter(_FILE.fullmatch, disk.names(self._state / task)):
                if name not in kept and (before is None or name < head_name(before)):
                    disk.remove(self._state / task / name)
