"""A log into Parquet files on Spark: a worker dies after it has written; a restart follows a rotation."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from acktree import OutputCollector, Retry, TopologyBuilder, submit
from acktree.connectors.files import FollowFileSpout, ParquetSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DiesOnce(ParquetSink):
    """Kills its worker when its first file is there and its tuples are acked, but nothing is committed."""

    def flush(self, collector: OutputCollector) -> None:
        super().flush(collector)
        note = self.path.with_name("died")
        if any(self.path.iterdir()) and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_each_line_of_a_log_is_in_one_file_though_a_worker_died_and_the_log_was_rotated(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, out, count = tmp_path / "app.log", tmp_path / "out", 0

    def run(lines: int, waiting: int = 0) -> None:
        nonlocal count
        with log.open("a") as file:
            file.writelines(f"line {n}\n" for n in range(count, count + lines))
        count += lines
        builder = TopologyBuilder("log")
        spout = FollowFileSpout(log, rotate_wait_secs=0)
        builder.set_spout("lines", spout, retry=Retry(max_attempts=3, backoff_secs=(0.1, 1)))
        builder.set_bolt("out", DiesOnce(out)).shuffle_grouping("lines")
        with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
            while running.stats()["lines"].total.acked < waiting + lines:
                assert not running.await_termination(timeout_secs=0.05)

    run(3000)
    assert (tmp_path / "died").exists()
    with log.open("a") as file:
        file.write("after the stop\n")
    log.rename(tmp_path / "app.log.1")
    run(500, waiting=1)
    found = Counter(pq.read_table(out)["line"].to_pylist())
    assert found == Counter([f"line {n}" for n in range(3500)] + ["after the stop"])
