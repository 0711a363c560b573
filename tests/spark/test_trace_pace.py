"""Spark: the share of traces is lowered while very much is emitted, and each trace is whole all the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from acktree import BasicBolt, Config, EndOfStream, Spout, TopologyBuilder, submit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECS = 14
RATE = 0.01


class Burst(Spout):
    """Emits 1,000 messages every 20 ms for a while."""

    outputs = ["n"]

    def open(self, config, context, collector):
        self.collector, self.n, self.end = collector, 0, time.monotonic() + SECS

    def next_tuple(self):
        if time.monotonic() > self.end:
            raise EndOfStream
        ids = np.arange(self.n, self.n + 1000)
        self.collector.emit_batch(pa.record_batch({"n": ids}), message_ids=ids)
        self.n += 1000
        time.sleep(0.02)


class Ends(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


def test_a_share_is_lowered_and_each_trace_is_whole(spark: SparkSession, tmp_path: Path) -> None:
    builder = TopologyBuilder("burst")
    builder.set_spout("burst", Burst())
    builder.set_bolt("ends", Ends()).shuffle_grouping("burst")
    config = Config(trace_sample_rate=RATE)
    with submit(builder.create_topology(), checkpoint=tmp_path, spark=spark, config=config) as running:
        assert running.await_termination(timeout_secs=120)
        assert running.traces.rate < RATE
        emitted = running.stats()["burst"].total.emitted
        assert running._run.traces.settle()
        stored = running._run.traces.store.select("SELECT verdict, message_id, tuples FROM messages")
    assert {(row["verdict"], row["tuples"]) for row in stored} == {("ACKED", 2)}
    assert all(row["message_id"] is not None for row in stored)
    assert 0 < len(stored) < 0.9 * RATE * emitted
