"""Which stream the messages of a spout task were emitted on, by their sequences.

The task's thread adds chunks; the sink asks for the streams of sequences that have a verdict. The table has
one entry for each run of chunks of one stream, so a task that emits to one stream has one.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from operator import itemgetter
from typing import Final

import numpy as np

from acktree.core.ids import Int64s

_MANY: Final = 4096
"""Above this number of entries, those of messages that are done are dropped."""
_FIRST: Final = itemgetter(0)


class SentStreams:
    """The streams of one spout task's messages.

    >>> sent = SentStreams()
    >>> for first, stream in ((100, "default"), (110, "default"), (120, "errors")):
    ...     sent.add(first, stream)
    >>> sent.counts(np.array([101, 119, 120]))
    {'default': 2, 'errors': 1}
    """

    def __init__(self) -> None:
        """Start without messages."""
        self._entries: list[tuple[int, str]] = []  # the first sequence of each, ascending
        self._many = _MANY

    def add(self, first: int, stream: str, oldest: int | None = None) -> None:
        """Note the stream of the messages from a sequence on. The same may be added again.

        Args:
            first: The first sequence.
            stream: Their stream.
            oldest: The first sequence that may still get a verdict; None for not known.
        """
        entries = self._entries
        at = bisect_right(entries, first, key=_FIRST)
        if at and (entries[at - 1][0] == first or entries[at - 1][1] == stream):
            return
        insort(entries, (first, stream))  # nearly always at the end
        if len(entries) > self._many and oldest is not None:
            kept = max(0, bisect_right(entries, oldest, key=_FIRST) - 1)
            self._entries = entries[kept:]  # a new list: the sink may read the old one
            self._many = max(_MANY, 2 * len(self._entries))

    def counts(self, sequences: Int64s) -> dict[str, int]:
        """How many of these messages were emitted on each stream. Any thread may call it."""
        entries = self._entries.copy()
        if len(entries) <= 1 or not len(sequences):
            return {entries[0][1]: len(sequences)} if entries and len(sequences) else {}
        firsts = np.fromiter((first for first, _ in entries), np.int64, len(entries))
        places = np.maximum(np.searchsorted(firsts, sequences, side="right") - 1, 0)
        counts: dict[str, int] = {}
        for at, n in zip(*np.unique(places, return_counts=True), strict=True):
            stream = entries[int(at)][1]
            counts[stream] = counts.get(stream, 0) + int(n)
        return counts
