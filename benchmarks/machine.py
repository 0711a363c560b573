"""The circumstances of every number (the machine, its load, versions), and the CPU of a run."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

BUSY: Final = 0.10
"""A machine is busy if others use this share of all cores or more."""
_TICKS_A_SEC: Final = os.sysconf("SC_CLK_TCK")
_LOOPS: Final = 5
_PROC: Final = Path("/proc")
_CHANGES: Final = ("status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)benchmarks/results")
"""What git is asked for changed files: all but results, which runs add to."""


def facts() -> dict[str, object]:
    """Machine and versions."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "loop_ms": _loop_ms(),
        "python": platform.python_version(),
        "acktree": _acktree(),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "numpy", "pandas")},
        "java": _java(),
    }


def load() -> float:
    """The load average of the last minute, this process included: see :class:`Cost` for others."""
    return round(os.getloadavg()[0], 2)


def busy_share(secs: float = 2.0) -> float:
    """The share of all cores in use, 0 to 1, measured over this time."""
    before, started = _all_busy_secs(), time.monotonic()
    time.sleep(secs)
    return (_all_busy_secs() - before) / (time.monotonic() - started) / (os.cpu_count() or 1)


@dataclass(frozen=True)
class Cost:
    """CPU since some moment.

    Attributes:
        driver, jvm, workers: CPU seconds of this process, of Spark's Java below it, of all Python below that.
        others: Cores that all other processes used, on average.
    """

    driver: float
    jvm: float
    workers: float
    others: float

    @property
    def ours(self) -> float:
        """Seconds of all our processes."""
        return self.driver + self.jvm + self.workers

    def us_per(self, count: float) -> dict[str, float]:
        """Microseconds for each message, by process."""
        spent = {"driver": self.driver, "jvm": self.jvm, "workers": self.workers}
        return {who: round(secs / count * 1e6, 2) for who, secs in spent.items()}


class Clock:
    """Counts CPU from its construction.

    Args:
        below: A process number: it and all processes below it are ours. Without one, this process is it.
    """

    def __init__(self, below: int | None = None) -> None:
        self._below = os.getpid() if below is None else below
        self._at, self._all, self._ours = time.monotonic(), _all_busy_secs(), _ours(self._below)

    def cost(self) -> Cost:
        """The CPU used since."""
        now, before = _ours(self._below), self._ours
        for process in _lost(before, now):
            del before[process]
        driver, jvm, workers = (b - a for a, b in zip(_secs(before), _secs(now), strict=True))
        others = _all_busy_secs() - self._all - driver - jvm - workers
        return Cost(driver, jvm, workers, max(0.0, others) / (time.monotonic() - self._at))


@dataclass(frozen=True)
class _Process:
    """A process: its parent, and its CPU in ticks, its own and that of children that it has waited for."""

    parent: int
    is_java: bool
    own: int
    waited: int


def is_daemon(command: bytes) -> bool:
    """Whether a process is one from which Spark's Python workers are forked: Spark's own, or ours."""
    return b"pyspark.daemon" in command or b"acktree.spark.worker.daemon" in command


def processes_by_role() -> dict[str, list[int]]:
    """This process and all below it: ``driver``, ``jvm``, ``workers`` that run bolts, ``others``."""
    processes = _ours(os.getpid())
    daemons = {each for each in processes if is_daemon(_command(each))}
    roles: dict[str, list[int]] = {"driver": [], "jvm": [], "workers": [], "others": []}
    for each, process in sorted(processes.items()):
        if each == os.getpid():
            role = "driver"
        elif process.is_java:
            role = "jvm"
        elif process.parent in daemons and b"pyspark.worker" in _command(each):
            role = "workers"
        else:
            role = "others"
        roles[role].append(each)
    return roles


def pss_mb(pid: int) -> float:
    """A process's memory in megabytes; what forked processes share is divided among them. 0 if it is gone."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""


def _all_busy_secs() -> float:
    fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / _TICKS_A_SEC


def _ours(first: int) -> dict[int, _Process]:
    """A process and all below it, by number."""
    every: dict[int, _Process] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                named, _, rest = (entry / "stat").read_text().rpartition(")")
                fields = rest.split()
                own, waited = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
                every[int(entry.name)] = _Process(int(fields[1]), named.endswith("(java"), own, waited)
    below = {first}
    while more := {each for each, process in every.items() if process.parent in below} - below:
        below |= more
    return {each: every[each] for each in below}


def _secs(processes: Mapping[int, _Process]) -> tuple[float, float, float]:
    """CPU of this process, of Java, and of all else.

    Children that Java has waited for were started by it. They count as workers, so that a worker that ends is
    counted.
    """
    mine = processes[os.getpid()]
    java = [process for process in processes.values() if process.is_java]
    rest = [process for process in processes.values() if process is not mine and not process.is_java]
    ticks = (
        mine.own + mine.waited,
        sum(process.own for process in java),
        sum(process.own + process.waited for process in rest) + sum(process.waited for process in java),
    )
    driver, jvm, workers = (each / _TICKS_A_SEC for each in ticks)
    return driver, jvm, workers


def _lost(before: Mapping[int, _Process], now: Mapping[int, _Process]) -> list[int]:
    """Processes that ended and were not waited for: PySpark's daemon does not, so no sum has their CPU."""
    ended = {each: process.parent for each, process in before.items() if each not in now}
    return [
        each
        for each, parent in ended.items()
        if parent in now and parent in before and now[parent].waited == before[parent].waited
    ]


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


@cache
def _acktree() -> str:
    """The commit, with a + where files differ from it; else the version."""
    folder = Path(__file__).parent
    with suppress(OSError, subprocess.CalledProcessError):
        commit = _said("git", "-C", str(folder), "rev-parse", "--short", "HEAD")
        return commit + ("+" if _said("git", "-C", str(folder), *_CHANGES) else "")
    return str(_version("acktree"))


@cache
def _java() -> str | None:
    with suppress(OSError, subprocess.CalledProcessError):
        return _said("java", "-version").split("\n")[0]
    return None


def _said(*command: str) -> str:
    run = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: S603
    return run.stdout.strip()


def _loop_ms() -> float:
    """The time of a fixed Python loop, the best of some: machines of one name differ by a factor of two."""
    took = []
    for _ in range(_LOOPS):
        started = time.perf_counter()
        sum(number * number for number in range(200_000))
        took.append(time.perf_counter() - started)
    return round(min(took) * 1000, 1)


def _cpu_model() -> str:
    with suppress(OSError):
        for line in (_PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
