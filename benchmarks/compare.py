"""Named pairs of word counts, run in turn (A B A B ...): medians, ratios and how far single runs lay apart.

    python -m benchmarks compare tracked-arrow/untracked-arrow --rounds 5
    python -m benchmarks compare --anyway       # what tracking costs, on a machine that is not quiet

Each run is a process of its own. Absolute numbers of a shared machine drift by a factor of three within an
hour; the ratio of two neighbours does not, so a pair's ratio is the median of the ratios of its rounds.
Refuses to begin on a busy machine, unless ``--anyway``; then the CPU ratio is the steadier one. Every run's
line of JSON goes to ``--keep``, if given. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import machine

RUNS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{tracking}-{bolts}": ("--bolts", bolts, *(() if tracking == "tracked" else ("--untracked",)))
    for tracking in ("tracked", "untracked")
    for bolts in ("arrow", "basic", "generator")
} | {
    "tracked-arrow-dict": ("--bolts", "arrow", "--memory", "dict"),
    "tracked-basic-dict": ("--bolts", "basic", "--memory", "dict"),
    "tracked-basic-tuple-spout": ("--bolts", "basic", "--spout", "tuple"),
    "tracked-arrow-1-core": ("--bolts", "arrow", "--cores", "1"),
    "tracked-basic-1-core": ("--bolts", "basic", "--cores", "1"),
}
STANDARD: Final = ("tracked-arrow/untracked-arrow", "tracked-basic/untracked-basic")
"""The pairs that are compared when none are named."""


def run(name: str, further: Sequence[str]) -> dict[str, Any]:
    """One word count in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "word_count", *RUNS[name], *further]
    done = subprocess.run(command, check=False, text=True, capture_output=True)  # noqa: S603  # our own words
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def told(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """A line about the runs of one name."""
    rates = [found["roots_per_sec"] for found in runs]
    cpu = statistics.median(found["cpu_us_per_root"] for found in runs)
    others = statistics.median(found["others_cores"] for found in runs)
    return (
        f"  {name:28} {statistics.median(rates):>10,.0f} roots/s  ({min(rates):,} to {max(rates):,})"
        f"   {cpu:6.2f} us CPU a root   others took {others:.2f} cores"
    )


def ratio(firsts: Sequence[Mapping[str, Any]], seconds: Sequence[Mapping[str, Any]], key: str) -> str:
    """The median over the rounds of first / second, and the least and greatest."""
    ratios = [a[key] / b[key] for a, b in zip(firsts, seconds, strict=True)]
    return f"{statistics.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, run the pairs in turn, print what came out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="runs: " + ", ".join(RUNS),
    )
    parser.add_argument("pairs", nargs="*", metavar="A/B", help="default: " + " ".join(STANDARD))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    parser.add_argument("--keep", type=Path, help="a file that every run's JSON is added to")
    parser.add_argument("--warm-up", default="20", help="seconds left out of each run")
    parser.add_argument("--secs", default="30", help="seconds measured of each run")
    args = parser.parse_args(arguments)
    further = ("--warm-up", args.warm_up, "--secs", args.secs)
    pairs = [pair.split("/") for pair in args.pairs or STANDARD]
    for pair in pairs:
        if len(pair) != 2 or not set(pair) <= RUNS.keys():  # noqa: PLR2004  # A and B
            parser.error(f"{'/'.join(pair)} is no pair A/B of these: {', '.join(RUNS)}")
    busy = machine.busy_share()
    if busy > machine.BUSY and not args.anyway:
        sys.exit(
            f"others take {busy:.0%} of this machine's cores, load {machine.load()}: what is measured now "
            "says more about them than about us. Wait until it is quiet, or say --anyway."
        )
    print(f"before: others took {busy:.0%} of all cores; load {machine.load()}", flush=True)
    for first, second in pairs:
        found: dict[str, list[dict[str, Any]]] = {first: [], second: []}
        for number in range(args.rounds):
            for name in (first, second):
                found[name].append(run(name, further))
                print(f"  round {number + 1}: {name} {found[name][-1]['roots_per_sec']:,}", file=sys.stderr)
                if args.keep:
                    with args.keep.open("a") as file:
                        file.write(json.dumps(found[name][-1]) + "\n")
        print(f"{first} / {second}, {args.rounds} rounds in turn")
        print("\n".join(told(name, found[name]) for name in (first, second)))
        print(f"  throughput ratio             {ratio(found[first], found[second], 'roots_per_sec')}")
        print(
            f"  inverse CPU ratio            {ratio(found[second], found[first], 'cpu_us_per_root')}",
            flush=True,
        )
