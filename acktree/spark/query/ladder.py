"""The ladder, which is the query plan: source and levels, as one chain of operators without a branch.

A streaming DataFrame that is read twice is computed twice, including user code. So every operator receives
all rows, processes its own and passes the others on. From 16 partitions up a combining stage follows the
last level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the usual name

from acktree.dataframe_spout import DataFrameSpout
from acktree.spark.query.dataframe import (
    refuse_nested_ids,
    refuse_other_keys,
    refuse_unknown_types,
    rows_as_wire,
)
from acktree.spark.query.keys import partition_keys
from acktree.spark.query.operators import Places, RememberingOperator, combining_stage, mapped_level
from acktree.spark.query.source import FORMAT, PATIENCE_BESIDE_ROWS_SECS, PATIENCE_SECS, InboxSource
from acktree.spark.query.wire import WIRE_DDL
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def ladder(
    session: SparkSession,
    plan: Plan,
    shared: SharedPlan,
    places: Places,
    spouts: Mapping[str, DataFrameSpout],
    after: int = -1,
) -> DataFrame:
    """Source and levels as one streaming DataFrame of rows for the driver.

    Args:
        plan: What the levels are.
        shared: The plan as workers get it.
        places: Where workers find the inbox and what bolts remember.
        spouts: The DataFrames whose rows are messages, by component.
        after: The inbox number after which a new checkpoint of Spark begins.
    """
    session.dataSource.register(InboxSource)
    # The micro-batch's time: Spark logs it, so it is the same when the micro-batch runs again. Spark would
    # write it as a number into the code that it generates, and compile that anew in each micro-batch: 10 ms.
    # A function of two arrays is not compiled (``ZipWith`` is a CodegenFallback).
    clock_ms = F.element_at(
        F.zip_with(F.array(F.current_timestamp()), F.array(F.lit(0)), lambda at, _: F.unix_millis(at)), 1
    )
    rows = (
        session.readStream.format(FORMAT)
        .options(
            inbox=places.inbox,
            partitions=plan.partitions,
            interval_secs=plan.config.batch_interval_secs,
            after=after,
            carries=not places.is_seen,
            patience_secs=PATIENCE_BESIDE_ROWS_SECS if spouts else PATIENCE_SECS,
        )
        .load()
    )
    for name, spout in spouts.items():
        frame: Any = spout.streaming_df
        refuse_unknown_types(name, frame.schema)
        if spout.acknowledger is not None:
            refuse_nested_ids(name, frame.schema, spout.id_columns)
        if spout.key is not None:
            refuse_other_keys(name, frame.schema, spout.key)
        to_wire = rows_as_wire(plan, name, is_tracked=spout.message_id is not None)
        # mapInArrow looks columns up by name, and a dot in a name would mean a struct's field. So they are
        # numbered.
        frame = frame.toDF(*map(str, range(len(frame.columns))))
        rows = rows.unionByName(frame.mapInArrow(to_wire, WIRE_DDL))
    rows = rows.withColumn("clock_ms", clock_ms)
    if spouts:  # a DataFrame has its source's partitions: bring every row to the partition that processes it
        rows = rows.repartitionById(plan.partitions, F.col("partition"))
    for level in plan.levels:
        if level.stateful and places.state is None:
            rows = _stateful_level(rows, plan, shared, level.index, places)
            continue
        if level.index > 0:
            rows = rows.repartitionById(plan.partitions, F.col("partition"))
        rows = rows.mapInArrow(mapped_level(shared, level.index, places, remembers=level.stateful), WIRE_DDL)
    if plan.combiners:
        rows = rows.repartitionById(plan.combiners, F.col("partition"))
        rows = rows.mapInArrow(combining_stage(shared, plan.combining_level, places), WIRE_DDL)
    return rows


def _stateful_level(rows: DataFrame, plan: Plan, shared: SharedPlan, level: int, places: Places) -> DataFrame:
    """A level that remembers in Spark's state, with one key for each partition."""
    keys = F.array(*(F.lit(key).cast("long") for key in partition_keys(plan.partitions)))
    keyed = rows.withColumn("key", F.element_at(keys, F.col("partition") + 1))
    operator: Any = RememberingOperator(shared, level, places)
    return keyed.groupBy("key").transformWithStateInPandas(operator, WIRE_DDL, "append", "none")
