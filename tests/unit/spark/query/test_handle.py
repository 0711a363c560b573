"""What has stopped a query is said with the way out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from acktree import AcktreeError
from acktree.spark.query.handle import SparkQuery


def test_the_loss_of_an_executor_that_ends_a_query_names_the_way_out() -> None:
    checkpoint: Any = SimpleNamespace(place="hdfs://here/checkpoint")
    query: Any = SimpleNamespace()
    error = RuntimeError(
        "Job aborted due to stage failure: A shuffle map stage with indeterminate output was failed and "
        "retried. However, Spark cannot rollback the ResultStage 5 to re-process the input data"
    )
    told = SparkQuery(query, checkpoint).explained(error)
    assert isinstance(told, AcktreeError)
    assert told.what.startswith("an executor was lost")
    assert told.where == "checkpoint hdfs://here/checkpoint"
    assert told.fix.startswith("submit it again on the same checkpoint")
    assert told.__cause__ is error
