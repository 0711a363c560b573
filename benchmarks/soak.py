"""Half an hour under faults: does memory, the checkpoint or the number of open messages grow?

    python -m benchmarks soak --minutes 30 --keep

Two spouts emit at a steady rate: one whose queue redelivers open messages, and one whose messages only
acktree has. Bolts raise now and then, forget tuples (which time out), hold them over micro-batches, and
remember a thousand keys. Some messages are poison and become dead letters, which are purged as an operator
would. Meanwhile workers are killed and processes stopped for a moment. One line of JSON, with about a hundred
samples and the spouts' own account of every message: a message that is open at the end, or has two verdicts,
is an error. Each sample has the latency of the verdicts since the one before, too.

Real time, each topology in a process of its own, without faults:

    for bolts in all joined counted; do
        python -m benchmarks soak --real-time --bolts $bolts --minutes 120 --fault-secs 0 --keep
    done
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Self

from acktree import BasicBolt, Bolt, Config, KeyValueState, Retry, Spout, Topology, TopologyBuilder, submit
from acktree.bolt import BasicOutputCollector, OutputCollector
from acktree.core.data.context import TaskContext
from acktree.core.data.tuples import Tuple
from acktree.core.tracking.verdicts import Failure
from acktree.spout import MessageId, SpoutOutputCollector
from benchmarks import machine
from benchmarks.report import Report, add_keep_argument, print_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree.driver.handle import SubmittedTopology

CONFIG: Final = Config(message_timeout_secs=20, max_spout_pending=2000, partitions=2)
BOLTS: Final = ("all", "joined", "counted")
"""The topologies: with bolts that hold and that count, or with one of the two."""
POINTS: Final = 100
"""The number of samples that are kept."""
_COLLECTIONS: Final = 6
"""The time between two full collections of the JVM."""
_KEYS, _LANES, _JOINED = 1000, 16, 3
_POISON, _FLAKY, _FORGOTTEN = 5000, 200, 1000
"""One message in this number is poison."""
_MB: Final = 1e6


@dataclass
class Book:
    """One spout's account, kept by its thread: open messages, and those with a final verdict.

    Attributes:
        open: When each was emitted, by the machine's stopwatch.
        latencies: Seconds until the verdict, of each message that has one.
    """

    emitted: int = 0
    acked: int = 0
    dead: int = 0
    open: dict[MessageId, float] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)

    def end(self, message_id: MessageId) -> None:
        """Note the final verdict of a message."""
        since = self.open.pop(message_id, None)
        if since is None:
            self.breaches.append(f"{message_id} has a verdict and is not open")
        else:
            self.latencies.append(time.monotonic() - since)


BOOKS: Final[dict[str, Book]] = {}
"""The accounts by spout. Spouts run in this process, as deep copies."""


class Steady(Spout):
    """Emits numbers at a rate, until it is ended."""

    outputs = ["n", "payload"]

    def __init__(self, rate: float, *, redelivers: bool) -> None:
        self.rate, self.redelivers = rate, redelivers

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.book = collector, BOOKS.setdefault(context.component_id, Book())
        self.owed, self.at = 0.0, time.monotonic()

    def next_tuple(self) -> None:
        now = time.monotonic()
        self.owed, self.at = min(self.owed + (now - self.at) * self.rate, self.rate), now
        while self.owed >= 1:
            self.owed -= 1
            self.book.emitted += 1
            self.book.open[self.book.emitted] = now
            self.collector.emit([self.book.emitted, "x" * 200], message_id=self.book.emitted)

    def ack(self, message_id: MessageId) -> None:
        self.book.acked += 1
        self.book.end(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self.book.dead += 1
        self.book.end(message_id)


class Work(BasicBolt):
    """Emits two tuples for each message; raises on some at their first attempt, on some always."""

    outputs = ["n", "part", "attempt"]

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number = tup["n"]
        if number % _POISON == 0 or (number % _FLAKY == 0 and tup.attempt == 1):
            raise ValueError(f"{number} at attempt {tup.attempt}")
        for part in range(2):
            collector.emit([number, part, tup.attempt])


class Hold(Bolt):
    """Holds tuples until it has three of a lane or a second has passed; forgets some first attempts."""

    outputs = ["n"]
    remembers = ["held"]
    tick_secs = 1

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self.collector = collector
        self.held: dict[int, list[Tuple]] = {}

    def execute(self, tup: Tuple) -> None:
        if tup["n"] % _FORGOTTEN == 1 and tup["attempt"] == 1:
            return
        lane = tup["n"] % _LANES
        self.held.setdefault(lane, []).append(tup)
        if len(self.held[lane]) == _JOINED:
            self._join(lane)

    def tick(self, tup: Tuple) -> None:
        for lane in list(self.held):
            self._join(lane)

    def _join(self, lane: int) -> None:
        held = self.held.pop(lane)
        self.collector.emit([held[0]["n"]], anchors=held)
        for tup in held:
            self.collector.ack(tup)


class Count(BasicBolt):
    """Counts under a thousand keys."""

    outputs = []
    remembers = ["counts"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts: KeyValueState[int, int] = KeyValueState()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        key = tup["n"] % _KEYS
        self.counts[key] = self.counts.get(key, 0) + 1


def topology_of(rate: float, bolts: str = "all") -> Topology:
    """Both kinds of spout, each with half of the rate.

    Args:
        bolts: What is behind the first bolt: a member of :data:`BOLTS`.
    """
    builder = TopologyBuilder("soak")
    retry = Retry(max_attempts=3, backoff_secs=(0.2, 2))
    for name, redelivers in (("queue", True), ("positions", False)):
        builder.set_spout(name, Steady(rate / 2, redelivers=redelivers), retry=retry)
    builder.set_bolt("work", Work(), 2).shuffle_grouping("queue").shuffle_grouping("positions")
    if bolts != "counted":
        builder.set_bolt("hold", Hold(), 2).fields_grouping("work", ["n"])
    if bolts != "joined":
        builder.set_bolt("count", Count(), 2).fields_grouping("work" if bolts == "counted" else "hold", ["n"])
    return builder.create_topology()


class Faults:
    """Kills workers and stops processes, on a thread of its own; none with an average of 0 seconds."""

    def __init__(self, every_secs: float, seed: int) -> None:
        self.at_secs: list[float] = []
        self.killed = self.stopped = 0
        self._every_secs, self._chance = every_secs, random.Random(seed)  # noqa: S311  # not for secrets
        self._over, self._began = Event(), time.monotonic()
        self._thread = Thread(target=self._run, name="faults", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while self._every_secs and not self._over.wait(self._chance.expovariate(1 / self._every_secs)):
            by_role = machine.processes_by_role()
            with suppress(ProcessLookupError):  # it ended by itself
                if self._chance.random() < 0.8 and by_role["workers"]:  # noqa: PLR2004  # of five faults four kill
                    os.kill(self._chance.choice(by_role["workers"]), signal.SIGKILL)
                    self.killed += 1
                else:
                    self._stop(self._chance.choice([*by_role["jvm"], *by_role["workers"]]))
                self.at_secs.append(round(time.monotonic() - self._began, 1))

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            self._over.wait(self._chance.uniform(0.5, 3))
        finally:
            os.kill(pid, signal.SIGCONT)
        self.stopped += 1


def measure(
    rate: float,
    minutes: float,
    fault_secs: float,
    seed: int,
    sample_secs: float,
    session: SparkSession | None = None,
    *,
    bolts: str = "all",
    real_time: bool = False,
) -> dict[str, Any]:
    """Run, and return the samples and their growth.

    Args:
        fault_secs: The average time between two faults.
        sample_secs: The time between two samples.
        bolts: As :func:`topology_of` takes it.
        real_time: By epochs.
    """
    variant: dict[str, Any] = {"rate": rate, "minutes": minutes, "fault_secs": fault_secs, "seed": seed}
    if real_time or bolts != "all":
        variant |= {"bolts": bolts, "real_time": real_time}
    report = Report("soak", variant)
    config = replace(CONFIG, real_time=real_time)
    BOOKS.clear()
    with tempfile.TemporaryDirectory(prefix="acktree-soak-") as name:
        folder = Path(name)
        with submit(
            topology_of(rate, bolts), checkpoint=folder / "checkpoint", config=config, spark=session
        ) as running:
            while not (running.is_warm and len(BOOKS) == 2):  # noqa: PLR2004  # both spouts are open
                assert not running.await_termination(0.1), "it runs until it is killed"
            began = time.monotonic()
            with Faults(fault_secs, seed) as faults:
                samples, live = _sample(running, folder / "checkpoint", began, minutes * 60, sample_secs)
            running.deactivate()
            is_idle = running.await_idle(timeout_secs=10 * CONFIG.message_timeout_secs)
            samples.append(_look(folder / "checkpoint", time.monotonic() - began))
    return report.line(
        {
            "account": {
                name: {"emitted": book.emitted, "acked": book.acked, "dead": book.dead,
                       "open": len(book.open), "breaches": book.breaches[:5]}
                for name, book in sorted(BOOKS.items())
            },
            "idle_at_the_end": is_idle,
            "workers_killed": faults.killed,
            "processes_stopped": faults.stopped,
            "growth": growth(samples),
            "jvm_live": live,
            "faults_at_secs": faults.at_secs,
            "samples": thinned(samples, POINTS),
        }
    )  # fmt: skip


def _sample(
    running: SubmittedTopology, checkpoint: Path, began: float, secs: float, every_secs: float
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Take samples, and now and then the size of the JVM's live objects."""
    samples: list[dict[str, float]] = []
    live: list[dict[str, float]] = []
    while (at := time.monotonic() - began) < secs:
        samples.append(_look(checkpoint, at))
        if at >= secs * (1 + len(live)) / _COLLECTIONS:
            live.append({"secs": round(at, 1), "mb": _live_mb()})
        for letter in list(running.dead_letters):
            # a separate call for each, as an operator would make
            running.dead_letters.purge(ids=[letter.id or 0])
        if running.await_termination(every_secs):
            break
    return samples, live


