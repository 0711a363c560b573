"""Complete latency: from the moment a sentence was due to the moment its spout is told that it is acked.

    python -m benchmarks latency --bolts arrow                 # measures the top rate first, then half of it
    python -m benchmarks latency --bolts basic --rate 20000    # at a given rate

The spout emits at a fixed rate, whatever comes back. A sentence's time begins when it was *due*, not when it
was emitted: a spout that is held up does not flatter the figure. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from acktree import Spout
from acktree.config import Config
from acktree.core.context import TaskContext
from acktree.spout import SpoutOutputCollector
from benchmarks import machine
from benchmarks.word_count import add_variant_arguments, in_a_fresh_checkpoint, phases_ms, variant_of
from benchmarks.word_count import measure as measure_rate
from benchmarks.work import Variant, sentences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Waits:
    """How long each message took, in seconds, in the order in which they were acked."""

    def __init__(self) -> None:
        self.secs: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []

    def __deepcopy__(self, memo: Mapping[int, object]) -> Waits:
        """The spout's task works on a copy of the spout, and on this very list."""
        return self


class SteadySpout(Spout):
    """Emits so many sentences a second; the message id is the place, so it says when it was due."""

    outputs = pa.schema([("sentence", pa.string())])

    def __init__(self, waits: Waits, rate: float) -> None:
        self.waits, self.rate = waits, rate
        self.sentences = pa.record_batch({"sentence": pa.array(sentences(100_000, seed=1), pa.string())})

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.emitted, self.started = collector, 0, perf_counter()

    def next_tuple(self) -> None:
        due = int((perf_counter() - self.started) * self.rate) - self.emitted
        first = self.emitted % self.sentences.num_rows
        count = min(due, self.sentences.num_rows - first)
        if count > 0:
            ids = np.arange(self.emitted, self.emitted + count)
            self.collector.emit_batch(self.sentences.slice(first, count), message_ids=ids)
            self.emitted += count

    def ack_batch(self, message_ids: Sequence[object]) -> None:
        due = self.started + np.array(message_ids, dtype=np.float64) / self.rate
        self.waits.secs.append(perf_counter() - due)


def measure(
    variant: Variant, rate: float, warm_up_secs: float, secs: float, session: SparkSession | None = None
) -> dict[str, Any]:
    """Run at a rate and say what the quantiles of complete latency are, in milliseconds."""
    waits, load_before = Waits(), machine.load()
    topology = variant.topology_of(SteadySpout(waits, rate))
    with in_a_fresh_checkpoint(topology, variant.config, session) as running:
        while not waits.secs:  # the first micro-batches compile for seconds
            if running.await_termination(timeout_secs=0.05):
                raise RuntimeError("the topology ended by itself")
        time.sleep(warm_up_secs)
        clock, before = machine.Clock(), len(waits.secs)
        time.sleep(secs)
        while len(waits.secs) == before:  # a busy machine: one micro-batch at least
            time.sleep(0.05)
        cost, phases = clock.cost(), phases_ms(running.name)
        told = np.concatenate(waits.secs[before:]) * 1000
    p50, p90, p99 = np.percentile(told, [50, 90, 99])
    return {
        "benchmark": "latency",
        "variant": asdict(variant),
        "offered_per_sec": round(rate),
        "acked_per_sec": round(len(told) / secs),
        "p50_ms": round(float(p50), 1),
        "p90_ms": round(float(p90), 1),
        "p99_ms": round(float(p99), 1),
        "max_ms": round(float(told.max()), 1),
        "cores_used": round(cost.ours / secs, 2),
        "others_cores": round(cost.others, 2),
        "batch_ms": phases,
        "load_before": load_before,
        "load_after": machine.load(),
        "machine": machine.facts(),
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON for each thing measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument(
        "--rate", type=float, help="sentences a second; else a share of the top rate, measured"
    )
    parser.add_argument("--share", type=float, default=0.5, help="which share of the top rate")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds left out")
    parser.add_argument("--secs", type=float, default=30.0, help="seconds measured")
    args = parser.parse_args(arguments)
    variant = variant_of(args)
    assert variant.tracked, "untracked messages are never told done: there is no complete latency"
    rate = args.rate
    if rate is None:
        top = measure_rate(variant, args.warm_up, args.secs)
        print(json.dumps(top), flush=True)
        rate = top["roots_per_sec"] * args.share
    print(json.dumps(measure(variant, rate, args.warm_up, args.secs)), flush=True)
