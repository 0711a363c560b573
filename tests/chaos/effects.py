"""What bolts leave behind: a line for each (message, bolt), to be counted from outside.

Each worker process appends to a file of its own, a line a write: what was written survives the process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tests.chaos.nature import WHOLE

RUN: Final = "CHAOS_RUN"
"""The environment variable that says which start of the driver this is."""
CORRUPT: Final = "corrupt"
"""In place of a bolt's name: it was given other bytes than were emitted."""


@dataclass(frozen=True)
class Effect:
    """A bolt worked on a tuple of a message.

    Attributes:
        delivery, attempt: Which delivery of the message, and which attempt of acktree's at it.
        part: Which of its tuples; WHOLE for the message itself.
        run: Which start of the driver it was, from 1.
        batch, spark_task: Spark's micro-batch, and its id of the attempt of the task.
    """

    number: int
    delivery: int
    attempt: int
    bolt: str
    part: int
    run: int
    batch: int
    spark_task: int
    process: int
    at: float


def leave(folder: Path, bolt: str, number: int, delivery: int, attempt: int, part: int = WHOLE) -> None:
    """Leave an effect behind. Called in a Spark task."""
    from pyspark import TaskContext  # noqa: PLC0415  # the account is drawn up, and tested, without PySpark

    context = TaskContext.get()
    assert context is not None, "bolts run in Spark tasks"
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    run, process = int(os.environ.get(RUN, "0")), os.getpid()
    facts = (
        number,
        delivery,
        attempt,
        bolt,
        part,
        run,
        batch,
        context.taskAttemptId(),
        process,
        time.monotonic(),
    )
    os.write(_file(folder, process), ("\t".join(map(str, facts)) + "\n").encode())


@lru_cache(maxsize=4)
def _file(folder: Path, process: int) -> int:
    return os.open(folder / str(process), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)


def effects_in(folder: Path) -> Iterator[Effect]:
    """All effects, a process at a time."""
    for file in sorted(folder.iterdir()):
        for line in file.read_text().splitlines():
            number, delivery, attempt, bolt, part, run, batch, task, process, at = line.split("\t")
            yield Effect(
                int(number), int(delivery), int(attempt), bolt, int(part), int(run), int(batch), int(task),
                int(process), float(at),
            )  # fmt: skip


@dataclass(frozen=True)
class Remembered:
    """A tuple that the remembering bolt remembers, and how many times."""

    number: int
    delivery: int
    attempt: int
    part: int
    times: int


@dataclass(frozen=True)
class Memory:
    """What the stateful bolt wrote when it was asked: its tuples, and its other table, tuples by lane."""

    tuples: list[Remembered]
    by_lane: dict[int, int]


def write_memory(folder: Path, task: int, tuples: list[list[int]], by_lane: dict[int, int]) -> None:
    """Write what one task remembers; the last one written is read."""
    new = folder / f"new-{task}-{os.getpid()}"
    new.write_text(json.dumps({"tuples": tuples, "by_lane": by_lane}))
    new.rename(folder / f"task-{task}")


def read_memory(folder: Path) -> Memory:
    """What all tasks said."""
    memory = Memory([], {})
    for file in sorted(folder.glob("task-*")):
        noted: dict[str, Any] = json.loads(file.read_text())
        memory.tuples.extend(Remembered(*each) for each in noted["tuples"])
        memory.by_lane.update({int(lane): count for lane, count in noted["by_lane"].items()})
    return memory
