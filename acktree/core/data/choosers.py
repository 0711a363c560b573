"""Choosers: apply groupings, and so choose the tasks that get a copy of each tuple.

Rules of this file
------------------
1. A :class:`Chooser` applies a grouping for one source task, one stream and one subscriber, and holds its
   state (a custom grouping's attributes, the counts of a partial key).
2. No choice is random: Spark may run a task again, and the second run must make the same choices. Where Storm
   draws a random number, the row's mix is used; it is derived from the parent's edge and the row's ordinal.
3. A choice does not depend on how rows were divided into batches.
4. An error of user code for one row refuses only that row.

Source: Storm's ``daemon/GrouperFactory``. Two groupings differ: fields grouping uses another hash, and
shuffle chooses by the mix of each tuple instead of a shuffled ring.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.data.context import TaskContext
from acktree.core.data.distinct import Places, of_each_row
from acktree.core.data.groupings import (
    All,
    Custom,
    CustomGrouping,
    Fields,
    Global,
    Grouping,
    LocalOrShuffle,
    NoneGrouping,
    PartialKey,
    Shuffle,
)
from acktree.core.data.row_hashes import hash_keys, hash_rows
from acktree.core.data.values import decode_rows
from acktree.core.ids import Int32s, Int64s, UInt64s, mix64
from acktree.errors import MisuseError, ProtocolError
from acktree.system.stopped_by import pass_on

_SECOND: Final = np.uint64(0x9E3779B97F4A7C15)
"""A constant that makes the second candidate of a partial key independent of the first."""
_REPORT: Final = "report it with the topology's describe(): this is a bug in acktree"


@dataclass(frozen=True, eq=False)
class Choice:
    """The chosen tasks for the tuples of a batch: one entry per copy.

    Attributes:
        rows: The row of each copy, ascending, shape (m,); None when each row has exactly one copy.
        tasks: The target task of each copy, shape (m,).
        refused: Rows that got no copy because choosing failed, and the exception of each.
    """

    rows: Int64s | None
    tasks: Int32s
    refused: Mapping[int, BaseException] = field(default_factory=dict)


class Chooser(ABC):
    """Applies a grouping for one source task, stream and subscriber.

    Attributes:
        needs_mixes: Whether it uses the mixes; they cost more than most choices.
    """

    needs_mixes = False

    @abstractmethod
    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:
        """Choose the tasks of each row's copies.

        Args:
            batch: The tuples emitted, n rows.
            mixes: A mixed number for each row, the same when the row is emitted again, shape (n,).
        """


def make_chooser(
    grouping: Grouping,
    *,
    fields: Sequence[str],
    targets: Sequence[int],
    source_task: int,
    context: TaskContext,
    stream: str,
) -> Chooser:
    """Make the chooser of a grouping.

    Args:
        grouping: The grouping of the subscription.
        fields: The fields of the stream.
        targets: The tasks that may be chosen, at least one; for a fused shuffle those of this partition.
        source_task: The task that emits.
        context: The context of that task, for a custom grouping.
        stream: The stream it emits on.

    Raises:
        ProtocolError: No target, or a field that the stream does not have; ``create_topology`` refuses both.
        Exception: A custom grouping's ``prepare`` raised it.
    """
    where = f"{grouping.name} grouping of component {context.component_id!r}, stream {stream!r}"
    tasks = np.array(sorted(targets), dtype=np.int32)
    if not len(tasks):
        raise ProtocolError("a grouping has no task to choose from", where, _REPORT)
    match grouping:
        case Shuffle() | LocalOrShuffle() | NoneGrouping():
            return _ByMix(tasks) if len(tasks) > 1 else _One(tasks[0])
        case Fields(names) | PartialKey(names):
            unknown = [name for name in names if name not in fields]
            if unknown:
                raise ProtocolError(f"a grouping on {unknown}, of fields {list(fields)}", where, _REPORT)
            key = _Key(tuple(names), where)
            return _ByHash(tasks, key) if isinstance(grouping, Fields) else _ByTwoHashes(tasks, key)
        case Global():
            return _One(tasks[0])
        case All():
            return _Every(tasks)
        case Custom(declared):
            # A copy: all source tasks of this process have the same instance, and it may have state.
            own = copy.deepcopy(declared)
            own.prepare(context, stream, tasks.tolist())
            return _ByUser(own, source_task, frozenset(tasks.tolist()), where)
        case _:
            return _NotRouted(where)


@dataclass(frozen=True)
class _ByMix(Chooser):
    """The task is chosen by the mix of each row."""

    tasks: Int32s
    needs_mixes = True

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the values do not matter
        return Choice(None, self.tasks[mixes % np.uint64(len(self.tasks))])


@dataclass(frozen=True)
class _One(Chooser):
    """All tuples go to one task."""

    task: np.int32

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # nothing to decide
        return Choice(None, np.full(batch.num_rows, self.task))


@dataclass(frozen=True)
class _Hashes:
    """Hashes of the keys of rows.

    Attributes:
        of_keys: The hash of each key.
        places: The place of each row's key among them, shape (n,); None if each row has its own.
        rows: The rows that have a hash, shape (n,); None for all.
        refused: Why the others have none.
    """

    of_keys: UInt64s
    places: Places | None
    rows: Int64s | None = None
    refused: dict[int, BaseException] = field(default_factory=dict)

    @property
    def of_rows(self) -> UInt64s:
        """The hash of each row, shape (n,)."""
        return of_each_row(self.of_keys, self.places)


@dataclass(frozen=True)
class _Key:
    """The key fields of a grouping."""

    fields: tuple[str, ...]
    where: str

    def hashes(self, batch: pa.RecordBatch) -> _Hashes:
        """The hashes of a batch's keys."""
        try:
            return _Hashes(*hash_keys(batch, self.fields))
        except MisuseError:
            pass  # some row has no hash: find it, which is slow but rare
        hashes: dict[int, np.uint64] = {}
        refused: dict[int, BaseException] = {}
        self._by_halves(batch, 0, hashes, refused)
        rows = np.array([*hashes], dtype=np.int64)
        return _Hashes(np.array([*hashes.values()], dtype=np.uint64), None, rows, refused)

    def _by_halves(
        self,
        batch: pa.RecordBatch,
        first: int,
        hashes: dict[int, np.uint64],
        refused: dict[int, BaseException],
    ) -> None:
        """Hash rows (the first has the number ``first``) by bisection, to find those without a hash."""
        count = batch.num_rows
        try:
            hashes.update(zip(range(first, first + count), hash_rows(batch, self.fields), strict=True))
        except MisuseError as reason:
            if count > 1:
                self._by_halves(batch.slice(0, count // 2), first, hashes, refused)
                self._by_halves(batch.slice(count // 2), first + count // 2, hashes, refused)
                return
            refused[first] = MisuseError(reason.what, f"{self.where} on {list(self.fields)}", reason.fix)


@dataclass(frozen=True)
class _ByHash(Chooser):
    """The task is chosen by the hash of the key."""

    tasks: Int32s
    key: _Key

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the key alone decides
        hashes = self.key.hashes(batch)
        tasks = self.tasks[_modulo(hashes.of_keys, len(self.tasks))]
        return Choice(hashes.rows, of_each_row(tasks, hashes.places), hashes.refused)


def _modulo(hashes: UInt64s, count: int) -> UInt64s:
    """Modulo a number of tasks. Of a power of two that is the lowest bits, without a division."""
    return hashes & np.uint64(count - 1) if count & count - 1 == 0 else hashes % np.uint64(count)


class _ByTwoHashes(Chooser):
    """The hash of the key gives two tasks; the one chosen less often so far is taken, the first if equal."""

    def __init__(self, tasks: Int32s, key: _Key) -> None:
        self._tasks = tasks
        self._key = key
        self._used = [0] * len(tasks)

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the key alone decides
        keys = self._key.hashes(batch)
        hashes, n = keys.of_rows, len(self._tasks)
        firsts = _modulo(hashes, n)
        # One to n - 1 steps after the first, so it is another task, unless there is only one.
        steps = mix64(hashes ^ _SECOND) % np.uint64(max(n - 1, 1)) + np.uint64(1)
        seconds = (firsts + steps) % np.uint64(n)
        chosen = list(map(self._less_used, firsts.tolist(), seconds.tolist()))
        return Choice(keys.rows, self._tasks[chosen], keys.refused)

    def _less_used(self, first: int, second: int) -> int:
        chosen = first if self._used[first] <= self._used[second] else second
        self._used[chosen] += 1
        return chosen


@dataclass(frozen=True)
class _Every(Chooser):
    """Each row goes to each task; the copies of a row are adjacent."""

    tasks: Int32s

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # nothing to decide
        n = batch.num_rows
        return Choice(np.repeat(np.arange(n), len(self.tasks)), np.tile(self.tasks, n))


@dataclass(frozen=True)
class _ByUser(Chooser):
    """The tasks are chosen by the user's grouping, and checked."""

    grouping: CustomGrouping
    source_task: int
    targets: frozenset[int]
    where: str

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the user decides
        rows: list[int] = []
        tasks: list[int] = []
        refused: dict[int, BaseException] = {}
        for row, values in enumerate(decode_rows(batch)):
            try:
                named = self._checked(self.grouping.choose_tasks(self.source_task, values))
            except BaseException as reason:  # noqa: BLE001  # what user code raises is data
                pass_on(reason)
                refused[row] = reason
            else:
                tasks += named
                rows += [row] * len(named)
        return Choice(np.array(rows, dtype=np.int64), np.array(tasks, dtype=np.int32), refused)

    def _checked(self, named: Iterable[int]) -> list[int]:
        call = f"{type(self.grouping).__qualname__}.choose_tasks, {self.where}"
        try:
            tasks = [index(task) for task in named]
        except TypeError as cause:
            what = f"a custom grouping chose {named!r:.80}, which is not a list of task ids"
            raise MisuseError(what, call, "return a list of ints, empty for no task") from cause
        strangers = [task for task in tasks if task not in self.targets]
        if strangers:
            what = f"a custom grouping chose {strangers}, which are not tasks of the subscriber"
            fix = f"choose from the target_task_ids that prepare was given: {sorted(self.targets)}"
            raise MisuseError(what, call, fix)
        return tasks


@dataclass(frozen=True)
class _NotRouted(Chooser):
    """Direct grouping: the producer names the task, so a call is a bug in acktree."""

    where: str

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # never chooses
        raise ProtocolError("asked to choose where the producer names the task", self.where, _REPORT)
