"""Rules about the source of acktree that can be read off its syntax tree."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "acktree").rglob("*.py"))
MOST_BY_POSITION = 5
MOST_LINES = 600
MOST_FILES = 20
VARIADIC = {
    "log.info": "the values of a format string",
    "log.warning": "the values of a format string",
    "pack": "the parts of a record, each a buffer",
    "FRAME.pack": "the values of a struct",
    "_ACCOUNT.pack": "the values of a struct",
    "code_of_acktree": "the words of a command",
    "sa.Table": "the columns of a table",
}
"""Calls that may pass more: their arguments are one list of any length."""

STILL = {
    "acktree/spark/realtime/drive.py": 1,
    "acktree/spark/realtime/level.py": 2,
}
"""Files that still have such calls, and how many."""


def calls_by_position(source: str) -> Iterator[tuple[int, str]]:
    """Line and function of each call that passes more than five arguments by position."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and len(node.args) > MOST_BY_POSITION:
            yield node.lineno, ast.unparse(node.func)


def test_no_call_passes_more_than_five_arguments_by_position() -> None:
    found = {
        str(file.relative_to(ROOT)): calls
        for file in SOURCES
        if (calls := [at for at in calls_by_position(file.read_text()) if at[1] not in VARIADIC])
    }
    more = {file: calls for file, calls in found.items() if len(calls) > STILL.get(file, 0)}
    assert not more, f"name the arguments of these calls, or find the object that is missing: {more}"
    assert {file: len(calls) for file, calls in found.items()} == STILL, "shorten the list STILL"


def test_no_file_has_more_than_600_lines() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for file in SOURCES
        if (lines := file.read_text().count("\n")) > MOST_LINES
    }
    assert not long, f"split these by noun: {long}"


def test_no_folder_has_more_than_20_files() -> None:
    counts = Counter(str(file.parent.relative_to(ROOT)) for file in SOURCES)
    many = {folder: count for folder, count in counts.items() if count > MOST_FILES}
    assert not many, f"split these by noun: {many}"


FOR_USERS = {"connectors", "flux", "multilang", "pystorm", "states", "streamparse", "testing"}
"""Rooms whose modules users import, as they do those of the root."""

WITH_ALL = {
    "acktree/checkpoint/logs/gate_log.py",
    "acktree/checkpoint/staged_files.py",
    *(f"acktree/spark/realtime/{name}.py" for name in ("connections", "drive", "epochs", "frames")),
    *(f"acktree/spark/realtime/{name}.py" for name in ("level", "query", "session")),
}
"""Files that may still have one."""


def names_twice(source: str) -> bool:
    """Whether a module has ``__all__``, and all that it lists is defined there."""
    module = ast.parse(source)
    passed_on = {
        alias.asname or alias.name
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    listed = [
        ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return any(passed_on.isdisjoint(names) for names in listed)


def test_inner_modules_say_once_which_names_are_their_own() -> None:
    """Of 329 inner modules 248 had ``__all__``, and 53 of these left out names that others import."""
    inner = [
        str(file.relative_to(ROOT))
        for file in SOURCES
        if len(file.relative_to(ROOT).parts) > 2  # not of the root
        and file.relative_to(ROOT).parts[1] not in FOR_USERS
        and file.name != "__init__.py"
        and names_twice(file.read_text())
    ]
    assert set(inner) <= WITH_ALL, "leave __all__ out: a name without an underscore is for other modules"


def imported(module: ast.Module) -> Iterator[str]:
    """The packages that a module imports first of all, but for those after a ``pytest.importorskip``."""
    for node in module.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
        elif "importorskip" in ast.unparse(node):
            return


def test_unit_tests_import_nothing_that_an_extra_brings_unless_they_are_skipped_without_it() -> None:
    """They run beside the wheel too, where no extra is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = {Requirement(line).name for line in project["dependencies"]}
    known = {*sys.stdlib_module_names, *brought, "acktree", "tests", "hypothesis", "pytest", "_pytest"}
    unit = ROOT / "tests/unit"
    found = {
        str(file.relative_to(ROOT)): extra
        for file in sorted(unit.rglob("*.py"))
        if not file.is_relative_to(unit / "spark")
        if (extra := set(imported(ast.parse(file.read_text()))) - known)
    }
    assert not found, f"import these with pytest.importorskip: {found}"
