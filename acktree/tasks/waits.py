"""What a task of a sink waits for inside a micro-batch, in a small file that the driver looks at.

A worker writes ``<batch>.<level>.<partition>.waits`` beside the execution marks (in real time
``stays.<level>.<partition>.waits``), and deletes it when the server answers. While a micro-batch stands still
nothing else comes to the driver. Not durable: a run deletes the files of the one before, and one that cannot
be read is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from acktree.core.stats.numbers import Outage
from acktree.system.private_files import DISK, UNPUBLISHED

SUFFIX: Final = ".waits"
_MOST_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Wait:
    """A sink's server does not answer, and it is not known whether the rows of a micro-batch are written.

    Attributes:
        component: The sink.
        task: Its task.
        reason: The last error.
        fix: What to do about it.
        since_ms: When the task began to wait; milliseconds since 1970.
        tries: How often it has asked since then.
    """

    component: str
    task: int
    reason: str
    fix: str
    since_ms: int
    tries: int

    def write(self, file: Path) -> None:
        """Write the file, or replace it."""
        DISK.replace(file, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, file: Path) -> Wait:
        """Read a file that :meth:`write` has written.

        Raises:
            Exception: It is gone, or was not written by it.
        """
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{file} is not a note of what a task waits for")
        parts = json.loads(DISK.read(file))
        texts = (str(parts[name]) for name in ("component", "reason", "fix"))
        numbers = (int(parts[name]) for name in ("task", "since_ms", "tries"))
        (component, reason, fix), (task, since_ms, tries) = texts, numbers
        return cls(component, task, reason, fix, since_ms, tries=tries)

    def outage(self) -> Outage:
        """The same, as operators see it."""
        reason = f"{self.reason} (sink {self.component!r}, task {self.task}: its micro-batch waits)"
        return Outage(reason, self.fix, self.since_ms, self.tries, self.component)


def waits_in(folder: Path) -> Iterator[Wait]:
    """What the tasks of the run wait for."""
    for file in _files(folder):
        wait = None
        with suppress(Exception):  # it works again, or the file is not one of ours
            wait = Wait.read(file)
        if wait is not None:
            yield wait


def forget_waits(folder: Path) -> None:
    """Delete what an earlier run has left."""
    for file in _files(folder):
        with suppress(OSError):  # a folder is not one of ours
            file.unlink()


def _files(folder: Path) -> list[Path]:
    try:
        names = DISK.names(folder)
    except OSError:
        return []
    return [folder / name for name in names if name.endswith(SUFFIX) and not name.startswith(UNPUBLISHED)]
