"""Rules about the source of acktree that can be read off its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "acktree").rglob("*.py"))
MOST_BY_POSITION = 5
MOST_LINES = 600
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
    "acktree/multilang/protocol.py": 1,
    "acktree/spark/realtime/drive.py": 1,
    "acktree/spark/realtime/level.py": 2,
    "acktree/tasks/bolts/level.py": 2,
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
