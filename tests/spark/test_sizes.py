"""Very large messages, very many children, one key for nearly all: they work, or fail as one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, IterableSpout, KeyValueState, Retry, TopologyBuilder, submit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree.core.stats.statistics import Stats
    from acktree.dead_letters.letter import DeadLetter

MEGABYTE = 1 << 20


class Times:
    """One value many times over, without a list of them; made anew wherever it is read."""

    def __init__(self, count: int, megabytes: int):
        self.count, self.megabytes = count, megabytes

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        large = bytes(self.megabytes * MEGABYTE)
        return ((n, large) for n in range(self.count))


class Forward(BasicBolt):
    outputs = ["n", "value"]

    def execute(self, tup, collector):
        collector.emit(tup.values)


class Weigh(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        assert len(tup["value"]) >= MEGABYTE


class KeepAll(BasicBolt):
    """Keeps every value, in one attribute: one blob of the state store."""

    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context):
        self.kept = []

    def execute(self, tup, collector):
        self.kept.append(tup["value"])


class Children(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        for n in range(tup["n"]):
            collector.emit([n])


class Count(BasicBolt):
    outputs = []
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = KeyValueState()

    def execute(self, tup, collector):
        self.counts[tup["n"]] = self.counts.get(tup["n"], 0) + 1


class Hungry(BasicBolt):
    """Wants memory without end, over one message."""

    outputs = []

    def execute(self, tup, collector):
        eaten = []
        while tup["n"] == 7:
            eaten.append(bytearray(64 * MEGABYTE))


def ran(
    spark: SparkSession,
    folder: Path,
    items: Iterable[object],
    bolts: list[tuple[BasicBolt, str]],
    outputs: list[str],
    config: Config | None = None,
) -> tuple[Stats, list[DeadLetter]]:
    """Numbers and dead letters of a row of bolts, each grouped by a field, or shuffled."""
    builder = TopologyBuilder("sizes")
    builder.set_spout("source", IterableSpout(items, outputs), retry=Retry(max_attempts=1))
    source = "source"
    for bolt, field in bolts:
        name = type(bolt).__name__
        declarer = builder.set_bolt(name, bolt, parallelism=2)
        if field:
            declarer.fields_grouping(source, [field])
        else:
            declarer.shuffle_grouping(source)
        source = name
    topology = builder.create_topology()
    with submit(topology, checkpoint=folder / "checkpoint", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=240)
        return running.stats(), list(running.dead_letters)


@pytest.mark.slow
def test_messages_of_fifty_megabytes_pass_however_quickly_they_are_emitted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Together more than a column holds, and emitted before anybody could look at the inbox."""
    bolts = [(Forward(), ""), (Weigh(), "n")]
    stats, letters = ran(spark, tmp_path, Times(45, 50), bolts, ["n", "value"])
    assert (stats["source"].total.acked, letters) == (45, [])


@pytest.mark.slow
def test_a_bolt_remembers_more_than_the_jvm_could_copy(spark: SparkSession, tmp_path: Path) -> None:
    stats, letters = ran(spark, tmp_path, Times(8, 50), [(KeepAll(), "n")], ["n", "value"])
    assert (stats["source"].total.acked, letters) == (8, [])


def test_a_message_of_more_children_than_a_frame_has_tuples_is_acked_by_all_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    stats, letters = ran(spark, tmp_path, [100_000, 3, 1], [(Children(), ""), (Count(), "n")], ["n"])
    assert (stats["source"].total.acked, stats["Count"].total.executed, letters) == (3, 100_004, [])


def test_a_key_that_gets_nearly_all_of_the_traffic_is_one_task_s_work_and_nobody_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    items = [0 if n % 100 else n for n in range(50_000)]
    stats, letters = ran(spark, tmp_path, items, [(Count(), "n")], ["n"])
    assert (stats["source"].total.acked, letters) == (50_000, [])
    assert max(task.total.executed for task in stats["Count"].tasks.values()) >= 49_500


def test_a_bolt_that_wants_memory_without_end_fails_the_message_it_wants_it_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = Config(worker_max_bytes=2 << 30)
    stats, letters = ran(spark, tmp_path, range(100), [(Hungry(), "")], ["n"], config)
    assert stats["source"].total.acked == 99
    assert [(letter.values, letter.cause, letter.reason) for letter in letters] == [
        ([7], "EXCEPTION", "MemoryError")
    ]
