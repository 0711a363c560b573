"""``sparse worker_uptime``: refused, with the reason."""

from __future__ import annotations

from typing import Any

from acktree.streamparse.cli.common import add_command, refused

__all__ = ["main", "subparser_hook"]

main = refused(
    "worker_uptime",
    "there are no workers of Storm",
    "`acktree list` has the age of each topology",
)


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    add_command(subparsers, "worker_uptime", "refused: there are no workers of Storm", main)
