"""Thousands of simulated drivers on a failing disk, each from one seed: see docs/simulator.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.simulator.breaks import BREAKS, broken
from tests.simulator.damage import KINDS
from tests.simulator.simulate import simulate
from tests.simulator.world import DRIVES, Drive

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
FOUND_BY_EPOCHS = {
    "no-journal": 11,
    "log-after-commit": 0,
    "log-deleted-early": 0,
    "release-chunk-early": 10,
    "torn-chunk": 16,
    "group-not-at-once": 22,
    "uncommitted-log": 2,
    "memory-of-no-commit": 0,
    "memory-forgotten-early": 2,
    "forget-retry": 51,
    "forget-next-attempt": 817,
    "letter-not-stored": 0,
    "sequence-reuse": 1,
    "all-noted-as-delivered": 5,
    "no-fsync": 1,
    "names-not-synced": 16,
    "no-syncfs": 5,
    "delivered-before-sync": 301,
    "failed-passes": 0,
    "dropped-never": 0,
    "passage-not-logged": 3,
    "passage-forgotten-early": 80,
    "passage-twice": 3,
    "keys-not-logged": 5,
    "begun-anew": 37,
    "marker-of-one": 1,
    "late-report": 102,
    "reports-kept": 0,
    "told-before-commit": 8,
    "logged-cut-anew": 29,
    "two-logged": 11,
    "sink-two-under-way": 9,
    "no-roll-back": 2,
    "staged-forgotten-early": 5,
}
"""The same by epochs, or by both drives in turn."""


LONG = pytest.mark.timeout(3600)
"""Of a test whose long part has hundreds of seeds: a slow machine needs more than ten minutes."""


@LONG
@pytest.mark.slow
@pytest.mark.parametrize("with_power_cuts", [False, True], ids=["deaths and full disks", "power cuts too"])
def test_at_whatever_moment_something_fails_every_message_gets_its_right_verdict(
    with_power_cuts, sized
) -> None:
    for seed in range(sized(60, 120, 600)):
        result = simulate(seed, with_power_cuts=with_power_cuts)
        cuts = " --power-cuts" if with_power_cuts else ""
        again = f"python -m tests.simulator --seed {seed} --trace{cuts}"
        assert result.wrong is None, f"{result.wrong}\n{again}"


@LONG
@pytest.mark.slow
@pytest.mark.parametrize("with_power_cuts", [False, True], ids=["deaths and full disks", "power cuts too"])
def test_at_whatever_moment_something_fails_every_message_with_gates_has_its_effects_once(
    with_power_cuts, sized
) -> None:
    for seed in range(sized(30, 60, 600)):
        result = simulate(seed, with_power_cuts=with_power_cuts, with_gates=True)
        cuts = " --power-cuts" if with_power_cuts else ""
        again = f"python -m tests.simulator --seed {seed} --trace --gates{cuts}"
        assert result.wrong is None, f"{result.wrong}\n{again}"


@LONG
@pytest.mark.slow
def test_a_damaged_file_is_told_or_does_not_count(sized) -> None:
    told: Counter[str] = Counter()
    for seed in range(sized(60, 120, 600)):
        result = simulate(seed, with_damage=True)
        told += result.told
        again = f"python -m tests.simulator --seed {seed} --trace --damage"
        assert result.wrong is None, f"{result.wrong}\n{again}"
    assert {*told} >= {*KINDS}, "each kind of damage was told at least once"


@LONG
@pytest.mark.slow
@pytest.mark.parametrize("drive", ["epochs", "both"])
@pytest.mark.parametrize("with_gates", [False, True], ids=["plain", "gates"])
@pytest.mark.parametrize("with_power_cuts", [False, True], ids=["deaths and full disks", "power cuts too"])
def test_by_epochs_every_message_gets_its_right_verdict_too(
    drive, with_gates, with_power_cuts, sized
) -> None:
    given = {"with_gates": with_gates, "with_power_cuts": with_power_cuts, "drive": drive}
    for seed in range(sized(4, 60, 300)):
        result = simulate(seed, **given)
        assert result.wrong is None, f"{result.wrong}\nseed {seed} of {given}"


@LONG
@pytest.mark.slow
def test_by_epochs_a_damaged_file_is_told_or_does_not_count(sized) -> None:
    for seed in range(sized(4, 60, 300)):
        result = simulate(seed, with_damage=True, drive="epochs")
        assert result.wrong is None, f"{result.wrong}\nseed {seed} of epochs with damage"


@pytest.mark.parametrize("rule", FOUND_AT)
def test_a_rule_that_is_broken_is_noticed(rule: str) -> None:
    _check_is_noticed(rule, FOUND_AT[rule], "micro-batches")


@pytest.mark.parametrize("rule", [rule for rule in FOUND_BY_EPOCHS if rule not in FOUND_AT])
def test_a_rule_of_epochs_that_is_broken_is_noticed(rule: str) -> None:
    _check_is_noticed(rule, FOUND_BY_EPOCHS[rule], _drive_of(rule))


def test_rules_that_both_drives_have_are_noticed_by_epochs_too(thorough) -> None:
    both = [rule for rule in FOUND_BY_EPOCHS if rule in FOUND_AT]
    for rule in both if thorough else both[:4]:
        _check_is_noticed(rule, FOUND_BY_EPOCHS[rule], _drive_of(rule))


def _check_is_noticed(rule: str, seed: int, drive: Drive) -> None:
    given = {"with_power_cuts": BREAKS[rule].needs_power_cuts, "with_gates": BREAKS[rule].needs_gates}
    with broken(rule):
        wrong = simulate(seed, **given, drive=drive).wrong
    assert wrong is not None
    assert not wrong.startswith(("AttributeError", "TypeError")), "the break itself is out of date"
    assert simulate(seed, **given, drive=drive).wrong is None


def _drive_of(rule: str) -> Drive:
    return next(drive for drive in BREAKS[rule].drives if drive != "micro-batches")


def test_the_page_says_at_which_seed_each_broken_rule_is_noticed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 5 and row[0] != "`--break`"]
    assert {name.strip("`"): rule for name, rule, *_ in rows} == {k: b.rule for k, b in BREAKS.items()}
    for at, found in ((3, FOUND_AT), (4, FOUND_BY_EPOCHS)):
        assert {row[0].strip("`"): int(row[at]) for row in rows if row[at] != "-"} == found
        assert max(found.values()) < 1000


def test_each_rule_is_tried_on_the_drives_that_it_names() -> None:
    assert {*FOUND_AT} == {rule for rule, each in BREAKS.items() if "micro-batches" in each.drives}
    assert {*FOUND_BY_EPOCHS} == {rule for rule, each in BREAKS.items() if {*each.drives} - {"micro-batches"}}


@pytest.mark.parametrize("drive", DRIVES)
def test_a_seed_says_the_same_each_time(drive) -> None:
    first, second = (simulate(47, with_power_cuts=True, drive=drive, is_traced=True) for _ in range(2))
    assert first == second
    assert len(first.trace) > 100
