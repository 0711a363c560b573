"""A sample of hostile values on Spark: the query and the neighbours go on, and no stranger's code is run."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from acktree import (
    ArrowBolt,
    BasicBolt,
    Config,
    CustomGrouping,
    DataFrameSpout,
    Retry,
    Spout,
    TopologyBuilder,
    submit,
)
from acktree.errors import MisuseError, TopologyError
from acktree.spout import EndOfStream
from acktree.testing import LocalCluster
from tests.generated.hostile import COLUMNS, GROUPINGS, column
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
    """Emits each of the hostile columns in a batch of its own, and a plain row beside each."""

    outputs = ["value", "name"]
    redelivers = True

    def __init__(self):
        self.verdicts: dict[tuple[str, int], str] = {}

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector, self.left = collector, [*COLUMNS]

    def next_tuple(self):
        if not self.left:
            raise EndOfStream
        name = self.left.pop()
        self.collector.emit([name, name], message_id=("beside", name))
        batch = column(name).rename_columns(["value"]).append_column("name", pa.array([name] * 3))
        try:
            self.collector.emit_batch(batch, message_ids=[(name, row) for row in range(3)])
        except MisuseError:
            self.verdicts |= dict.fromkeys([(name, row) for row in range(3)], "refused")

    def ack(self, message_id):
        self.verdicts[message_id] = "acked"

    def fail(self, message_id, failure):
        self.verdicts[message_id] = failure.reason


class PassesOn(ArrowBolt):
    def __init__(self, fields):
        self.outputs = fields

    def execute_batch(self, batch, collector):
        collector.emit_batch(batch, parents=range(batch.num_rows))


class ByTheFirst(CustomGrouping):
    def prepare(self, context, stream, target_task_ids):
        self.tasks = target_task_ids

    def choose_tasks(self, task_id, values):
        return [self.tasks[len(values) % len(self.tasks)]]


def in_every_grouping(spout: Spout, key: str, fields: list[str]) -> TopologyBuilder:
    """What a spout emits, and what an ArrowBolt passes on, goes to a bolt by each grouping."""
    builder = TopologyBuilder("groupings")
    builder.set_spout("spout", spout)
    builder.set_bolt("passes-on", PassesOn(fields), parallelism=2).shuffle_grouping("spout")
    for grouping in GROUPINGS:
        further = {"fields": ([key],), "partial_key": ([key],), "custom": (ByTheFirst(),)}.get(grouping, ())
        declarer = builder.set_bolt(grouping, Reads(), parallelism=2)
        for source in ("spout", "passes-on"):
            getattr(declarer, f"{grouping}_grouping")(source, *further)
    return builder


def check_columns_by_every_grouping(spark: SparkSession | None, folder: Path, config: Config) -> None:
    """Run all columns by every grouping: their verdicts are those that they have without Spark."""
    spout, alike = EmitsColumns(), EmitsColumns()
    with submit(
        in_every_grouping(spout, "value", spout.outputs).create_topology(),
        checkpoint=folder,
        spark=spark,
        config=config,
    ) as running:
        assert running.await_termination(timeout_secs=300)
    with LocalCluster() as cluster:
        cluster.submit(in_every_grouping(alike, "value", spout.outputs).create_topology(), config=config)
        cluster.advance(10)
    assert len(spout.verdicts) == 4 * len(COLUMNS)
    assert {verdict for (at, _), verdict in spout.verdicts.items() if at == "beside"} == {"acked"}
    acked, acked_alike = (
        {each for each, verdict in one.verdicts.items() if verdict == "acked" and "extension" not in each[0]}
        for one in (spout, alike)
    )
    assert acked == acked_alike  # a worker may know an extension type or not


def test_all_columns_by_every_grouping_have_the_verdicts_that_they_have_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    check_columns_by_every_grouping(spark, tmp_path, Config(partitions=2))


SPARKS = {
    "span": "make_dt_interval(id, 1, 2, 3.5)", "at": "timestamp_ntz'2020-01-01 00:00:00'",
    "moment": "timestamp'9999-12-31 23:59:59Z'", "price": "cast(id as decimal(38, 10))",
    "ratio": "if(id = 1, double('nan'), -0.0D)", "body": "unhex('ff00')", "things": "map('a', array(id))",
    "parts": "named_struct('a', make_dt_interval(1), 'b', cast(null as map<int, string>))",
}  # fmt: skip
"""Columns of a DataFrame, by the types of Spark that Arrow has strange types for."""


@pytest.mark.parametrize("key", ["span", "things"])
def test_columns_of_a_dataframe_pass_by_every_grouping(spark: SparkSession, tmp_path: Path, key) -> None:
    rows = spark.range(4).selectExpr("id", *(f"{value} as {name}" for name, value in SPARKS.items()))
    rows.write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    builder = in_every_grouping(DataFrameSpout(frame, message_id="id"), key, rows.columns)
    with submit(builder.create_topology(), checkpoint=tmp_path / "ck", spark=spark) as running:
        wait_until(lambda: running.stats()["spout"].total.acked == 4)
        assert running.errors == ()


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


@pytest.mark.parametrize(
    "bad", ["make_ym_interval(1)", "array(make_ym_interval(1))", "make_interval(1)", "parse_json('[1]')"]
)
def test_a_column_that_python_cannot_be_handed_is_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path, bad: str
) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("value as id", f"{bad} as bad")
    builder = TopologyBuilder("years")
    builder.set_spout("rows", DataFrameSpout(frame, message_id="id"))
    builder.set_bolt("reads", Reads()).shuffle_grouping("rows")
    with pytest.raises(TopologyError, match="'bad'"):
        submit(builder.create_topology(), checkpoint=tmp_path / "ck", spark=spark)
