"""The cost of waiting: CPU and micro-batches while nothing is open.

    python -m benchmarks idle --secs 600

A topology processes a hundred sentences and then has nothing to do. ``core_share`` is the CPU of all its
processes (driver, JVM, source, workers) as a share of one core. One line of JSON.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acktree import submit
from acktree.testing import FeederSpout
from benchmarks import machine
from benchmarks.report import Report, add_keep_argument, print_line
from benchmarks.word_count import add_variant_arguments, variant_of
from benchmarks.work import Variant, sentences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TO_REST_SECS = 120.0


def measure(
    variant: Variant, settle_secs: float, secs: float, session: SparkSession | None = None
) -> dict[str, Any]:
    """Measure a topology without messages.

    Args:
        settle_secs: Seconds after the last message that are not measured, until threads and timers are idle.
    """
    feeder, report = FeederSpout(["sentence"]), Report("idle", asdict(variant))
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as name:
        folder = Path(name)
        with submit(
            variant.topology_of(feeder), checkpoint=folder, config=variant.config, spark=session
        ) as running:
            for number, sentence in enumerate(sentences(100, seed=1)):
                feeder.feed([sentence], message_id=number if variant.tracked else None)
            while running.stats()["count"].total.executed < 600:  # noqa: PLR2004  # a hundred sentences of six words
                time.sleep(0.1)
            assert running.await_idle(timeout_secs=_TO_REST_SECS), "something stayed open"
            time.sleep(settle_secs)
            clock, batches, size = machine.Clock(), _micro_batches(folder), _bytes_in(folder)
            time.sleep(secs)
            cost = clock.cost()
            more_batches, growth = _micro_batches(folder) - batches, _bytes_in(folder) - size
    return report.line(
        {
            "secs": secs,
            "core_share": round(cost.ours / secs, 4),
            "micro_batches": more_batches,
            "checkpoint_growth_bytes": growth,
            "others_cores": round(cost.others, 2),
        }
    )


def _micro_batches(checkpoint: Path) -> int:
    """How many micro-batches were committed, by Spark's numbers."""
    return max(int(file.name) for file in (checkpoint / "spark" / "commits").iterdir() if file.name.isdigit())


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant_arguments(parser)
    parser.add_argument("--settle", type=float, default=10.0, help="seconds left out after the last message")
    parser.add_argument("--secs", type=float, default=60.0, help="seconds measured")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    print_line(measure(variant_of(args), args.settle, args.secs), keep=args.keep)
