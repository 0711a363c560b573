"""Spark's own Kafka source as a spout, against a real server."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("pyspark")

from confluent_kafka import TopicPartition

from acktree import BasicBolt, ConfigError, ConnectorError, Retry, TopologyBuilder, submit
from acktree.connectors.kafka import kafka_dataframe_spout
from tests.services.kafka import source_jars
from tests.services.test_kafka import PARTITIONS, Topic, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

COUNT, POISON = 400, 100


@pytest.fixture(scope="module")
def with_source(spark):
    """The shared session, if it was started with the jars of the source."""
    if not source_jars():
        missing = "no jars of Spark's Kafka source (python -m tests.services.kafka)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return spark


@pytest.fixture
def orders(kafka):
    made = Topic(kafka)
    made.clear()
    return made


class Checks(BasicBolt):
    """Fails every hundredth value, and whatever is not as it was put."""

    outputs = []

    def execute(self, tup, collector):
        topic, partition, offset, key, value, timestamp_ms = tup.values
        number = int(value)
        assert (partition, offset) == (number % PARTITIONS, number // PARTITIONS)
        assert (topic.startswith("orders"), key, timestamp_ms) == (True, b"k", 1_700_000_000_000 + number)
        if number % POISON == 0:
            raise ValueError(number)


def topology_of(spark: SparkSession, orders: Topic, **settings):
    builder = TopologyBuilder("native")
    spout = kafka_dataframe_spout(spark, orders.server.bootstrap, orders.name, label="value", **settings)
    builder.set_spout("orders", spout, retry=Retry(max_attempts=2, backoff_secs=(0.1, 0.1)))
    builder.set_bolt("checks", Checks(), parallelism=2).shuffle_grouping("orders")
    return builder.create_topology()


def put(orders, numbers):
    for number in numbers:
        settings = {"partition": number % PARTITIONS, "timestamp": 1_700_000_000_000 + number, "key": b"k"}
        orders.producer.produce(orders.name, b"%d" % number, **settings)
    assert orders.producer.flush(20) == 0


@pytest.mark.slow
def test_records_that_spark_receives_have_exact_verdicts_and_the_frontier_is_committed(
    with_source: SparkSession, orders: Topic, tmp_path: Path
) -> None:
    put(orders, range(COUNT))
    topology = topology_of(with_source, orders, group_id=orders.group, max_offsets_per_trigger=150)
    with submit(topology, checkpoint=tmp_path / "checkpoint", spark=with_source) as running:
        wait_for(lambda: len(running.dead_letters) == COUNT // POISON, 120)
        assert running.await_idle(60)
        total = running.stats()["orders"].total
        assert (total.acked, total.failed, total.timed_out) == (COUNT - 4, 8, 0)
        letters = list(running.dead_letters)
        assert Counter(int(letter.values[4]) for letter in letters) == Counter(range(0, COUNT, POISON))
        assert {letter.attempts for letter in letters} == {2}
        assert {letter.label for letter in letters} == {str(n) for n in range(0, COUNT, POISON)}
        wait_for(lambda: orders.count() == 0, 20)

    # Retention passes the offset: the next run says so, and stops.
    put(orders, range(COUNT, COUNT + 20))
    [removed] = orders.admin.delete_records([TopicPartition(orders.name, 0, COUNT // 2 + 5)]).values()
    removed.result(10)
    topology = topology_of(with_source, orders)
    with (
        pytest.raises(ConnectorError) as stopped,
        submit(topology, checkpoint=tmp_path / "checkpoint", spark=with_source) as running,
    ):
        running.await_termination(120)
    assert "were gone before they were read" in stopped.value.what
    assert "on_data_loss" in stopped.value.fix
    assert orders.name in str(stopped.value)


@pytest.mark.parametrize(
    "settings",
    [{"on_data_loss": "ignore"}, {"topics": []}, {"servers": " "}, {"key": "offset"}, {"label": "header:x"}],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(settings) -> None:
    settings = {"servers": "127.0.0.1:9092", "topics": "orders"} | settings
    with pytest.raises(ConfigError):
        kafka_dataframe_spout(None, settings.pop("servers"), settings.pop("topics"), **settings)
