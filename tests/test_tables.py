"""Tables of the docs that promise something name the test that holds each row; and these tests exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.checkpoint.points import POINTS
from tests.unit.topology.test_changes import GOES_ON, REFUSED

ROOT = Path(__file__).parents[1]
TESTS = frozenset(
    node.name
    for file in (ROOT / "tests").rglob("test_*.py")
    for node in ast.walk(ast.parse(file.read_text()))
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
)
NAMED = re.compile(r"`(test_\w+)`")
DIES = re.compile(r"dies at `([a-z ]+)`")


def rows_of(page: str, head: str) -> Iterator[list[str]]:
    """The cells of each row of the table that begins with these headings."""
    lines = iter((ROOT / "docs" / page).read_text().splitlines())
    for line in lines:
        if line.startswith(head):
            break
    else:
        raise AssertionError(f"{page} has no table {head}")
    assert next(lines).startswith("| ---")
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


BREAKS = list(rows_of("guarantee.md", "| what breaks |"))
WINDOWS = list(rows_of("crash-windows.md", "| died after |"))


@pytest.mark.parametrize("row", BREAKS, ids=[row[0] for row in BREAKS])
def test_what_the_guarantee_says_of_things_that_break_is_tested(row: list[str]) -> None:
    named = NAMED.findall(row[-1])
    assert named
    assert set(named) <= TESTS


@pytest.mark.parametrize("row", WINDOWS, ids=[row[0] for row in WINDOWS])
def test_each_crash_window_is_tested(row: list[str]) -> None:
    named, points = NAMED.findall(row[-1]), DIES.findall(row[-1])
    assert named or points
    assert set(named) <= TESTS
    assert set(points) <= set(POINTS)


def test_a_driver_dies_at_no_step_that_the_page_does_not_know() -> None:
    known = {point for row in WINDOWS for point in DIES.findall(row[-1])}
    assert known == set(POINTS)


def test_what_may_change_between_two_runs_is_in_the_table_as_it_is_tested():
    table = {what for what, *_ in rows_of("running.md", "| what changes |")}
    rows = {row for row, *_ in GOES_ON} | {row for row, *_ in REFUSED}
    assert rows <= table, rows - table
