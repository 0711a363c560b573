"""``python -m benchmarks NAME [arguments]`` runs a benchmark. Without a name it lists all of them."""

from __future__ import annotations

import importlib
import sys
from typing import Final

BENCHMARKS: Final = {
    "word_count": "sentences per second through split and count, tracked or not",
    "hosts": "the word count on a cluster that shares nothing: a host for each worker, and HDFS",
    "latency": "complete latency at shares of the top rate, or of one sentence at a time",
    "real_time": "latency of verdicts by epochs (real_time=True) and by micro-batches, in turn",
    "epoch_cost": "the Python time of a level in epochs of one message, function by function, without Spark",
    "acker": "what an open root costs: bytes, and the time of a micro-batch",
    "cluster": "a model of a cluster with 10, 100 or 1,000 partitions: driver, executors, bytes, ceilings",
    "kafka": "records a second through both Kafka spouts, beside plain Spark and a plain consumer",
    "queues": "messages a second through RabbitMQSpout and RedisStreamSpout, beside a plain loop",
    "sql_sink": "rows a second into PostgreSQL through SqlSink, beside a bare COPY loop and Spark's recipe",
    "backlog": "rows of a DataFrame in one micro-batch: bytes and memory at the driver",
    "kept_keys": "keys of messages that are kept: memory, disk, and a micro-batch as they grow",
    "many_keys": "a bolt that remembers up to ten million keys: time against keys touched, bytes a key",
    "fan_out": "what a tuple costs in trees of 1 to 10,000 children",
    "frames": "what a micro-batch sends between 2, 10 and 100 tasks, without Spark",
    "chaos": "kills workers, executors and drivers at random, and draws up the account of every message",
    "shared_nothing": "the same on a cluster of hosts that share nothing, whose networks are cut too",
    "brokers": "each connector on Spark: drivers and servers are killed, leases short, connections cut",
    "faults": "exceptions at any opcode of the engine while user code calls it, without Spark",
    "soak": "half an hour under faults: does memory, the checkpoint or what is open grow",
    "waiting": "calls of a slow service: async and threads, beside plain asyncio and Celery, with faults",
    "idle": "CPU and micro-batches while nothing is open",
    "start": "seconds and CPU from submit to the first ack, in a fresh process",
    "children": "CPU a sentence through a class of pystorm and through children, beside a function bolt",
    "tracing": "what the message trace costs at 1 in 1,000: with and without it, in turn, without Spark",
    "python_side": "the Python time of a micro-batch, function by function, without Spark",
    "checksums": "what the checksums of durable files cost: with and without them, in turn, without Spark",
    "floor": "how near a micro-batch of per-tuple bolts comes to the user's own code, without Spark",
    "gates": "an exactly-once word count beside the same at least once: CPU, in turn, without Spark",
    "spout_side": "what a spout task costs a message in the driver's process, without Spark",
    "compare": "named pairs in turn (A B B A ...), of acktree or peers: medians and ratios, kept in results",
    "pictures": "draws the results into docs/pictures",
    "table": "writes the results into docs/performance.md",
    "peers.storm_word_count": "the same work in Apache Storm, in Java or through its multilang",
    "peers.spark_sql": "the same work in plain PySpark, as SQL or with mapInArrow",
    "peers.spark_bare": "a Spark query with the same stages and without tracking",
    "peers.bytewax_word_count": "the same work in Bytewax",
    "peers.kafka_streams_word_count": "the same work in Kafka Streams, with a broker",
    "peers.pathway_word_count": "the same work in Pathway",
    "peers.flink_word_count": "the same work in Apache Flink, in Java or as SQL",
}


def main() -> None:
    """Run the named benchmark."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BENCHMARKS:
        print("usage: python -m benchmarks NAME [--help | arguments]\n")
        print("\n".join(f"  {known:30} {what}" for known, what in BENCHMARKS.items()))
        sys.exit(0 if not name else 2)
    importlib.import_module(f"benchmarks.{name}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
