"""The processes of a driver, and what each is for: read from /proc, by the session that it was started in."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


def is_daemon(command: list[str]) -> bool:
    """Whether a process is one from which Spark's Python workers are forked: Spark's own, or ours."""
    return "pyspark.daemon" in command or "acktree.spark.worker.daemon" in command


class Role(StrEnum):
    """What a process is for."""

    DRIVER = "driver"
    JVM = "jvm"
    EXECUTOR = "executor"
    DAEMON = "daemon"
    """Spark's, of which workers are forked."""
    WORKER = "worker"
    """Runs bolts."""
    SOURCE = "source"
    """Reads the inbox, beside the driver."""
    OTHER = "other"


@dataclass(frozen=True)
class Process:
    """One process of a driver."""

    pid: int
    parent: int
    role: Role


def processes_of(driver: int) -> list[Process]:
    """The driver and all that it started, workers that outlived their parent included; ascending by pid."""
    seen: dict[int, tuple[int, list[str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended while we looked
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                state, parent, session = fields[0], int(fields[1]), int(fields[3])
                if session == driver and state not in "ZX":
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                    seen[int(entry.name)] = parent, [part.decode(errors="replace") for part in command]
    daemons = {pid for pid, (_, command) in seen.items() if is_daemon(command)}
    return [
        Process(pid, parent, _role(pid == driver, parent in daemons, command))
        for pid, (parent, command) in sorted(seen.items())
    ]


def _role(is_driver: bool, is_forked: bool, command: list[str]) -> Role:  # noqa: FBT001  # facts, not options
    if is_driver:
        return Role.DRIVER
    if Path(command[0]).name == "java":
        is_executor = any("CoarseGrainedExecutorBackend" in part for part in command)
        return Role.EXECUTOR if is_executor else Role.JVM
    if is_daemon(command) and "pyspark.worker" in command:
        return Role.WORKER if is_forked else Role.DAEMON
    if any(part.endswith("python_streaming_source_runner") for part in command):
        return Role.SOURCE
    return Role.OTHER


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_all(driver: int) -> None:
    """End everything that a driver started."""
    while alive := processes_of(driver):
        for process in alive:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.01)
