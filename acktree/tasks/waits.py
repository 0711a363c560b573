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
from acktree.private_files import DISK, UNPUBLISHED

__all__ = ["SUFFIX", "Wait", "forget_waits", "waits_in"]

SUFFIX: Final = ".waits"


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

    def outage(self) -> Outage:
        """The same, as operators see it."""
        reason = f"{self.reason} (sink {self.component!r}, task {self.task}: its micro-batch waits)"
        return Outage(reason, self.fix, self.since_ms, self.tries, self.component)


def waits_in(folder: Path) -> Iterator[Wait]:
    """What the tasks of the run wait for."""
    for file in _files(folder):
        with suppress(OSError, ValueError, TypeError):  # it works again, or is not one of ours
            yield Wait(**json.loads(DISK.read(file)))


def forget_waits(folder: Path) -> None:
    """Delete what an earlier run has left."""
    for file in _files(folder):
        file.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    try:
        names = DISK.names(folder)
    except OSError:
        return []
    return [folder / name for name in names if name.endswith(SUFFIX) and not name.startswith(UNPUBLISHED)]
