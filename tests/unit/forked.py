"""A process that user code forks, for tests of what it must not keep."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def child() -> Iterator[int]:
    """A process that does nothing, as one of a pool that a spout made."""
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def descriptors_of(pid: int) -> set[str]:
    """What the descriptors of a process are, as Linux names them."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.add(str(link.readlink()))
    return found
