"""What bolts remember in files, micro-batch by micro-batch: which files count, and which are deleted.

Workers write the files, and tell their names with the rows of the micro-batch. The *head* of a micro-batch
is a section of the commit log: by task its newest file. A restart deletes all files that the last committed
head does not name: of attempts that failed, and of micro-batches that were never committed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.logs.commit_log import Commit, Outcome, Participant, Section, file_of, section_of
from acktree.checkpoint.memory_files import FILE_NAME, ChainStore, blobs_of, chain_from, file_name
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.state.store import StateStore
from acktree.errors import CheckpointError
from acktree.system.private_files import DISK, Disk

_Names = dict[str, tuple[str, ...]]
"""By task the names of its chain, the newest last."""
_TASK: Final = re.compile(r"\d+", re.ASCII)
_SWEEP: Final = 1024
"""After this number of micro-batches files of attempts that failed are deleted."""


class MemoryOfBatch(StateStore):
    """What the tasks of a level remember in a partition, in one micro-batch.

    Names of blobs begin with ``task/N/``, as a level asks for them.
    """

    def __init__(self, state: Path, batch_id: int, began: int, disk: Disk = DISK) -> None:
        """Open it as it was after the micro-batch before.

        Args:
            state: The folder of the tasks' files, in that of the checkpoint.
            began: The first micro-batch with a head.

        Raises:
            CheckpointError: The head of the micro-batch before cannot be read.
        """
        self._state, self._batch_id, self._disk = state, batch_id, disk
        self._head = _head_of(state, batch_id - 1, began, disk)
        self._tasks: dict[str, ChainStore] = {}

    def get(self, name: str) -> bytes | None:
        store, blob_name = self._of(name)
        return store.get(blob_name)

    def put(self, name: str, blob: bytes) -> None:
        store, blob_name = self._of(name)
        store.put(blob_name, blob)

    def delete(self, name: str) -> None:
        store, blob_name = self._of(name)
        store.delete(blob_name)

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
                yield WireRow(
                    partition, SINK_LEVEL, Kind.MEMORY, source=int(task), sequence=0, clock_ms=0, head=names
                )

    def _of(self, name: str) -> tuple[ChainStore, str]:
        _, task, blob_name = name.split("/", 2)
        store = self._tasks.get(task)
        if store is None:
            store = ChainStore(self._state / task, self._head.get(task), self._disk)
            store = self._tasks.setdefault(task, store)  # threads may ask for it at the same time
        return store, blob_name


def stored_blobs(state: Path, batch_id: int, began: int) -> Iterator[tuple[int, str, bytes]]:
    """What each task remembers after a micro-batch, as (task, name, blob).

    Raises:
        CheckpointError: A file is not there, or damaged.
    """
    for task, newest in _head_of(state, batch_id, began, DISK).items():
        yield from ((int(task), name, blob) for name, blob in blobs_of(state / task, newest))


def _head_of(state: Path, batch_id: int, began: int, disk: Disk) -> dict[str, str]:
    """The newest file of each task after a micro-batch; a task that remembers nothing is not there."""
    if batch_id < began:
        return {}
    section = section_of(state.parent, batch_id, MemoryLog.name, Files(disk))
    if section is None:
        raise CheckpointError(
            f"commit {batch_id} does not say what bolts remember",
            str(state.parent),
            "take the checkpoint from a copy, or begin a new one",
        )
    return _newest_in(section)


def _newest_in(section: Section) -> dict[str, str]:
    return {str(task): str(newest) for task, newest in json.loads(bytes(section.content)).items()}


class MemoryLog(Participant):
    """The heads of one generation of the checkpoint."""

    name = "memory"

    def __init__(self, state: Path, began: int, files: Files = FOLDER) -> None:
        """Begin without memory, until :meth:`recover`.

        Args:
            state: The folder of the tasks' files, which is made if it is not there.
            began: The first micro-batch in which something could be remembered in it.
            files: How files are deleted.
        """
        files.disk.make_folder(state)
        self._state, self._began, self._files = state, began, files
        self._before: _Names = {}
        self._now: _Names = {}

    def recover(self, sections: Sequence[tuple[int, Section]]) -> None:
        newest: dict[str, str] = {}
        for number, section in sections:
            if number >= self._began:
                newest = _newest_in(section)
        self._now = {
            task: tuple(file.name for file in chain_from(self._state / task, name, self._files.disk))
            for task, name in newest.items()
        }
        self._before = self._now

    def sweep(self) -> None:
        self._delete_unnamed(None)

    def write(self, commit: Commit, outcome: Outcome) -> Section | None:
        named = {str(row.source): tuple(json.loads(row.head)) for row in outcome.rows.get(Kind.MEMORY, ())}
        self._before = self._now
        self._now = {task: names for task, names in (self._before | named).items() if names}
        if commit.number % _SWEEP == 0:
            self._delete_unnamed(commit.number)
        newest = {task: names[-1] for task, names in self._now.items()}
        return Section(json.dumps(newest).encode(), is_whole=True)

    def committed(self, number: int) -> None:  # noqa: ARG002  # what the last head named is what it was told
        for task, names in self._before.items():
            if self._now.get(task) is not names:
                for name in {*names}.difference(self._now.get(task, ())):
                    self._files.remove(self._state / task / name)
        self._before = self._now

    @property
    def oldest(self) -> int:
        return self._began

    def _delete_unnamed(self, before: int | None) -> None:
        """Delete files that neither of the last two heads names; all, or those of earlier micro-batches."""
        disk = self._files.disk
        for task in filter(_TASK.fullmatch, disk.names(self._state)):
            kept = {*self._before.get(task, ()), *self._now.get(task, ())}
            for name in filter(FILE_NAME.fullmatch, disk.names(self._state / task)):
                if name not in kept and (before is None or name < file_of(before)):
                    disk.remove(self._state / task / name)
