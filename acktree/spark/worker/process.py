"""Set-up of a Python worker process: load the plan, extend ``sys.path``, freeze imports, limit memory.

Called by ``spark/query/operators.py``.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import resource
import shutil
import socket
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import SparkFiles

from acktree.core.programs import definition_pickle, enter
from acktree.errors import CheckpointError
from acktree.spark.worker import scratch
from acktree.system.private_files import make_private_folder, write_private
from acktree.tasks.plan import Plan

if TYPE_CHECKING:
    from pyspark import SparkContext

# Worker processes are pooled, and each may run any level of any query. So plans are cached by file.
_plans: dict[str, Plan] = {}
_tasks_seen = 0
_FREEZES = 5
_CGROUPS: Final = Path("/sys/fs/cgroup")
_MY_CGROUP: Final = Path("/proc/self/cgroup")
_SHARE: Final = 0.75
"""The default memory limit of one worker, as a share of the machine's memory."""


@dataclass(frozen=True)
class SharedPlan:
    """A plan in a file, which each worker process reads once.

    A Spark broadcast cannot be used: Spark also unpickles a stateful operator in a process beside the driver,
    which has no broadcasts.

    Attributes:
        path: The file; or only its name if Spark sends it (``SparkContext.addFile``). Each run has a new
            name, so a worker process that outlives a run does not use an old plan.
    """

    path: str

    @classmethod
    def write(cls, plan: Plan, file: Path) -> SharedPlan:
        """Write a plan to a file that only its owner can read, for workers that see the same folder."""
        write_private(file, pickle.dumps((plan.import_path, _umask(), definition_pickle(plan))))
        return cls(str(file))

    @classmethod
    def send(cls, plan: Plan, name: str, context: SparkContext) -> SharedPlan:
        """Send a plan by Spark, for executors that do not see the driver's files."""
        # Executors that start later fetch the file too, so it must exist until the driver's process ends.
        folder = Path(tempfile.mkdtemp(prefix="acktree-plan-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        context.addFile(cls.write(plan, folder / name).path)
        return cls(name)

    @property
    def run_number(self) -> int:
        """A number of the run, above 0; another run has another one."""
        return zlib.crc32(Path(self.path).name.encode()) + 1

    def plan(self) -> Plan:
        """The plan. The first call in a process reads it, sets the driver's umask and extends ``sys.path``.

        Raises:
            CheckpointError: The file cannot be read from this machine.
        """
        if self.path not in _plans:
            import_path, umask, packed = pickle.loads(self._read())
            os.umask(umask)  # files that bolts write get the user's rights; our JVM's own umask is stricter
            # Appended, because the driver's path must not hide the worker's own packages.
            sys.path.extend(entry for entry in import_path if entry not in sys.path)
            for other in _plans.values():
                other.worker.end()
            _plans.clear()
            plan: Plan = pickle.loads(packed)
            enter(plan.program)
            plan.show_sources()
            _plans[self.path] = plan
        return _plans[self.path]

    def _read(self) -> bytes:
        file = Path(self.path)
        if not file.is_absolute():
            file = Path(SparkFiles.get(self.path))
        try:
            return file.read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"a worker cannot read the plan in the checkpoint: {error.strerror}",
                f"{file.parent} on {socket.gethostname()}",
                "put the checkpoint where the driver and all executors, as one user, see it under one path",
            ) from error


def own_folder(name: str, batch_id: int) -> Path:
    """A folder on a local disk of this executor. Spark deletes it when the executor ends.

    Args:
        name: The folder's name; it is created if it does not exist.
        batch_id: Files of micro-batches before this one are deleted.
    """
    disks = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    folder = Path(disks.split(",")[0]) / name
    make_private_folder(folder)
    scratch.forget_before(folder, batch_id)
    return folder


def _umask() -> int:
    """This process's umask. Reading it means setting it; until it is restored, a strict one applies."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def freeze_imports() -> None:
    """Exempt all objects loaded so far from garbage collection, in the first few tasks of a process.

    Spark's worker runs ``gc.collect()`` after every task. With pyarrow and pandas loaded that takes 34-48 ms
    for each operator, partition and micro-batch. Imports are lazy, so one call at the start is not enough.
    """
    global _tasks_seen  # noqa: PLW0603  # one count for each process
    if _tasks_seen < _FREEZES:
        _tasks_seen += 1
        gc.freeze()


def limit_memory(most: int | None) -> None:
    """Limit the memory of this process: an allocation beyond the limit raises MemoryError.

    Args:
        most: ``worker_max_bytes``: private memory in bytes, mapped files not counted. None: three quarters of
            the memory of the machine, or of the control group of this process (a container, a systemd unit).

    A lower limit that already exists stays. Where the system does not support RLIMIT_DATA nothing happens.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = round(_SHARE * _machine_bytes()) if most is None else most
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _machine_bytes() -> int:
    """The memory of the machine, or the limit of this process's container if that is lower; in bytes."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _limit_files():
        with suppress(OSError, ValueError):  # no file, or "max": no limit
            has = min(has, int(file.read_text()))
    return has


def _limit_files() -> Iterator[Path]:
    """The files that may hold a limit: of this process's control group and of its parents, version 2 or 1.

    In a container the kernel's path may be a path of the host, which does not exist there; the root group is
    the container's.
    Source: cgroups(7), /proc/[pid]/cgroup.
    """
    yield _CGROUPS / "memory.max"
    yield _CGROUPS / "memory" / "memory.limit_in_bytes"
    try:
        lines = _MY_CGROUP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = Path(group.lstrip("/"))
        for part in (own, *own.parents):
            yield root / part / name
