"""Where a topology is measured, and Spark sessions other than the one that ``submit`` makes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT: Final = Path(__file__).parent.parent
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """Where a topology is measured.

    Attributes:
        session: The session it runs in; None for the one that ``submit`` makes.
        checkpoint: A new folder or URL; None for a folder that is deleted afterwards.
        below: The CPU of this process and of all below it counts as ours; None: of the measuring process.
    """

    session: SparkSession | None = None
    checkpoint: str | None = None
    below: int | None = None


HERE: Final = Place()
"""In a process and a folder of its own."""


def session_on(master: str, address: str = _LOOPBACK) -> SparkSession:
    """A session on this master, with the settings that acktree's documentation recommends.

    Executors of a ``local-cluster[workers,cores,megabytes]`` are separate processes. They import acktree and
    the benchmarks from the same folders as this process, and read the checkpoint from this machine's disk.
    ``submit`` sends both to executors of a ``spark://`` master.

    Args:
        address: Where executors find this process.
    """
    from acktree.spark.session import settings  # noqa: PLC0415  # so that --help does not wait for Spark

    java = settings._JAVA_OPTIONS  # noqa: SLF001  # the options with which submit() starts its JVM
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    found = {} if master.startswith("spark://") else {"spark.executorEnv.PYTHONPATH": path}
    return _session(
        master,
        {setting.key: setting.value for setting in settings.SETTINGS}
        | {"spark.driver.extraJavaOptions": java, "spark.executor.extraJavaOptions": java}
        | found,
        address,
    )


def tuned_session(master: str) -> SparkSession:
    """A session for plain Spark at its best: acktree's settings, both compilers of the JVM and a large heap.

    The state store is Spark's default, which is faster for sums than the one that acktree's operators need.
    """
    from acktree.spark.session import settings  # noqa: PLC0415  # as above

    java = settings._JAVA_OPTIONS.replace("-XX:TieredStopAtLevel=1 ", "")  # noqa: SLF001
    workers = settings._WORKER_ENVIRONMENT  # noqa: SLF001
    ours = {setting.key: setting.value for setting in settings.SETTINGS if setting.value != settings.ROCKSDB}
    return _session(
        master,
        ours
        | {f"spark.executorEnv.{name}": value for name, value in workers.items()}
        | {"spark.driver.extraJavaOptions": java, "spark.driver.memory": "4g"},
    )


def plain_session(master: str) -> SparkSession:
    """A session on this master as Spark ships it."""
    return _session(master, {})


def _session(master: str, settings: Mapping[str, str], address: str = _LOOPBACK) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  # so that --help does not wait for it

    here = {
        "spark.driver.bindAddress": address,
        "spark.driver.host": address,
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(master).appName("acktree-benchmark")
    for key, value in (here | dict(settings)).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session
