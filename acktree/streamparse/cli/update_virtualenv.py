"""``sparse update_virtualenv``: refused, with the reason."""

from __future__ import annotations

from typing import Any

from acktree.streamparse.cli.common import add_command, refused

__all__ = ["main", "subparser_hook"]

main = refused(
    "update_virtualenv",
    "there are no virtualenvs of Storm's workers",
    "install what the topology needs where Spark's executors run",
)


def subparser_hook(subparsers: Any) -> None:
    """Add the command."""
    add_command(subparsers, "update_virtualenv", "refused: there are no virtualenvs of Storm's workers", main)
