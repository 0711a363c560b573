"""Runs a command of ``acktree`` for a command of ``sparse``, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from typing import NoReturn

from acktree.streamparse import project

__all__ = ["run_acktree", "topology_name"]


def run_acktree(*arguments: str) -> NoReturn:
    """Run ``acktree``, and end with its exit code."""
    done = subprocess.run([sys.executable, "-m", "acktree", *arguments], check=False)  # noqa: S603  # our own command
    raise SystemExit(done.returncode)


def topology_name(args: Namespace) -> str:
    """The topology that ``-n`` names, or the only one of the project."""
    return str(args.name) if args.name else project.topology_file(project.read_config(), None)[0]
