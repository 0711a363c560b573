"""What a forked child closes at once: a lock, a socket or a pipe that it kept would outlive the driver.

Source: ``flock(2)``: the lock is of the open file, and a child has the same open file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, Any, Final
from weakref import WeakSet

_closed_by_children: set[int] = set()
_files: Final[WeakSet[IO[Any]]] = WeakSet()


def close_in_children(descriptor: int) -> None:
    """Let every process that is forked from now on close this descriptor."""
    _closed_by_children.add(descriptor)


def note_closed(descriptor: int) -> None:
    """Take note that a descriptor is closed here: its number may be another file's next."""
    _closed_by_children.discard(descriptor)


def close_file_in_children(file: IO[Any]) -> None:
    """Let every process that is forked from now on close this file, unless it was closed before.

    Args:
        file: Open, with nothing in its buffer, and used by no other thread: a child could not close it.
    """
    _files.add(file)


def _close_all() -> None:
    for file in list(_files):
        with suppress(OSError, ValueError):
            file.close()
    _files.clear()
    for descriptor in _closed_by_children:
        with suppress(OSError):
            os.close(descriptor)
    _closed_by_children.clear()


os.register_at_fork(after_in_child=_close_all)
