"""The word count in Apache Flink: a mini cluster from Maven Central in one JVM, no network between machines.

    python -m benchmarks peers.flink_word_count                              # Java, the DataStream API
    python -m benchmarks peers.flink_word_count --api sql                    # GROUP BY word, mini-batches
    python -m benchmarks peers.flink_word_count --checkpoint-ms 0 --words 500000

Source and split are chained in one thread, the count is in another; of each as many as cores. Counts are in
keyed state on the heap, and an exactly-once checkpoint goes to files each second. A root is six words that
were counted; of SQL, six words that the aggregation has taken. Flink has no verdict for a message. Needs
Maven and Java 17; the first run fetches and builds. One line of JSON.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import in_java
from benchmarks.report import Report, add_keep_argument, print_line, throughput
from benchmarks.word_count import add_time_arguments
from benchmarks.work import VOCABULARY, save_sentences

SOURCES: Final = Path(__file__).parent / "flink"
_BEST: Final = {
    # Of 0, 10, 100 (Flink's default) and 1,000 ms this takes the least CPU, by at most a tenth: at full
    # speed a buffer is full sooner.
    "buffer_timeout_ms": 1000,
    # A limit that is not reached in a second. 50,000 rows take a quarter more CPU, 5,000 take twice as much.
    "mini_batch_rows": 5_000_000,
    # G1, Java's default, takes a quarter to twice as much CPU, and Serial a tenth more.
    "collector": "Parallel",
    # 2 GB take a quarter more with 500,000 words; 8 GB gain nothing.
    "heap": "4g",
}
"""Flink's fastest settings of those that were tried, by CPU of a root."""


def mini_batch_ms(api: str, words: int) -> int:
    """How long SQL collects a mini-batch by default; 0 means that there is none.

    With 5,000 words, 50 ms take a third more CPU than 200 ms. From there to 5 s all take the same, and SQL
    without mini-batches takes almost twice as much. With 50,000 and 500,000 words it takes less without them.
    """
    return 1000 if api == "sql" and words < 50_000 else 0  # noqa: PLR2004


def measure(variant: dict[str, Any], warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run one word count in a JVM of its own.

    Args:
        variant: ``api``, ``cores``, ``words``, ``checkpoint_ms``, ``buffer_timeout_ms``, ``mini_batch_ms``,
            ``mini_batch_rows``, ``collector``, ``heap``.
    """
    report = Report("word_count", {"peer": "flink", **variant})
    class_path = in_java.class_path(SOURCES)
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        save_sentences(folder / "sentences.txt", words=variant["words"])
        options = {
            "api": variant["api"],
            "parallelism": variant["cores"],
            "checkpoint-ms": variant["checkpoint_ms"],
            "checkpoints": folder / "checkpoints",
            "buffer-timeout-ms": variant["buffer_timeout_ms"],
            "mini-batch-ms": variant["mini_batch_ms"],
            "mini-batch-rows": variant["mini_batch_rows"],
            "warm-up": warm_up_secs,
            "secs": secs,
            "sentences": folder / "sentences.txt",
        }
        command = in_java.command(class_path, folder, variant["heap"], variant["collector"], options)
        found, cost = in_java.run("Flink", command, folder)
    spent = throughput(found["roots"], found["secs"], cost)
    return report.line(spent | {"checkpoints": found["checkpoints"]}, {"flink": in_java.version(SOURCES)})


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers.flink_word_count",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--api", choices=["java", "sql"], default="java")
    parser.add_argument("--words", type=int, default=VOCABULARY, help="different words")
    parser.add_argument("--checkpoint-ms", type=int, default=1000, help="between checkpoints; 0: none")
    parser.add_argument("--buffer-timeout-ms", type=int, help="until a buffer is sent that is not full")
    parser.add_argument("--mini-batch-ms", type=int, help="of SQL; 0: none")
    parser.add_argument("--mini-batch-rows", type=int, help="of SQL, at most")
    parser.add_argument("--collector", choices=["Parallel", "G1", "Serial"], help="of the JVM")
    parser.add_argument("--cores", type=int, default=2, help="pins the run to this number of cores")
    parser.add_argument("--heap", help="of the JVM")
    parser.set_defaults(**_BEST)
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    asked, usual = args.mini_batch_ms, mini_batch_ms(args.api, args.words)
    variant = {
        "api": args.api,
        "cores": args.cores,
        "words": args.words,
        "checkpoint_ms": args.checkpoint_ms,
        "buffer_timeout_ms": args.buffer_timeout_ms,
        "mini_batch_ms": usual if asked is None else asked,
        "mini_batch_rows": args.mini_batch_rows,
        "collector": args.collector,
        "heap": args.heap,
    }
    print_line(measure(variant, args.warm_up, args.secs), keep=args.keep)
