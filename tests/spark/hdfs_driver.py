"""A driver whose checkpoint is at a URL: ``python -m tests.spark.hdfs_driver URL FOLDER COUNT MASTER``.

Its working copy is made below FOLDER/copies, and every file of it that a worker opens is noted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from acktree import BasicBolt, Config, Topology, TopologyBuilder, submit
from tests.chaos.driver import session_of
from tests.spark.topologies import Notebook, NotingIterableSpout, Tally, slow_key


class Watchman(BasicBolt):
    """Notes what its process opens of a working copy from now on, in whatever code."""

    outputs = ["n"]
    is_watching = False

    def __init__(self, notes: Path):
        self.notes = notes

    def prepare(self, config, context):
        if not Watchman.is_watching:
            Watchman.is_watching = True
            (self.notes / "watched").touch()
            sys.addaudithook(self.note)

    def note(self, event, arguments):
        if event == "open" and "acktree-checkpoint-" in str(arguments[0]):
            with (self.notes / "opened").open("a") as file:
                file.write(f"{arguments[0]}\n")

    def execute(self, tup, collector):
        collector.emit([tup["n"]])


def topology_in(folder: Path, count: int) -> Topology:
    """numbers -> watched -> ten keys -> a remembered count, and every count in a notebook."""
    (folder / "notes").mkdir(exist_ok=True)
    builder = TopologyBuilder("at a url")
    builder.set_spout("numbers", NotingIterableSpout(range(count), ["n"], folder / "noted"))
    builder.set_bolt("watchman", Watchman(folder / "notes"), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("key", slow_key, parallelism=2).shuffle_grouping("watchman")
    builder.set_bolt("tally", Tally(), parallelism=2).fields_grouping("key", ["key"])
    builder.set_bolt("notes", Notebook(folder / "notes"), parallelism=2).shuffle_grouping("tally")
    return builder.create_topology()


if __name__ == "__main__":
    url, place, numbers, master = sys.argv[1:]
    folder = Path(place)
    spark = session_of(master, str(folder / "copies"))
    config = Config(max_spout_pending=300, message_timeout_secs=200)
    with submit(topology_in(folder, int(numbers)), checkpoint=url, spark=spark, config=config) as running:
        running.await_termination()
        total = running.stats()["numbers"].total
        json.dump({"acked": total.acked, "failed": total.failed, "timed_out": total.timed_out}, sys.stdout)
    spark.stop()
