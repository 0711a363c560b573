"""A streaming query with the stages of acktree's word count, without tracking: the cost of Spark itself.

    python -m benchmarks peers.spark_bare --rate 50000                  # mapInArrow, transformWithState
    python -m benchmarks peers.spark_bare --rate 50000 --memory none    # mapInArrow twice
    python -m benchmarks peers.spark_bare --alone                       # one sentence each micro-batch

Sentences become due at a rate, as in ``latency``; a micro-batch takes what is due. The source names ranges of
them; ``mapInArrow`` reads and splits a range and makes one blob of words for each partition; after a shuffle
the words are counted, in a state of one blob or without a state; ``foreachBatch`` takes the output. It has
acktree's session settings, its stages, and the work of its Arrow bolts, written by hand as for a query
without verdicts.

``micro_batch_ms`` is Spark's duration of a micro-batch; ``p50_ms`` is from the moment a sentence was due to
the moment the sink had its micro-batch. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812  # the usual name
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from acktree.spark.query.keys import partition_keys
from acktree.spark.session.settings import start_session
from acktree.spark.worker.process import freeze_imports
from benchmarks import machine
from benchmarks.report import Report, add_keep_argument, print_line, quantiles_ms, throughput
from benchmarks.word_count import add_time_arguments, phases_ms
from benchmarks.work import sentences

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

_SCHEMA: Final = "partition int, first long, words binary"
_KEPT: Final = 100_000
"""The number of sentences in the file that the ranges repeat."""


class Range(InputPartition):
    """Sentences ``first`` to ``end``, for one partition."""

    def __init__(self, partition: int, first: int, end: int) -> None:
        self.partition, self.first, self.end = partition, first, end


class DueReader(DataSourceStreamReader):
    """A source whose offset is the number of due sentences; at rate 0 each call adds one.

    The first micro-batch, which takes seconds, has one; from the second on they become due at the rate.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.rate, self.partitions_count = float(options["rate"]), int(options["partitions"])

    def initialOffset(self) -> dict[str, float]:  # noqa: N802  # Spark's name
        """Before the first."""
        return {"end": 0, "since": 0.0}

    def latestOffset(self, start: dict[str, float], limit: object) -> dict[str, float]:  # noqa: N802
        """All that is due; ``since``: when the second was."""
        if not self.rate or not start["end"]:
            return {"end": int(start["end"]) + 1, "since": 0.0}
        since = start["since"] or time.time()
        return {"end": 1 + int((time.time() - since) * self.rate), "since": since}

    def partitions(self, start: dict[str, float], end: dict[str, float]) -> list[Range]:
        """An equal share for each."""
        cuts = np.linspace(start["end"], end["end"], self.partitions_count + 1).astype(int).tolist()
        return [Range(number, *cuts[number : number + 2]) for number in range(self.partitions_count)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int, bytes]]:
        """Its name; the sentences are read where they are split."""
        assert isinstance(partition, Range), "as partitions() made it"
        yield partition.partition, partition.first, str(partition.end).encode()


class Due(DataSource):
    """The source."""

    @classmethod
    def name(cls) -> str:
        """How a query names it."""
        return "due"

    def schema(self) -> str:
        """As between all stages."""
        return _SCHEMA

    def streamReader(self, schema: object) -> DueReader:  # noqa: N802  # Spark's name
        """Its reader."""
        return DueReader(self.options)


