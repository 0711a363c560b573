"""On drawn topologies with gates Spark leaves what a model says that replays nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, IterableSpout, Retry, SubmittedTopology, TopologyBuilder, submit
from acktree.errors import BoltError
from tests.generated.gated import (
    BATCHES,
    DUMP,
    FIELDS,
    Model,
    Script,
    Table,
    build,
    feed,
    found,
    topology,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("seed", range(100, 103))
def test_each_acked_message_is_remembered_and_written_once_and_no_other(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    drawn = topology(seed)
    built, spouts = build(drawn, tmp_path)
    config = Config(partitions=2)
    with submit(built, checkpoint=tmp_path / "checkpoint", spark=spark, config=config) as running:
        for batch in range(BATCHES):
            feed(drawn, spouts, batch)
        fed = sum(message.times for message in drawn.messages)
        while sum(running.stats()[name].total.emitted for name in drawn.spouts) < fed:
            assert not running.await_termination(0.1)
        assert running.await_idle(300), running.stats().table()
        spouts[DUMP].feed([DUMP, "a"], message_id=0)
        for spout in spouts.values():
            spout.end()
        assert running.await_termination(timeout_secs=180), running.stats().table()
    assert spouts[DUMP].acked == [0]
    assert not Model(drawn).left.differences(found(drawn, tmp_path, spouts)), drawn


class Deadly(Table):
    """Kills its process before it writes, until it is mended."""

    def write(self, batch, mark):
        if "n3" in batch["path"].to_pylist() and not Path(self.file).with_name("mended").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(batch, mark)


def test_a_row_that_kills_its_sink_ends_the_run_and_each_is_written_once_when_that_is_mended(
    spark: SparkSession, tmp_path: Path
) -> None:
    def submitted() -> SubmittedTopology:
        builder = TopologyBuilder("deadly")
        builder.set_spout("rows", IterableSpout([(f"n{n}", "a") for n in range(6)], FIELDS))
        sink = Deadly(Script(0, 0, by_chance=False, component="sink"), str(tmp_path / "table.db"))
        builder.set_sink("sink", sink).global_grouping("rows")
        topology = builder.create_topology()
        return submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=Config(partitions=2))

    with pytest.raises(BoltError, match=r"'sink' ended its process in write\(\)"), submitted() as running:
        running.await_termination(timeout_secs=300)
    (tmp_path / "mended").touch()
    with submitted() as running:
        assert running.await_termination(timeout_secs=300), running.stats().table()
    with closing(sqlite3.connect(tmp_path / "table.db")) as database:
        rows = database.execute("SELECT path FROM came WHERE NOT refused").fetchall()
    assert sorted(rows) == [(f"n{n}",) for n in range(6)]


class Forwards(BasicBolt):
    """Emits what it gets; of some rows the first attempt fails."""

    outputs = FIELDS

    def execute(self, tup, collector):
        collector.emit(list(tup.values))
        if tup.attempt == 1 and tup["path"].endswith("7"):
            raise ValueError("a row that ends with 7 fails when it comes first")


def test_large_staged_values_are_in_files_of_the_tasks_and_each_row_is_written_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = [f"{'a long path ' * 10}{n}" for n in range(2_000)]
    builder = TopologyBuilder("files")
    builder.set_spout("rows", IterableSpout([(path, "a") for path in paths], FIELDS), retry=Retry(3))
    builder.set_bolt("forwards", Forwards()).shuffle_grouping("rows")
    sink = Table(Script(0, 0, by_chance=False, component="sink"), str(tmp_path / "table.db"))
    builder.set_sink("sink", sink).global_grouping("forwards")
    topology, seen = builder.create_topology(), set[str]()
    staged = tmp_path / "checkpoint" / "staged"
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        while not running.await_termination(0.02):
            seen |= {file.name for file in staged.iterdir()} if staged.exists() else set()
        stats = running.stats()
    with closing(sqlite3.connect(tmp_path / "table.db")) as database:
        rows = database.execute("SELECT path FROM came WHERE NOT refused").fetchall()
    assert sorted(path for (path,) in rows) == sorted(paths), stats.table()
    assert seen, "nothing was staged in a file"
