"""The word count in Apache Storm: LocalCluster from Maven Central, one worker, no network between bolts.

    python -m benchmarks peers.storm_word_count                              # Java bolts, tracked
    python -m benchmarks peers.storm_word_count --bolts python               # split and count by storm.py
    python -m benchmarks peers.storm_word_count --bolts pystorm              # by streamparse's library
    python -m benchmarks peers.storm_word_count --rate 50000                 # complete latency at a rate

One spout, one split, one count and one acker, each a thread. A message's latency
begins when it was due, as in ``latency``; at full speed that is when it was emitted. Needs Maven and Java 17;
the first run fetches and builds. One line of JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import in_java, places
from benchmarks.report import Report, add_keep_argument, print_line, throughput
from benchmarks.word_count import add_time_arguments
from benchmarks.work import VOCABULARY, save_sentences

SOURCES: Final = Path(__file__).parent / "storm"
_PYSTORM: Final = "3.1.4"
_PENDING: Final = {"java": 1000, "python": 200, "pystorm": 200}
"""The fastest of those in docs/performance.md; a pipe to a Python process does not gain from more."""
_BATCH: Final = 10
"""The fastest too. Where a rate is given a tuple does not wait for others."""


def measure(variant: dict[str, Any], warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run one word count in a JVM of its own.

    Args:
        variant: ``bolts``, ``tracked``, ``words``, ``sentence_bytes``, ``pending``, ``batch``, ``counts``,
            ``rate``, ``cores``, ``heap``.
    """
    report = Report("word_count", {"peer": "storm", **variant})
    class_path = in_java.class_path(SOURCES)
    is_pystorm = variant["bolts"] == "pystorm"
    python = places.python_with("pystorm", f"pystorm=={_PYSTORM}") if is_pystorm else Path(sys.executable)
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        save_sentences(
            folder / "sentences.txt", words=variant["words"], sentence_bytes=variant["sentence_bytes"]
        )
        options = {
            "bolts": variant["bolts"],
            "tracked": "yes" if variant["tracked"] else "no",
            "pending": variant["pending"],
            "batch": variant["batch"],
            "counts": variant["counts"],
            "rate": variant["rate"] or 0,
            "warm-up": warm_up_secs,
            "secs": secs,
            "sentences": folder / "sentences.txt",
            "python": python,
        }
        command = ["java", f"-Xms{variant['heap']}", f"-Xmx{variant['heap']}"]
        command += ["-Djava.net.preferIPv4Stack=true", "-Dstorm.local.hostname=127.0.0.1"]
        command += [f"-Djava.io.tmpdir={folder}", "-cp", class_path, "peer.WordCount"]
        command += in_java.words_of(options)
        found, cost = in_java.run("Storm", command, folder)
    spent = throughput(found["roots"], found["secs"], cost)
    latency = (
        {key: found[key] for key in ("failed", "p50_ms", "p90_ms", "p99_ms")} if variant["tracked"] else {}
    )
    library = {"pystorm": _PYSTORM} if is_pystorm else {}
    return report.line(spent | latency, {"storm": in_java.version(SOURCES), **library})


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers.storm_word_count",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bolts", choices=list(_PENDING), default="java", help="others: multilang")
    parser.add_argument("--untracked", action="store_true", help="no ackers, no message ids, no anchors")
    parser.add_argument("--words", type=int, default=VOCABULARY, help="different words")
    parser.add_argument("--pending", type=int, help="max.spout.pending; 1000, with Python bolts 200")
    parser.add_argument("--batch", type=int, help="topology.producer.batch.size; 10, at a rate 1")
    parser.add_argument("--sentence-bytes", type=int, help="the length of a sentence; else some 47")
    parser.add_argument("--counts", type=int, default=1, help="tasks of count")
    parser.add_argument("--rate", type=float, help="sentences a second; default: full speed")
    parser.add_argument("--cores", type=int, default=2, help="pins the run to this number of cores")
    parser.add_argument("--heap", default="2g", help="of the JVM")
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    variant = {
        "bolts": args.bolts,
        "tracked": not args.untracked,
        "words": args.words,
        "pending": None if args.untracked else args.pending or _PENDING[args.bolts],
        "batch": args.batch or (1 if args.rate else _BATCH),
        "sentence_bytes": args.sentence_bytes,
        "counts": args.counts,
        "rate": args.rate,
        "cores": args.cores,
        "heap": args.heap,
    }
    print_line(measure(variant, args.warm_up, args.secs), keep=args.keep)
