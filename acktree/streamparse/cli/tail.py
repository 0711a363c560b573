"""``sparse tail``: the end of the driver's log."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

from acktree import ConfigError
from acktree.streamparse.cli.common import add_command, add_options
from acktree.streamparse.cli.orders import checkpoint_here

__all__ = ["main", "subparser_hook"]


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    parser = add_command(subparsers, "tail", "show the end of the driver's log", main)
    add_options(parser, settings=False)
    parser.add_argument("--checkpoint", metavar="C", help="the topology's")
    parser.add_argument("-f", "--follow", action="store_true", help="go on")
    parser.add_argument("-l", "--num_lines", type=int, default=10, help="how many lines")


def main(args: Namespace) -> None:
    """Show the end of the driver's log."""
    checkpoint = args.checkpoint or checkpoint_here(args)
    log = Path(checkpoint) / "driver.log"
    if not checkpoint or not log.is_file():
        raise ConfigError("there is no log of a driver", str(log), "name the checkpoint: --checkpoint C")
    command = ["tail", f"-n{args.num_lines}", *(["-f"] if args.follow else []), str(log)]
    raise SystemExit(subprocess.run(command, check=False).returncode)  # noqa: S603  # its arguments are checked
