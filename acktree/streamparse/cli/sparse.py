"""``sparse``: all commands, as ``acktree sparse`` and ``python -m acktree.streamparse``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from acktree import AcktreeError
from acktree.streamparse.version import __version__

__all__ = ["load_subparsers", "main"]

_COMMANDS: Final = (
    "jar", "kill", "list", "quickstart", "remove_logs", "run", "slot_usage", "stats", "submit", "tail",
    "update_virtualenv", "visualize", "worker_uptime",
)  # fmt: skip


def load_subparsers(subparsers: Any) -> None:
    """Add every command."""
    for name in _COMMANDS:
        import_module(f"acktree.streamparse.cli.{name}").subparser_hook(subparsers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. SystemExit 1 for a refusal and where there is no command, 2 for usage.

    Args:
        arguments: The command-line arguments. None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="sparse", description="streamparse's commands, on acktree.")
    parser.add_argument("--version", action="version", version=f"sparse {__version__} (acktree)")
    subparsers = parser.add_subparsers(metavar="COMMAND")
    load_subparsers(subparsers)
    to_help = subparsers.add_parser("help", help="show the help of a command")
    to_help.add_argument("of", nargs="?", choices=_COMMANDS)
    to_help.set_defaults(func=lambda args: parser.parse_args([*([args.of] if args.of else []), "--help"]))
    args = parser.parse_args(arguments)
    if not hasattr(args, "func"):
        parser.print_help()
        raise SystemExit(1)
    try:
        args.func(args)
    except AcktreeError as error:
        print(f"sparse: {error}", file=sys.stderr)
        raise SystemExit(1) from error
