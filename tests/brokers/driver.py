"""The driver that is killed: ``python -m tests.brokers.driver FOLDER``; its settings are FOLDER/driver.json.

It starts, or resumes, on the same checkpoint and queue, and runs until a SIGKILL, or until SIGTERM ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

from acktree import Config, submit
from tests.brokers.queues import spout_of
from tests.brokers.topology import orders_topology
from tests.services.kafka import start_with_source

IDLE_SECS = 60


def main(folder: Path) -> None:
    """Run until it is asked to end; then wait until nothing is open."""
    asked = Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    settings: dict[str, Any] = json.loads((folder / "driver.json").read_text())
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    is_native = settings["spout"] == "kafka-native"
    with start_with_source("brokers") if is_native else nullcontext() as session:
        topology = orders_topology(spout_of(settings, session), folder / "effects")
        config = Config(partitions=2, max_spout_pending=2000)
        with submit(topology, checkpoint=folder / "checkpoint", spark=session, config=config) as running:
            while not asked.is_set() and not running.await_termination(0.2):
                pass
            is_idle = running.await_idle(IDLE_SECS)
            (folder / "ended").write_text(json.dumps({"idle": is_idle, "letters": len(running.dead_letters)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
