"""Complete latency: from the moment a sentence was due to the call of its spout's ``ack``.

    python -m benchmarks latency --bolts arrow                        # measures the top rate, then half of it
    python -m benchmarks latency --shares 0.1 0.5 0.8 --memory none   # several shares, count without a state
    python -m benchmarks latency --bolts basic --rate 20000           # at a given rate
    python -m benchmarks latency --alone                              # one sentence at a time

The spout emits at a fixed rate, independent of verdicts. A sentence's latency begins when it was *due*, not
when it was emitted, so a delayed spout does not improve the result. ``--alone``: a sentence is emitted when
the one before it was acked, so every micro-batch has one sentence: the latency of an idle topology. One line
of JSON for each thing measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from acktree import Spout
from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.spout import SpoutOutputCollector
from benchmarks import machine
from benchmarks.report import Report, add_keep_argument, print_line, quantiles_ms, throughput
from benchmarks.sessions import HERE, Place
from benchmarks.word_count import (
    add_time_arguments,
    add_variant_arguments,
    in_a_fresh_checkpoint,
    phases_ms,
    variant_of,
)
from benchmarks.word_count import measure as measure_rate
from benchmarks.work import Variant, sentences

POLL_SECS = 0.001
"""The spout emits when this much is due: in a tight loop it would take the workers' core."""


class Waits:
    """How long each message took, in seconds, in the order in which they were acked."""

    def __init__(self) -> None:
        self.secs: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []

    def __deepcopy__(self, memo: Mapping[int, object]) -> Waits:
        """The spout's task works on a copy of the spout, and on this very list."""
        return self


class SteadySpout(Spout):
    """Emits sentences at a rate, the first at once. The message id, its position, says when it was due."""

    outputs = pa.schema([("sentence", pa.string())])

    def __init__(self, waits: Waits, rate: float) -> None:
        self.waits, self.rate = waits, rate
        self.sentences = pa.record_batch({"sentence": pa.array(sentences(100_000, seed=1), pa.string())})

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.emitted, self.started = collector, 0, perf_counter()

    def next_tuple(self) -> None:
        due = int((perf_counter() - self.started) * self.rate) + 1 - self.emitted
        if due < self.rate * POLL_SECS:
            return  # like a poll of a queue or log that has almost nothing yet
        first = self.emitted % self.sentences.num_rows
        count = min(due, self.sentences.num_rows - first)
        if count > 0:
            ids = np.arange(self.emitted, self.emitted + count)
            self.collector.emit_batch(self.sentences.slice(first, count), message_ids=ids)
            self.emitted += count

    def ack_batch(self, message_ids: Sequence[object]) -> None:
        due = self.started + np.array(message_ids, dtype=np.float64) / self.rate
        self.waits.secs.append(perf_counter() - due)


class LoneSpout(Spout):
    """Emits a sentence when the one before it was acked."""

    outputs = ["sentence"]

    def __init__(self, waits: Waits) -> None:
        self.waits, self.sentences = waits, sentences(1000, seed=1)

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.emitted, self.acked = collector, 0, 0

    def next_tuple(self) -> None:
        if self.emitted == self.acked:
            self.due = perf_counter()
            self.collector.emit([self.sentences[self.emitted % 1000]], message_id=self.emitted)
            self.emitted += 1

    def ack(self, message_id: object) -> None:
        self.acked += 1
        self.waits.secs.append(np.array([perf_counter() - self.due]))


def measure(
    variant: Variant,
    rate: float | None,
    warm_up_secs: float,
    secs: float,
    place: Place = HERE,
) -> dict[str, Any]:
    """Run at a rate. Returns the quantiles of complete latency, in milliseconds.

    Args:
        rate: Sentences a second; None for one at a time.
    """
    report, waits = Report("latency", asdict(variant)), Waits()
    topology = variant.topology_of(LoneSpout(waits) if rate is None else SteadySpout(waits, rate))
    with in_a_fresh_checkpoint(topology, variant.config, place) as running:
        while not waits.secs:  # the first micro-batches compile for seconds
            if running.await_termination(timeout_secs=0.05):
                raise RuntimeError("the topology ended by itself")
        time.sleep(warm_up_secs)
        clock, before, started = machine.Clock(), len(waits.secs), perf_counter()
        time.sleep(secs)
        while len(waits.secs) == before:  # on a busy machine: at least one micro-batch
            time.sleep(0.05)
        cost, phases = clock.cost(), phases_ms(running.name)
        waits_ms, took = np.concatenate(waits.secs[before:]) * 1000, perf_counter() - started
    found = throughput(len(waits_ms), took, cost) | quantiles_ms(waits_ms)
    return report.line(
        {
            "offered_per_sec": None if rate is None else round(rate),
            **found,
            "cores_used": round(cost.ours / took, 2),
            "micro_batch_ms": phases.get("triggerExecution"),
            "batch_ms": phases,
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON for each thing measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--rate", type=float, help="sentences a second; else shares of the top rate, measured")
    load.add_argument("--alone", action="store_true", help="one sentence at a time")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5], help="which shares of the top rate")
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    variant = variant_of(args)
    if not variant.tracked:
        parser.error("untracked messages have no verdict, and so no complete latency")
    rates: list[float | None] = [None] if args.alone else [args.rate]
    if args.rate is None and not args.alone:
        top = measure_rate(variant, args.warm_up, args.secs)
        print_line(top, keep=args.keep)
        rates = [top["roots_per_sec"] * share for share in args.shares]
    for rate in rates:
        print_line(measure(variant, rate, args.warm_up, args.secs), keep=args.keep)
