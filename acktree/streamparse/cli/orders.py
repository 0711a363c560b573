"""Runs a command of ``acktree`` for a command of ``sparse``, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from typing import NoReturn

from acktree.streamparse import project

__all__ = ["code_of_acktree", "run_acktree", "topology_name"]


def code_of_acktree(*arguments: str) -> int:
    """Run ``acktree``; returns its exit code."""
    command = [sys.executable, "-m", "acktree", *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603  # our own command


def run_acktree(*arguments: str) -> NoReturn:
    """Run ``acktree``, and end with its exit code."""
    raise SystemExit(code_of_acktree(*arguments))


def topology_name(args: Namespace) -> str:
    """The topology that ``-n`` names, or the only one of the project."""
    return str(args.name) if args.name else project.topology_file(project.read_config(), None)[0]
