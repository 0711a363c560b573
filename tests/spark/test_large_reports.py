"""What workers report beside verdicts may be large: long errors, many forgotten tuples, a debugged batch.

A row of 16 KiB or more lies in a file beside the query, and only there is its head a part of a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from acktree import ArrowBolt, BasicBolt, Bolt, Config, IterableSpout, TopologyBuilder, submit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree.bolt import AnyBolt
    from acktree.core.stats.statistics import Stats

MANY = 9_000


class RaisesLongTexts(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        raise ValueError(f"message {tup['n']}: {'x' * 2000}")


class Forgets(Bolt):
    outputs = []

    def execute(self, tup):
        pass


class EmitsMany(ArrowBolt):
    outputs = pa.schema([("n", pa.int64())])

    def execute_batch(self, batch, collector):
        collector.emit_batch(pa.record_batch({"n": pa.array(range(MANY))}), parents=[0] * MANY)


def counts(spark: SparkSession, folder: Path, bolt: AnyBolt, messages: int, config: Config) -> Stats:
    builder = TopologyBuilder("reports")
    builder.set_spout("numbers", IterableSpout(range(messages), ["n"]))
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    with submit(builder.create_topology(), checkpoint=folder, config=config, spark=spark) as running:
        running.await_termination(timeout_secs=120)
        return running.stats()["numbers"].total


def test_errors_of_long_texts_fail_their_messages(spark, tmp_path):
    total = counts(spark, tmp_path, RaisesLongTexts(), 40, Config(partitions=2))
    assert (total.acked, total.failed) == (0, 40)


def test_many_forgotten_tuples_time_out(spark, tmp_path):
    config = Config(partitions=2, message_timeout_secs=2)
    total = counts(spark, tmp_path, Forgets(), MANY, config)
    assert (total.acked, total.timed_out) == (0, MANY)


def test_all_tuples_of_a_large_batch_are_shown(spark, tmp_path):
    total = counts(spark, tmp_path, EmitsMany(), 1, Config(partitions=2, debug=True))
    assert (total.acked, total.failed) == (1, 0)
