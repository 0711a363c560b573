"""What bolts remembered when Spark's checkpoint began anew: files, a task each, that never change.

A level's place, the number of partitions and the tasks of a bolt are part of how Spark keeps its state. So
whoever changes one of them takes all memory out (``offline.py``), lets Spark begin with nothing, and the
first micro-batch in which a task runs takes its own file in. That this was done is part of the state it was
done to: a micro-batch that runs again does it again, from the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from acktree.core.packing import pack, unpack
from acktree.core.state.store import StateStore
from acktree.errors import CheckpointError
from acktree.private_files import DISK, Disk

Memories = Mapping[int, Mapping[str, bytes]]
"""Task -> its blobs, by their names in the task's own corner of the state."""

TAKEN_IN: Final = "taken in"
"""The blob that says that a task's file was taken in."""
_TASKS: Final = "tasks"
"""The file that names the tasks that have one: what is missing from it remembers nothing."""


def write_memories(folder: Path, memories: Memories, disk: Disk = DISK) -> None:
    """Write a folder that was not there, so that it outlives a power cut."""
    disk.make_folder(folder)
    for task, blobs in memories.items():
        disk.write(folder / str(task), pack(json.dumps([*blobs]).encode(), *blobs.values()), sync=True)
    disk.write(folder / _TASKS, json.dumps(sorted(memories)).encode(), sync=True)
    disk.sync_folder(folder)


def read_memory(folder: Path, task: int) -> dict[str, bytes]:
    """The blobs of one task; none if it remembered nothing.

    Raises:
        CheckpointError: A file is missing. To begin with nothing instead would forget in silence.
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
    """A partition's state, into which each task's file is taken when it is first asked for the task."""

    def __init__(self, store: StateStore, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._seen: set[str] = set()

    def get(self, name: str) -> bytes | None:
        self._take_in(name)
        return self._store.get(name)

    def put(self, name: str, blob: bytes) -> None:
        self._take_in(name)
        self._store.put(name, blob)

    def delete(self, name: str) -> None:
        self._take_in(name)
        self._store.delete(name)

    def _take_in(self, name: str) -> None:
        _, task, _ = name.split("/", 2)
        if task in self._seen:
            return
        if self._store.get(f"task/{task}/{TAKEN_IN}") is None:
            for its, blob in read_memory(self._folder, int(task)).items():
                self._store.put(f"task/{task}/{its}", blob)
            self._store.put(f"task/{task}/{TAKEN_IN}", b"{}")
        self._seen.add(task)  # last: what is interrupted before begins again, and puts the same
