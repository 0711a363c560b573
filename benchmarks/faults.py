"""Raises exceptions at any opcode of the engine while user code calls it, and compares the results.

The programs and their model are in ``tests/chaos/faults.py``. Exits with 1 if there was a difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.chaos.faults import breaches, run_faults


def part(wanted: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """The work of one process."""
    return run_faults(wanted, seed)


def main(arguments: Sequence[str]) -> None:
    """Run it, and print the differences."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000, help="runs with an exception in each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    shares = [given.runs * (at + 1) // given.processes - given.runs * at // given.processes
              for at in range(given.processes)]  # fmt: skip
    began = time.monotonic()
    with ProcessPoolExecutor(given.processes) as pool:
        parts = list(pool.map(part, shares, range(given.seed, given.seed + given.processes)))
    runs = sum((runs for runs, _ in parts), Counter[str]())
    found: Counter[str] = Counter()
    for _, each in parts:
        found.update(each)
    print(f"runs with an exception from outside: {runs.total():,} in {time.monotonic() - began:.0f} s")
    print("  " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(runs.items())))
    for name, count in sorted(found.items()):
        print(f"{name + ':':32}{count:,}")
    if breaches(found):
        sys.exit(1)
