"""Verdict latency in real time and with micro-batches, in turn, at a low rate.

    python -m benchmarks real_time --rounds 2 --secs 30
    python -m benchmarks real_time --storm      # and Storm's word count in Java at the same rate

The stateful word count on three levels and two partitions, with the files of a checkpoint. A latency begins
when a sentence was due. Each run has a process of its own, since the two need other sessions of Spark; they
take turns: A B B A, with Storm A B C C B A. One line of JSON for each run, then one with the medians. By
epochs it also says where their time goes, part by part.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from acktree import BasicBolt, Config, KeyValueState, Spout, Topology, TopologyBuilder, bolt, submit
from acktree.bolt import BasicOutputCollector
from acktree.core.data.context import TaskContext
from acktree.core.data.tuples import Tuple
from acktree.spark.realtime.drive import Times
from benchmarks import machine
from benchmarks.latency import SteadySpout, Waits
from benchmarks.report import Report, add_keep_argument, print_line, quantiles_ms

PARTITIONS = 2
_LOOK_SECS = 0.05
_TO_REST_SECS = 10
_BETWEEN_DEATHS_SECS = 3


class Split(BasicBolt):
    """The words of a sentence."""

    outputs = ["word"]

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup["sentence"].split():
            collector.emit([word])


class Count(BasicBolt):
    """Counts words in its memory."""

    outputs = ["word", "count"]
    remembers = ["counts"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts: KeyValueState[str, int] = KeyValueState()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        word = tup["word"]
        self.counts[word] = count = self.counts.get(word, 0) + 1
        collector.emit([word, count])


@bolt()
def show(tup: Tuple) -> None:
    """Take a count: the third level."""


def topology_of(spout: Spout) -> Topology:
    """The word count of a spout: three levels."""
    builder = TopologyBuilder("real-time")
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", Split(), parallelism=PARTITIONS).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), parallelism=PARTITIONS).fields_grouping("split", ["word"])
    builder.set_bolt("show", show, parallelism=PARTITIONS).fields_grouping("count", ["word"])
    return builder.create_topology()


class Acked(SteadySpout):
    """Notes when it is told of verdicts."""

    def __init__(self, waits: Waits, rate: float, moments: list[float]) -> None:
        super().__init__(waits, rate)
        self.moments = moments

    def __deepcopy__(self, memo: Mapping[int, object]) -> Acked:
        """The spout's task works on a copy, and on this very list."""
        return Acked(self.waits, self.rate, self.moments)

    def ack_batch(self, message_ids: Sequence[object]) -> None:
        self.moments.append(perf_counter())
        super().ack_batch(message_ids)


class Trace(logging.Handler):
    """Collects where the time of each epoch went.

    Attributes:
        told: When the spout was told of verdicts.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.epochs: list[Times] = []
        self.told: list[float] = []
        log = logging.getLogger("acktree.epochs")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take an epoch."""
        self.epochs.append(record.times)  # type: ignore[attr-defined]

    def table(self) -> dict[str, dict[str, float]]:
        """The median and the 99th percentile of each part of an epoch, in milliseconds.

        Of the partitions of a level the last one counts: the next level waits for it.
        """
        parts: dict[str, list[float]] = {}
        for each in self.epochs:
            before = each.sent
            parts.setdefault("cut to sent", []).append(each.sent - each.begun)
            for level in sorted({level for level, _ in each.levels}):
                of_level = [moments for place, moments in each.levels.items() if place[0] == level]
                last = max(of_level, key=lambda moments: moments.ran)
                parts.setdefault(f"level {level}: to it", []).append(last.whole - before)
                parts.setdefault(f"level {level}: run", []).append(last.ran - last.whole)
                parts.setdefault(f"level {level}: CPU of that", []).append(last.spent)
                before = last.ran
            parts.setdefault("last report", []).append(each.whole - before)
            parts.setdefault("sink", []).append(each.judged - each.whole)
            parts.setdefault("commit", []).append(each.committed - each.judged)
            parts.setdefault("cut to commit", []).append(each.committed - each.begun)
        commits = np.array([each.committed for each in self.epochs])
        for told in self.told:
            at = int(np.searchsorted(commits, told * 1e9))
            if at:
                parts.setdefault("commit to verdict", []).append(told * 1e9 - commits[at - 1])
        return {
            name: {f"p{q}": round(float(np.percentile(found, q)) / 1e6, 2) for q in (50, 99)}
            for name, found in parts.items()
        }


