"""What pages claim exists: tests that tables name, files that pages name, and the targets of links."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import settings_page
from tests.unit.checkpoint.points import POINTS
from tests.unit.topology.test_changes import GOES_ON, REFUSED

ROOT = Path(__file__).parents[1]
LISTED = tomllib.loads((ROOT / "tests" / "parts.toml").read_text())
PARTS, TWINS = LISTED["part"], LISTED["twins"]
LONG = tuple(name for part in PARTS.values() for name in part.get("tests", []))
ALL_TESTS = {
    f"{file.relative_to(ROOT)}::{name}": name
    for file in (ROOT / "tests").rglob("test_*.py")
    # Not parsed: each process that looks for tests reads this.
    for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE)
}
QUICK = frozenset(name for test, name in ALL_TESTS.items() if not test.startswith(LONG))
TESTS = QUICK | {name for name, twin in TWINS.items() if twin in QUICK}
"""The tests that ``make test`` runs itself or by a quick twin: a page that promises something names these."""
NAMED = re.compile(r"`(test_\w+)`")
DIES = re.compile(r"dies at `([a-z ]+)`")


def rows_of(page: str, head: str) -> Iterator[list[str]]:
    """The cells of each row of the table that begins with these headings; ``page`` as seen from ``docs``."""
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
WINDOWS = [
    row
    for head in ("| died after |", "| with gates, died after |", "| with gates, what happens |")
    for row in rows_of("crash-windows.md", head)
]
PROMISES = list(rows_of("../README.md", "| when |"))
TRUST = list(rows_of("security.md", "| claim |"))
FORMS = list(rows_of("architecture.md", "| what | form |"))
MOST_FORMS = {"a value": 8, "an ack": 9, "a dead letter": 8, "its redrive": 5}


@pytest.mark.parametrize("row", BREAKS, ids=[row[0] for row in BREAKS])
def test_what_the_guarantee_says_of_things_that_break_is_tested(row: list[str]) -> None:
    named = NAMED.findall(row[-1])
    assert named
    assert set(named) <= TESTS


@pytest.mark.parametrize("row", PROMISES, ids=[row[0] for row in PROMISES])
def test_each_promise_of_the_readme_is_tested(row: list[str]) -> None:
    named = NAMED.findall(row[-1])
    assert named
    assert set(named) <= TESTS


@pytest.mark.parametrize("row", TRUST, ids=[row[0] for row in TRUST])
def test_each_claim_about_security_is_tested(row: list[str]) -> None:
    named = NAMED.findall(row[-1])
    assert named
    assert set(named) <= TESTS


@pytest.mark.parametrize("row", FORMS, ids=[" ".join(row[:2]) for row in FORMS])
def test_each_form_that_data_takes_is_made_where_the_page_says(row: list[str]) -> None:
    form, defined, maker = (cell.strip("`") for cell in row[1:])
    assert f"class {form}" in (ROOT / "acktree" / defined).read_text(), f"{form} is not in {defined}"
    made = re.compile(rf"\b{form}\b")
    assert made.search((ROOT / "acktree" / maker).read_text()), f"{maker} does not make {form}"


def test_data_takes_no_more_forms_than_the_page_says() -> None:
    taken = Counter(row[0].split(",")[0] for row in FORMS)
    assert taken.keys() == MOST_FORMS.keys()
    assert all(count <= MOST_FORMS[what] for what, count in taken.items()), taken


@pytest.mark.parametrize("row", WINDOWS, ids=[row[0] for row in WINDOWS])
def test_each_crash_window_is_tested(row: list[str]) -> None:
    named, points = NAMED.findall(row[-1]), DIES.findall(row[-1])
    assert named or points
    assert set(named) <= TESTS
    assert set(points) <= set(POINTS)


def test_a_driver_dies_at_no_step_that_the_page_does_not_know() -> None:
    known = {point for row in WINDOWS for point in DIES.findall(row[-1])}
    assert known == set(POINTS)


def test_the_long_parts_name_tests_and_rooms_that_there_are() -> None:
    names = [
        name for part in PARTS.values() for key in ("tests", "more", "rooms") for name in part.get(key, [])
    ]
    assert [name for name in names if not (ROOT / name.partition("::")[0]).exists()] == []


def test_each_long_test_with_a_quick_twin_is_there_and_is_long() -> None:
    assert set(TWINS) <= {*ALL_TESTS.values()} - QUICK
    assert set(TWINS.values()) <= QUICK


def test_what_may_change_between_two_runs_is_in_the_table_as_it_is_tested():
    table = {what for what, *_ in rows_of("running.md", "| what changes |")}
    rows = {row for row, *_ in GOES_ON} | {row for row, *_ in REFUSED}
    assert rows <= table, rows - table


# --- files and links ----------------------------------------------------------------------------------

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
FILE = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.(?:py|sh|toml|lock))\b")
FOLDER = re.compile(r"`((?:acktree|tests|docs|scripts|benchmarks/results)/[\w/-]*)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")
NOT_OURS = frozenset({
    "on_cluster.py",  # the program that running.md writes
    "storm.py",  # Storm's
    *("fabfile.py", "tasks.py", "topologies/words.py", "x.py"),  # of a project of streamparse
})  # fmt: skip


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    examples = ROOT / "examples" / "word_count"
    places = (ROOT, ROOT / "acktree", page.parent, examples)
    named = {*FILE.findall(text), *FOLDER.findall(text)} - NOT_OURS
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_link_of_a_page_leads_somewhere(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def test_the_page_of_settings_is_the_docstrings_of_config():
    assert settings_page.PAGE.read_text() == settings_page.page(), "run: python -m tests.settings_page"
