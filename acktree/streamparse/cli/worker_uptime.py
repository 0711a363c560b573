"""``sparse worker_uptime``: refused, with the reason."""

from __future__ import annotations

from acktree.streamparse.cli.common import refused

__all__ = ["main", "subparser_hook"]

main, subparser_hook = refused(
    "worker_uptime",
    "there are no workers of Storm",
    "`acktree list` has the age of each topology",
)
