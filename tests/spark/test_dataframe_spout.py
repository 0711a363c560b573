"""Rows of a streaming DataFrame as messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, DataFrameSpout, Retry, TopologyBuilder, submit
from acktree.errors import MisuseError
from acktree.spark import submit as submitting
from acktree.spark.query import results
from acktree.testing import FeederSpout, LocalCluster
from tests.spark.test_running import HealsBy, wait_until
from tests.spark.topologies import Notebook, PoisonedEvery, notes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(spark: SparkSession, folder: Path, files: int, each: int) -> DataFrame:
    folder.mkdir()
    for number in range(files):
        rows = range(number * each, (number + 1) * each)
        (folder / f"{number}.json").write_text("\n".join(json.dumps({"n": n}) for n in rows))
    return spark.readStream.schema("n long").json(str(folder))


@pytest.mark.parametrize("is_apart", [False, True], ids=["one machine", "apart"])
def test_every_row_gets_a_verdict_and_one_that_fails_for_good_is_a_dead_letter_with_its_payload(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_apart
) -> None:
    if is_apart:  # as on a cluster: Spark keeps the rows while the sink collects them in several jobs
        monkeypatch.setattr(submitting, "_scratch_folder", lambda *_: None)
        monkeypatch.setattr(results, "COLLECTED_BYTES", 1000)
    builder = TopologyBuilder("rows")
    spout = DataFrameSpout(numbers(spark, tmp_path / "in", files=3, each=200), message_id="n")
    builder.set_spout("numbers", spout, retry=Retry(max_attempts=2, backoff_secs=(0.1, 0.1)))
    builder.set_spout("by-hand", FeederSpout(["n"]))
    poisoned = builder.set_bolt("poisoned", PoisonedEvery(100), parallelism=2)
    poisoned.shuffle_grouping("numbers").shuffle_grouping("by-hand")
    builder.set_bolt("notes", Notebook(tmp_path)).global_grouping("poisoned")
    with submit(builder.create_topology(), checkpoint=tmp_path / "checkpoint", spark=spark) as running:
        wait_until(lambda: len(running.dead_letters) == 6)
        assert running.await_idle(timeout_secs=60)
        totals = running.stats()["numbers"].total
        assert (totals.acked, totals.failed, totals.timed_out) == (594, 12, 0)
        letters = list(running.dead_letters)
    assert sorted(letter.values[0] for letter in letters) == [0, 100, 200, 300, 400, 500]
    assert {(letter.attempts, letter.message_id_repr) for letter in letters} == {
        (2, str(n)) for n in range(0, 600, 100)
    }
    # Each of them once: the levels run once, however many jobs collect what they give.
    assert sorted(int(n) for (n,) in notes(tmp_path, "notes")) == [n for n in range(600) if n % 100]


def test_a_row_that_waits_for_its_next_attempt_is_not_lost_when_the_topology_is_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    def healing() -> TopologyBuilder:
        frame = spark.readStream.schema("n long").json(str(tmp_path / "in"))
        builder = TopologyBuilder("rows")
        retry = Retry(max_attempts=9, backoff_secs=(3, 3), jitter=False)
        builder.set_spout("numbers", DataFrameSpout(frame, message_id="n"), retry=retry)
        builder.set_bolt("healing", HealsBy(tmp_path / "cured"), parallelism=2).shuffle_grouping("numbers")
        builder.set_bolt("notes", Notebook(tmp_path)).global_grouping("healing")
        return builder

    numbers(spark, tmp_path / "in", files=1, each=5)
    place = tmp_path / "checkpoint"
    with submit(healing().create_topology(), checkpoint=place, spark=spark) as running:
        wait_until(lambda: running.stats()["numbers"].total.failed == 5)
        wait_until(lambda: running.stats()["numbers"].open == 5)
    (tmp_path / "cured").touch()
    with submit(healing().create_topology(), checkpoint=place, spark=spark) as running:
        wait_until(lambda: running.stats()["numbers"].total.acked == 5)
    assert sorted(n for (n,) in notes(tmp_path, "notes")) == ["0", "1", "2", "3", "4"]


def test_local_cluster_says_that_a_dataframe_needs_spark(spark: SparkSession, tmp_path: Path) -> None:
    builder = TopologyBuilder("rows")
    builder.set_spout("numbers", DataFrameSpout(numbers(spark, tmp_path / "in", 1, 1), message_id="n"))
    builder.set_bolt("poisoned", PoisonedEvery(100)).shuffle_grouping("numbers")
    with LocalCluster() as cluster, pytest.raises(MisuseError, match="only Spark can run"):
        cluster.submit(builder.create_topology(), config=Config())
