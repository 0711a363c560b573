"""What stands beside every number: the machine, its load, the versions; and what a run cost in CPU."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

BUSY: Final = 0.10
"""From this share of all cores taken by others on, a machine is not quiet."""
_TICKS_A_SEC: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")


def facts() -> dict[str, object]:
    """Machine and versions."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "acktree": _acktree(),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "numpy", "pandas")},
        "java": _java(),
    }


def load() -> float:
    """Processes that wanted to run, over the last minute. Our own count too: see :class:`Cost` for others."""
    return round(os.getloadavg()[0], 2)


def busy_share(secs: float = 2.0) -> float:
    """The share of all cores that is taken right now, 0 to 1; waits that long."""
    before, started = _all_busy_secs(), time.monotonic()
    time.sleep(secs)
    return (_all_busy_secs() - before) / (time.monotonic() - started) / (os.cpu_count() or 1)


@dataclass(frozen=True)
class Cost:
    """CPU since some moment.

    Attributes:
        driver, jvm, workers: Seconds of this process; of Spark's Java below it; of all Python below that.
        others: Cores that everybody else took on average.
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
        """Microseconds for each of so many messages, by who spent them."""
        spent = {"driver": self.driver, "jvm": self.jvm, "workers": self.workers}
        return {who: round(secs / count * 1e6, 2) for who, secs in spent.items()}


class Clock:
    """Begins to count CPU when it is made."""

    def __init__(self) -> None:
        self._at, self._all, self._ours = time.monotonic(), _all_busy_secs(), _tree_secs()

    def cost(self) -> Cost:
        """What was spent since."""
        driver, jvm, workers = (now - then for now, then in zip(_tree_secs(), self._ours, strict=True))
        others = _all_busy_secs() - self._all - driver - jvm - workers
        return Cost(driver, jvm, workers, max(0.0, others) / (time.monotonic() - self._at))


def _all_busy_secs() -> float:
    fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / _TICKS_A_SEC


def _tree_secs() -> tuple[float, float, float]:
    """CPU seconds of this process, of the Java below it, and of all else below it; with those waited for."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    java: set[int] = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it ended while we looked
            named, _, rest = (entry / "stat").read_text().rpartition(")")
            fields = rest.split()
            if named.endswith("(java"):
                java.add(int(entry.name))
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = sum(map(int, fields[11:15]))
    driver = {os.getpid()}
    below = set(driver)
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more

    def secs(processes: set[int]) -> float:
        return sum(spent.get(process, 0) for process in processes) / _TICKS_A_SEC

    return secs(driver), secs(below & java), secs(below - driver - java)


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _acktree() -> str:
    """The commit, with a + where files differ from it; else the version."""
    folder = Path(__file__).parent
    with suppress(OSError, subprocess.CalledProcessError):
        commit = _said("git", "-C", str(folder), "rev-parse", "--short", "HEAD")
        return commit + ("+" if _said("git", "-C", str(folder), "status", "--porcelain", "-uno") else "")
    return str(_version("acktree"))


def _java() -> str | None:
    with suppress(OSError, subprocess.CalledProcessError):
        return _said("java", "-version").split("\n")[0]
    return None


def _said(*command: str) -> str:
    run = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: S603
    return run.stdout.strip()


def _cpu_model() -> str:
    with suppress(OSError):
        for line in (_PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
