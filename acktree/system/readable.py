"""Whether a socket or pipe has something to read.

``select.select`` refuses descriptors above 1,023, which a driver with many connections has.
"""

from __future__ import annotations

import math
import select
from typing import Protocol


class _HasFile(Protocol):
    def fileno(self) -> int: ...


def is_readable(source: int | _HasFile, secs: float = 0) -> bool:
    """Whether a read would return at once, if need be after a wait. The end of the stream counts.

    Args:
        source: A file descriptor, or what has one.
        secs: The longest wait.

    Raises:
        ValueError: The source is closed.
    """
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(math.ceil(max(0.0, secs) * 1000)))
