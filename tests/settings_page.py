"""Writes ``docs/settings.md`` from the fields of ``Config`` and their docstrings.

python -m tests.settings_page
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

from acktree import Config

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
_HEAD = """# Settings

In a program `Config(message_timeout_secs=60)`; with the keys
`Config.from_mapping({"topology.message.timeout.secs": 60})`; on the command line
`-c topology.message.timeout.secs=60` or `-c message_timeout_secs=60`.

Keys that begin with `topology.` are Storm's. A setting of Storm's that has no meaning here is refused, with
what to do instead. A wrong name or value raises `ConfigError` before Spark starts.

The table is written by `python -m tests.settings_page` from the docstrings of `Config`, which
`help(acktree.Config)` shows too.

| setting | key | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page as it should be."""
    meanings, keys = _meanings(), Config().to_mapping()
    rows = [
        f"| `{setting.name}` | `{key}` | {_shown(setting.default)} | {meanings[setting.name]} |"
        for setting, key in zip(fields(Config), keys, strict=True)
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _meanings() -> dict[str, str]:
    """The docstring below each field, on one line of Markdown."""
    (tree,) = ast.parse(inspect.getsource(Config)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(ast.literal_eval(below.value).split())
        .replace("``", "`")
        .replace("|", "\\|")
        for field, below in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr)
    }


def _shown(default: object) -> str:
    is_long = isinstance(default, int) and abs(default) > 9999
    return f"{default:,}" if is_long else f"`{default!r}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
