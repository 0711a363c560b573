"""A log into Parquet files on Spark: a worker dies after it has written; a restart follows a rotation."""

from __future__ import annotations

import gzip
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from acktree import ConnectorError, DataFrameSpout, OutputCollector, Retry, TopologyBuilder, submit
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


def test_a_damaged_file_of_a_dataframe_is_named_and_the_others_are_read_without_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(3):
        packed = gzip.compress(b"".join(b"file %d line %d\n" % (number, line) for line in range(100)))
        (folder / f"{number}.log.gz").write_bytes(packed if number != 1 else packed[: len(packed) // 2])

    def run(ignores: str) -> None:
        frame = spark.readStream.option("ignoreCorruptFiles", ignores).text(str(folder))
        builder = TopologyBuilder("damaged")
        builder.set_spout("lines", DataFrameSpout(frame, ends=True))
        builder.set_bolt("out", ParquetSink(out)).shuffle_grouping("lines")
        with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
            assert running.await_termination(timeout_secs=60)

    with pytest.raises(ConnectorError, match="Unexpected end of input stream") as raised:
        run("false")
    assert str(folder / "1.log.gz") in raised.value.where
    run("true")
    lines = Counter(pq.read_table(out)["value"].to_pylist())
    for number in (0, 2):
        assert [lines[f"file {number} line {line}"] for line in range(100)] == [1] * 100
