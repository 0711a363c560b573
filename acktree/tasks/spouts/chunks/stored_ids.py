"""Message ids as a chunk of the inbox keeps them for a restart.

Layout::

    80 ... or AC ...     what ``durable.dumps`` writes of a list, another sequence, or an array
    01, first, count     an array of consecutive integers, such as offsets: two numbers of eight bytes
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from acktree.core import durable
from acktree.core.ids import Int64s
from acktree.core.packing import Buffer
from acktree.core.spouts.pending import MessageIds

_CONSECUTIVE: Final = 0x01
"""No first byte of what ``durable.dumps`` writes."""
_LAYOUT: Final = struct.Struct("<Bqq")


def ids_to_bytes(message_ids: MessageIds) -> bytes:
    """Message ids as bytes, for :func:`ids_from_bytes`."""
    if isinstance(message_ids, np.ndarray) and message_ids.dtype == np.int64 and len(message_ids):
        first, count = int(message_ids[0]), len(message_ids)
        if int(message_ids[-1]) - first == count - 1 and (message_ids == first + np.arange(count)).all():
            return _LAYOUT.pack(_CONSECUTIVE, first, count)
    return durable.dumps(message_ids)


def ids_from_bytes(blob: Buffer) -> MessageIds:
    """Read what :func:`ids_to_bytes` wrote: of an array an array, of a sequence the sequence."""
    if blob[0] != _CONSECUTIVE:
        ids: MessageIds = durable.loads(blob)
        return ids
    _, first, count = _LAYOUT.unpack(blob)
    consecutive: Int64s = first + np.arange(count)
    return consecutive
