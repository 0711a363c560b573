"""The tuples of one frame while a task works on them, and what each still owes.

Everything that Storm keeps in a tuple object stands here in arrays with a place per row: its values, was it
acked, how many copies were made from it, the XOR of their edges. :class:`Tuple` objects only point here, and
so do their copies: two accounts of one tuple would hand out the same edge twice, which XORs to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NoReturn, Self

import numpy as np

from acktree.core.data.reading import Column, PartlyReadable, decoded
from acktree.core.data.tuples import Tuple
from acktree.core.ids import Int32s, Int64s, UInt64s, edges_at
from acktree.core.tracking.lineage import Lineage, Runs, Sparse
from acktree.errors import MisuseError

OPEN: Final = 0
ACKED: Final = 1
FAILED: Final = 2
REPORTED: Final = 3
"""The fate of a row: REPORTED is an ACKED row whose delta was handed to the acker."""

FATES: Final = ("open", "acked", "failed", "acked")


class InboundRows:
    """Rows a task was given, with their account.

    Attributes:
        columns: Field, or its place -> its values: the fields that were read so far.
        fate: One byte a row: OPEN, ACKED, FAILED or REPORTED.
        ordinal: How many copies were anchored to any of the rows so far: no two have one ordinal.
        held_id: The name under which a row is kept between micro-batches; set for rows that are.
        keeper: Whose tuples these are: the collector that alone may ack them; None where nobody acks.
        came_ms: The clock of the micro-batch that brought them; -1 where nobody measures.
        began: When each was executed, by a stopwatch in seconds; empty where that is not sampled.
    """

    def __init__(
        self,
        component: str,
        stream: str,
        task_ids: Int32s | int,
        fields: tuple[str, ...],
        lineage: Lineage,
        columns: Sequence[Column] = (),
    ) -> None:
        """Open the account of some rows.

        Args:
            task_ids: The task that emitted each, shape (n,), or one for all.
            columns: The values of each field; none where nobody reads them, as on a spout's side.
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

    @cached_property
    def ack_values(self) -> Int64s:
        """XOR of the edges of the copies that were anchored to each row, shape (n,)."""
        return np.zeros(len(self.lineage), dtype=np.int64)

    def edges_below(self, parents: Int64s, channel: np.uint64, copies: int) -> Int64s:
        """Charge each of some rows with the copies below it that go through one channel.

        Args:
            parents: These rows, ascending, each once, shape (p,).
            copies: How many copies there are in all: each has an ordinal to itself, as one by one.

        Returns:
            XOR of the edges of each row's, shape (p,).
        """
        is_all = len(parents) == len(self.lineage)
        places = (self.folds if is_all else self.folds[parents]) + channel
        sums = edges_at(places, np.array([self.ordinal]))
        self.ordinal += copies
        if is_all and "ack_values" not in self.__dict__:
            self.ack_values = sums.copy()
        else:
            self.ack_values[parents] ^= sums
        return sums

    def edges_one_by_one(self, parents: Int64s, channel: np.uint64) -> Int64s:
        """The edges of copies, each below one of the rows and charged to it; shapes (n,), any order."""
        ordinals = np.arange(self.ordinal, self.ordinal + len(parents))
        edges = edges_at(self.folds[parents] + channel, ordinals)
        self.ordinal += len(parents)
        np.bitwise_xor.at(self.ack_values, parents, edges)
        return edges

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A copied tuple is another handle of the same one."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse pickle; remembered state, where tuples are saved by name, does not ask."""
        raise MisuseError(
            "a tuple was pickled outside of its bolt's memory, and would be two tuples then",
            f"a tuple of {self.component!r}, stream {self.stream!r}",
            "keep tuples in attributes that the bolt `remembers`; to send one on, emit its values",
        )

    @classmethod
    def of_roots(
        cls,
        component: str,
        stream: str,
        task_id: int,
        fields: tuple[str, ...],
        roots: Int64s,
        attempts: Int32s | None,
    ) -> InboundRows:
        """What a spout's messages hang on: each message is its own root, and a copy of it a child of that.

        Its ``ack_values`` after routing are the init values that Storm's spouts send to the acker.
        """
        lineage = Runs(roots, np.arange(len(roots) + 1), edges=roots, attempts=attempts)
        return cls(component, stream, task_id, fields, lineage)

    @classmethod
    def of_clock(cls, secs: float) -> InboundRows:
        """A tick: one unanchored tuple from ``__system`` that says the interval."""
        return cls("__system", "__tick", -1, ("rate_secs",), Sparse.untracked(1), [(secs,)])

    def handle(self, row: int) -> Tuple:
        """The handle of one row."""
        return Tuple(self, row)

    def read(self, field: str) -> Sequence[Any]:
        """The values of one field, decoded the first time that somebody asks; shape (n,)."""
        if field not in self.columns:
            place = self.fields.index(field)
            where = f"tuples of {self.component!r}, stream {self.stream!r}, field {field!r}"
            values = decoded(self._given[place], where)
            self.columns |= dict.fromkeys((field, place, place - len(self.fields)), values)
        return self.columns[field]

    def values_of(self, row: int) -> tuple[Any, ...]:
        """The values of one row."""
        return tuple(self.handle(row)[field] for field in self.fields)

    def cells_of(self, row: int) -> tuple[Any, ...]:
        """The values of one row as they are saved: with a stand-in for each that Python cannot hold."""
        columns = map(self.read, self.fields)
        return tuple((each.cells if isinstance(each, PartlyReadable) else each)[row] for each in columns)

    @cached_property
    def values(self) -> Sequence[tuple[Any, ...]]:
        """The values of each row; for one of many rows ask :meth:`values_of`."""
        columns = [*map(self.read, self.fields)]
        if any(isinstance(column, PartlyReadable) for column in columns):
            return _RowsOnDemand(self)
        return list(zip(*columns, strict=True)) if self.fields else [()] * len(self.lineage)

    def task_of(self, row: int) -> int:
        """The task that emitted a row."""
        return self.task_ids if isinstance(self.task_ids, int) else int(self.task_ids[row])

    def attempt_of(self, row: int) -> int:
        """Which attempt of its message a row belongs to."""
        return int(self._attempts[row])

    def anchors_of(self, row: int) -> dict[int, int]:
        """Root -> edge of a row."""
        return self.lineage.anchors(row)

    @cached_property
    def folds(self) -> UInt64s:
        """Each row as one number, to derive its children's edges from; shape (n,)."""
        return self.lineage.folds()

    @cached_property
    def is_untracked(self) -> bool:
        """No row hangs on any root: nothing made from these needs an edge."""
        return isinstance(self.lineage, Sparse) and not len(self.lineage.roots)

    @cached_property
    def _attempts(self) -> Sequence[int]:
        attempts: list[int] = self.lineage.attempts().tolist()
        return attempts

    def newly_acked(self) -> tuple[Int64s, Int64s] | None:
        """Roots and deltas of what was acked since last asked; None when nothing was."""
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


class _RowsOnDemand(Sequence[tuple[Any, ...]]):
    """The values of each row, where to read some row raises MisuseError."""

    def __init__(self, rows: InboundRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.lineage)

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401  # as a list: a place or a slice
        if isinstance(row, slice):
            return [self._rows.values_of(each) for each in range(*row.indices(len(self)))]
        return self._rows.values_of(row)


def account_of(tup: Tuple) -> tuple[InboundRows, int]:
    """Where the account of a tuple stands: its rows, and which of them it is."""
    rows = tup._rows  # noqa: SLF001  # a Tuple shows its users values; the account is the engine's
    if not isinstance(rows, InboundRows):
        raise MisuseError(
            "a tuple was used that acktree did not make",
            "Tuple(...) is called by the engine alone",
            "ack, fail and anchor to the tuples that execute() was given; in a test use LocalCluster",
        )
    return rows, tup._row  # noqa: SLF001
