"""Runs the tests in two lanes at once, and each failed test once more, alone.

    python scripts/run_tests.py             what states a guarantee
    python scripts/run_tests.py --all       the long parts, too
    python scripts/run_tests.py --changed   those long parts whose rooms have changed since the last full run

``tests/parts.toml`` lists the long parts and the rooms that they test. The lane *spark* has the tests that
need a JVM, the lane *plain* all others. A test that fails, and passes when it runs once more alone, is
*unsteady*: it is printed with both outputs and refuses nothing, unless ``tests/record.toml`` lists it already
or there are more than three.

The last line is ``N passed, M failed, K skipped``; the exit code is 0 if nothing failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PARTS = ROOT / "tests" / "parts.toml"
RECORD = ROOT / "tests" / "record.toml"
MOST_UNSTEADY = 3
MOST_AGAIN = 20
"""With more failures than this the change is wrong, not a test unsteady: none is run again."""
TEST_SECS = 600
TOLD_EVERY_SECS = 30.0
_MOST_SHOWN = 20_000
_PASSED, _FAILED, _NO_TEST = 0, 1, 5  # pytest's exit codes


@dataclass
class Lane:
    """One pytest run: its process and what it has reported so far."""

    name: str
    process: subprocess.Popen[bytes]
    outcomes: Path
    log: Path
    collected: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    def news(self) -> Iterator[dict[str, Any]]:
        """The outcomes of tests that have ended since the last call."""
        if not self.outcomes.exists():
            return
        text = self.outcomes.read_text()[self._read :]
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        for line in map(json.loads, whole.splitlines()):
            if "collected" in line:
                self.collected = line["collected"]
            else:
                self.lines.append(line)
                yield line

    def __str__(self) -> str:
        return f"{self.name} {len(self.lines):,} of {self.collected:,}"


def main() -> int:
    """Run the lanes; returns the exit code."""
    args = _parser().parse_args()
    began = time.monotonic()
    parts = tomllib.loads(PARTS.read_text())["part"]
    chosen = list(parts) if args.all else _changed(parts) if args.changed else []
    with tempfile.TemporaryDirectory(prefix="acktree-tests-") as folder:
        lanes = _started(Path(folder), chosen, args)
        outcomes = _followed(lanes, began)
        broken = [lane for lane in lanes if lane.process.returncode not in {_PASSED, _FAILED, _NO_TEST}]
        for lane in broken:
            print(f"\nlane {lane.name} ended with exit code {lane.process.returncode}:")
            print(lane.log.read_text()[-_MOST_SHOWN:])
        refused = _judged([each for each in outcomes if each["outcome"] == "failed"], chosen, Path(folder))
    _print_untested(outcomes, [name for name in parts if name not in chosen])
    count = Counter(each["outcome"] for each in outcomes)
    failed, skipped = len(refused), count["skipped"]
    print(f"\nended after {time.monotonic() - began:,.0f} s")
    print(f"{len(outcomes) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or broken or not outcomes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="the long parts, too")
    parser.add_argument("--changed", action="store_true", help="the long parts of what has changed")
    parser.add_argument("--lanes", default="plain,spark", help="which lanes (default: %(default)s)")
    parser.add_argument("--plain-processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("rest", nargs="*", help="arguments of pytest, after --")
    return parser


# --- the lanes ------------------------------------------------------------------------------------------


def _started(folder: Path, parts: Sequence[str], args: argparse.Namespace) -> list[Lane]:
    """Both lanes, running."""
    expressions = {"plain": "not spark", "spark": "spark"}
    lanes = []
    for name in args.lanes.split(","):
        processes = (
            ["-n", str(args.plain_processes), "--dist", "loadfile"] if name == "plain" else ["-n", "0"]
        )
        log, outcomes = folder / f"{name}.log", folder / f"{name}.jsonl"
        command = [
            *_pytest(outcomes),
            *processes,
            f"--long={','.join(parts)}",
            "-m",
            expressions[name],
            *args.rest,
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        lanes.append(Lane(name, process, outcomes, log))
    return lanes


def _pytest(outcomes: Path) -> list[str]:
    own = ["-p", "tests.outcomes", f"--outcomes={outcomes}", f"--timeout={TEST_SECS}"]
    return [sys.executable, "-m", "pytest", "-q", *own]


def _followed(lanes: Sequence[Lane], began: float) -> list[dict[str, Any]]:
    """The outcomes of all tests; says on the way how far the lanes are, and each failure."""
    told = time.monotonic()
    while True:
        running = [lane for lane in lanes if lane.process.poll() is None]
        for lane in lanes:
            for line in lane.news():
                if line["outcome"] == "failed":
                    print(f"FAILED {line['test']}", flush=True)
        if not running:
            return [line for lane in lanes for line in lane.lines]
        if time.monotonic() - told > TOLD_EVERY_SECS:
            told = time.monotonic()
            print(f"{told - began:5.0f} s  {'   '.join(map(str, lanes))}", flush=True)
        time.sleep(0.2)


# --- failed tests, once more ----------------------------------------------------------------------------


def _judged(failed: list[dict[str, Any]], parts: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """The failures that refuse the change; prints these, and the unsteady ones."""
    if len(failed) > MOST_AGAIN:
        print(f"\n{len(failed)} tests failed: none is run again")
        _print_failures("FAILED", failed)
        return failed
    again = [_run_alone(each, parts, folder / f"again-{number}.jsonl") for number, each in enumerate(failed)]
    still = [each for each, second in zip(failed, again, strict=True) if second["outcome"] != "passed"]
    pairs = [(a, b) for a, b in zip(failed, again, strict=True) if b["outcome"] == "passed"]
    _print_failures("FAILED", still)
    for first, second in pairs:
        print(f"\n=== UNSTEADY {first['test']}: it failed, and passed alone in {second['secs']:.1f} s")
        print(first["text"])
        print(f"--- alone:\n{second['text'] or 'passed'}")
    listed = {each["test"] for each in tomllib.loads(RECORD.read_text()).get("unsteady", [])}
    twice = [first for first, _ in pairs if first["test"] in listed]
    for each in twice:
        print(f"REFUSED: {each['test']} is in {RECORD.relative_to(ROOT)} already: mend it")
    if len(pairs) > MOST_UNSTEADY:
        print(f"REFUSED: {len(pairs)} tests are unsteady, more than {MOST_UNSTEADY}")
        return [*still, *(first for first, _ in pairs)]
    if pairs:
        print(
            f"list them in {RECORD.relative_to(ROOT)}, each with its date and cause: the next change mends it"
        )
    return [*still, *twice]


def _run_alone(failed: dict[str, Any], parts: Sequence[str], outcomes: Path) -> dict[str, Any]:
    """The same test in a process of its own."""
    print(f"once more, alone: {failed['test']}", flush=True)
    command = [*_pytest(outcomes), "-n", "0", f"--long={','.join(parts)}", failed["test"]]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in outcomes.read_text().splitlines()] if outcomes.exists() else []
    found = next((line for line in lines if line.get("test") == failed["test"]), None)
    return (found or {"test": failed["test"], "outcome": "failed", "secs": 0.0}) | {
        "text": done.stdout[-_MOST_SHOWN:]
    }


def _print_failures(title: str, failures: Sequence[dict[str, Any]]) -> None:
    for each in failures:
        print(f"\n=== {title} {each['test']}\n{each['text']}")


# --- what was not tested --------------------------------------------------------------------------------


def _print_untested(outcomes: Sequence[dict[str, Any]], parts: Sequence[str]) -> None:
    """What this machine lacks and how to have it, and the parts that were left out: one line."""
    reasons = Counter(each["text"] for each in outcomes if each["outcome"] == "skipped")
    lacking = [f"{reason} ({count})" for reason, count in reasons.most_common()]
    left_out = [f"long parts {', '.join(parts)} (make test-all)"] if parts else []
    print("\nnot tested here: " + ("; ".join([*lacking, *left_out]) or "nothing"))


def _changed(parts: dict[str, Any]) -> list[str]:
    """The long parts that test what has changed since the last full run; all where that is not known."""
    since = tomllib.loads(RECORD.read_text())["full_run"]
    command = ["git", "diff", "--name-only", since, "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"git does not know {since}, the last full run: all long parts are run")
        return list(parts)
    files = done.stdout.splitlines()
    chosen = [
        name
        for name, part in parts.items()
        if any(file.startswith(tuple(part["rooms"] + part.get("tests", []))) for file in files)
    ]
    print(f"long parts of what has changed since {since}: {', '.join(chosen) or 'none'}", flush=True)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