class Restarts(logging.Handler):
    """Notes when the query was found to have failed, and when it had started again."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: dict[str, float] = {}
        logging.getLogger("acktree").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        if record.msg.startswith("the query of real time"):
            self.moments["noticed" if "failed" in record.msg else "started"] = perf_counter()

    def after_a_death(self, told: Sequence[float]) -> dict[str, float]:
        """Kill a worker; in seconds, when that was noticed, the query had started, and a verdict came."""
        self.moments.clear()
        killed = perf_counter()
        os.kill(machine.processes_by_role()["workers"][-1], signal.SIGKILL)
        while "started" not in self.moments or told[-1] < self.moments["started"]:
            time.sleep(_LOOK_SECS / 10)
        found = {name: round(at - killed, 2) for name, at in self.moments.items()}
        time.sleep(_BETWEEN_DEATHS_SECS)
        return found | {"verdict": round(next(at for at in told if at > self.moments["started"]) - killed, 2)}


def measure(
    rate: float, warm_up_secs: float, secs: float, idle_secs: float = 0.0, deaths: int = 0, *, real_time: bool
) -> dict[str, Any]:
    """Run once. Returns the quantiles of the latency, in milliseconds, and the CPU of all processes.

    Args:
        rate: Sentences a second.
        warm_up_secs: Seconds after the first verdict that are not measured.
        secs: How long to measure.
        idle_secs: How long to measure the CPU of the idle topology after that.
        deaths: How often a worker is killed then, in real time.
        real_time: Whether by epochs.
    """
    waits, report = Waits(), Report("real_time", {"real_time": real_time, "rate": rate})
    config, trace = Config(partitions=PARTITIONS, real_time=real_time), Trace()
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        began = perf_counter()
        topology = topology_of(Acked(waits, rate, trace.told))
        with submit(topology, checkpoint=Path(name) / "checkpoint", config=config) as running:
            while not waits.secs:
                time.sleep(_LOOK_SECS)
            first_secs = perf_counter() - began
            time.sleep(warm_up_secs)
            clock, before = machine.Clock(), len(waits.secs)
            trace.epochs.clear()
            trace.told.clear()
            time.sleep(secs)
            cost, waits_ms = clock.cost(), np.concatenate(waits.secs[before:]) * 1000
            epochs, table = len(trace.epochs), trace.table() if real_time else {}
            restarts = Restarts()
            idle: dict[str, Any] = {"deaths": [restarts.after_a_death(trace.told) for _ in range(deaths)]}
            if idle_secs:
                running.deactivate()
                time.sleep(_TO_REST_SECS)
                clock = machine.Clock()
                time.sleep(idle_secs)
                idle["idle_core_share"] = round(clock.cost().ours / idle_secs, 4)
    found = quantiles_ms(waits_ms) | {"acked": len(waits_ms), "first_ack_secs": round(first_secs, 1)}
    cores = {"cores_used": round(cost.ours / secs, 2), "others_cores": round(cost.others, 2)}
    where = {"epochs": epochs, "where_ms": table} if real_time else {}
    return report.line(found | cores | idle | where)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, and print a line of JSON for each run, and one with the medians."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks real_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rate", type=float, default=50, help="sentences a second (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds (default: %(default)s)")
    parser.add_argument("--secs", type=float, default=30, help="how long to measure (default: %(default)s)")
    parser.add_argument(
        "--idle", type=float, default=0, help="seconds without messages after that (default: none)"
    )
    parser.add_argument("--deaths", type=int, default=0, help="kill a worker so often then (--one epochs)")
    parser.add_argument("--rounds", type=int, default=2, help="pairs of runs (default: %(default)s)")
    parser.add_argument("--one", choices=["epochs", "micro-batches"], help="run once, in this process")
    parser.add_argument("--storm", action="store_true", help="Storm in turn with both; needs Maven")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    if given.one:
        line = measure(
            given.rate, given.warm_up, given.secs, given.idle, given.deaths, real_time=given.one == "epochs"
        )
        print_line(line, keep=given.keep)
        return
    whiches = ["epochs", "micro-batches", *(["storm"] if given.storm else [])]
    found: dict[str, list[dict[str, Any]]] = {which: [] for which in whiches}
    times = [f"--rate={given.rate}", f"--warm-up={given.warm_up}", f"--secs={given.secs}"]
    times += ["--keep"] if given.keep else []
    for number in range(given.rounds):
        for which in whiches if number % 2 == 0 else reversed(whiches):
            ours = ["real_time", "--one", which, f"--idle={given.idle}"]
            name = ["peers.storm_word_count"] if which == "storm" else ours
            command = [sys.executable, "-m", "benchmarks", *name, *times]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
            print(run.stdout.strip(), flush=True)
            found[which].append(json.loads(run.stdout.splitlines()[-1]))
    medians = {
        which: {key: median(line[key] for line in lines) for key in ("p50_ms", "p99_ms")}
        for which, lines in found.items()
    }
    print(json.dumps({"medians": medians}), flush=True)


if __name__ == "__main__":
    main()
