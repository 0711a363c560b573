"""A driver on a cluster that has none of its code: ``python standalone_driver.py MASTER FOLDER COUNT``.

Run as a script. It takes the places where it found acktree and the topology from its path again, so that
workers, which read the same disk here, cannot find them there either.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)

from pyspark.sql import SparkSession  # noqa: E402

from acktree import BasicBolt, Config, TopologyBuilder, submit  # noqa: E402  # as the line above has it
from tests.spark.topologies import Notebook, NotingIterableSpout, Tally, slow_key  # noqa: E402


class Origins(BasicBolt):
    """Notes where the process that runs it found what it runs. Of ``__main__``, so it travels by value."""

    outputs = []

    def __init__(self, folder: Path):
        self.folder = folder

    def execute(self, tup, collector):
        found = sys.modules["acktree"].__file__, sys.modules["tests.spark.topologies"].__file__
        (self.folder / "origins").write_text("\n".join(found))


if __name__ == "__main__":
    master, place, numbers = sys.argv[1:]
    folder = Path(place)
    spark = (
        SparkSession.builder.master(master)
        .appName("counted")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -Xss16m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    sys.path[:] = [entry for entry in sys.path if entry not in (ROOT, str(Path(__file__).parent))]
    notebook = folder / "notes"
    notebook.mkdir()
    builder = TopologyBuilder("counted")
    builder.set_spout("numbers", NotingIterableSpout(range(int(numbers)), ["n"], folder / "noted"))
    builder.set_bolt("key", slow_key, parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("tally", Tally(), parallelism=2).fields_grouping("key", ["key"])
    builder.set_bolt("notes", Notebook(notebook), parallelism=2).shuffle_grouping("tally")
    builder.set_bolt("origins", Origins(notebook), parallelism=2).shuffle_grouping("tally")
    with submit(
        builder.create_topology(),
        checkpoint=folder / "checkpoint",
        spark=spark,
        config=Config(max_spout_pending=300, message_timeout_secs=200),
    ) as running:
        running.await_termination()
        total = running.stats()["numbers"].total
        json.dump({"acked": total.acked, "failed": total.failed, "timed_out": total.timed_out}, sys.stdout)
