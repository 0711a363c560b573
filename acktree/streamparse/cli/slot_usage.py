"""``sparse slot_usage``: refused, with the reason."""

from __future__ import annotations

from acktree.streamparse.cli.common import refused

__all__ = ["main", "subparser_hook"]

main, subparser_hook = refused(
    "slot_usage",
    "there are no slots of Storm's supervisors",
    "Spark places the work: see its own page",
)
