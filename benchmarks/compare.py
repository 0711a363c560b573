"""Named pairs of runs, in turn (A B B A ...): medians, ratios, and the spread of single runs.

    python -m benchmarks compare tracked-arrow/untracked-arrow --rounds 5
    python -m benchmarks compare tracked-arrow/storm-java tracked-basic/storm-multilang
    python -m benchmarks compare latency-arrow/bare --share 0.5     # at half of the first one's top rate
    python -m benchmarks compare --anyway       # what tracking costs, on a machine that is not quiet

Each run is a separate process. Absolute numbers on a shared machine drift by a factor of three within an
hour; the ratio of two consecutive runs does not, so a pair's ratio is the median of the ratios of its rounds.
It does not start on a busy machine without ``--anyway``; on such a machine the CPU ratio is the more stable
one. All ratios are the first over the second. A pair whose peer cannot run on this machine is left out, with
a message. A table and a line of JSON for each pair go to stdout; the line also to ``benchmarks/results``,
unless ``--forget``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks import machine, results
from benchmarks.named import METRICS, RUNS, STANDARD, at_full_speed, command, needs_rate
from benchmarks.peers.places import MISSING
from benchmarks.report import Report

_KEPT: Final = (
    "roots_per_sec",
    "cpu_us_per_root",
    "cpu_us_with_broker_per_root",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "micro_batch_ms",
    "others_cores",
)
"""The parts of each run in a comparison's line."""

Runs = Sequence[Mapping[str, Any]]


class CannotRunError(Exception):
    """A peer cannot run on this machine; it has printed the reason."""


def run(words: Sequence[str], further: Sequence[str]) -> dict[str, Any]:
    """One run in a separate process; its line of JSON."""
    program = [sys.executable, "-m", "benchmarks", *words, *further]
    done = subprocess.run(program, check=False, text=True, capture_output=True)  # noqa: S603  # a fixed command
    if done.returncode == MISSING:
        raise CannotRunError(done.stderr.strip())
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def ratios(firsts: Runs, seconds: Runs) -> dict[str, dict[str, float]]:
    """For each metric that both have: median, least and greatest of first / second over the rounds."""
    found = {}
    for metric, (key, other) in METRICS.items():
        pairs = [(a.get(key), b.get(other)) for a, b in zip(firsts, seconds, strict=True)]
        each = [a / b for a, b in pairs if a is not None and b]
        if each and len(each) == len(pairs):
            found[metric] = {"median": statistics.median(each), "least": min(each), "greatest": max(each)}
    return {
        metric: {name: round(value, 3) for name, value in ratio.items()} for metric, ratio in found.items()
    }


def side(name: str, words: Sequence[str], runs: Runs) -> dict[str, Any]:
    """One side of a comparison: its command, the numbers of each run, and their medians."""
    numbers = {key: [found[key] for found in runs] for key in _KEPT if all(key in found for found in runs)}
    medians = {key: statistics.median(values) for key, values in numbers.items() if None not in values}
    return {"name": name, "run": " ".join(words), "variant": runs[-1]["variant"]} | {
        "medians": medians,
        "runs": numbers,
    }


def compare(pair: Sequence[str], rounds: int, rate: float | None, further: Sequence[str]) -> dict[str, Any]:
    """Run a pair in turn; the comparison's line."""
    first, second = pair
    report = Report("compare", {"first": first, "second": second, "rounds": rounds, "rate": rate})
    words = {name: command(name, rate) for name in pair}
    found: dict[str, list[dict[str, Any]]] = {first: [], second: []}
    for number in range(rounds):
        for name in (first, second) if number % 2 == 0 else (second, first):
            found[name].append(run(words[name], further))
            print(f"  round {number + 1}: {name} {_brief(found[name][-1])}", file=sys.stderr, flush=True)
    ours, theirs = found[first], found[second]
    taken = max(found["others_cores"] for found in (*ours, *theirs))
    cores = ours[-1]["machine"]["cores"]
    return report.line(
        {
            "quiet": taken <= machine.BUSY * cores,
            "others_cores": taken,
            "ratios": ratios(ours, theirs),
            "first": side(first, words[first], ours),
            "second": side(second, words[second], theirs),
        },
        {name: version for found in (ours, theirs) for name, version in found[-1]["machine"].items()},
    )


def readable(line: Mapping[str, Any]) -> str:
    """A comparison as a table for people."""
    variant = line["variant"]
    out = [f"{variant['first']} / {variant['second']}, {variant['rounds']} rounds in turn"]
    for which in (line["first"], line["second"]):
        rates = which["runs"]["roots_per_sec"]
        spread = f"({min(rates):,} to {max(rates):,})"
        rest = "  ".join(f"{key} {value:,.4g}" for key, value in which["medians"].items())
        out.append(f"  {which['name']:28} {spread:24} {rest}")
    for metric, ratio in line["ratios"].items():
        out.append(f"  {metric:28} {ratio['median']:.2f}  ({ratio['least']:.2f} to {ratio['greatest']:.2f})")
    if not line["quiet"]:
        out.append(f"  NOT QUIET: others took up to {line['others_cores']:.2f} cores")
    return "\n".join(out)


def _brief(found: Mapping[str, Any]) -> str:
    return "  ".join(f"{key} {found[key]:,}" for key in _KEPT if found.get(key) is not None)


def rate_for(pair: Sequence[str], share: float, further: Sequence[str]) -> float:
    """The rate for a pair that needs one: a share of the top rate of acktree's run, measured now."""
    mine = next((name for name in pair if RUNS[name][0] == "latency"), "latency-arrow")
    top = run(at_full_speed(mine), further)["roots_per_sec"]
    print(
        f"  {mine} at full speed: {top:,} roots/s; the pair runs at {share:.0%}", file=sys.stderr, flush=True
    )
    return float(round(top * share))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, run the pairs in turn, print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="runs: " + ", ".join(RUNS),
    )
    parser.add_argument("pairs", nargs="*", metavar="A/B", help="default: " + " ".join(STANDARD))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    parser.add_argument("--forget", action="store_true", help="do not add the line to benchmarks/results")
    parser.add_argument("--rate", type=float, help="sentences a second, for runs at a rate")
    parser.add_argument("--share", type=float, default=0.5, help="else which share of the top rate")
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
    for pair in pairs:
        try:
            needed = any(needs_rate(name) for name in pair)
            rate = (args.rate or rate_for(pair, args.share, further)) if needed else None
            line = compare(pair, args.rounds, rate, further)
        except CannotRunError as error:
            print(f"{'/'.join(pair)} left out: {error}", flush=True)
            continue
        print(f"{readable(line)}\n{json.dumps(line)}", flush=True)
        if not args.forget:
            results.keep(results.name_of(*pair), line)
