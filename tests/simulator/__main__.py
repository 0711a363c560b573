"""Run seeds: ``python -m tests.simulator --seeds 0-1000 [--drive both] [--power-cuts] [--break RULE]``.

A seed that fails is printed with the line that runs it again and shows each step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.simulator.breaks import BREAKS, broken
from tests.simulator.simulate import Result, simulate
from tests.simulator.world import DRIVES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", default="0-1000", help="first-end, the end not included")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: show each step")
    parser.add_argument("--power-cuts", action="store_true", help="the power fails, too")
    parser.add_argument("--damage", action="store_true", help="files are damaged between runs, too")
    parser.add_argument("--gates", action="store_true", help="with an exactly-once bolt, a sink and keys")
    parser.add_argument(
        "--drive", choices=DRIVES, default="micro-batches", help="what runs the topology; both: in turn"
    )
    parser.add_argument("--break", dest="rule", choices=sorted(BREAKS), help="a rule that is broken")
    parser.add_argument("--failures", type=int, default=10, help="stop after this number of failures")
    given = parser.parse_args()
    with broken(given.rule) if given.rule else nullcontext():
        if given.seed is not None:
            return _one(given)
        first, _, end = given.seeds.partition("-")
        return _many(range(int(first), int(end)), given)


def _one(given: argparse.Namespace) -> int:
    seed = given.seed
    result = simulate(
        seed,
        with_power_cuts=given.power_cuts,
        with_damage=given.damage,
        with_gates=given.gates,
        drive=given.drive,
        is_traced=given.trace,
    )
    print("\n".join(result.trace))
    print(f"seed {seed}: {result.runs} runs, ended by {', '.join(result.deaths) or 'nothing'}")
    print(result.wrong or result.refused or "every message has the verdict that it should have")
    return 1 if result.wrong else 0


def _many(seeds: range, given: argparse.Namespace) -> int:
    began, failures, deaths, refused, runs = time.process_time(), 0, Counter[str](), 0, 0
    told = Counter[str]()
    done = 0
    for done, seed in enumerate(seeds, 1):  # noqa: B007  # it is asked after the loop
        result = simulate(
            seed,
            with_power_cuts=given.power_cuts,
            with_damage=given.damage,
            with_gates=given.gates,
            drive=given.drive,
        )
        told.update(result.told)
        deaths.update(result.deaths)
        runs += result.runs
        refused += result.refused is not None
        if result.wrong is not None:
            failures += 1
            _print_result(result, given)
            if failures >= given.failures:
                break
    secs = time.process_time() - began
    print(
        f"{done} seeds, {runs} runs, ended by {dict(deaths)}; {failures} failed, {refused} checkpoints "
        f"refused after a power cut that they need not survive; {done / max(secs, 1e-9):.0f} seeds/s of CPU"
    )
    if given.damage:
        print(f"damages that an error told: {dict(told)}")
    return 1 if failures else 0


def _print_result(result: Result, given: argparse.Namespace) -> None:
    chosen = {"power-cuts": given.power_cuts, "damage": given.damage, "gates": given.gates}
    options = "".join(f" --{name}" for name, is_chosen in chosen.items() if is_chosen)
    options += f" --drive {given.drive}" if given.drive != "micro-batches" else ""
    options += f" --break {given.rule}" if given.rule else ""
    print(f"seed {result.seed}: {(result.wrong or '').splitlines()[0][:200]}")
    print(f"    python -m tests.simulator --seed {result.seed} --trace{options}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
