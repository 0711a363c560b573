"""``sparse kill``: stop a topology."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from acktree.streamparse.cli.common import add_command, add_options
from acktree.streamparse.cli.orders import run_acktree, topology_here

__all__ = ["main", "subparser_hook"]


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "kill", "stop a topology", main)
    add_options(parser, settings=False)
    parser.add_argument(
        "--wait", type=int, default=5, help="for how many seconds open messages are waited for"
    )


def main(args: Namespace) -> None:
    """Stop a topology."""
    run_acktree("kill", topology_here(args), "--wait", str(args.wait))
