"""Thousands of simulated drivers on a failing disk, each from one seed: see docs/simulator.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.simulator.breaks import BREAKS, broken
from tests.simulator.damage import KINDS
from tests.simulator.simulate import simulate

SEEDS, FEW_SEEDS = 600, 60
FOUND_AT = {
    "ack-before-commit": 0,
    "no-journal": 3,
    "log-after-commit": 0,
    "log-deleted-early": 0,
    "release-chunk-early": 2,
    "torn-chunk": 23,
    "group-not-at-once": 82,
    "uncommitted-log": 16,
    "memory-of-no-commit": 0,
    "memory-forgotten-early": 0,
    "forget-retry": 94,
    "forget-next-attempt": 154,
    "letter-not-stored": 0,
    "sequence-reuse": 1,
    "all-noted-as-delivered": 11,
    "no-fsync": 1,
    "names-not-synced": 10,
    "no-syncfs": 2,
    "delivered-before-sync": 99,
    "sink-before-sync": 47,
    "failed-passes": 0,
    "dropped-never": 0,
    "passage-not-logged": 3,
    "passes-before-commit": 10,
    "passage-forgotten-early": 14,
    "staged-forgotten-early": 5,
    "passage-twice": 3,
    "keys-not-logged": 5,
    "keys-before-commit": 104,
    "begun-anew": 13,
    "no-roll-back": 1,
}
"""The first seed at which the simulator notices a broken rule; the table of docs/simulator.md."""


@pytest.mark.slow
@pytest.mark.parametrize("with_power_cuts", [False, True], ids=["deaths and full disks", "power cuts too"])
def test_at_whatever_moment_something_fails_every_message_gets_its_right_verdict(
    with_power_cuts, thorough
) -> None:
    for seed in range(SEEDS if thorough else FEW_SEEDS):
        result = simulate(seed, with_power_cuts=with_power_cuts)
        cuts = " --power-cuts" if with_power_cuts else ""
        again = f"python -m tests.simulator --seed {seed} --trace{cuts}"
        assert result.wrong is None, f"{result.wrong}\n{again}"


@pytest.mark.slow
@pytest.mark.parametrize("with_power_cuts", [False, True], ids=["deaths and full disks", "power cuts too"])
def test_at_whatever_moment_something_fails_every_message_with_gates_has_its_effects_once(
    with_power_cuts, thorough
) -> None:
    for seed in range(SEEDS if thorough else FEW_SEEDS // 2):
        result = simulate(seed, with_power_cuts=with_power_cuts, with_gates=True)
        cuts = " --power-cuts" if with_power_cuts else ""
        again = f"python -m tests.simulator --seed {seed} --trace --gates{cuts}"
        assert result.wrong is None, f"{result.wrong}\n{again}"


@pytest.mark.slow
def test_a_damaged_file_is_told_or_does_not_count(thorough) -> None:
    told: Counter[str] = Counter()
    for seed in range(SEEDS if thorough else FEW_SEEDS):
        result = simulate(seed, with_damage=True)
        told += result.told
        again = f"python -m tests.simulator --seed {seed} --trace --damage"
        assert result.wrong is None, f"{result.wrong}\n{again}"
    assert {*told} >= {*KINDS}, "each kind of damage was told at least once"


@pytest.mark.parametrize("rule", BREAKS)
def test_a_rule_that_is_broken_is_noticed(rule: str) -> None:
    needs = {"with_power_cuts": BREAKS[rule].needs_power_cuts, "with_gates": BREAKS[rule].needs_gates}
    with broken(rule):
        wrong = simulate(FOUND_AT[rule], **needs).wrong
    assert wrong is not None
    assert not wrong.startswith(("AttributeError", "TypeError")), "the break itself is out of date"
    assert simulate(FOUND_AT[rule], **needs).wrong is None


def test_the_page_says_at_which_seed_each_broken_rule_is_noticed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    rows = [row for row in rows if row[-1].isdigit()]
    assert {name.strip("`"): int(seed) for name, _, _, seed in rows} == FOUND_AT
    assert {name.strip("`"): rule for name, rule, _, _ in rows} == {k: b.rule for k, b in BREAKS.items()}
    assert max(FOUND_AT.values()) < 1000


def test_a_seed_says_the_same_each_time() -> None:
    first, second = (simulate(47, with_power_cuts=True, is_traced=True) for _ in range(2))
    assert first == second
    assert len(first.trace) > 100
