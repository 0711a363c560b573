"""``sparse remove_logs``: refused, with the reason."""

from __future__ import annotations

from typing import Any

from acktree.streamparse.cli.common import add_command, refused

__all__ = ["main", "subparser_hook"]

main = refused(
    "remove_logs",
    "there are no logs of Storm's workers",
    "the driver's log is a file of the checkpoint: delete it there",
)


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    add_command(subparsers, "remove_logs", "refused: there are no logs of Storm's workers", main)
