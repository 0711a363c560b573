"""A conductor of a cluster that shares nothing: the same topology, queue and account, on hosts of their own.

::

    names      the namenode and the datanode of the checkpoint
    driver-0   Spark's master, and each odd driver
    driver-1   each even driver: one that died is followed by one on another host
    worker-0…  a Spark worker each

All hosts see the queue and the effects: these are the world outside, as a broker and a database would be.
Workers see neither acktree nor the topology; it is sent to them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.chaos.conductor import LETTERS, ROOT, Conductor, Settings
from tests.chaos.effects import RUN
from tests.chaos.environment import unprivileged
from tests.chaos.namespaces import HOME, Network, network
from tests.chaos.processes import Process, Role, processes_of
from tests.services.hdfs import minicluster
from tests.spark.standalone import SPARK_HOME, Host, Standalone, said, standalone

NAMES: Final = "names"
DRIVERS: Final = ("driver-0", "driver-1")
CUT_SECS: Final = 10.0


@dataclass(frozen=True)
class Apart(Settings):
    """How a chaos on a cluster is run.

    Attributes:
        workers: Hosts with a Spark worker; each has one core, and there is a partition for each.
        delay_ms: How long a packet takes, where the kernel can delay it.
        cut_secs: How long a network is cut.
        lost_secs: An executor that is silent for this number of seconds is lost to Spark, though it may run.
    """

    workers: int = 2
    delay_ms: float = 0.5
    cut_secs: float = CUT_SECS
    lost_secs: int = 120


class ApartConductor(Conductor):
    """One chaos on a cluster that shares nothing.

    Attributes:
        network: The hosts.
        cluster: Spark's.
    """

    settings: Apart
    network: Network
    cluster: Standalone
    has_executors = True
    can_cut = True

    def __init__(self, folder: Path, settings: Apart) -> None:
        """Set the stage; the hosts come up when it is entered."""
        super().__init__(folder, settings)
        self.disk.close()  # drivers write on their hosts: no disk to fill, none to be left mounted
        self.disk.can_be_full = False
        self._url = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as begun:
            self._set_up(begun)
            self._stack = begun.pop_all()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            super().__exit__(kind, raised, trace)
            self._keep_logs()

    @property
    def workers(self) -> list[str]:
        """The hosts with a Spark worker."""
        return [f"worker-{number}" for number in range(self.settings.workers)]

    @property
    def driver_host(self) -> Host:
        """Where this driver is, or the next one if there is none."""
        return self.network.hosts[DRIVERS[(self.story.starts - 1) % len(DRIVERS)]]

    def cut_network(self, which: float) -> str:
        """Cut a worker off: from the driver, the master, the checkpoint and the other workers."""
        name = self.workers[int(which * len(self.workers))]
        self.network.cut(name)
        try:
            time.sleep(self.settings.cut_secs)
        finally:
            self.network.mend(name)
        return f"{name} for {self.settings.cut_secs:g} s"

    def processes(self) -> list[Process]:
        """The driver's, and the executors' with all that runs bolts, on whatever host."""
        executors = [process for worker in self.cluster.workers for process in processes_of(worker.pid)]
        return super().processes() + [each for each in executors if each.role is not Role.DRIVER]

    def _set_up(self, running: ExitStack) -> None:
        jar = minicluster()
        installed = [Path(sys.prefix), Path(sys.base_prefix), SPARK_HOME.parent]
        seen = {NAMES: [ROOT, *installed, jar.parent]}
        seen |= {name: [ROOT, self.folder, *installed] for name in DRIVERS}
        seen |= {name: [self.folder, *installed] for name in self.workers}
        self.network = running.enter_context(network(seen, delay_ms=self.settings.delay_ms))
        logs, hosts = self.folder / "logs", self.network.hosts
        self._url = running.enter_context(hdfs(hosts[NAMES], logs / "hdfs.log", jar))
        folder = self.folder / "cluster"
        folder.mkdir()
        places = [hosts[DRIVERS[0]], *(hosts[name] for name in self.workers)]
        # Else the tenth dead executor ends the application.
        retries = {"spark.deploy.maxExecutorRetries": "-1"}
        started = standalone(folder, self.settings.workers, hosts=places, settings=retries)
        self.cluster = running.enter_context(started)

    def _orders(self) -> dict[str, Any]:
        beat = max(1, min(10, self.settings.lost_secs // 4))
        return super()._orders() | {
            "master": self.cluster.url,
            "local_dir": str(HOME / "local"),
            "checkpoint": f"{self._url}/chaos",
            "dead_letters_url": f"sqlite:///{self.folder / LETTERS}",
            "address": self.driver_host.address,
            "partitions": self.settings.workers,
            "spark": {
                "spark.executor.memory": "512m",
                f"spark.executorEnv.{RUN}": str(self.story.starts),
                "spark.network.timeout": f"{self.settings.lost_secs}s",
                "spark.executor.heartbeatInterval": f"{beat}s",
                "spark.network.timeoutInterval": f"{beat}s",
            },
        }

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "tests.chaos.driver", str(self.folder)]
        return [*self.driver_host.enter, *(unprivileged(command) or command)]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {
            "PYSPARK_PYTHON": str(self.cluster.python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": self.driver_host.address,
        }

    def _keep_logs(self) -> None:
        """What executors printed lies on hosts that are about to go."""
        for name in self.workers:
            printed = sorted((self.network.root(name) / "tmp/work").glob("*/*/*/stderr"))
            for number, file in enumerate(printed):
                with suppress(OSError):
                    shutil.copy(file, self.folder / "logs" / f"{name}-{number:03}.log")


@contextmanager
def hdfs(host: Host, log: Path, jar: Path) -> Iterator[str]:
    """HDFS on a host; its URL."""
    cache = {"XDG_CACHE_HOME": str(jar.parents[1]), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": host.address}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*host.enter, sys.executable, "-m", "tests.services.hdfs", host.address],
            env=os.environ | cache, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        yield said(log, "HDFS is at ")
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20)  # its input ends, and it with it
        process.kill()
        process.wait()
