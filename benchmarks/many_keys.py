"""A bolt that remembers very many keys: what a micro-batch costs that touches few of them, and bytes a key.

    python -m benchmarks many_keys                                  # the state alone, in this process
    python -m benchmarks many_keys --spark --keys 10000000          # the topology, on Spark

Keys are texts of 12 letters, values are counts. The state is filled first, a million keys in a micro-batch.
Then each micro-batch reads it anew, as a worker does, adds one to ``touched`` keys drawn at random and saves.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import time
from collections.abc import Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acktree import ArrowBolt, ColumnState, KeyValueState, Spout, TopologyBuilder
from acktree.bolt import ArrowOutputCollector
from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.state.store import MemoryStore
from acktree.spout import SpoutOutputCollector
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import in_a_fresh_checkpoint

KEYS: Final = (10_000, 100_000, 1_000_000, 10_000_000)
TOUCHED: Final = (100, 1_000, 10_000, 100_000)
AT_ONCE: Final = 1_000_000
"""Keys in a micro-batch of the filling."""
_SPARK_BATCH: Final = 100_000


class Counted(MemoryStore):
    """Blobs in memory, and the calls and bytes that went to and fro."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def get(self, name: str) -> bytes | None:
        return self._count(super().get(name))

    def put(self, name: str, blob: bytes) -> None:
        super().put(name, blob)
        self._count(blob)

    def _count(self, blob: bytes | None) -> bytes | None:
        self.calls += 1
        self.bytes += len(blob or b"")
        return blob


def texts(numbers: Any) -> pa.Array:  # noqa: ANN401  # integers, in a sequence or an array
    """The keys of these numbers."""
    return pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), 12, "k")


def count_in(state: ColumnState[str] | KeyValueState[str, int], keys: pa.Array) -> None:
    """Add one to each of some different keys."""
    if isinstance(state, ColumnState):
        state.add_many(keys)
        return
    listed = keys.to_pylist()
    state.update_many(listed, map(add, state.get_many(listed, 0), [1] * len(listed)))


def new_state(memory: str) -> ColumnState[str] | KeyValueState[str, int]:
    """``columns`` or ``key-value``."""
    return ColumnState(str, int) if memory == "columns" else KeyValueState()


def micro_batch(memory: str, store: MemoryStore, keys: pa.Array) -> float:
    """What a task does with its state in a micro-batch; how many ms of CPU it took."""
    started = time.process_time()
    state = new_state(memory)
    state.bind(store, pickle.dumps, pickle.loads)
    count_in(state, keys)
    state.save()
    return (time.process_time() - started) * 1000


def drawn(count: int, of: int, rounds: int) -> Iterator[pa.Array]:
    """For each round, keys drawn at random, each once."""
    chance = np.random.default_rng(7)
    for _ in range(rounds):
        yield texts(chance.choice(of, min(count, of), replace=False))


def measure(memory: str, keys: int, touched: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Fill a state, then touch few keys of it at a time; a point for each number of touched keys."""
    store = Counted()
    fill_ms = sum(
        micro_batch(memory, store, texts(np.arange(first, min(first + AT_ONCE, keys))))
        for first in range(0, keys, AT_ONCE)
    )
    for count in touched:
        store.calls = store.bytes = 0
        took = [micro_batch(memory, store, some) for some in drawn(count, keys, rounds)]
        yield {
            "memory": memory,
            "keys": keys,
            "touched": count,
            "cpu_ms": round(statistics.median(took), 2),
            "calls": store.calls // rounds,
            "moved_bytes": store.bytes // rounds,
            "stored_bytes_per_key": round(sum(map(len, store.blobs.values())) / keys, 2),
            "fill_us_per_key": round(fill_ms * 1000 / keys, 2),
            "resident_mb": _resident_mb(),
        }


def _resident_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


# ---- on Spark ---------------------------------------------------------------------------------------------


class KeySpout(Spout):
    """Emits the keys that it is given, and is notified when all of them were counted."""

    outputs = pa.schema([("key", pa.string())])

    def __init__(self) -> None:
        self.waiting: list[pa.Array] = []
        self.acked = 0

    def __deepcopy__(self, memo: object) -> KeySpout:
        """The spout's task works on this very object."""
        return self

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.position = collector, 0

    def next_tuple(self) -> None:
        if self.waiting:
            keys = self.waiting.pop(0)
            ids = np.arange(self.position, self.position + len(keys))
            self.position += len(keys)
            self.collector.emit_batch(pa.record_batch({"key": keys}), message_ids=ids)

    def ack_batch(self, message_ids: Sequence[object]) -> None:
        self.acked += len(message_ids)


class KeyCount(ArrowBolt):
    """Counts keys."""

    outputs = []
    remembers = ["counts"]

    def __init__(self, memory: str) -> None:
        self.memory = memory

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.counts = new_state(self.memory)

    def execute_batch(self, batch: pa.RecordBatch, collector: ArrowOutputCollector) -> None:
        count_in(self.counts, batch["key"])


def measure_on_spark(memory: str, keys: int, touched: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    """The same through Spark with two tasks: from an ``emit_batch`` to its last ack."""
    spout = KeySpout()
    builder = TopologyBuilder("many-keys")
    builder.set_spout("keys", spout)
    builder.set_bolt("count", KeyCount(memory), parallelism=2).fields_grouping("keys", ["key"])
    with in_a_fresh_checkpoint(builder.create_topology(), Config()) as running:

        def pass_through(batches: list[pa.Array]) -> float:
            """Let these be counted; how many ms that took."""
            wanted, started = spout.acked + sum(map(len, batches)), time.perf_counter()
            spout.waiting += batches
            while spout.acked < wanted:
                if running.await_termination(timeout_secs=0.005):
                    raise RuntimeError("the topology ended by itself")
            return (time.perf_counter() - started) * 1000

        ranges = range(0, keys, _SPARK_BATCH)
        fill_ms = pass_through([texts(np.arange(first, min(first + _SPARK_BATCH, keys))) for first in ranges])
        for count in touched:
            took = [pass_through([some]) for some in drawn(count, keys, rounds)]
            yield {
                "memory": memory,
                "keys": keys,
                "touched": count,
                "ms": round(statistics.median(took), 1),
                "fill_us_per_key": round(fill_ms * 1000 / keys, 2),
            }


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks many_keys",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, nargs="+", default=list(KEYS), help="keys that are remembered")
    parser.add_argument(
        "--touched", type=int, nargs="+", default=list(TOUCHED), help="of them in a micro-batch"
    )
    parser.add_argument("--memory", choices=("columns", "key-value"), default="columns")
    parser.add_argument(
        "--spark", action="store_true", help="a topology on Spark, instead of the state alone"
    )
    parser.add_argument("--rounds", type=int, default=5, help="micro-batches of each kind")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    run = measure_on_spark if args.spark else measure
    for keys in args.keys:
        variant = {"memory": args.memory, "keys": keys, "rounds": args.rounds, "spark": args.spark}
        report = Report("many_keys", variant)
        points = list(run(args.memory, keys, args.touched, args.rounds))
        print_line(report.line({"points": points}), keep=args.keep)
