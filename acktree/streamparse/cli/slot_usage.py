"""``sparse slot_usage``: refused, with the reason."""

from __future__ import annotations

from typing import Any

from acktree.streamparse.cli.common import add_command, refused

__all__ = ["main", "subparser_hook"]

main = refused(
    "slot_usage",
    "there are no slots of Storm's supervisors",
    "Spark places the work: see its own page",
)


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    add_command(subparsers, "slot_usage", "refused: there are no slots of Storm's supervisors", main)
