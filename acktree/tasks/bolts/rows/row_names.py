"""Names of rows, used to find the row that kills its worker when a level runs again.

A row has a name by position: its frame and its index there. This name costs nothing, and stays valid as long
as the same frames come again. It does not stay valid for a frame made by a bolt of the same level: if one row
is left out, or the bolt emits other tuples in the next run, the following rows have other positions.

So a row also has a name by message: the emitting component, the stream, the executing task, the roots of the
row, and the number of earlier rows with the same roots. Untracked rows have no roots: their order alone
distinguishes them.

Storm has no counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from acktree.core.data.frames import Frame

NOWHERE: Final = -1
"""Instead of a name by position: the rows may have other positions in the next run."""
_WIDTH: Final = (1 << 62) - 1
_STEP: Final = 0x2545F4914F6CDD1D
"""The step between the names of rows with the same roots; odd, so that no two names are equal."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of consecutive rows of a frame.

    Attributes:
        count: The number of rows.
        first: The first row's name by position; the others have the next numbers. NOWHERE for none.
        by_message: Each row's name by message, shape (count,). Empty in a first run, which does not need it.
    """

    count: int
    first: int = NOWHERE
    by_message: Sequence[int] = ()

    @property
    def by_place(self) -> range:
        """Each row's name by position, shape (count,); empty if positions may change in the next run."""
        return range(0) if self.first < 0 else range(self.first, self.first + self.count)

    def part(self, start: int, end: int) -> Names:
        """The names of the rows from ``start`` up to, and without, ``end``."""
        first = self.first if self.first < 0 else self.first + start
        return Names(end - start, first, self.by_message[start:end])


def place_of(frame: Frame, task: int) -> int:
    """The name by position of a frame's first row, the same when the frame comes again; 0 to 2**62 - 1."""
    texts = (frame.component, frame.stream, frame.subscriber)
    return _number(repr((*texts, frame.source, frame.sequence, task)).encode("utf-8", "surrogatepass"))


class MessageNames:
    """Makes names by message, for one run of a level. Frames must be passed in the order of execution.

    Costs some microseconds a row, so it is used only after a worker has died.
    """

    def __init__(self) -> None:
        self._met: Counter[int] = Counter()

    def of(self, frame: Frame, task: int) -> list[int]:
        """The name by message of each row of a task's next frame, shape (n,); 0 to 2**62 - 1."""
        texts = (frame.component, frame.stream, frame.subscriber, task)
        said = repr(texts).encode("utf-8", "surrogatepass")
        lineage = frame.lineage.sparse()
        roots = lineage.roots.tolist()
        return [
            self._next(_number(said + repr(sorted(roots[start:end])).encode()))
            for start, end in pairwise(lineage.offsets.tolist())
        ]

    def _next(self, kin: int) -> int:
        """The name of the next row with the same roots."""
        before = self._met[kin]
        self._met[kin] = before + 1
        return (kin + before * _STEP) & _WIDTH


def _number(said: bytes) -> int:
    return int.from_bytes(blake2b(said, digest_size=8).digest()) >> 2
