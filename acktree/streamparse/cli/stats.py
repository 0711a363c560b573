"""``sparse stats``: show the numbers of a topology."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from acktree.streamparse.cli.common import add_command, add_options
from acktree.streamparse.cli.orders import run_acktree, topology_here

__all__ = ["main", "subparser_hook"]


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "stats", "show the numbers of a topology", main)
    add_options(parser, settings=False)
    parser.add_argument("--all", action="store_true", help="of all components; acktree shows them always")


def main(args: Namespace) -> None:
    """Show the numbers of a topology."""
    run_acktree("stats", topology_here(args))
