"""A driver to be killed, with more messages than may be traced: ``-m tests.spark.fast_driver FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from acktree import ArrowBolt, Config, EndOfStream, Spout, Topology, TopologyBuilder, submit

COUNT = 6_000_000
AT_ONCE = 5_000
CONFIG = Config(partitions=2, run_salt=7, trace_sample_rate=0.05, max_traces_per_sec=20)


class Numbers(Spout):
    outputs = ["n"]
    redelivers = False
    remembers = ("position",)

    def __init__(self):
        self.position = 0

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.position >= COUNT:
            raise EndOfStream
        numbers = range(self.position, self.position + AT_ONCE)
        self.collector.emit_batch(pa.record_batch({"n": numbers}), message_ids=numbers)
        self.position += AT_ONCE


class Doubles(ArrowBolt):
    outputs = pa.schema([("n", pa.int64())])

    def execute_batch(self, batch, collector):
        both = pa.concat_arrays([batch["n"], pc.negate(batch["n"])])
        parents = [*range(batch.num_rows)] * 2
        collector.emit_batch(pa.record_batch({"n": both}), parents=parents)


class Ends(ArrowBolt):
    outputs = []

    def execute_batch(self, batch, collector):
        pass


def fast() -> Topology:
    """Each message has two tuples in ``ends``."""
    builder = TopologyBuilder("fast")
    builder.set_spout("numbers", Numbers())
    builder.set_bolt("doubles", Doubles(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("ends", Ends(), parallelism=2).fields_grouping("doubles", ["n"])
    return builder.create_topology()


if __name__ == "__main__":
    with submit(fast(), checkpoint=Path(sys.argv[1]), config=CONFIG) as running:
        running.await_termination()
