"""The driver that is killed: ``python -m tests.chaos.exactly_driver FOLDER``; settings in FOLDER/driver.json.

It starts, or goes on, on the same checkpoint, and ends when it is told to, nothing is open and the bolts were
asked what they remember.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from acktree import Config, DataFrameSpout, submit
from tests.chaos.driver import session_of
from tests.chaos.exactly_topology import STOP, exactly_topology


def main(folder: Path) -> None:
    """Run until all is done."""
    settings = json.loads((folder / "driver.json").read_text())
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    session = session_of("local[2,4]", str(folder / "local"), more={"spark.sql.shuffle.partitions": "2"})
    rows = None
    if "rows" in settings["sources"]:
        stream = session.readStream.schema("body string, number long").json(str(folder / "rows"))
        rows = DataFrameSpout(stream, message_id="number")
    topology = exactly_topology(folder, settings, rows)
    config = Config(partitions=2, max_spout_pending=500, message_timeout_secs=120)
    with submit(topology, checkpoint=folder / "checkpoint", spark=session, config=config) as running:
        while not (folder / STOP).exists() or not running.await_idle(1) or not (folder / "asked").exists():
            running.await_termination(0.2)
        letters = [[letter.spout, letter.reason[:200]] for letter in running.dead_letters]
        (folder / "ended").write_text(json.dumps(letters))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
