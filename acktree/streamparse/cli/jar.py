"""``sparse jar``: refused, with the reason."""

from __future__ import annotations

from acktree.streamparse.cli.common import refused

__all__ = ["main", "subparser_hook"]

main, subparser_hook = refused(
    "jar",
    "there is no jar: code travels with the topology",
    "leave it out; `acktree sparse submit` ships the project's code",
)
