"""The driver under attack: ``python -m tests.chaos.driver FOLDER``, with its settings in FOLDER/driver.json.

Starts, or goes on, on the same checkpoint and queue; runs until it is killed, or SIGTERM asks it to end.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from acktree import Config, SubmittedTopology, Topology, submit
from acktree.errors import CheckpointError
from acktree.spark.session.settings import SETTINGS
from tests.chaos.effects import RUN
from tests.chaos.topology import chaos_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_of(
    master: str, local_dir: str, address: str = "127.0.0.1", more: Mapping[str, str] | None = None
) -> SparkSession:
    """A session like the one that ``submit`` makes, with another master.

    Args:
        address: This host's.
        more: Further settings.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkConf  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    settings = (
        {
            "spark.master": master,
            "spark.app.name": "chaos",
            "spark.driver.host": address,
            "spark.driver.bindAddress": address,
            "spark.driver.extraJavaOptions": "-Djdk.lang.Process.launchMechanism=VFORK -Xss16m",
            "spark.executor.extraJavaOptions": "-Djdk.lang.Process.launchMechanism=VFORK",
            "spark.local.dir": local_dir,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.deploy.maxExecutorRetries": "-1",  # else the tenth dead executor ends the application
        }
        | {setting.key: setting.value for setting in SETTINGS}
        | dict(more or {})
    )
    return SparkSession.builder.config(conf=SparkConf().setAll(list(settings.items()))).getOrCreate()


def submitted(
    topology: Topology, checkpoint: str, session: SparkSession | None, config: Config, asked: Event
) -> SubmittedTopology:
    """Submit, as a supervisor does: again while the lease of a driver that died on another host is not over.

    Raises:
        CheckpointError: The lease is not free, and we are asked to end.
    """
    while True:
        try:
            return submit(topology, checkpoint=checkpoint, spark=session, config=config)
        except CheckpointError as error:
            if "another driver runs" not in error.what or asked.wait(2):
                raise
            sys.stderr.write(f"{error.what}\n")


def main(folder: Path) -> int:
    """Run until it is asked to end; 3 when something else ended it."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    asked = Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    settings: dict[str, Any] = json.loads((folder / "driver.json").read_text())
    local_dir = Path(settings["local_dir"])
    local_dir.mkdir(exist_ok=True, parents=True)
    if settings["master"].startswith("local["):
        os.environ["SPARK_LOCAL_DIRS"] = str(local_dir)
        session = None
    else:
        more = settings.get("spark", {})
        session = session_of(settings["master"], str(local_dir), settings.get("address", "127.0.0.1"), more)
    config = Config(
        message_timeout_secs=settings["message_timeout_secs"],
        max_spout_pending=300,
        partitions=settings.get("partitions", 2),
        dead_letters_url=settings.get("dead_letters_url"),
        real_time=settings.get("real_time", False),
    )
    topology = chaos_topology(folder, int(os.environ[RUN]), queue_retries=settings["queue_retries"])
    try:
        with submitted(topology, settings["checkpoint"], session, config, asked) as running:
            while not asked.is_set() and not running.await_termination(0.2):
                pass
    except Exception as error:  # noqa: BLE001  # whatever it is, it is reported and the conductor starts us again
        with suppress(BrokenPipeError):  # nobody may be reading
            sys.stderr.write(f"driver stopped by {type(error).__name__}: {error}\n")
        return 3
    if session is not None:
        session.stop()
    return 0


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.exit(code)
