"""Whether a process of this machine runs, how long its children may, and how many files it may have open."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Final

STOPPED: Final = "T"
TRACED: Final = "t"

_OF_WORKERS = "SPARK_REUSE_WORKER"
"""Spark sets this environment variable for its Python workers."""


def lasting_process() -> int:
    """The process that is there as long as this one's work goes on.

    Of a Python worker of Spark, which may end after any micro-batch, it is the daemon that forked it: it
    leads their process group, and ends with the executor. Else it is this process.
    """
    return os.getpgrp() if _OF_WORKERS in os.environ else os.getpid()


def most_files() -> int:
    """How many files this process may have open at once."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def is_alive(pid: int, *, of_others: bool) -> bool:
    """Whether a process of this machine runs.

    One that ended does not, although its number stays until its parent has waited for it: a killed driver may
    be the child of a program that does not look after it for long, or of a container without an init.

    Args:
        pid: Its number.
        of_others: The answer where it is another user's.

    Source: proc_pid_stat(5). A process that is being killed may have threads that run on until a call of the
    system returns: it runs until they are gone. Without ``/proc`` (macOS) the number alone counts.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        return of_others
    except OSError:
        return False
    return not _has_ended(Path("/proc", str(pid)))


def state_and_start(pid: int) -> tuple[str, str]:
    """The state of a process, and when it was started; both empty if there is none.

    It is :data:`STOPPED` where a signal has stopped it, and :data:`TRACED` where a debugger holds it. Without
    ``/proc`` (macOS) every process counts as stopped.

    Source: proc_pid_stat(5), fields 3 and 22. A number that the system gives again has another start.
    """
    if not Path("/proc/self/stat").exists():
        return STOPPED, str(pid)
    try:
        fields = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(") ")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def _has_ended(process: Path) -> bool:
    try:
        threads = [thread.name for thread in (process / "task").iterdir()]
        state = (process / "stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state in (b"Z", b"X") and threads == [process.name]