class Split:
    """Reads ranges, splits them, makes a blob of words for each partition."""

    def __init__(self, file: str, partitions: int) -> None:
        self.file, self.partitions = file, partitions

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run once for each partition of a micro-batch."""
        freeze_imports()
        lines = pa.ipc.open_file(pa.memory_map(self.file)).read_all()["sentence"]
        for batch in batches:
            for row in batch.to_pylist():
                yield from self._blobs(lines, row["first"], int(row["words"]))

    def _blobs(self, lines: pa.ChunkedArray, first: int, end: int) -> Iterator[pa.RecordBatch]:
        taken = lines.take(pa.array(np.arange(first, end) % len(lines))).combine_chunks()
        words = pc.list_flatten(pc.split_pattern(taken, " ")).dictionary_encode()
        of_word = np.array([crc32(word.encode()) % self.partitions for word in words.dictionary.to_pylist()])
        targets = of_word[words.indices] if len(words) else np.zeros(0, dtype=np.int64)
        plain = words.dictionary.take(words.indices)
        for target in range(self.partitions):
            blob = _to_bytes(plain.filter(pa.array(targets == target)))
            yield pa.RecordBatch.from_pydict(
                {"partition": pa.array([target], pa.int32()), "first": [first], "words": [blob]}
            )


class Count(StatefulProcessor):
    """Counts words, in a state of one blob for each partition."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare it."""
        self._counts = handle.getValueState("counts", "blob binary")

    def handleInputRows(  # noqa: N802  # Spark's names
        self,
        key: object,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Add what came; pass on nothing."""
        freeze_imports()
        before = self._counts.get()
        counts: dict[str, int] = {} if before is None else pickle.loads(before[0])
        for frame in rows:
            for blob in frame["words"]:
                counted = pc.value_counts(_from_bytes(blob))
                words, more = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
                for word, count in zip(words, more, strict=True):
                    counts[word] = counts.get(word, 0) + count
        self._counts.update((pickle.dumps(counts),))
        yield pd.DataFrame({"partition": [0], "first": [0], "words": [b""]}).astype({"partition": np.int32})

    def close(self) -> None:
        """Do nothing."""


def glance(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts the words of a micro-batch and forgets them."""
    freeze_imports()
    for batch in batches:
        for blob in batch["words"].to_pylist():
            pc.value_counts(_from_bytes(blob))
        yield batch.slice(0, 0)


def _to_bytes(words: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([words], names=["word"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def _from_bytes(blob: bytes) -> pa.Array:
    return pa.ipc.open_stream(blob).read_next_batch()["word"]


def query(session: SparkSession, variant: dict[str, Any], folder: Path, sink: Any) -> StreamingQuery:  # noqa: ANN401
    """The streaming query, started."""
    partitions = variant["cores"]
    session.dataSource.register(Due)
    options = {"rate": variant["rate"] or 0, "partitions": partitions}
    rows: DataFrame = session.readStream.format("due").options(**options).load()
    rows = rows.mapInArrow(Split(str(folder / "sentences.arrow"), partitions), _SCHEMA)
    if variant["memory"] == "none":
        rows = rows.repartitionById(partitions, F.col("partition")).mapInArrow(glance, _SCHEMA)
    else:
        keys = F.array(*(F.lit(key).cast("long") for key in partition_keys(partitions)))
        keyed = rows.withColumn("key", F.element_at(keys, F.col("partition") + 1)).groupBy("key")
        rows = keyed.transformWithStateInPandas(Count(), _SCHEMA, "append", "none")
    writer = rows.writeStream.queryName("bare").foreachBatch(sink)
    checkpoint = (folder / "checkpoint").as_uri()
    return writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()


def measure(variant: dict[str, Any], warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run the query, and measure its micro-batches.

    Args:
        variant: ``rate``, sentences a second or None for one each micro-batch; ``memory``; ``cores``.
    """
    report, ended = Report("bare", {"peer": "spark", **variant}), dict[int, float]()

    def sink(frame: DataFrame, batch_id: int) -> None:
        frame.toArrow()
        ended[batch_id] = time.time()

    session = start_session("bare")
    session.conf.set("spark.sql.shuffle.partitions", str(variant["cores"]))
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        lines = pa.record_batch({"sentence": pa.array(sentences(_KEPT, seed=1), pa.string())})
        with pa.ipc.new_file(folder / "sentences.arrow", lines.schema) as file:
            file.write_batch(lines)
        running = query(session, variant, folder, sink)
        try:
            _await(running, ended, 0)
            time.sleep(warm_up_secs)
            clock, from_batch, began = machine.Clock(), len(ended), time.perf_counter()
            time.sleep(secs)
            _await(running, ended, from_batch + 1)  # on a busy machine: at least two, for one cycle
            cost, took, phases = clock.cost(), time.perf_counter() - began, phases_ms("bare")
            started = {
                progress["batchId"]: progress["sources"][0]
                for progress in running.recentProgress
                if progress["batchId"] in ended and progress["batchId"] >= from_batch
            }
        finally:
            running.stop()
    waits = _waits_ms(variant["rate"], started, ended)
    batches = {
        "micro_batches": len(started),
        "micro_batch_ms": phases["triggerExecution"],
        "batch_ms": phases,
    }
    return report.line(throughput(len(waits), took, cost) | quantiles_ms(waits) | batches)


def _await(running: StreamingQuery, ended: dict[int, float], batches: int) -> None:
    while len(ended) <= batches or running.lastProgress is None:
        if (failed := running.exception()) is not None:
            raise failed
        time.sleep(0.01)


def _waits_ms(
    rate: float | None, started: dict[int, Any], ended: dict[int, float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How long each sentence of these micro-batches took, from when it was due."""
    if rate is None:
        return np.diff(sorted(ended[batch] for batch in started)) * 1000
    waits = []
    for batch, source in started.items():
        first, end = (json.loads(source[name]) for name in ("startOffset", "endOffset"))
        due = end["since"] + (np.arange(first["end"], end["end"]) - 1) / rate
        waits.append(ended[batch] - due)
    return np.concatenate(waits) * 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers.spark_bare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--rate", type=float, help="sentences a second")
    load.add_argument("--alone", action="store_true", help="one sentence each micro-batch")
    parser.add_argument("--memory", choices=["state", "none"], default="state", help="of the count")
    parser.add_argument("--cores", type=int, default=2, help="pins the run to this number of cores")
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    variant = {"rate": args.rate, "memory": args.memory, "cores": args.cores}
    print_line(measure(variant, args.warm_up, args.secs), keep=args.keep)
