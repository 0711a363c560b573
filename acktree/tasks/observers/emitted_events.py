"""Collects emitted tuples: for the event log while operators have it on, and all of them with ``debug``.

For the event log, whole trees are sampled: a tuple is logged if the root of its message is among the share
that the order names. Tuples without a root are sampled by the micro-batch's clock and their number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from acktree.core.data.frames import Kind
from acktree.core.data.tuples import Tuple
from acktree.core.data.values import batch_to_bytes
from acktree.core.ids import Int64s, UInt64s, mix64
from acktree.core.packing import Buffer
from acktree.core.tracking.lineage_runs import Runs
from acktree.core.tracking.sampling import is_sampled
from acktree.tasks.bolts.observer import Emitted, Observer
from acktree.tasks.bolts.outputs.emission import Emission
from acktree.tasks.bolts.rows.frame_rows import InboundRows, account_of
from acktree.tasks.broadcast import OperatorOrder
from acktree.tasks.observers.previews import previews
from acktree.tasks.observers.tracer import recording

_MOST: Final = 10_000
"""The most events of one level, partition and micro-batch."""
_MOST_TEXT: Final = 1000
_NO_ROOT: Final = 0


class EmittedTuples(Observer):
    """All tuples that are emitted, as ``Config(debug=True)`` logs them."""

    def __init__(self) -> None:
        """Nothing is collected yet."""
        self._emitted: list[tuple[str, Emission]] = []

    def emitted(self, emitted: Emitted) -> None:
        self._emitted.append((emitted.component, emitted.emission))

    def driver_rows(self) -> Iterator[tuple[Kind, bytes, Buffer]]:
        for component, emission in self._emitted:
            head = json.dumps((component, emission.stream)).encode()
            yield Kind.EMITTED, head, batch_to_bytes(emission.batch)


class EmittedEvents(Observer):
    """The events of one level, partition and micro-batch."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Nothing is logged yet.

        Args:
            now_ms: The time, in milliseconds since 1970.
        """
        self._order: OperatorOrder | None = None
        self._now_ms = now_ms
        self._events: list[Sequence[object]] = []
        self._dropped = self._unrooted = 0

    def ordered(self, order: OperatorOrder) -> None:
        self._order = order

    @recording
    def emitted(self, emitted: Emitted) -> None:
        component, task, emission, rows, _ = emitted
        share = 0.0 if self._order is None else self._order.logs(component)
        if share <= 0:
            return
        roots = _roots_of(emission, rows)
        keys = np.where(roots == _NO_ROOT, self._numbered(task, len(roots)).view(np.int64), roots)
        wanted = np.flatnonzero(is_sampled(keys, share))
        at_ms = self._now_ms()
        fits = wanted[: max(0, _MOST - len(self._events))].tolist()
        self._dropped += len(wanted) - len(fits)
        for row, shown in zip(fits, previews(emission.batch, fits, _MOST_TEXT), strict=True):
            root = int(roots[row]) or None
            self._events.append((at_ms, component, task, emission.stream, root, shown))

    def _numbered(self, task: int, count: int) -> UInt64s:
        """A number for each tuple of an emission, the same in a second run."""
        first, self._unrooted = self._unrooted, self._unrooted + count
        numbers = np.arange(first, first + count).astype(np.uint64)
        return mix64(numbers + mix64(np.array([task & 0xFFFFFFFF], dtype=np.uint64)))

    def driver_rows(self) -> Iterator[tuple[Kind, bytes, Buffer]]:
        if self._events or self._dropped:
            yield Kind.EVENTS, b"", json.dumps({"events": self._events, "dropped": self._dropped}).encode()


def _roots_of(emission: Emission, rows: InboundRows) -> Int64s:
    """The first root of each emitted tuple, shape (n,); 0 for none."""
    lineage = rows.lineage
    if isinstance(lineage, Runs):
        of_row = lineage.roots[lineage.run_of_row]
    else:
        sparse = lineage.sparse()
        padded = np.append(sparse.roots, _NO_ROOT)
        of_row = np.where(np.diff(sparse.offsets) > 0, padded[sparse.offsets[:-1]], _NO_ROOT)
    roots: Int64s = np.append(of_row, _NO_ROOT)[emission.parents]  # -1 takes the last
    _note_joins(roots, emission.joins)
    return roots


def _note_joins(roots: Int64s, joins: Mapping[int, Sequence[Tuple]]) -> None:
    for emitted, anchors in joins.items():
        for anchor in anchors:
            rows, row = account_of(anchor)
            found = rows.anchors_of(row)
            if found:
                roots[emitted] = next(iter(found))
                break
