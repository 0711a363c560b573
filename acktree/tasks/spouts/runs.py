"""Runs: messages of one stream that a spout emitted one after the other.

A :class:`RunBuffer` is a run while it is written. As in ``tasks/bolts/collectors.py``, an exception from
outside may be raised between any two steps, and the spout may catch it and go on. So a message counts when
its id is written, which is last. What else is known of a message travels with its id, as :class:`Noted`:
other threads may write others meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.batches import joined
from acktree.core.data.fields import StreamDeclaration
from acktree.core.ids import Int32s
from acktree.core.spouts.pending import MessageIds, ids_together
from acktree.errors import MisuseError, SpoutError
from acktree.tasks.chunk import CHUNK_BYTES
from acktree.tasks.streams import TupleBuffer

_NO_CELLS: Final[Any] = None
"""Adding a list to it is a TypeError."""
SMALL_ROWS: Final = 1 << 12
SMALL_BYTES: Final = 1 << 20
"""Runs are put together up to these numbers of messages and bytes."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class UnfitMessage:
    """A message that was emitted and cannot be encoded; ``message_id`` is None where nothing tracks it."""

    stream: str
    message_id: object
    error: MisuseError


class Noted(NamedTuple):
    """The id of a message with its attempt and its traceparent, where it has any but the usual."""

    message_id: object
    attempt: int
    parent: str | None


@dataclass(frozen=True, eq=False)
class MessageRun:
    """Messages of one stream, emitted one after the other; n rows.

    Attributes:
        is_tracked: Whether they have message ids and there are ackers.
        values: A column per field.
        message_ids: One for each row when tracked, else empty.
        tasks: Target of each (``emit_direct``); None when groupings choose.
        attempts: The number of this delivery of each; None when all are the first.
        parents: Row -> the traceparent of its message, of those that have one.
    """

    stream: str
    is_tracked: bool
    values: pa.RecordBatch
    message_ids: MessageIds
    tasks: Int32s | None
    attempts: Int32s | None = None
    parents: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        rows: int = self.values.num_rows
        return rows

    def cut(self, most: int) -> Iterator[MessageRun]:
        """The same in pieces, each with at most this number of messages."""
        for first in range(0, len(self), most):
            end = first + most
            yield MessageRun(
                self.stream, self.is_tracked, values=self.values.slice(first, most),
                message_ids=self.message_ids[first:end],
                tasks=None if self.tasks is None else self.tasks[first:end],
                attempts=None if self.attempts is None else self.attempts[first:end],
                parents=_cut(self.parents, first, end),
            )  # fmt: skip

    def those(self, is_kept: Bools) -> MessageRun:
        """The messages of a mask, shape (n,)."""
        rows = np.cumsum(is_kept) - 1
        ids = self.message_ids
        if isinstance(ids, np.ndarray):
            ids = ids[is_kept]
        elif len(ids):
            ids = [ids[row] for row in np.flatnonzero(is_kept).tolist()]
        return replace(
            self,
            values=self.values.filter(pa.array(is_kept)),
            message_ids=ids,
            tasks=None if self.tasks is None else self.tasks[is_kept],
            attempts=None if self.attempts is None else self.attempts[is_kept],
            parents={int(rows[row]): parent for row, parent in self.parents.items() if is_kept[row]},
        )


def runs_together(runs: Iterable[MessageRun]) -> Iterator[MessageRun]:
    """The same messages in few runs, so that a spout that emits a handful at a time makes few files.

    Only small ones are copied; within a stream the order stays.
    """
    waiting: list[MessageRun] = []
    size = 0
    for run in runs:
        more: int = run.values.nbytes
        is_small = len(run) <= SMALL_ROWS and more <= SMALL_BYTES
        if waiting and not (is_small and size + more <= CHUNK_BYTES and _are_alike(waiting[-1], run)):
            yield from _in_few(waiting)
            waiting, size = [], 0
        waiting.append(run)
        size += more if is_small else CHUNK_BYTES  # a large one stays alone
    yield from _in_few(waiting)


def _are_alike(one: MessageRun, other: MessageRun) -> bool:
    return (
        (one.stream, one.is_tracked) == (other.stream, other.is_tracked)
        and one.tasks is None
        and other.tasks is None
        and one.values.schema.equals(other.values.schema, check_metadata=True)
    )


def _in_few(runs: Sequence[MessageRun]) -> list[MessageRun]:
    """Runs that are alike as one; as several if one batch cannot hold their values."""
    if len(runs) <= 1:
        return [*runs]
    try:
        values = joined([run.values for run in runs])
    except MisuseError:
        middle = len(runs) // 2
        return [*_in_few(runs[:middle]), *_in_few(runs[middle:])]
    attempts = None
    if any(run.attempts is not None for run in runs):
        attempts = np.concatenate([_attempts_of(run) for run in runs])
    ids = ids_together([run.message_ids for run in runs])
    firsts = accumulate(map(len, runs), initial=0)
    parents = {
        first + row: parent
        for first, run in zip(firsts, runs, strict=False)
        for row, parent in run.parents.items()
    }
    return [replace(runs[0], values=values, message_ids=ids, attempts=attempts, parents=parents)]


