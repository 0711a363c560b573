"""A checkpoint wherever the user puts it: it runs, goes on, and all of it is its owner's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, TopologyBuilder, submit
from acktree.checkpoint.location import hadoop_path
from acktree.testing import FeederSpout
from tests.spark.topologies import Notebook, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree import Topology

NAMES = [
    "sp ace", "ünï☃", "per%20cent", "per%cent", "hash#x", "quest?x", "glob{a,b}*[c]", "colon:x", "a:/b",
    "new\nline", "plus+x", "back\\slash", "_hidden", ".dot", "quo'te\"s", "dollar$(x)`y`", "semi;x&y",
    "comma,x",
]  # fmt: skip
ALL = "_sp ace ünï☃ %20 %c #x ?x {a,b}*[c] :x +x \\x \n' \" , ;"


class Counts(BasicBolt):
    """Emits how many it has seen in all runs."""

    outputs = ["n"]
    remembers = ["seen"]

    def prepare(self, config, context):
        self.seen = 0

    def execute(self, tup, collector):
        self.seen += 1
        collector.emit([self.seen])


def counting(feeder: FeederSpout, folder: Path) -> Topology:
    builder = TopologyBuilder("counting")
    builder.set_spout("numbers", feeder)
    builder.set_bolt("counts", Counts()).global_grouping("numbers")
    builder.set_bolt("notes", Notebook(folder)).global_grouping("counts")
    return builder.create_topology()


def modes_below(folder: Path) -> dict[str, str]:
    """Everything that is not its owner's alone, and its rights."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path)] = oct(mode)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_spark_finds_each_folder_under_the_name_that_it_has(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name / "spark"
    folder.mkdir(parents=True)
    path = spark._jvm.org.apache.hadoop.fs.Path(hadoop_path(folder))
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    assert files.exists(path)
    below = spark._jvm.org.apache.hadoop.fs.Path(path, "commits")
    assert files.mkdirs(spark._jvm.org.apache.hadoop.fs.Path(below.toString()))
    assert [found.name for found in folder.iterdir()] == ["commits"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("umask", [0o000, 0o022], ids=oct)
def test_a_checkpoint_under_any_name_runs_goes_on_and_is_private_whatever_the_umask(
    spark: SparkSession, tmp_path: Path, umask: int
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = tmp_path / "real" / ".dot" / ALL
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    # By a link and "..", and by the URL of the same folder.
    places = [tmp_path / "link" / ".." / "real" / ".dot" / ALL, folder.as_uri()]
    before = os.umask(umask)
    try:
        for run, checkpoint in enumerate(places):
            feeder = FeederSpout(["n"])
            with submit(counting(feeder, outputs), checkpoint=checkpoint, spark=spark) as running:
                for n in (1, 2):
                    feeder.feed([n], message_id=(run, n))
                assert running.await_idle(timeout_secs=180)
                assert sorted(feeder.acked) == [(run, 1), (run, 2)]
    finally:
        os.umask(before)
    assert sorted(map(int, (note for [note] in notes(outputs, "notes")))) == [1, 2, 3, 4]
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link", "outputs"}
    assert [path.name for path in (tmp_path / "real").iterdir()] == [".dot"]
    assert [path.name for path in (tmp_path / "real" / ".dot").iterdir()] == [ALL]
    assert (folder / "spark" / "commits" / "1").exists()
    assert modes_below(folder) == {}
