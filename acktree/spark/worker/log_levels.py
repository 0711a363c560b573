"""The levels of loggers in a worker: as the operator's file in the checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from acktree.logs.log_levels import LevelSetter

_setter: Final = LevelSetter()
_seen: tuple[str, int, int] = ("", 0, 0)


def follow_log_levels(file: str | None) -> None:
    """Set the levels that a file names. Called in each Spark task; reads the file when it has changed.

    Args:
        file: The file; None where workers do not see the checkpoint.
    """
    global _seen  # noqa: PLW0603  # one for each process
    if file is None:
        return
    try:
        status = Path(file).stat()
        now = (file, status.st_mtime_ns, status.st_ino)  # two of one tick of the clock differ
    except OSError:  # no operator has set any
        now = (file, 0, 0)
    if now == _seen:
        return
    _seen = now
    levels: dict[str, str] = {}
    if now[1]:
        try:
            levels = json.loads(Path(file).read_bytes())
        except (OSError, ValueError):  # it is replaced just now: the next Spark task reads it
            _seen = (file, 0, 0)
            return
    _setter.apply(levels)
