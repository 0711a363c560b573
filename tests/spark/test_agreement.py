"""On drawn topologies Spark agrees with LocalCluster, and both with trees of objects, which know no XOR."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import Config, submit
from tests.generated import at_random
from tests.generated.running import batches, build, feed, run_locally, seen
from tests.generated.scripted import Drawn
from tests.generated.tracker import Outcome, Tracker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = Config(message_timeout_secs=8, debug=True, partitions=2)
"""The timeout is longer than any of these takes: only what is forgotten times out."""


@contextmanager
def tuples_logged() -> Iterator[Counter[tuple[str, str, str]]]:
    """Every tuple that is emitted meanwhile, as ``debug`` logs it."""
    logged: Counter[tuple[str, str, str]] = Counter()

    class Tally(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            component, stream, values = record.args
            logged[component, stream, repr(values)] += 1

    log, handler = logging.getLogger("acktree.tuples"), Tally()
    before, was_propagated = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield logged
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = was_propagated


def run_on_spark(drawn: Drawn, spark: SparkSession, checkpoint: Path) -> Outcome:
    topology, spouts = build(drawn)
    with (
        tuples_logged() as logged,
        submit(topology, checkpoint=checkpoint, spark=spark, config=CONFIG) as running,
    ):
        for batch in batches(drawn):
            feed(drawn, spouts, batch)
        for spout in spouts.values():
            spout.end()
        assert running.await_termination(timeout_secs=180), running.stats().table()
        return seen(drawn, spouts, running.stats(), logged)


@pytest.mark.parametrize("seed", range(8))
def test_spark_and_local_cluster_give_the_verdicts_that_the_trees_deserve(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    drawn = at_random.topology(seed, largest=600)
    predicted = Tracker(drawn).outcome()
    assert not predicted.differences(run_locally(drawn, CONFIG))
    assert not predicted.differences(run_on_spark(drawn, spark, tmp_path / "checkpoint"))
