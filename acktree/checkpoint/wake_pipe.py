"""The pipe in the inbox's folder that wakes the source when there are new entries: the driver's end."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

from acktree.checkpoint.inbox_files import WAKE
from acktree.system.private_files import PRIVATE_FILE


class WakePipe:
    """Writes into the pipe. Any thread may call any method."""

    def __init__(self, folder: Path) -> None:
        """Open the pipe, which is made if it is not there. A folder that cannot have one has none."""
        self._lock = Lock()
        self._pipe = _opened(folder / WAKE)

    def write(self) -> None:
        """Wake the source. It polls where there is no pipe."""
        with self._lock:  # another thread may close it, and its descriptor may be reused
            if self._pipe is not None:
                with suppress(BlockingIOError):  # it is full of wakes that were not read yet
                    os.write(self._pipe, b"\0")

    def close(self) -> None:
        """Close the pipe. A second call does nothing."""
        with self._lock:
            if self._pipe is not None:
                os.close(self._pipe)
                self._pipe = None


def _opened(pipe: Path) -> int | None:
    try:
        if not pipe.exists():
            os.mkfifo(pipe, PRIVATE_FILE)
            pipe.chmod(PRIVATE_FILE)
        return os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return None
