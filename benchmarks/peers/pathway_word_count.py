"""The word count in Pathway: lines of files, split by a Python function over batches, count by word in Rust.

    python -m benchmarks peers.pathway_word_count
    python -m benchmarks peers.pathway_word_count --source python --threads 1

Nothing is saved, so there is no guarantee. A root is six counted words, at the end of a micro-batch. Pathway
has a separate environment, made by the first run; its licence (BSL 1.1) is no open-source licence, so whoever
runs this installs it. One line of JSON.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import in_java, places
from benchmarks.report import Report, add_keep_argument, print_line, throughput
from benchmarks.word_count import add_time_arguments
from benchmarks.work import VOCABULARY, save_sentences

VERSION: Final = "0.33.0"
_BEST: Final = {
    "source": "files",
    # Micro-batches of 200 ms take as much, within the spread.
    "commit_ms": 1000,
    "udf_rows": 1000,
    "backlog": 100_000,
}
"""Pathway's fastest settings of those that were tried."""
_FILES: Final = 400


def measure(variant: dict[str, Any], warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run one word count in processes of its own.

    Args:
        variant: ``source``, ``threads``, ``cores``, ``words``, ``commit_ms``, ``udf_rows``,
            ``backlog``.
    """
    report = Report("word_count", {"peer": "pathway", **variant})
    python = places.python_with("pathway", f"pathway=={VERSION}")
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        (folder / "lines").mkdir()
        save_sentences(folder / "sentences.txt", words=variant["words"])
        for number in range(_FILES):  # 160,000 sentences each, all of them one file on disk
            os.link(folder / "sentences.txt", folder / "lines" / f"{number:04}.txt")
        settings = {
            "FLOW_SOURCE": variant["source"],
            "FLOW_SENTENCES": folder / "sentences.txt",
            "FLOW_FOLDER": folder / "lines",
            "FLOW_COMMIT_MS": variant["commit_ms"],
            "FLOW_UDF_ROWS": variant["udf_rows"],
            "FLOW_BACKLOG": variant["backlog"],
            "FLOW_WARM_UP": warm_up_secs,
            "FLOW_SECS": secs,
        }
        command = ["env", *(f"{key}={value}" for key, value in settings.items())]
        command += [str(python.with_name("pathway")), "spawn", "--threads", str(variant["threads"])]
        command += [str(python), str(Path(__file__).with_name("pathway_flow.py"))]
        found, cost = in_java.run("Pathway", command, folder)
    return report.line(throughput(found["roots"], found["secs"], cost), {"pathway": VERSION})


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers.pathway_word_count",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", choices=["files", "python"], help="python: a call for each sentence")
    parser.add_argument("--threads", type=int, help="workers of the process; default: as many as cores")
    parser.add_argument("--words", type=int, default=VOCABULARY, help="different words")
    parser.add_argument("--commit-ms", type=int, help="how long a micro-batch collects")
    parser.add_argument("--udf-rows", type=int, help="sentences in a call of the split, at most")
    parser.add_argument("--backlog", type=int, help="sentences that may wait, at most")
    parser.add_argument("--cores", type=int, default=2, help="pins the run to this number of cores")
    parser.set_defaults(**_BEST)
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    variant = {
        "source": args.source,
        "threads": args.threads or args.cores,
        "cores": args.cores,
        "words": args.words,
        "commit_ms": args.commit_ms,
        "udf_rows": args.udf_rows,
        "backlog": args.backlog,
    }
    print_line(measure(variant, args.warm_up, args.secs), keep=args.keep)
