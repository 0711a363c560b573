"""The tuples of one frame while a task works on them, with the tracking state of each.

What Storm keeps in a tuple object is kept here in arrays with one item a row: the values, whether the tuple
was acked, the XOR of the edges of the copies anchored to it. A :class:`Tuple` is a pointer to a row, and a
copy of it points to the same row. A second account of the same tuple would create the same edge twice; the
XOR of two equal edges is zero, which could make a false ACKED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn, Self

import numpy as np

from acktree.core.data.reading import Column, PartlyReadable, decoded
from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int32s, Int64s, UInt64s, edges_at, edges_from, steps_to
from acktree.core.tracking.lineage import Lineage, Sparse
from acktree.errors import MisuseError
from acktree.tasks.bolts.rows.row_timer import RowTimer

OPEN: Final = 0
ACKED: Final = 1
FAILED: Final = 2
REPORTED: Final = 3
"""The state of a row. REPORTED is an ACKED row whose delta was already passed to the acker."""

FATES: Final = ("open", "acked", "failed", "acked")


class InboundRows:
    """Rows that a task received, with their tracking state.

    Attributes:
        columns: Field name or index -> values, for the fields that were read so far.
        fate: One byte a row: OPEN, ACKED, FAILED or REPORTED.
        ordinal: How many copies were anchored to the rows so far. Each copy has an ordinal of its own.
        held_id: Row -> the id under which a held tuple is kept between micro-batches.
        owner: The collector that may ack these tuples; None for rows that are never acked.
        came_ms: The clock of the micro-batch that brought the rows; -1 if latency is not measured.
        began: Row -> when its execution began, in seconds of a monotonic clock; empty if not sampled.
        timer: Times some of the rows for an observer; None for none.
        are_questions: Whether they came to an exactly-once bolt without a gate.
    """

    are_questions = False

    def __init__(
        self,
        component: str,
        stream: str,
        task_ids: Int32s | int,
        fields: tuple[str, ...],
        lineage: Lineage,
        columns: Sequence[Column] = (),
    ) -> None:
        """Make the account of rows; all are open.

        Args:
            component: The component that emitted them.
            stream: The stream that they were emitted on.
            task_ids: The task that emitted each, shape (n,), or one task for all.
            fields: The field names of the stream.
            lineage: The roots and edges of each row.
            columns: The values of each field; empty if they are never read, as for a spout's messages.
        """
        self.component, self.stream, self.task_ids, self.fields = component, stream, task_ids, fields
        self.lineage = lineage
        self.columns: dict[str | int, Sequence[Any]] = {}
        self._given = columns
        self.fate = bytearray(len(lineage))
        self.ordinal = 0
        self.held_id: dict[int, int] = {}
        self.owner: object = None
        self.came_ms = -1
        self.began: dict[int, float] = {}
        self.timer: RowTimer | None = None

    @cached_property
    def ack_values(self) -> Int64s:
        """XOR of the edges of the copies anchored to each row, shape (n,); of messages their inits."""
        return np.zeros(len(self.lineage), dtype=np.int64)

    def edges_below(self, parents: Int64s, pieces: Sequence[tuple[np.uint64, int, int]]) -> Int64s:
        """Make edges for all copies of some rows, and add them to these rows' sums.

        Args:
            parents: The rows, shape (p,): of one channel after the other, for each ascending and each once.
            pieces: For each channel the channel, its number of ``parents`` and its number of copies. As many
                ordinals are used as there are copies, as in :meth:`edges_one_by_one`.

        Returns:
            For each row the XOR of the edges of its copies, shape (p,).
        """
        channels, counts, copies = zip(*pieces, strict=True)
        is_all = len(pieces) == 1 and len(parents) == len(self.lineage)
        ordinals = self.ordinal + np.cumsum((0, *copies))
        starts = np.array(channels) + steps_to(ordinals[:-1])
        folds = self.folds if is_all else self.folds[parents]
        sums = edges_from(folds + np.repeat(starts, counts))
        self.ordinal = int(ordinals[-1])
        if is_all and "ack_values" not in self.__dict__:
            self.ack_values = sums.copy()
            return sums
        end = 0
        for count in counts:
            start, end = end, end + count
            self.ack_values[parents[start:end]] ^= sums[start:end]
        return sums

    def edges_one_by_one(self, parents: Int64s, channel: np.uint64) -> Int64s:
        """Make an edge for each copy and add it to its parent's sum; shapes (n,), any order."""
        ordinals = np.arange(self.ordinal, self.ordinal + len(parents))
        edges = edges_at(self.folds[parents] + channel, ordinals)
        self.ordinal += len(parents)
        np.bitwise_xor.at(self.ack_values, parents, edges)
        return edges

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the same object: a copy of a tuple points to the same account."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse pickle. Saving a bolt's memory does not call this: it saves tuples by id."""
        raise MisuseError(
            "a tuple was pickled outside of its bolt's memory; two copies of it would be tracked apart",
            f"a tuple of {self.component!r}, stream {self.stream!r}",
            "keep tuples in attributes that the bolt `remembers`; to send one on, emit its values",
        )

    @classmethod
    def of_clock(cls, secs: float) -> InboundRows:
        """A tick: one untracked tuple from ``__system`` that holds the interval in seconds."""
        return cls(
            "__system", "__tick", task_ids=-1, fields=("rate_secs",), lineage=Sparse.untracked(1),
            columns=[(secs,)],
        )  # fmt: skip

    def steps(self) -> Iterable[int]:
        """All rows in order; those of the timer are timed."""
        return range(len(self.lineage)) if self.timer is None else self.timer.steps()

    def handle(self, row: int) -> Tuple:
        """The :class:`Tuple` that points to one row."""
        return Tuple(self, row)

    def read(self, field: str) -> Sequence[Any]:
        """The values of one field, decoded at the first call; shape (n,)."""
        if field not in self.columns:
            column = self.fields.index(field)
            where = f"tuples of {self.component!r}, stream {self.stream!r}, field {field!r}"
            values = decoded(self._given[column], where)
            self.columns |= dict.fromkeys((field, column, column - len(self.fields)), values)
        return self.columns[field]

    def values_of(self, row: int) -> tuple[Any, ...]:
        """The values of one row."""
        return tuple(self.handle(row)[field] for field in self.fields)

    def cells_of(self, row: int) -> tuple[Any, ...]:
        """The values of one row as they are saved; a placeholder replaces a value that Python cannot hold."""
        columns = map(self.read, self.fields)
        return tuple((each.cells if isinstance(each, PartlyReadable) else each)[row] for each in columns)

    @cached_property
    def values(self) -> Sequence[tuple[Any, ...]]:
        """The values of each row. To read one row, :meth:`values_of` is cheaper."""
        columns = [*map(self.read, self.fields)]
        if any(isinstance(column, PartlyReadable) for column in columns):
            return _RowsOnDemand(self)
        return list(zip(*columns, strict=True)) if self.fields else [()] * len(self.lineage)

    def task_of(self, row: int) -> int:
        """The task that emitted a row."""
        return self.task_ids if isinstance(self.task_ids, int) else int(self.task_ids[row])

    def attempt_of(self, row: int) -> int:
        """The attempt number of the message that a row belongs to."""
        return int(self._attempts[row])

    def anchors_of(self, row: int) -> dict[int, int]:
        """Root -> edge of a row."""
        return self.lineage.anchors(row)

    @cached_property
    def folds(self) -> UInt64s:
        """One number for each row, from which the edges of its children are derived; shape (n,)."""
        return self.lineage.folds()

    @cached_property
    def is_untracked(self) -> bool:
        """Whether no row has a root; tuples anchored to these rows need no edges."""
        return isinstance(self.lineage, Sparse) and not len(self.lineage.roots)

    @cached_property
    def _attempts(self) -> Sequence[int]:
        attempts: list[int] = self.lineage.attempts().tolist()
        return attempts

    def newly_acked(self) -> tuple[Int64s, Int64s] | None:
        """Roots and deltas of the rows acked since the last call; None if there are none."""
        fate = np.frombuffer(self.fate, dtype=np.uint8)
        acked = fate == ACKED
        if not acked.any():
            return None
        rows = None if acked.all() else np.flatnonzero(acked)
        fate[acked] = REPORTED
        made = self.__dict__.get("ack_values")  # not there if no copies were anchored to these
        return self.lineage.acks(rows, made)


