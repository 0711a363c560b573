"""The word count in plain PySpark: a streaming query over files, nothing per message.

    python -m benchmarks peers.spark_sql --split native    # explode(split(...)), all in the JVM
    python -m benchmarks peers.spark_sql --split combined  # split and counted by Arrow batch, in mapInArrow
    python -m benchmarks peers.spark_sql --split naive     # split in mapInArrow, every word back to the JVM

Parquet files of sentences, ``groupBy(word)`` and a count or a sum in update mode, and a sink that takes all
and keeps nothing. What it promises is Spark's own checkpoint of each micro-batch. A root is a sentence whose
micro-batch is committed; its words are counted by Spark, and the sum is checked. One line of JSON.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import machine
from benchmarks.report import Report, add_keep_argument, print_line, throughput
from benchmarks.sessions import plain_session, session_on, tuned_session
from benchmarks.word_count import add_time_arguments, phases_ms
from benchmarks.work import VOCABULARY, WORDS, sentences

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILES_A_BATCH = 2
_AHEAD = 8
_POLL_SECS = 0.2
"""How often Spark is asked how far it is. It takes 10 to 15 % of the cores to ask every 2 ms."""
_COLUMNS = ["word", "count"]


def split_naively(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each word is a row of its own, six for a sentence."""
    for batch in batches:
        words = pc.list_flatten(pc.split_pattern(batch["sentence"], " "))
        yield pa.RecordBatch.from_arrays(
            [words, pa.repeat(pa.scalar(1, pa.int64()), len(words))], names=_COLUMNS
        )


def split_and_count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each word that is in a batch is one row, as acktree's Arrow bolts count."""
    for batch in batches:
        words = pc.list_flatten(pc.split_pattern(batch["sentence"], " "))
        counted = pc.value_counts(words)
        yield pa.RecordBatch.from_arrays([counted.field("values"), counted.field("counts")], names=_COLUMNS)


class Feed:
    """A folder that always has the files of the next few micro-batches; links, so they cost nothing."""

    def __init__(self, folder: Path, rows_a_batch: int, words: int) -> None:
        """Write the files that the links lead to."""
        self.folder, self._next = folder / "in", 0
        self._files = [folder / f"{number}.parquet" for number in range(FILES_A_BATCH)]
        self.folder.mkdir()
        for seed, file in enumerate(self._files):
            lines = pa.array(sentences(rows_a_batch // FILES_A_BATCH, seed, words), pa.string())
            pq.write_table(pa.table({"sentence": lines}), file)

    def keep_ahead_of(self, batch_id: int) -> None:
        """Link files for the next micro-batches, and delete those of earlier ones."""
        while self._next < (batch_id + _AHEAD) * FILES_A_BATCH:
            os.link(self._files[self._next % FILES_A_BATCH], self._name(self._next))
            self._next += 1
        for number in range(FILES_A_BATCH):
            with suppress(FileNotFoundError):
                self._name((batch_id - _AHEAD) * FILES_A_BATCH + number).unlink()

    def _name(self, number: int) -> Path:
        return self.folder / f"{number:07}.parquet"


_SESSIONS: Mapping[str, Callable[[str], SparkSession]] = {
    "tuned": tuned_session,
    "plain": plain_session,
    "ours": session_on,
}
"""As fast as Spark gets; as Spark ships it; what acktree's own session has."""


def query(session: SparkSession, split: str, feed: Feed, checkpoint: Path) -> StreamingQuery:
    """The streaming query, started."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the usual name

    source = session.readStream.schema("sentence string").option("maxFilesPerTrigger", FILES_A_BATCH)
    lines: DataFrame = source.parquet(str(feed.folder))
    if split == "native":
        counts = lines.select(F.explode(F.split("sentence", " ")).alias("word")).groupBy("word").count()
    else:
        split_them = split_and_count if split == "combined" else split_naively
        words = lines.mapInArrow(split_them, "word string, count long")
        counts = words.groupBy("word").agg(F.sum("count").alias("count"))
    counted = counts.observe("counted", F.sum("count").alias("words"))
    sink = counted.writeStream.queryName("word-count").outputMode("update").format("noop")
    return sink.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()


def measure(variant: dict[str, Any], warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run one word count and say how fast it was.

    Args:
        variant: ``split``, ``settings``, ``cores``, ``rows_per_batch``, ``words``.
    """
    report = Report("word_count", {"peer": "spark", **variant})
    session = _SESSIONS[variant["settings"]](f"local[{variant['cores']}]")
    session.conf.set("spark.sql.shuffle.partitions", str(variant["cores"]))
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        feed = Feed(Path(name), variant["rows_per_batch"], variant["words"])
        feed.keep_ahead_of(0)
        running = query(session, variant["split"], feed, Path(name) / "checkpoint")
        try:
            _watch(running, feed, 0.0)
            first, _ = _watch(running, feed, warm_up_secs)
            clock, started = machine.Clock(), time.perf_counter()
            last, words = _watch(running, feed, secs)
            cost, took, phases = clock.cost(), time.perf_counter() - started, phases_ms("word-count")
        finally:
            running.stop()
    assert words == (last + 1) * variant["rows_per_batch"] * WORDS, f"{words} words after batch {last}"
    roots = (last - first) * variant["rows_per_batch"]
    found = {"micro_batches": last - first, "micro_batch_ms": phases["triggerExecution"], "batch_ms": phases}
    return report.line(throughput(roots, took, cost) | found)


def _watch(running: StreamingQuery, feed: Feed, secs: float) -> tuple[int, int]:
    """Wait until a micro-batch ends after this time. Returns its number, and all words counted so far."""
    before = running.lastProgress
    end = time.perf_counter() + secs
    while True:
        progress = running.lastProgress
        if progress is not None and progress["numInputRows"]:
            feed.keep_ahead_of(progress["batchId"])
            if time.perf_counter() >= end and (before is None or progress["batchId"] > before["batchId"]):
                return progress["batchId"], progress["observedMetrics"]["counted"]["words"]
            if time.perf_counter() < end:
                before = progress
        if (failed := running.exception()) is not None:
            raise failed
        time.sleep(_POLL_SECS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers.spark_sql",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--split", choices=["native", "combined", "naive"], default="native")
    parser.add_argument("--settings", choices=list(_SESSIONS), default="tuned", help="of the session")
    parser.add_argument("--words", type=int, default=VOCABULARY, help="different words")
    parser.add_argument("--cores", type=int, default=2, help="pins the run to this number of cores")
    parser.add_argument("--rows-per-batch", type=int, default=4_000_000)
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    names = ("split", "settings", "cores", "rows_per_batch", "words")
    variant = {name: getattr(args, name) for name in names}
    print_line(measure(variant, args.warm_up, args.secs), keep=args.keep)
