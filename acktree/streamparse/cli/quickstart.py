"""``sparse quickstart``: make a project."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from acktree.streamparse.bootstrap import quickstart
from acktree.streamparse.cli.common import add_command

__all__ = ["main", "subparser_hook"]


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "quickstart", "make a project that counts words", main)
    parser.add_argument("project_name", help="the folder, which must not be there")


def main(args: Namespace) -> None:
    """Make a project that counts words."""
    quickstart(args.project_name)
