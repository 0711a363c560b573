"""Commands of streamparse that have no meaning here. Each says why, and ends with exit code 2."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NoReturn

from acktree.streamparse.cli.common import add_command

__all__ = ["REFUSED", "subparser_hook"]

_USAGE: Final = 2

REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "jar": (
        "there is no jar: code travels with the topology",
        "leave it out; `acktree sparse submit` ships the project's code",
    ),
    "remove_logs": (
        "there are no logs of Storm's workers",
        "the driver's log is a file of the checkpoint: delete it there",
    ),
    "slot_usage": (
        "there are no slots of Storm's supervisors",
        "Spark places the work: see its own page",
    ),
    "update_virtualenv": (
        "there are no virtualenvs of Storm's workers",
        "install what the topology needs where Spark's executors run",
    ),
    "worker_uptime": (
        "there are no workers of Storm",
        "`acktree list` has the age of each topology",
    ),
}
"""Command -> why it is refused, and what to do instead."""


def subparser_hook(subparsers: Any) -> None:
    """Add the commands."""
    for name, (why, _) in REFUSED.items():
        add_command(subparsers, name, f"refused: {why}", partial(_refuse, name))


def _refuse(name: str, args: Namespace) -> NoReturn:  # noqa: ARG001  # as every command
    why, fix = REFUSED[name]
    print(f"sparse {name}: {why}\n  fix:   {fix}", file=sys.stderr)
    raise SystemExit(_USAGE)
