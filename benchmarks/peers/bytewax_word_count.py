"""The word count in Bytewax: a source in memory, split, count by word, a sink that only counts.

    python -m benchmarks peers.bytewax_word_count
    python -m benchmarks peers.bytewax_word_count --snapshots --processes 2

``--snapshots``: positions and counts are saved each second, which is Bytewax's at-least-once; without it
there is no guarantee. Bytewax has a separate environment, made by the first run. A root is six counted words.
One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.peers import places
from benchmarks.report import Report, add_keep_argument, print_line, throughput
from benchmarks.word_count import add_time_arguments
from benchmarks.work import WORDS, save_sentences

VERSION: Final = "0.21.1"
_START_SECS: Final = 3.0


def measure(variant: dict[str, Any], warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run one word count in processes of its own.

    Args:
        variant: ``processes``, ``threads`` of each, ``snapshots``.
    """
    report = Report("word_count", {"peer": "bytewax", **variant})
    python = str(places.python_with("bytewax", f"bytewax=={VERSION}"))
    processes, threads = variant["processes"], variant["threads"]
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        (folder / "found").mkdir()
        save_sentences(folder / "sentences.txt")
        command = [python, "-m", "bytewax.run" if processes == 1 else "bytewax.testing"]
        command += ["bytewax_flow:flow", "-w", str(threads)]
        command += [] if processes == 1 else ["-p", str(processes)]
        if variant["snapshots"]:
            store = folder / "recovery"
            store.mkdir()
            workers = str(processes * threads)
            places.run([python, "-m", "bytewax.recovery", str(store), workers], "a recovery store")
            command += ["-r", str(store), "-s", "1", "-b", "0"]
        begin = time.time() + _START_SECS + warm_up_secs
        settings = {
            "FLOW_SENTENCES": str(folder / "sentences.txt"),
            "FLOW_FROM": str(begin),
            "FLOW_TO": str(begin + secs),
            "FLOW_WORKERS": str(processes * threads),
            "FLOW_FOUND": str(folder / "found"),
        }
        here = Path(__file__).parent
        with subprocess.Popen(command, cwd=here, env=os.environ | settings, stdout=sys.stderr) as flow:  # noqa: S603
            time.sleep(max(0.0, begin - time.time()))
            clock = machine.Clock()
            time.sleep(secs)
            cost = clock.cost()
        words = [json.loads(file.read_text()) for file in (folder / "found").iterdir()]
    if flow.returncode or len(words) != processes * threads:
        sys.exit(f"Bytewax ended with exit code {flow.returncode}, and {len(words)} sinks: see what it said")
    return report.line(throughput(sum(words) / WORDS, secs, cost), {"bytewax": VERSION})


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers.bytewax_word_count",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="workers of each process; they share a GIL")
    parser.add_argument("--snapshots", action="store_true", help="save positions and counts each second")
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    variant = {"processes": args.processes, "threads": args.threads, "snapshots": args.snapshots}
    print_line(measure(variant, args.warm_up, args.secs), keep=args.keep)
