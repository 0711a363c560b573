"""Spark sessions other than the one that ``submit`` makes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parent.parent


def session_on(master: str) -> SparkSession:
    """A session on this master, with the settings that acktree's documentation recommends.

    Executors of a ``local-cluster[workers,cores,megabytes]`` are separate processes. They import acktree and
    the benchmarks from the same folders as this process, and read the checkpoint from this machine's disk.
    """
    from acktree.spark.session import settings  # noqa: PLC0415  # so that --help does not wait for Spark

    java = settings._JAVA_OPTIONS  # noqa: SLF001  # the options with which submit() starts its JVM
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    return _session(
        master,
        {setting.key: setting.value for setting in settings.SETTINGS}
        | {
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.executorEnv.PYTHONPATH": path,
        },
    )


def plain_session(master: str) -> SparkSession:
    """A session on this master as Spark ships it."""
    return _session(master, {})


def _session(master: str, settings: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  # so that --help does not wait for it

    here = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(master).appName("acktree-benchmark")
    for key, value in (here | dict(settings)).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session
