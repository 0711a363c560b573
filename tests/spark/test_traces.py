"""Spark records the trees that a tracker of objects builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from acktree import Config, submit
from acktree.traces.spans import span_id_of
from acktree.traces.traces import Traces
from tests.generated import at_random
from tests.generated.running import batches, build, feed
from tests.generated.trees import differences
from tests.unit.traces.collector import Collector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = Config(message_timeout_secs=8, partitions=2, trace_sample_rate=0)


def test_from_the_order_on_every_tree_of_a_drawn_topology_is_recorded_and_exported(
    spark: SparkSession, tmp_path: Path
) -> None:
    drawn = at_random.topology(3, largest=600)
    topology, spouts = build(drawn)
    with Collector() as collector:
        config = replace(CONFIG, otlp_endpoint=collector.url)
        with submit(topology, checkpoint=tmp_path / "cp", spark=spark, config=config) as running:
            running.traces.rate = 1
            for batch in batches(drawn):
                feed(drawn, spouts, batch)
            for spout in spouts.values():
                spout.end()
            assert running.await_termination(timeout_secs=180), running.stats().table()
            assert not differences(drawn, running.traces)
            judged = [each for each in running.traces.find(limit=1000) if each.verdict is not None]
        roots = {span_id_of(each.root) for each in judged}
        exported = {
            int(span.span_id.hex(), 16) for span in collector.spans if span.kind == Span.SPAN_KIND_CONSUMER
        }
        assert roots
        assert exported == roots
    assert not differences(drawn, Traces.of_checkpoint(tmp_path / "cp"))
