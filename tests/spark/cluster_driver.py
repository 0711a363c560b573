"""A driver with executors: ``python -m tests.spark.cluster_driver FOLDER COUNT STAGE``.

There are two, of one core each; one is killed in the first stage or in the last one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from acktree import BasicBolt, Config, Topology, TopologyBuilder, submit
from tests.chaos.driver import session_of
from tests.spark.topologies import Notebook, NotingIterableSpout, Tally

MASTER = "local-cluster[2,1,1024]"
PAYLOAD = "x" * 1000
"""Some dozens of these make a row that travels in a file of its own."""


class KillsItsExecutorOnce(BasicBolt):
    """Kills the JVM that its process belongs to, in mid-batch, when it sees a certain number."""

    outputs = ["key", "payload"]

    def __init__(self, number: int, mark: Path):
        self.number, self.mark = number, mark

    def execute(self, tup, collector):
        if tup["n"] == self.number and not self.mark.exists():
            executor = parent_of(os.getppid())  # above us is the daemon that forked us
            self.mark.write_text(str(executor))
            os.kill(executor, signal.SIGKILL)
        collector.emit([f"key {tup['n'] % 10}", tup["payload"]])


class KillsItsExecutorLast(Notebook):
    """Kills its executor in the last stage, when the part of the other executor has ended."""

    def __init__(self, folder: Path, mark: Path):
        super().__init__(folder)
        self.mark, self.other = mark, mark.with_name("other")

    def execute(self, tup, collector):
        super().execute(tup, collector)
        if self.context.task_index and not self.mark.exists():
            for _ in range(600):  # not for ever: both parts may be on one executor
                if self.other.exists():
                    break
                time.sleep(0.05)
            time.sleep(2)  # in which Spark takes the rows of the other part; else the test shows less
            executor = parent_of(os.getppid())
            self.mark.write_text(str(executor))
            os.kill(executor, signal.SIGKILL)

    def prepare(self, config, context):
        super().prepare(config, context)
        self.context = context

    def flush(self, collector):
        if not self.context.task_index:
            self.other.touch()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def topology_in(folder: Path, count: int, stage: str) -> Topology:
    """numbers -> ten keys -> a remembered count, and every count in a notebook."""
    (folder / "notes").mkdir(exist_ok=True)
    numbers = NotingIterableSpout([[n, PAYLOAD] for n in range(count)], ["n", "payload"], folder / "noted")
    builder = TopologyBuilder("executors")
    builder.set_spout("numbers", numbers)
    mark = folder / "killed"
    killer = KillsItsExecutorOnce(count // 2 if stage == "first" else count, mark)
    builder.set_bolt("killer", killer, parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("tally", Tally(), parallelism=2).fields_grouping("killer", ["key"])
    notes = folder / "notes"
    last = Notebook(notes) if stage == "first" else KillsItsExecutorLast(notes, mark)
    builder.set_bolt("notes", last, parallelism=2).fields_grouping("tally", ["key"])
    return builder.create_topology()


if __name__ == "__main__":
    place, numbers, where = sys.argv[1:]
    folder = Path(place)
    spark = session_of(MASTER, str(folder / "local"))
    config = Config(max_spout_pending=100)
    topology = topology_in(folder, int(numbers), where)
    with submit(topology, checkpoint=folder / "checkpoint", spark=spark, config=config) as running:
        assert len(running._run.checkpoint.folders) == 2, "driver and executors are on one machine"
        assert running.await_termination(timeout_secs=240)
        numbers_told = running.stats()["numbers"].total
        assert (numbers_told.failed, numbers_told.timed_out) == (0, 0)
    spark.stop()
