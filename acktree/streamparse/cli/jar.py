"""``sparse jar``: refused, with the reason."""

from __future__ import annotations

from typing import Any

from acktree.streamparse.cli.common import add_command, refused

__all__ = ["main", "subparser_hook"]

main = refused(
    "jar",
    "there is no jar: code travels with the topology",
    "leave it out; `acktree sparse submit` ships the project's code",
)


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    add_command(subparsers, "jar", "refused: there is no jar: code travels with the topology", main)
