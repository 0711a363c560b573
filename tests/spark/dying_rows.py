"""A driver whose acknowledger kills it: ``python -m tests.spark.dying_rows FOLDER STEP``.

``BEFORE``: when the first verdicts are about to be delivered, and their micro-batch is committed. ``AFTER``:
when they were delivered, and before that is noted. ``NEVER``: it ends when nothing is open.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from acktree import Acknowledger, DataFrameSpout, TopologyBuilder, submit
from acktree.spark.session.settings import lend_session
from tests.spark.topologies import PoisonedEvery

COUNT, EVERY = 300, 100


class Notes(Acknowledger):
    """Appends verdicts to a file, and dies at a step."""

    def __init__(self, file: Path, step: str = "NEVER"):
        self.file, self.step = file, step

    def ack_batch(self, message_ids):
        self.note("acked", message_ids)

    def fail_batch(self, failures):
        self.note("failed", [message_id for message_id, _ in failures])

    def note(self, what, message_ids):
        if self.step == "BEFORE":
            os.kill(os.getpid(), signal.SIGKILL)
        with self.file.open("a") as file:
            file.writelines(f"{what} {each}\n" for each in message_ids)
        if self.step == "AFTER":
            os.kill(os.getpid(), signal.SIGKILL)


def topology_of(spark, folder: Path, step: str = "NEVER"):
    """Numbers in files, of which every hundredth fails."""
    frame = spark.readStream.schema("n long").json(str(folder / "in"))
    builder = TopologyBuilder("dying-rows")
    builder.set_spout("numbers", DataFrameSpout(frame, "n", Notes(folder / "noted", step)))
    builder.set_bolt("poisoned", PoisonedEvery(EVERY)).shuffle_grouping("numbers")
    return builder.create_topology()


if __name__ == "__main__":
    place, when = sys.argv[1:]
    session, _ = lend_session("dying-rows")
    topology = topology_of(session, Path(place), when)
    with submit(topology, checkpoint=Path(place) / "checkpoint", spark=session) as running:
        running.await_termination(120)
