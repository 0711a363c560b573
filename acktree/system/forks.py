"""What a forked child gives up at once: a lock, a socket or a pipe that it kept would outlive this process.

Source: ``flock(2)``: the lock is of the open file, and a child has the same open file.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import IO, Any, Final
from weakref import WeakSet

_PR_SET_PDEATHSIG: Final = 1
_closed_by_children: set[int] = set()
_lost_by_children: Final[dict[int, int]] = {}
"""A descriptor that was given -> its socket, by inode."""
_files: Final[WeakSet[IO[Any]]] = WeakSet()


def end_with(parent: int) -> None:
    """In a child that has just been forked: let Linux kill it when its parent ends.

    Source: prctl(2), PR_SET_PDEATHSIG. It holds for the thread that forked, too.
    """
    if sys.platform.startswith("linux"):
        import ctypes  # noqa: PLC0415  # most programs that import this file fork nothing

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)


def close_in_children(descriptor: int) -> None:
    """Let every process that is forked from now on close this descriptor."""
    _closed_by_children.add(descriptor)


def note_closed(descriptor: int) -> None:
    """Take note that a descriptor is closed here: its number may be another file's next."""
    _closed_by_children.discard(descriptor)
    _lost_by_children.pop(descriptor, None)


def close_file_in_children(file: IO[Any]) -> None:
    """Let every process that is forked from now on close this file, unless it was closed before.

    Args:
        file: Open, with nothing in its buffer, and used by no other thread: a child could not close it.
    """
    _files.add(file)


def lose_in_children(descriptor: int) -> None:
    """Let every process that is forked from now on lose a socket: who is at the other end sees this one end.

    All descriptors of the socket count, those that libraries make later, too. In a child each of them is
    ``/dev/null``: objects of the child know them by number, and may read, write and close them.
    """
    if inode := os.fstat(descriptor).st_ino:  # a system may tell none
        _lost_by_children[descriptor] = inode


def _lose(sockets: Collection[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/dev/fd")):  # noqa: PTH208  # they are numbers
        with suppress(OSError):  # the one that listed them is closed
            found = os.fstat(descriptor)
            if stat.S_ISSOCK(found.st_mode) and found.st_ino in sockets:
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _give_up_all() -> None:
    if _lost_by_children:
        sockets = set(_lost_by_children.values())
        _lost_by_children.clear()
        with suppress(OSError):
            _lose(sockets)
    for file in list(_files):
        with suppress(OSError, ValueError):
            file.close()
    _files.clear()
    for descriptor in _closed_by_children:
        with suppress(OSError):
            os.close(descriptor)
    _closed_by_children.clear()


os.register_at_fork(after_in_child=_give_up_all)
