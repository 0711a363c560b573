"""Where the time of a micro-batch went: what Spark tells of it, with the parts that are known here."""

from __future__ import annotations

from acktree.driver.batch_times import BatchTimes

SPARK = {"addBatch": 20, "walCommit": 3}


def test_parts_are_added_to_the_phases_of_the_micro_batch_that_they_are_of():
    times = BatchTimes()
    assert times.with_parts(-1, {}) == {}
    assert times.with_parts(0, SPARK) == SPARK
    for spark_batch_id in range(3):
        times.add({"level_0": 1000 * spark_batch_id, "level_1": 500})
        times.add({"level_1": 250})
        times.keep(spark_batch_id)
    times.add({"level_0": 9_000_000})  # of a micro-batch that runs
    assert times.with_parts(2, SPARK) == {**SPARK, "level_0": 2.0, "level_1": 0.75}
    assert times.with_parts(1, SPARK) == {**SPARK, "level_0": 1.0, "level_1": 0.75}  # Spark is one behind
    assert times.with_parts(0, SPARK) == SPARK  # no longer known


def test_what_spark_reports_while_there_is_nothing_to_read_has_no_parts():
    times = BatchTimes()
    times.add({"level_0": 1000})
    times.keep(4)
    assert times.with_parts(4, {"latestOffset": 9}) == {"latestOffset": 9}