def _cut(parents: Mapping[int, str], first: int, end: int) -> dict[int, str]:
    """The traceparents of the rows from ``first`` to before ``end``, counted from there."""
    return {row - first: parent for row, parent in parents.items() if first <= row < end}


def _attempts_of(run: MessageRun) -> Int32s:
    return np.ones(len(run), dtype=np.int32) if run.attempts is None else run.attempts


class RunBuffer(TupleBuffer):
    """Tuples emitted one after the other on one stream, all tracked or all not: a run while it is written.

    Attributes:
        stream: The stream, as it was last named.
        ids: The message id of each, or a :class:`Noted`; None for none. It is written last: a tuple without
            one was not emitted.
        has_ids: Whether they have ids.
        has_noted: Whether some of the ids are :class:`Noted`.
        is_tracked: Whether they have ids, and there are ackers.
        is_typed: Whether the stream declares types.
        fits: A quick look at the values of one: see :func:`~acktree.core.data.values.quick_look`.
        weight: Bytes of the large ones, about.
    """

    __slots__ = (
        "_written", "fits", "has_ids", "has_noted", "ids", "is_tracked", "is_typed", "stream", "weight",
    )  # fmt: skip

    def __init__(
        self,
        declaration: StreamDeclaration,
        component: str,
        fits: Callable[[Sequence[object]], bool],
        *,
        has_ids: bool,
        is_tracked: bool,
    ) -> None:
        super().__init__(declaration, component)
        self.stream: object = declaration.name
        self.ids: list[object] = []
        self.has_ids, self.is_tracked = has_ids, is_tracked
        self.has_noted = False
        self._written: list[Any] = self.cells
        self.is_typed = declaration.schema is not None
        self.fits = fits
        self.weight = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_over(self) -> bool:
        """Whether it takes nothing more: its ``cells`` refuse whatever is added."""
        return self.cells is _NO_CELLS

    def end(self) -> None:
        """Take nothing more. An emit of another thread that has chosen this run writes to the next one."""
        self.cells = _NO_CELLS

    def noted(self, message_id: object, attempt: int, parent: str | None) -> object:
        """What to write for the id of a message."""
        if attempt == 1 and parent is None:
            return message_id
        self.has_noted = True
        return Noted(message_id, attempt, parent)

    def write(self, values: Sequence[object], noted_id: object, task: int) -> None:
        """Write down one tuple for a task, or nothing if an exception comes. Others are written inline."""
        try:
            self.cells.extend(values)
            self.tasks.append(task)
            self.ids.append(noted_id)
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Remove what an interrupted write left. Called for every exception, also if nothing was left."""
        if self.is_over:
            return
        count = len(self.ids)
        del self.tasks[count:]
        del self.cells[count * self.width :]

    def message_ids(self) -> list[object]:
        """The message id of each; not to be changed."""
        if not self.has_noted:
            return self.ids
        return [message_id.message_id if type(message_id) is Noted else message_id for message_id in self.ids]

    def runs(self, unfit: list[UnfitMessage]) -> Iterator[MessageRun]:
        """End it, and return all of it as runs, nearly always one; none if an interrupted emit left it empty.

        Args:
            unfit: Is given the messages that do not go even alone, as their values were changed since.

        Raises:
            SpoutError: It is lost which values belong to which message.
        """
        self.end()
        count, name = len(self.ids), self.declaration.name
        if len(self._written) != count * self.width or len(self.tasks) not in {0, count}:
            raise SpoutError(
                f"an emit on stream {name!r} was interrupted again while it took back what "
                "an interrupted one had written: which values belong to which message is lost",
                f"spout {self._component!r}",
                "correct the timer or signal handler that raises repeatedly, and submit the topology again",
            )
        if not count:
            return
        tasks, message_ids = self.named_tasks(), self.message_ids()
        rows = enumerate(self.ids) if self.has_noted else ()
        noted = {row: message for row, message in rows if type(message) is Noted}
        parents = {row: message.parent for row, message in noted.items() if message.parent is not None}
        attempts = _numbers(count, noted)
        for first, end, batch in self.batches(self._written, count):
            if isinstance(batch, MisuseError):
                unfit.append(UnfitMessage(name, message_ids[first] if self.is_tracked else None, batch))
                continue
            ids = message_ids[first:end] if self.is_tracked else ()
            yield MessageRun(
                name, self.is_tracked, values=batch, message_ids=ids,
                tasks=None if tasks is None else tasks[first:end],
                attempts=None if attempts is None else attempts[first:end],
                parents=_cut(parents, first, end),
            )  # fmt: skip


def _numbers(count: int, noted: Mapping[int, Noted]) -> Int32s | None:
    """The number of each delivery, shape (count,), of which these are noted; None when all are the first."""
    if all(message.attempt == 1 for message in noted.values()):
        return None
    numbers = np.ones(count, dtype=np.int32)
    numbers[list(noted)] = [message.attempt for message in noted.values()]
    return numbers
