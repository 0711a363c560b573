"""Too many dead letters stop a topology on Spark, and a mended one finishes what was open."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, DeadLetterLimitError, MisuseError, Retry, TopologyBuilder, submit
from acktree.testing import FeederSpout
from tests.spark.topologies import NotingIterableSpout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 400
LIMIT = Config(dead_letter_limit_count=50, max_spout_pending=40)


class BrokenUntil(BasicBolt):
    """Raises until a file is there: a bad deployment, and its mending."""

    outputs = []

    def __init__(self, mended: Path):
        self.mended = mended

    def execute(self, tup, collector):
        if not self.mended.exists():
            raise ValueError(f"{tup['n']} met a bad deployment")


class TellsUmask(BasicBolt):
    """Makes a file as its process is wont to."""

    outputs = []

    def __init__(self, file: Path):
        self.file = file

    def execute(self, tup, collector):
        self.file.touch()


def test_a_bad_deployment_is_stopped_and_once_it_is_mended_every_message_has_one_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    builder = TopologyBuilder("deployed")
    numbers = NotingIterableSpout(range(MESSAGES), ["n"], noted)
    builder.set_spout("numbers", numbers, retry=Retry(max_attempts=1))
    builder.set_bolt("broken", BrokenUntil(tmp_path / "mended"), parallelism=2).shuffle_grouping("numbers")
    topology = builder.create_topology()
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=LIMIT) as running:
        with pytest.raises(DeadLetterLimitError, match="spout 'numbers' gave up") as stopped:
            running.await_termination(timeout_secs=120)
        assert "in 'broken': ValueError: " in stopped.value.where
        stored = len(running.dead_letters)
        assert 0 < stored <= 50
        assert len(noted.read_text().split("failed")) - 1 == stored
        with pytest.raises(MisuseError, match="the topology is not running"):
            running.dead_letters.redrive([1])
    (tmp_path / "mended").touch()
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark, config=LIMIT) as running:
        assert running.await_termination(timeout_secs=120)
        assert len(running.dead_letters) == stored
        dead = {letter.values[0] for letter in running.dead_letters}
    ends = sorted(line.split() for line in noted.read_text().splitlines())
    assert ends == sorted([["failed" if n in dead else "acked", str(n)] for n in range(MESSAGES)])


def test_a_session_of_ours_keeps_tuples_on_their_way_to_itself_and_bolts_keep_the_users_umask(
    spark: SparkSession, tmp_path: Path
) -> None:
    jvm = spark._jvm
    assert jvm is not None
    assert jvm.java.io.File(str(tmp_path / "file")).createNewFile()
    assert jvm.java.io.File(str(tmp_path / "folder")).mkdir()
    assert [oct(rights(tmp_path / name)) for name in ("file", "folder")] == ["0o600", "0o700"]
    feeder = FeederSpout(["n"])
    builder = TopologyBuilder("umask")
    builder.set_spout("numbers", feeder)
    builder.set_bolt("touches", TellsUmask(tmp_path / "made")).shuffle_grouping("numbers")
    topology = builder.create_topology()
    before = os.umask(0o026)
    try:
        with submit(topology, checkpoint=tmp_path / "checkpoint", spark=spark) as running:
            feeder.feed([1], message_id=1)
            feeder.end()
            assert running.await_termination(timeout_secs=120)
    finally:
        os.umask(before)
    assert oct(rights(tmp_path / "made")) == "0o640"


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
