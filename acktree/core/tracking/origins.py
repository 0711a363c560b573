"""Origins: the messages that a tuple hung on when it passed a gate, as people know them.

Behind a gate a tuple is a message of its own. Its dead letter names these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from acktree.core.ids import Int64s, UInt64s
from acktree.core.packing import Buffer, int32s, pack, unpack

__all__ = ["FrameOrigins", "Origin", "Origins", "joined_origins"]


class Origin(NamedTuple):
    """A message of a spout."""

    spout: str
    """The component id of the spout that emitted it."""
    message_id_repr: str
    """``repr`` of the user's message id."""
    label: str | None = None
    """What people call it; None if its spout gave no label."""


Origins = tuple[Origin, ...]


def joined_origins(parts: Sequence[Origins]) -> Origins:
    """All messages of several, each once, in this order."""
    return parts[0] if len(parts) == 1 else tuple(dict.fromkeys(chain.from_iterable(parts)))


class FrameOrigins:
    """The origins of the rows of a staged frame."""

    def __init__(self, blob: Buffer) -> None:
        """Read :attr:`blob` of another."""
        self.blob = bytes(blob)

    @classmethod
    def of(cls, degrees: Int64s, names: UInt64s, look_up: Callable[[UInt64s], list[Origins]]) -> FrameOrigins:
        """The origins of rows by their roots, in the order in which spouts emitted them.

        Args:
            degrees: The number of roots of each row, shape (n,).
            names: The roots of all rows, as ``sequence_names`` has them; shape (sum of ``degrees``,).
            look_up: The origins of each of some roots.
        """
        names, places = np.unique(names, return_inverse=True)
        origins = look_up(names)
        if (degrees != 1).any():
            ends = np.r_[0, np.cumsum(degrees)].tolist()
            rows = [tuple(sorted(places[start:end].tolist())) for start, end in pairwise(ends)]
            numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
            places = np.array([numbers[row] for row in rows])
            origins = [joined_origins([origins[name] for name in row]) for row in numbers]
        return cls(pack(places.astype(np.int32), json.dumps(origins).encode()))

    @cached_property
    def _parts(self) -> tuple[Any, list[Origins]]:
        places, texts = unpack(self.blob)
        return int32s(places), [tuple(Origin(*each) for each in row) for row in json.loads(bytes(texts))]

    def of_row(self, row: int) -> Origins:
        """The origins of one row."""
        places, by_place = self._parts
        origins: Origins = by_place[places[row]]
        return origins