def ack_open(rows: InboundRows) -> None:
    """Ack every row that is still open."""
    fate = np.frombuffer(rows.fate, dtype=np.uint8)
    fate[fate == OPEN] = ACKED


def open_among(rows: InboundRows) -> list[int]:
    """The rows that are neither acked nor failed, ascending."""
    still_open: list[int] = np.flatnonzero(np.frombuffer(rows.fate, dtype=np.uint8) == OPEN).tolist()
    return still_open


class _RowsOnDemand(Sequence[tuple[Any, ...]]):
    """The values of each row, if some rows cannot be read: reading one of those raises MisuseError."""

    def __init__(self, rows: InboundRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.lineage)

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401  # as a list: an index or a slice
        if isinstance(row, slice):
            return [self._rows.values_of(each) for each in range(*row.indices(len(self)))]
        return self._rows.values_of(row)


def account_of(tup: Tuple) -> tuple[InboundRows, int]:
    """The account of a tuple: the rows of its frame, and its index there."""
    rows = tup._rows  # noqa: SLF001  # private for users; the engine needs the account
    if not isinstance(rows, InboundRows):
        raise MisuseError(
            "a tuple was used that acktree did not make",
            "Tuple(...) is called by the engine alone",
            "ack, fail and anchor to the tuples that execute() was given; in a test use LocalCluster",
        )
    return rows, tup._row  # noqa: SLF001


Left = tuple[InboundRows, Sequence[int]]
"""Rows, and which of them are open."""


def tracked_among(left: Iterable[Left]) -> Iterator[Left]:
    """The tuples that belong to a message: no verdict depends on the others."""
    for rows, which in left:
        if which and len(rows.lineage.roots_of(np.array(which))):
            yield rows, which


def forgotten_error(forgotten: Sequence[Left], component: str, task: int) -> MisuseError:
    """The error to report for all of a task and micro-batch."""
    count = sum(len(which) for _, which in forgotten)
    rows, which = forgotten[0]
    return MisuseError(
        f"{count} tuples were neither acked, failed nor kept, and nothing can ack them any more; "
        f"the first is {rows.handle(which[0])!r}",
        f"bolt {component!r}, task {task}",
        "ack or fail each tuple, or keep it in an attribute that the bolt `remembers`; "
        "Config(fail_forgotten=True) fails such tuples at once",
    )
