"""``sparse list``: list the topologies that run."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from acktree.streamparse.cli.common import add_command, add_options
from acktree.streamparse.cli.orders import run_acktree

__all__ = ["main", "subparser_hook"]


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "list", "list the topologies that run", main)
    add_options(parser, settings=False)


def main(args: Namespace) -> None:  # noqa: ARG001  # as every command
    """List the topologies that run."""
    run_acktree("list")
