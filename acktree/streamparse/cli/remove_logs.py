"""``sparse remove_logs``: refused, with the reason."""

from __future__ import annotations

from acktree.streamparse.cli.common import refused

__all__ = ["main", "subparser_hook"]

main, subparser_hook = refused(
    "remove_logs",
    "there are no logs of Storm's workers",
    "the driver's log is a file of the checkpoint: delete it there",
)
