"""A sample of hostile values on Spark: the query and the neighbours go on, and no stranger's code is run."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from acktree import BasicBolt, Config, DataFrameSpout, Retry, Spout, TopologyBuilder, submit
from acktree.errors import TopologyError
from acktree.spout import EndOfStream
from tests.generated.hostile import COLUMNS
from tests.spark.test_running import wait_until

RETRY = Retry(max_attempts=2, backoff_secs=(0.1, 0.1))


class Reads(BasicBolt):
    """Reads all values of each tuple."""

    def execute(self, tup, collector):
        assert len(tup.values) == len(tup.fields)


class WritesAMark:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


class EmitsColumns(Spout):
    """Emits each of the hostile columns in a batch of its own."""

    outputs = ["value", "name"]
    redelivers = True
    verdicts: dict[tuple[str, int], str] = {}

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector, self.left = collector, [*COLUMNS]

    def next_tuple(self):
        if not self.left:
            raise EndOfStream
        name = self.left.pop()
        batch = pa.RecordBatch.from_arrays([COLUMNS[name](), pa.array([name] * 3)], names=["value", "name"])
        self.collector.emit_batch(batch, message_ids=[(name, row) for row in range(3)])

    def ack(self, message_id):
        self.verdicts[message_id] = "acked"

    def fail(self, message_id, failure):
        self.verdicts[message_id] = failure.reason


BAD = {
    ("duration_s", 1), ("timestamp_s", 1), ("timestamp_ms", 1), ("date32", 1), ("lists_of_dates", 1),
    ("bad_text", 1), *(("timestamp_of_nowhere", row) for row in range(3)),
}  # fmt: skip


def test_no_column_stops_the_query_nor_fails_a_neighbour(spark: SparkSession, tmp_path: Path) -> None:
    spout = EmitsColumns()
    builder = TopologyBuilder("columns")
    builder.set_spout("spout", spout)
    builder.set_bolt("reads", Reads(), parallelism=2).fields_grouping("spout", ["value"])
    builder.set_bolt("reads-too", Reads(), parallelism=2).shuffle_grouping("spout")
    config = Config(partitions=2)
    with submit(builder.create_topology(), checkpoint=tmp_path / "ck", spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=120)
    assert {message for message, verdict in spout.verdicts.items() if verdict != "acked"} == BAD
    assert len(spout.verdicts) == 3 * len(COLUMNS)


def test_a_row_of_a_dataframe_that_python_cannot_hold_is_a_letter_and_its_neighbours_are_acked(
    spark: SparkSession, tmp_path: Path
) -> None:
    late = "if(id = 2, date_add(date'9999-12-31', 400), date'2020-01-01')"
    mark = tmp_path / "mark"
    payload = pickle.dumps(WritesAMark(mark))
    rows = spark.range(5).coalesce(1).selectExpr("id", f"{late} as `a.day`").withColumn("body", lit(payload))
    rows.write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    frame = frame.withMetadata("body", {"acktree": "pickle"})
    builder = TopologyBuilder("late")
    builder.set_spout("rows", DataFrameSpout(frame, message_id="a.day"), retry=RETRY)
    builder.set_bolt("reads", Reads(), parallelism=2).fields_grouping("rows", ["a.day", "body"])
    with submit(builder.create_topology(), checkpoint=tmp_path / "ck", spark=spark) as running:
        wait_until(lambda: len(running.dead_letters) == 1)
        wait_until(lambda: running.stats()["rows"].total.acked == 4)
        (letter,) = running.dead_letters
    assert "cannot be hashed" in letter.reason
    assert letter.plain_values["id"] == 2
    assert letter.plain_values["body"] == payload
    assert not mark.exists()


def test_a_column_that_python_cannot_be_handed_is_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(1).selectExpr("id", "array(interval '1' year) as years")
    rows.write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    builder = TopologyBuilder("years")
    builder.set_spout("rows", DataFrameSpout(frame, message_id="id"))
    builder.set_bolt("reads", Reads()).shuffle_grouping("rows")
    with pytest.raises(TopologyError, match="'years'"):
        submit(builder.create_topology(), checkpoint=tmp_path / "ck", spark=spark)
