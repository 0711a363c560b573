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

from acktree.core.ids import Int32s, Int64s, UInt64s
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack


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


class NumberedOrigins(Sequence[Origins]):
    """The origins of messages of one spout whose ids are whole numbers: each message is its own."""

    def __init__(self, spout: str, ids: Int64s) -> None:
        """Of each message its id, shape (n,)."""
        self.spout, self.ids = spout, ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401  # origins; a slice is not asked for
        return (Origin(self.spout, repr(int(self.ids[place]))),)


class FrameOrigins:
    """The origins of the rows of a staged frame."""

    def __init__(self, blob: Buffer) -> None:
        """Read :attr:`blob` of another."""
        self.blob = bytes(blob)

    @classmethod
    def of(
        cls,
        counts: Int64s,
        degrees: Int64s,
        names: UInt64s,
        look_up: Callable[[UInt64s], Sequence[Origins]],
    ) -> FrameOrigins:
        """The origins of rows by their roots, in the order in which spouts emitted them.

        Args:
            counts: The number of rows of each group, shape (g,).
            degrees: The number of roots of each group, shape (g,).
            names: The roots of all groups, as ``sequence_names`` has them; shape (sum of ``degrees``,).
            look_up: The origins of each of some roots, which ascend.
        """
        places = np.arange(len(names))
        if not (names[1:] > names[:-1]).all():
            names, places = np.unique(names, return_inverse=True)
        origins = look_up(names)
        if (degrees != 1).any():
            ends = np.r_[0, np.cumsum(degrees)].tolist()
            groups = [tuple(sorted(places[start:end].tolist())) for start, end in pairwise(ends)]
            numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
            places = np.array([numbers[group] for group in groups])
            origins = [joined_origins([origins[name] for name in group]) for group in numbers]
        ends_of_groups = np.cumsum(counts).astype(np.int32)
        if isinstance(origins, NumberedOrigins):
            return cls(pack(ends_of_groups, origins.ids[places], json.dumps(origins.spout).encode()))
        return cls(pack(ends_of_groups, places, json.dumps([*origins]).encode()))

    @cached_property
    def _parts(self) -> tuple[Int32s, Sequence[Origins]]:
        """The end of each group, and the origins of each."""
        ends, numbers, text = unpack(self.blob)
        told = json.loads(bytes(text))
        if isinstance(told, str):
            return int32s(ends), NumberedOrigins(told, int64s(numbers))
        origins = [tuple(Origin(*each) for each in group) for group in told]
        return int32s(ends), [origins[place] for place in int64s(numbers).tolist()]

    def of_row(self, row: int) -> Origins:
        """The origins of one row."""
        ends, origins = self._parts
        return origins[int(ends.searchsorted(row, side="right"))]
