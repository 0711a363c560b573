"""What rows are called while it is found out which of them kills its worker.

A row has a name by its place: its frame, and where it stands there. That costs nothing, and holds as long as
the same frames come again. It does not hold where a bolt of the same level made the frame: when one of its
rows is left out, or it emits other tuples each time, all that follow move up or down.

So a row has a name by its message, too, which no other message can take: who emitted it on which stream, what
task executes it, the roots that it hangs on, and how many of the same roots came before it. Rows that hang on
no message share one such name, and are told apart by their order alone.

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
"""The place of rows that may stand elsewhere in the next run."""
_WIDTH: Final = (1 << 62) - 1
_STEP: Final = 0x2545F4914F6CDD1D
"""From a row's name to that of the next of the same roots; odd, so that no two of them meet."""


@dataclass(frozen=True, slots=True)
class Names:
    """Rows that follow each other in a frame, by name.

    Attributes:
        count: How many they are.
        first: The name of the first by its place, those after it are numbered on; or NOWHERE.
        by_message: The name of each, shape (count,); empty in a worker's own run, where nobody needs it.
    """

    count: int
    first: int = NOWHERE
    by_message: Sequence[int] = ()

    @property
    def by_place(self) -> range:
        """The name of each by its place, shape (count,); empty where that may be another's next time."""
        return range(0) if self.first < 0 else range(self.first, self.first + self.count)

    def part(self, start: int, end: int) -> Names:
        """Those from one row to before another."""
        first = self.first if self.first < 0 else self.first + start
        return Names(end - start, first, self.by_message[start:end])


def place_of(frame: Frame, task: int) -> int:
    """The name of a frame's first row by its place, the same when the frame comes again; 0 to 2**62 - 1."""
    texts = (frame.component, frame.stream, frame.subscriber)
    return _number(repr((*texts, frame.source, frame.sequence, task)).encode("utf-8", "surrogatepass"))


class MessageNames:
    """Names rows by their messages; for one run of a level, whose frames it is shown in order.

    Costs some microseconds a row: nothing for a run in which nobody has died.
    """

    def __init__(self) -> None:
        self._met: Counter[int] = Counter()

    def of(self, frame: Frame, task: int) -> list[int]:
        """The name of each row of the next frame of a task, shape (n,); 0 to 2**62 - 1."""
        texts = (frame.component, frame.stream, frame.subscriber, task)
        said = repr(texts).encode("utf-8", "surrogatepass")
        lineage = frame.lineage.sparse()
        roots = lineage.roots.tolist()
        return [
            self._next(_number(said + repr(sorted(roots[start:end])).encode()))
            for start, end in pairwise(lineage.offsets.tolist())
        ]

    def _next(self, kin: int) -> int:
        """The name of the next row of the same roots."""
        before = self._met[kin]
        self._met[kin] = before + 1
        return (kin + before * _STEP) & _WIDTH


def _number(said: bytes) -> int:
    return int.from_bytes(blake2b(said, digest_size=8).digest()) >> 2
