"""Strikes a cluster that shares nothing, and draws up the account of every message.

    python -m benchmarks shared_nothing --strikes 30 --workers 2 --seed 7

A Spark master, its workers, two hosts for drivers and HDFS are in network and mount namespaces of their own.
Executors and Python workers are killed, the network of a worker is cut, and drivers are killed and started
again on the other host. The topology and the account are those of ``chaos``. Needs root and iproute2.
One line of JSON; exits with 1 if the account was not clean.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.chaos import counts_of, worth_keeping
from benchmarks.report import Report, add_keep_argument, print_line
from tests.chaos.chaos import perform
from tests.chaos.conductor import Conductor, Settings
from tests.chaos.namespaces import missing, undelayed
from tests.chaos.plan import APART, mixture
from tests.chaos.shared_nothing import Apart, ApartConductor


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one; exit code 1 if it was not clean, 2 where there can be no namespaces."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks shared_nothing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--strikes", type=int, default=20, help="in all, in the usual mixture")
    parser.add_argument("--kinds", help="which kinds (executor,network), or how many of each (driver=2)")
    parser.add_argument("--workers", type=int, default=Apart.workers, help="hosts with a Spark worker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=40, help="messages a second")
    parser.add_argument("--delay-ms", type=float, default=Apart.delay_ms, help="how long a packet takes")
    parser.add_argument("--cut-secs", type=float, default=Apart.cut_secs, help="how long a network is cut")
    parser.add_argument(
        "--lost-secs",
        type=int,
        default=Apart.lost_secs,
        help="spark.network.timeout; below --cut-secs an executor that is cut off is replaced while it runs",
    )
    parser.add_argument("--secs", type=float, help="stop striking after this number of seconds")
    parser.add_argument("--folder", type=Path, help="where; kept if it is not clean")
    parser.add_argument("--keep-folder", action="store_true", help="keep the folder also when it is clean")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    if why := missing():
        print(why, file=sys.stderr)
        sys.exit(2)
    settings = Apart(
        master=f"standalone[{given.workers}]",
        queue_retries=given.seed % 2 == 0,  # in half of the runs the queue retries
        rate=given.rate,
        workers=given.workers,
        delay_ms=given.delay_ms,
        cut_secs=given.cut_secs,
        lost_secs=given.lost_secs,
    )
    counts = (
        mixture(given.strikes, list(APART), APART)
        if given.kinds is None
        else counts_of(given.kinds, given.strikes, has_executors=True)
    )
    variant = {name: getattr(settings, name) for name in ("workers", "rate", "cut_secs", "lost_secs")}
    why_undelayed = undelayed() if given.delay_ms else "not asked for"
    report = Report("shared_nothing", variant)

    def stage(folder: Path, _: Settings) -> Conductor:
        return ApartConductor(folder, settings)

    result = perform(
        given.seed, counts, settings, _say, given.folder,
        keep=given.keep_folder, strike_secs=given.secs, stage=stage,
    )  # fmt: skip
    line = report.line(result.to_json() | {"undelayed": why_undelayed})
    if result.kept is not None:
        (result.kept / "line.json").write_text(json.dumps(line))
    print_line(line, keep=False)
    if given.keep:
        results.keep("shared_nothing", worth_keeping(line))
    sys.exit(0 if result.is_clean else 1)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