def _look(checkpoint: Path, at_secs: float) -> dict[str, float]:
    by_role = machine.processes_by_role()
    sizes = [size for size in map(_size_of, checkpoint.rglob("*")) if size is not None]
    late = sorted(secs for book in BOOKS.values() for secs in _taken(book))
    return {
        "secs": round(at_secs, 1),
        **{f"{role}_mb": round(sum(map(machine.pss_mb, pids)), 1) for role, pids in by_role.items()},
        **_inside_java(),
        "workers": len(by_role["workers"]),
        "checkpoint_mb": round(sum(sizes) / _MB, 2),
        "checkpoint_files": len(sizes),
        "open": sum(len(book.open) for book in BOOKS.values()),
        "acked": sum(book.acked for book in BOOKS.values()),
        "p50_ms": round(1e3 * late[len(late) // 2]) if late else 0,
        "p99_ms": round(1e3 * late[len(late) * 99 // 100]) if late else 0,
    }


def _taken(book: Book) -> list[float]:
    """The latencies since the last call. The spout's thread may add others meanwhile."""
    taken, book.latencies = book.latencies, []
    return taken


def _inside_java() -> dict[str, float]:
    """The memory in use in the JVM."""
    memory = _java().java.lang.management.ManagementFactory.getMemoryMXBean()
    heap, beside = memory.getHeapMemoryUsage().getUsed(), memory.getNonHeapMemoryUsage().getUsed()
    return {"jvm_heap_mb": round(heap / _MB, 1), "jvm_beside_heap_mb": round(beside / _MB, 1)}


def _live_mb() -> float:
    """The JVM's heap in use after a full collection."""
    _java().System.gc()
    used: int = (
        _java().java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    )
    return round(used / _MB, 1)


def _java() -> Any:  # noqa: ANN401  # py4j has no types
    from pyspark import SparkContext  # noqa: PLC0415  # so that --help does not wait for it

    return SparkContext._jvm  # noqa: SLF001  # the only way to its beans


def _size_of(file: Path) -> int | None:
    with suppress(OSError):  # it has ended meanwhile
        return file.stat().st_size if file.is_file() else None
    return None


def thinned(samples: Sequence[Mapping[str, float]], points: int) -> list[dict[str, float]]:
    """The maximum of each group of neighbouring samples, for at most this number of groups: keeps peaks.

    >>> thinned([{"secs": 0, "open": 5}, {"secs": 1, "open": 9}, {"secs": 2, "open": 1}], 2)
    [{'secs': 0, 'open': 5}, {'secs': 2, 'open': 9}]
    """
    groups = min(points, len(samples))
    cuts = [len(samples) * at // groups for at in range(groups + 1)]
    return [
        {key: max(sample[key] for sample in samples[low:high]) for key in samples[low]}
        for low, high in pairwise(cuts)
    ]


def growth(samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The medians of each number: after a third of the time, after two thirds, and in the end.

    >>> growth([{"secs": n, "open": n} for n in range(60)])["open"]
    {'after_a_third': 24.5, 'after_two_thirds': 44.5, 'in_the_end': 54.5}
    """
    count = len(samples)
    parts = {
        "after_a_third": samples[count // 3 : count // 2],
        "after_two_thirds": samples[count * 2 // 3 : count * 5 // 6],
        "in_the_end": samples[count * 5 // 6 :],
    }
    keys = [key for key in samples[0] if key not in ("secs", "acked")]
    return {
        key: {name: median(sample[key] for sample in part) for name, part in parts.items() if part}
        for key in keys
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, run, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rate", type=float, default=400.0, help="messages a second")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--fault-secs", type=float, default=20.0, help="the average seconds between two faults; 0 for none"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--sample-secs", type=float, default=5.0)
    parser.add_argument("--bolts", choices=BOLTS, default="all")
    parser.add_argument("--real-time", action="store_true", help="by epochs")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    found = measure(
        args.rate, args.minutes, args.fault_secs, args.seed, args.sample_secs,
        bolts=args.bolts, real_time=args.real_time,
    )  # fmt: skip
    print_line(found, keep=args.keep)
    if any(book["open"] or book["breaches"] for book in found["account"].values()):
        raise SystemExit(1)
