"""Message ids as a chunk of the inbox keeps them for a restart."""

from __future__ import annotations

import numpy as np

from acktree.core import durable
from acktree.core.packing import Buffer
from acktree.core.spouts.pending import MessageIds

__all__ = ["ids_from_bytes", "ids_to_bytes"]


def ids_to_bytes(message_ids: MessageIds) -> bytes:
    """Message ids, pickled; an array of consecutive integers, such as offsets, as its range.

    :func:`ids_from_bytes` reads it.
    """
    if isinstance(message_ids, np.ndarray) and message_ids.dtype == np.int64 and len(message_ids):
        first, count = int(message_ids[0]), len(message_ids)
        if int(message_ids[-1]) - first == count - 1 and (message_ids == first + np.arange(count)).all():
            return durable.dumps(range(first, first + count))
    return durable.dumps(message_ids)


def ids_from_bytes(blob: Buffer) -> MessageIds:
    """Read what :func:`ids_to_bytes` wrote."""
    found: MessageIds = durable.loads(blob)
    return found.start + np.arange(len(found)) if isinstance(found, range) else found
