"""What a ``ColumnTable`` notes of its rows, and a change to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s
from acktree.core.state.column_blobs import Numbers, StoredKeys

Flags = npt.NDArray[np.bool_]
Where = Int64s | slice


@dataclass(frozen=True)
class Extent:
    """What is there: the number of slots, which buckets were read, and how many keys the others have.

    Without unread keys every bucket counts as read. Else one that was empty could be read later, when it has
    been saved: its keys would be there twice.
    """

    slots: int
    is_read: Flags
    unread: int

    def __post_init__(self) -> None:
        """Count empty buckets as read."""
        if not self.unread:
            self.is_read[:] = True

    @property
    def buckets(self) -> int:
        """How many buckets there are."""
        return len(self.is_read)


@dataclass(frozen=True)
class ColumnChange:
    """Absolute values for some slots, and the extent afterwards."""

    extent: Extent
    values: Sequence[tuple[str, Where, Numbers | int]] = ()
    alive: Sequence[tuple[Where, bool]] = ()


@dataclass(frozen=True)
class ReadBucket:
    """The slots of a bucket that was read, and its keys as they were stored."""

    first: int
    keys: StoredKeys


@dataclass(frozen=True)
class Rows:
    """The slots of given keys, of which some are new.

    Attributes:
        slots: Shape (n,).
        fresh: The slots that are new or were deleted, ascending, each once.
        extent: The extent with them.
    """

    slots: Int64s
    fresh: Int64s
    extent: Extent


@dataclass(frozen=True)
class Marks:
    """By bucket: whether a value changed since it was saved, and whether keys came or went."""

    changed: Flags
    reshaped: Flags

    @classmethod
    def of(cls, buckets: int) -> Marks:
        """No mark on any bucket."""
        return cls(np.zeros(buckets, dtype=np.bool_), np.zeros(buckets, dtype=np.bool_))
