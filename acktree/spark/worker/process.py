"""What a Python worker process does once: take the plan, find user code, keep its garbage still."""

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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cloudpickle
from pyspark import SparkFiles

from acktree.errors import CheckpointError
from acktree.private_files import make_private_folder, write_private
from acktree.spark.worker import scratch
from acktree.tasks.plan import Plan

if TYPE_CHECKING:
    from pyspark import SparkContext

# Worker processes are pooled: any of them may serve any level of any query. So a plan is kept by its file.
_plans: dict[str, Plan] = {}
_tasks_seen = 0
_FREEZES = 5
_CGROUPS: Final = Path("/sys/fs/cgroup")
_MY_CGROUP: Final = Path("/proc/self/cgroup")
_SHARE: Final = 0.75
"""Of the machine's memory, what one worker may have by default."""


@dataclass(frozen=True)
class SharedPlan:
    """A plan in a file that every worker reads, once a process.

    Not a broadcast: Spark unpickles a stateful operator once beside the driver too, where those are missing.

    Attributes:
        path: The file; or its name alone where Spark brings it (``SparkContext.addFile``). It is new for each
            run, so a worker that stays never takes an old one for it.
    """

    path: str

    @classmethod
    def write(cls, plan: Plan, file: Path) -> SharedPlan:
        """Put a plan where workers can read it; only its owner may."""
        write_private(file, pickle.dumps((plan.import_path, _umask(), cloudpickle.dumps(plan))))
        return cls(str(file))

    @classmethod
    def send(cls, plan: Plan, name: str, context: SparkContext) -> SharedPlan:
        """Let Spark bring a plan to executors that see no file of ours."""
        # Executors that come later fetch it too, needed or not: it must be there for as long as Spark is.
        folder = Path(tempfile.mkdtemp(prefix="acktree-plan-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        context.addFile(cls.write(plan, folder / name).path)
        return cls(name)

    def plan(self) -> Plan:
        """The plan, in whichever process this is.

        Raises:
            CheckpointError: The folder that it was written to is not to be seen from here.
        """
        if self.path not in _plans:
            import_path, umask, packed = pickle.loads(self._read())
            os.umask(umask)  # what bolts write is the user's business: our own JVM runs with a stricter one
            # Behind what the worker has: the driver's path must not hide the worker's own packages.
            sys.path.extend(entry for entry in import_path if entry not in sys.path)
            _plans.clear()
            _plans[self.path] = pickle.loads(packed)
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
                "put the checkpoint where driver and every executor, as one user, see it under the same path",
            ) from error


def own_folder(name: str, batch_id: int) -> Path:
    """A folder on a disk of this executor's own, which Spark deletes when it ends.

    Args:
        name: Of the folder; it is made if it is not there.
        batch_id: What it holds of micro-batches before this one is deleted.
    """
    disks = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    folder = Path(disks.split(",")[0]) / name
    make_private_folder(folder)
    scratch.forget_before(folder, batch_id)
    return folder


def _umask() -> int:
    """This process's umask. It can only be asked by setting it, and for that moment nobody may get rights."""
    mine = os.umask(0o077)
    os.umask(mine)
    return mine


def settle() -> None:
    """Freeze what the process has loaded, while it is young.

    Spark's worker runs ``gc.collect()`` after every task; with pyarrow and pandas loaded that is 34-48 ms for
    each operator, partition and micro-batch. Imports arrive lazily, so the first few tasks freeze, not one.
    """
    global _tasks_seen  # noqa: PLW0603  # one count a process is the point
    if _tasks_seen < _FREEZES:
        _tasks_seen += 1
        gc.freeze()


def limit_memory(most: int | None) -> None:
    """Let whatever wants more memory than this in this process be told so by a MemoryError.

    Args:
        most: ``worker_max_bytes``: memory of its own, mapped files not counted. None: three quarters of what
            the machine has, or the control groups that this process is in (a container, a systemd unit).

    Another limit that is lower stays. Where the system has no such limit (RLIMIT_DATA) nothing happens.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = round(_SHARE * _machine_bytes()) if most is None else most
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _machine_bytes() -> int:
    """The memory of the machine, or of the container that this process is in, if that is less."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _limit_files():
        with suppress(OSError, ValueError):  # not there, or "max": no limit
            has = min(has, int(file.read_text()))
    return has


def _limit_files() -> Iterator[Path]:
    """The files that may hold a limit: of this process's control group and of all above it, version 2 or 1.

    In a container the kernel's path may be that of the host, which is not there; the root is the container's.
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
