"""A real Spark cluster on this machine: a standalone master and workers, from the classes of the pip package.

Nothing of the driver's environment reaches them: they are started elsewhere, with an empty environment, and
run Python tasks in a virtual environment that has what Spark needs and neither acktree nor cloudpickle.
By hand: ``python -m tests.spark.standalone FOLDER`` runs one until Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
NOT_INSTALLED = ("acktree", "cloudpickle", "pyspark")


def bare_python(folder: Path) -> Path:
    """A Python with this one's packages, but for acktree and cloudpickle; Spark brings its own PySpark."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for installed in SPARK_HOME.parent.iterdir():
        # A .pth is how a development install makes acktree visible.
        if not installed.name.startswith(NOT_INSTALLED) and installed.suffix != ".pth":
            (packages / installed.name).symlink_to(installed)
    python = folder / "bin" / "python"
    look = "import importlib.util as u; assert not u.find_spec('acktree') and not u.find_spec('cloudpickle')"
    subprocess.run([python, "-I", "-c", look], check=True)
    return python


@dataclass(frozen=True)
class Host:
    """Where a daemon runs: on this machine, or on what looks like another one.

    Attributes:
        address: Where the others find it.
        enter: The words before a command that run it there.
        home: A folder of its own there. None: the cluster's.
    """

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()
    home: Path | None = None


_HERE = Host()


@dataclass
class Standalone:
    """A running cluster.

    Attributes:
        url: Its master's, for ``SparkSession.builder.master``.
        python: What its workers run Python tasks with.
        settings: Spark's, for the daemons.
    """

    folder: Path
    python: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executors(self, worker: int) -> list[int]:
        """The process ids of the executors of a worker."""
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True)
        pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
        return [pid for pid, parent in pairs if parent == self.workers[worker].pid]

    def kill_executor(self, worker: int) -> None:
        """SIGKILL, as by the kernel when memory runs out; the master starts another one."""
        (pid,) = self.executors(worker)
        os.kill(pid, signal.SIGKILL)

    def logs(self) -> str:
        """The ends of all logs, for when a test fails."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("work/*/*/*/std*")]
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-1500:]}" for file in sorted(files))


@contextmanager
def standalone(
    folder: Path,
    workers: int = 2,
    memory: str = "1g",
    *,
    hosts: Sequence[Host] = (),
    settings: Mapping[str, str] | None = None,
) -> Iterator[Standalone]:
    """A master and workers of one core each, until the block is left.

    Args:
        hosts: The master's, and one for each worker. Without them all run here.
        settings: Spark's, for the daemons.
    """
    cluster = Standalone(folder, bare_python(folder / "python"), settings or {})
    first, *others = hosts or [_HERE] * (1 + workers)
    with ExitStack() as running:
        log, words = folder / "master.log", ["--host", first.address, "--port", "0", "--webui-port", "0"]
        running.enter_context(_daemon(cluster, first, log, "master.Master", *words))
        cluster.url = said(log, "Starting Spark master at ")
        for number, host in zip(range(workers), others, strict=True):
            log = folder / f"worker-{number}.log"
            words = ["--host", host.address, "--cores", "1", "--memory", memory, "--webui-port", "0"]
            words += ["--work-dir", str((host.home or folder) / "work" / str(number)), cluster.url]
            cluster.workers.append(
                running.enter_context(_daemon(cluster, host, log, "worker.Worker", *words))
            )
        for number in range(workers):
            said(folder / f"worker-{number}.log", "Successfully registered with master ")
        yield cluster


@contextmanager
def _daemon(
    cluster: Standalone, host: Host, log: Path, name: str, *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    command = [*host.enter, str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += [f"-D{key}={value}" for key, value in cluster.settings.items()]
    command += ["-Dspark.master.rest.enabled=false", "-cp", f"{SPARK_HOME}/jars/*"]
    command += [f"org.apache.spark.deploy.{name}", *words]
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    environment = kept | {
        "HOME": str(host.home or cluster.folder),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": host.address,
        "SPARK_SCALA_VERSION": next(SPARK_HOME.glob("jars/spark-core_*")).name.split("_")[1].split("-")[0],
        "PYSPARK_PYTHON": str(cluster.python),
    }
    with log.open("wb") as out:
        # A process group of its own: a Ctrl-C of the test run shall not reach it before the test ends it.
        process = subprocess.Popen(
            command, cwd=cluster.folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()  # a worker takes its executors with it
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def said(log: Path, phrase: str, secs: float = 200) -> str:
    """What follows a phrase in a log, once it is there."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if phrase in line:
                return line.partition(phrase)[2].strip()
        time.sleep(0.05)
    raise AssertionError(f"{log.name} did not say {phrase!r}:\n{log.read_text(errors='replace')[-3000:]}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that what was started is stopped
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    with standalone(place) as started, suppress(KeyboardInterrupt):
        sys.stderr.write(f"{started.url}\nPYSPARK_PYTHON={started.python}\n")
        signal.pause()
