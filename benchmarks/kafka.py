"""Kafka: records a second through both spouts, compared with the same work without acktree.

::

    python -m benchmarks kafka --records 1000000 --rounds 5 native driver

One broker on this machine (``tests/services/kafka.py``), one topic of four partitions, records of eight
words. One in a thousand is poison: it fails twice and becomes a dead letter. The topology splits and counts.
In each round both sides of a pair run in turn in one session. *Overall* includes the start of the query,
*steady* begins with the second quarter of the records. CPU is that of all processes but the broker.

``native``: ``kafka_dataframe_spout`` and the same query in plain Spark, which ignores the poison.
``driver``: ``KafkaSpout`` and a loop over the same client that commits each poll.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acktree import ArrowBolt, ArrowOutputCollector, Config, Retry, Spout, TopologyBuilder, submit
from benchmarks.record_rates import Meter, Rates, compare
from benchmarks.report import Report, add_keep_argument, print_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.services.kafka import Kafka

POISON_EVERY: Final = 1000
PARTITIONS: Final = 4
_TOPIC: Final = "sentences"
_FIELDS: Final = "topic, partition, offset, key, value, unix_millis(timestamp) as timestamp_ms"
_BATCH: Final = 100_000


def count_words(values: pa.Array) -> tuple[pa.Array, int]:
    """Which values are poison, and how many different words the others have."""
    texts = values.cast(pa.string())
    is_poison = pc.starts_with(texts, "poison")
    words = pc.list_flatten(pc.split_pattern(texts.filter(pc.invert(is_poison)), " "))
    return is_poison, len(pc.value_counts(words))


class Words(ArrowBolt):
    """Splits and counts."""

    outputs = []

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        """Fail the poison, count the rest."""
        is_poison, _ = count_words(batch["value"])
        if pc.any(is_poison).as_py():
            collector.fail_rows(np.flatnonzero(is_poison.to_numpy(zero_copy_only=False)), "poison")


def plain_words(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same under ``mapInArrow``."""
    for batch in batches:
        _, count = count_words(batch["value"])
        yield pa.record_batch({"rows": pa.array([batch.num_rows]), "words": pa.array([count])})


def fill(servers: str, records: int) -> None:
    """Make the topic and its records."""
    from confluent_kafka import Producer  # noqa: PLC0415  # an extra
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(_TOPIC, PARTITIONS, 1)])
    made[_TOPIC].result(10)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})
    chance = random.Random(7)  # noqa: S311  # the same records each time
    words = [f"word{number}" for number in range(1000)]
    texts = [" ".join(chance.choices(words, k=8)).encode() for _ in range(1000)]
    for number in range(records):
        text = texts[number % len(texts)]
        value = b"poison " + text if number % POISON_EVERY == 0 else text
        producer.produce(_TOPIC, value, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def topology_rates(spark: SparkSession, spout: Spout, records: int, server: Kafka) -> Rates:
    """Run a topology over all records; asserts that every verdict, attempt and letter is there."""
    builder = TopologyBuilder("kafka-benchmark")
    retry = Retry(max_attempts=2, backoff_secs=(0.1, 0.1))
    builder.set_spout("records", spout, retry=retry, max_spout_pending=4 * _BATCH)
    builder.set_bolt("words", Words(), parallelism=2).shuffle_grouping("records")
    poison = -(-records // POISON_EVERY)
    meter = Meter(records - poison, server)
    with (
        tempfile.TemporaryDirectory() as folder,
        submit(builder.create_topology(), checkpoint=folder, spark=spark, config=Config()) as running,
    ):
        meter.wait(lambda: running.stats()["records"].total.acked)
        rates = meter.rates()
        running.await_idle(120)
        total = running.stats()["records"].total
        letters = len(running.dead_letters)
        assert (total.acked, total.failed, letters) == (records - poison, 2 * poison, poison), (
            total,
            letters,
        )
    return rates


def plain_query_rates(spark: SparkSession, records: int, server: Kafka) -> Rates:
    """The same query without tracking."""
    done = [0]

    def take(frame: DataFrame, _: int) -> None:
        done[0] += frame.toArrow()["rows"].to_numpy().sum()

    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", server.bootstrap)
        .option("subscribe", _TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(_BATCH))
        .load()
        .selectExpr(*_FIELDS.split(", "))
        .mapInArrow(plain_words, "rows long, words long")
    )
    meter = Meter(records, server)
    with tempfile.TemporaryDirectory() as folder:
        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", folder)
            .trigger(processingTime="0 seconds")
            .start()
        )
        meter.wait(lambda: done[0])
        rates = meter.rates()
        query.stop()
    return rates


def plain_loop_rates(records: int, server: Kafka) -> Rates:
    """A consumer that splits, counts and commits each poll."""
    from confluent_kafka import Consumer  # noqa: PLC0415  # an extra

    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap, "group.id": f"loop-{time.time_ns()}",
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    consumer.subscribe([_TOPIC])
    counts: Counter[bytes] = Counter()
    meter, done = Meter(records, server), 0
    while done < records:
        messages = consumer.consume(10_000, 0.5)
        for message in messages:
            counts.update((message.value() or b"").split())
        done += len(messages)
        if messages:
            consumer.commit(asynchronous=False)
        meter.note(done)
    rates = meter.rates()
    consumer.close()
    return rates


def main(arguments: list[str]) -> None:
    """Run the pairs, and print each round and the median ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kafka", description=__doc__)
    parser.add_argument("pairs", nargs="*", default=["native", "driver"], help="native, driver")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    from acktree.connectors.kafka import KafkaSpout, kafka_dataframe_spout  # noqa: PLC0415  # an extra

    servers_of_tests = import_module("tests.services.kafka")  # fetches its jars, and Spark's
    if missing := servers_of_tests.missing_jars():
        raise SystemExit(missing)
    with servers_of_tests.start_with_source("kafka-benchmark") as spark:
        server = servers_of_tests.Kafka()
        try:
            servers, groups = server.bootstrap, iter(range(1_000_000))
            fill(servers, given.records)

            def native() -> Rates:
                spout = kafka_dataframe_spout(
                    spark, servers, _TOPIC, group_id=f"native-{next(groups)}", max_offsets_per_trigger=_BATCH
                )
                return topology_rates(spark, spout, given.records, server)

            def driver() -> Rates:
                spout = KafkaSpout(servers, _TOPIC, f"driver-{next(groups)}")
                return topology_rates(spark, spout, given.records, server)

            plain: dict[str, Callable[[], Rates]] = {
                "native": lambda: plain_query_rates(spark, given.records, server),
                "driver": lambda: plain_loop_rates(given.records, server),
            }
            ours = {"native": native, "driver": driver}
            for pair in given.pairs:
                report = Report("kafka", {"pair": pair, "records": given.records})
                print_line(report.line(compare(pair, ours[pair], plain[pair], given.rounds)), keep=given.keep)
        finally:
            server.remove()
