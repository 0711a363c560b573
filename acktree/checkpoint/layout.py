"""What a checkpoint's file of facts looks like in this release, and which others it can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from acktree.errors import CheckpointError

VERSION: Final = 2
"""Of the layout and of the ids that messages wear. Version 1, before 0.1.0, named messages otherwise."""
FRESH: Final[Mapping[str, Any]] = {
    "version": VERSION,
    "generation": 1,
    "first_batch": 0,
    "begins_after": -1,
    "acker_from": 0,
    "lost_through": -1,
    "memory": False,
}
"""What begins a checkpoint, beside salt, partitions, run, reserved sequences and shape."""


def check_version(facts: Mapping[str, Any], place: Path | str) -> None:
    """See that a checkpoint is of this release's version.

    Raises:
        CheckpointError: It is not.
    """
    version = facts.get("version")
    if version != VERSION:
        raise CheckpointError(
            f"this checkpoint has version {version}, and this acktree reads version {VERSION}",
            str(place),
            "let the acktree that wrote it finish what is open, and give the topology a new checkpoint",
        )
