"""The bolts' memory when a new checkpoint of Spark began: one file for each task, which never changes.

To change the number of partitions or the tasks of a bolt, ``offline.py`` writes all memory into files, and a
new generation begins with an empty state. In the first micro-batch in which a task runs, its file is loaded
into the state. The state itself notes that this was done, so a micro-batch that runs again loads it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from acktree.core.packing import pack, unpack
from acktree.core.state.store import StateStore
from acktree.errors import CheckpointError
from acktree.system.private_files import DISK, Disk

Memories = Mapping[int, Mapping[str, bytes]]
"""Task -> its blobs, by their names within the task's part of the state."""

TAKEN_IN: Final = "taken in"
"""The blob that notes that a task's file was loaded."""
_TASKS: Final = "tasks"
"""The file with the tasks that have a file: a task that it does not name has no memory."""


def write_memories(folder: Path, memories: Memories, disk: Disk = DISK) -> None:
    """Write a new folder, synced."""
    disk.make_folder(folder)
    for task, blobs in memories.items():
        disk.write(folder / str(task), pack(json.dumps([*blobs]).encode(), *blobs.values()), sync=True)
    disk.write(folder / _TASKS, json.dumps(sorted(memories)).encode(), sync=True)
    disk.sync_folder(folder)


def read_memory(folder: Path, task: int) -> dict[str, bytes]:
    """The blobs of one task; empty if it had no memory.

    Raises:
        CheckpointError: A file is missing. To begin without it would lose memory without an error.
    """
    try:
        if task not in tasks_in(folder):
            return {}
        names, *blobs = unpack((folder / str(task)).read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"what task {task} remembers is not there: {error}",
            str(folder),
            "bring the folder back from a copy; or forget all memory: `python -m acktree reset-state`",
        ) from error
    return dict(zip(json.loads(bytes(names)), map(bytes, blobs), strict=True))


def tasks_in(folder: Path) -> frozenset[int]:
    """The tasks that have a file."""
    return frozenset(json.loads((folder / _TASKS).read_bytes()))


class SeededStore(StateStore):
    """A partition's state, into which a task's file is loaded at the first access to the task."""

    def __init__(self, store: StateStore, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._seen: set[str] = set()

    def get(self, name: str) -> bytes | None:
        self._load_file(name)
        return self._store.get(name)

    def put(self, name: str, blob: bytes) -> None:
        self._load_file(name)
        self._store.put(name, blob)

    def delete(self, name: str) -> None:
        self._load_file(name)
        self._store.delete(name)

    def _load_file(self, name: str) -> None:
        _, task, _ = name.split("/", 2)
        if task in self._seen:
            return
        if self._store.get(f"task/{task}/{TAKEN_IN}") is None:
            for blob_name, blob in read_memory(self._folder, int(task)).items():
                self._store.put(f"task/{task}/{blob_name}", blob)
            self._store.put(f"task/{task}/{TAKEN_IN}", b"{}")
        self._seen.add(task)  # last: an interrupted load is repeated, with the same blobs
