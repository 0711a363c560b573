"""The word count in Kafka Streams: a JVM with the application, and a broker on the same cores.

    python -m benchmarks peers.kafka_streams_word_count
    python -m benchmarks peers.kafka_streams_word_count --combine            # adds up words before the broker
    python -m benchmarks peers.kafka_streams_word_count --words 500000 --set commit.interval.ms=30000

Kafka Streams reads its input from a broker, and sends every word through a topic of it to the task that
counts the word; the broker has a log of the counts, too. So its rate includes the broker's work, and no other
peer's has any. Sentences are written to the topic before the measurement, which lasts until all of them are
counted. At least once, with a commit each second. A root is six words that were counted.

``cpu_us_per_root`` is that of the application alone, and ``cpu_us_with_broker_per_root`` that of both. Needs
Maven and Java 17, and PySpark and ``acktree[kafka]`` for the broker; the first run fetches and builds. One
line of JSON.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import in_java, places
from benchmarks.record_rates import server_secs
from benchmarks.report import Report, add_keep_argument, print_line, throughput
from benchmarks.word_count import add_time_arguments
from benchmarks.work import VOCABULARY, save_sentences
from tests.services.kafka import Kafka, java

SOURCES: Final = Path(__file__).parent / "kafka-streams"
_BEST: Final = {
    # Strings take a tenth to a quarter more CPU.
    "texts": "bytes",
    # RocksDB takes as much, within the spread: 5,000 words are in the cache above it.
    "store": "memory",
    # G1 takes as much, within the spread.
    "collector": "Parallel",
    "heap": "2g",
}
"""Kafka Streams' fastest settings of those that were tried."""
SETTINGS: Final = {
    "processing.guarantee": "at_least_once",
    "commit.interval.ms": "1000",
    "statestore.cache.max.bytes": "268435456",
}
"""Its own settings."""
_BROKER: Final = {
    "authorizer.class.name": "",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.retention.check.interval.ms": "300000",
    "log.segment.delete.delay.ms": "60000",
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.dedupe.buffer.size": "134217728",
}
"""What differs from the server of the tests: no permissions to look up, and Kafka's usual pauses."""


class Broker(Kafka):
    """A broker with a heap and a compiler for work, not for tests."""

    def prepare(self) -> None:
        super().prepare()
        with (self.folder / "server.properties").open("a") as out:
            out.writelines(f"{name}={value}\n" for name, value in _BROKER.items())

    def command(self) -> list[str]:
        options = ["-Xms1g", "-Xmx1g", "-XX:+UseParallelGC", "-Djava.net.preferIPv4Stack=true"]
        return [java(), *options, "-cp", self._jars, "kafka.Kafka", "server.properties"]


@contextmanager
def started_broker() -> Iterator[Broker]:
    """A broker that is stopped at the end."""
    if find_spec("confluent_kafka") is None:
        places.refuse("the broker is asked by confluent-kafka whether it serves", "install acktree[kafka]")
    if missing := Broker.missing():
        places.refuse(missing, "python -m tests.services.kafka")
    broker = Broker()
    try:
        yield broker
    finally:
        broker.remove()


def measure(variant: dict[str, Any], warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run one word count in a JVM of its own, beside a broker.

    Args:
        variant: ``cores``, ``words``, ``partitions``, ``texts``, ``store``, ``combine``, ``compression``,
            ``collector``, ``heap``, and ``settings`` of Kafka Streams by their own names.
    """
    report = Report("word_count", {"peer": "kafka-streams", **variant})
    class_path = in_java.class_path(SOURCES)
    with started_broker() as broker, tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        save_sentences(folder / "sentences.txt", words=variant["words"])
        options = {
            "servers": broker.bootstrap,
            "partitions": variant["partitions"],
            "texts": variant["texts"],
            "store": variant["store"],
            "combine": "yes" if variant["combine"] else "no",
            "compression": variant["compression"],
            "state": folder / "state",
            "warm-up": warm_up_secs,
            "secs": secs,
            "sentences": folder / "sentences.txt",
            **{f"set.{name}": value for name, value in variant["settings"].items()},
        }
        command = in_java.command(class_path, folder, variant["heap"], variant["collector"], options)
        found, cost = in_java.run("Kafka Streams", command, folder, lambda: server_secs(broker))
    broker_us = found["server_secs"] / found["roots"] * 1e6
    spent = throughput(found["roots"], found["secs"], cost)
    with_broker = {"cpu_us_with_broker_per_root": round(spent["cpu_us_per_root"] + broker_us, 2)}
    return report.line(spent | with_broker, {"kafka-streams": in_java.version(SOURCES)})


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers.kafka_streams_word_count",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--words", type=int, default=VOCABULARY, help="different words")
    parser.add_argument("--texts", choices=["string", "bytes"], help="what sentences and words are in Java")
    parser.add_argument("--store", choices=["memory", "rocksdb"], help="where counts are, below the cache")
    parser.add_argument(
        "--combine", action="store_true", help="words of a second in each task, before the count"
    )
    parser.add_argument("--partitions", type=int, help="of the topic; default: as many as cores")
    parser.add_argument("--compression", default="none", help="of the sentences in their topic")
    parser.add_argument("--collector", choices=["Parallel", "G1", "Serial"], help="of the JVM")
    parser.add_argument("--cores", type=int, default=2, help="pins the run to this number of cores")
    parser.add_argument("--heap", help="of the JVM")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of Kafka Streams")
    parser.set_defaults(**_BEST)
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    given = dict(each.split("=", 1) for each in args.set)
    variant = {
        "cores": args.cores,
        "words": args.words,
        "partitions": args.partitions or args.cores,
        "texts": args.texts,
        "store": args.store,
        "combine": args.combine,
        "compression": args.compression,
        "collector": args.collector,
        "heap": args.heap,
        "settings": {"num.stream.threads": str(args.cores)} | SETTINGS | given,
    }
    print_line(measure(variant, args.warm_up, args.secs), keep=args.keep)
