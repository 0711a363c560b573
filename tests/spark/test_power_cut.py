"""Power cuts on Spark itself: what Spark logged after the last sync is torn, and does not count."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from acktree import Config, TopologyBuilder, submit
from acktree.checkpoint.power_cut import Synced, note_synced
from acktree.system.private_files import DISK
from acktree.testing import FeederSpout
from tests.spark.topologies import Notebook, Tally, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [f"key {n}" for n in range(20)]
OURS = ("commits", "state")
CONFIG = Config(partitions=2, message_timeout_secs=600, survive_power_cut=True)


def run(spark: SparkSession, checkpoint: Path, place: Path) -> dict[str, int]:
    """Feed all keys once; what the tally has counted of each by then."""
    place.mkdir()
    feeder = FeederSpout(["key"])
    builder = TopologyBuilder("tallied")
    builder.set_spout("keys", feeder)
    builder.set_bolt("tally", Tally(), parallelism=2).fields_grouping("keys", ["key"])
    builder.set_bolt("notes", Notebook(place), parallelism=2).fields_grouping("tally", ["key"])
    with submit(builder.create_topology(), checkpoint=checkpoint, spark=spark, config=CONFIG) as running:
        for number, key in enumerate(KEYS):
            feeder.feed([key], message_id=number)
        assert running.await_idle(timeout_secs=240)
        assert sorted(feeder.acked) == list(range(len(KEYS)))
    return {key: int(count) for key, count in notes(place, "notes")}


def written(checkpoint: Path) -> list[Path]:
    """The files of Spark's part, of the commit log, and of the bolts' memory."""
    return [file for part in ("spark", *OURS) for file in (checkpoint / part).rglob("*") if file.is_file()]


def test_after_a_power_cut_spark_goes_on_from_the_last_micro_batch_that_was_synced(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert run(spark, checkpoint, tmp_path / "1") == dict.fromkeys(KEYS, 1)
    [synced] = checkpoint.glob("synced-*")
    before = {file: file.read_bytes() for file in written(checkpoint)}
    last = max(int(f.name) for f in (checkpoint / "spark" / "commits").glob("[0-9]*"))
    assert synced.name == f"synced-{last + 1:012d}"
    # A second run of which nothing was synced: its files are torn, and what it deleted is there again.
    assert run(spark, checkpoint, tmp_path / "2") == dict.fromkeys(KEYS, 2)
    [newer] = checkpoint.glob("synced-*")
    newer.rename(synced)
    for file in (checkpoint / "commits").iterdir():
        if int(file.name) > last + 1:  # the one before it was synced when it was written
            file.unlink()
    torn = 0
    for file in written(checkpoint):
        if before.get(file) != file.read_bytes():
            file.write_bytes(b"")
            torn += 1
    assert torn > 4
    for file, content in before.items():
        if not file.exists() and file.relative_to(checkpoint).parts[0] in OURS:
            file.write_bytes(content)
    assert run(spark, checkpoint, tmp_path / "3") == dict.fromkeys(KEYS, 2)


def test_what_was_never_synced_begins_anew_on_sparks_side(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    note_synced(checkpoint, Synced(-1), None, DISK)
    for torn in ("metadata", "offsets/0", "offsets/.0.crc", "state/0/_metadata/metadata"):
        (checkpoint / "spark" / torn).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / "spark" / torn).write_bytes(b"")
    assert run(spark, checkpoint, tmp_path / "1") == dict.fromkeys(KEYS, 1)
