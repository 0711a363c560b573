"""``acktree sparse``: streamparse's commands, with their own options and exit codes."""

from __future__ import annotations

from argparse import REMAINDER, Namespace
from typing import Any

from acktree.cli.answers import Answer, Commands

_NO_PREFIX = "\0"
"""Options are streamparse's: its own parser reads them, ``--help`` too."""


def add_to(commands: Commands) -> None:
    """Add the command."""
    add: Any = commands.add_parser
    about = "streamparse's commands: quickstart, run, submit, kill, ..."
    parser = add("sparse", help=about, prefix_chars=_NO_PREFIX, add_help=False)
    parser.add_argument("arguments", nargs=REMAINDER)
    parser.set_defaults(run=_run, json=False)


def _run(options: Namespace) -> Answer:
    from acktree.streamparse.cli import sparse  # noqa: PLC0415  # other commands do not need it

    sparse.main(options.arguments)
    return Answer(None, "")
