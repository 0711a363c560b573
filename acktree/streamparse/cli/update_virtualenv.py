"""``sparse update_virtualenv``: refused, with the reason."""

from __future__ import annotations

from acktree.streamparse.cli.common import refused

__all__ = ["main", "subparser_hook"]

main, subparser_hook = refused(
    "update_virtualenv",
    "there are no virtualenvs of Storm's workers",
    "install what the topology needs where Spark's executors run",
)
