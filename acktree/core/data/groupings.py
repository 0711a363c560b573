"""Groupings: to which tasks of a subscriber the copies of a tuple go.

Rules of this file
------------------
1. A grouping is a frozen declaration; a :class:`Chooser` is that declaration at work for one source task, one
   stream and one subscriber. State (a custom grouping's, a partial key's counts) belongs to the chooser.
2. No choice is random: Spark runs tasks again, and the second run must choose as the first did. Where Storm
   draws, we take the row's mix, which follows from its parent's edge and its place among its siblings.
3. A choice cannot depend on how rows were cut into batches.
4. What user code does wrong for one row refuses that row; its neighbours go on.

Source: Storm's ``grouping`` package and ``daemon/GrouperFactory``. Ours that differ: the hash of a fields
grouping, and shuffle, which is a well mixed choice for each tuple instead of a shuffled ring.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from acktree.core.data.context import TaskContext
from acktree.core.ids import Int32s, Int64s, UInt64s, mix64
from acktree.errors import MisuseError, ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "All",
    "Choice",
    "Chooser",
    "Custom",
    "CustomGrouping",
    "Direct",
    "Fields",
    "Global",
    "Grouping",
    "LocalOrShuffle",
    "NoneGrouping",
    "PartialKey",
    "Shuffle",
    "make_chooser",
]

_SECOND: Final = np.uint64(0x9E3779B97F4A7C15)
"""Makes the second candidate of a partial key independent of the first."""


class CustomGrouping(ABC):
    """The user's own grouping; an instance is given to ``custom_grouping``.

    It travels to the workers by pickle. Every source task has its own copy for each stream and subscriber.
    """

    def prepare(self, context: TaskContext, stream: str, target_task_ids: Sequence[int]) -> None:
        """Learn where tuples may go.

        Called once on each copy before its first ``choose_tasks``, and again in a new process or micro-batch
        on a new copy: what is counted in attributes may start afresh at any micro-batch.

        Args:
            context: The task whose tuples are grouped.
            stream: The stream they are emitted on.
            target_task_ids: The tasks of the subscriber, ascending.
        """

    @abstractmethod
    def choose_tasks(self, task_id: int, values: Sequence[object]) -> list[int]:
        """Name the tasks that get a copy of one tuple.

        Called for each tuple in the order emitted. A task named twice gets two copies; an empty list means
        that this subscriber gets none. An exception, or a task that is no target, fails the tuple.
        Do not block. When a micro-batch runs again, the same tuples in the same order must be sent as before.

        Args:
            task_id: The task that emitted the tuple.
            values: Its values, in the order of the stream's fields.
        """


@dataclass(frozen=True)
class Grouping:
    """How one subscriber shares out the tuples of one stream.

    Attributes:
        name: As Storm calls it.
        crosses: Whether its tuples may have to go to any partition, so that a shuffle must carry them.
    """

    name: ClassVar[str]
    crosses: ClassVar[bool] = True


@dataclass(frozen=True)
class Shuffle(Grouping):
    """Any task, evenly."""

    name = "shuffle"
    crosses = False


@dataclass(frozen=True)
class LocalOrShuffle(Grouping):
    """As shuffle: with us a shuffle is local wherever the level allows it."""

    name = "local_or_shuffle"
    crosses = False


@dataclass(frozen=True)
class NoneGrouping(Grouping):
    """The author does not care: as shuffle, as in Storm."""

    name = "none"
    crosses = False


@dataclass(frozen=True)
class Fields(Grouping):
    """Equal values of these fields go to the same task: on every run, machine and hash seed."""

    name = "fields"
    fields: tuple[str, ...]


@dataclass(frozen=True)
class PartialKey(Grouping):
    """Each value of these fields has two tasks, and goes to the one that was used less so far."""

    name = "partial_key"
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Global(Grouping):
    """Everything to the subscriber's lowest task."""

    name = "global"


@dataclass(frozen=True)
class All(Grouping):
    """A copy to every task."""

    name = "all"


@dataclass(frozen=True)
class Direct(Grouping):
    """The producer names the task in ``emit_direct``; nothing is chosen here."""

    name = "direct"


@dataclass(frozen=True)
class Custom(Grouping):
    """The user's own choice."""

    name = "custom"
    grouping: CustomGrouping


@dataclass(frozen=True, eq=False)
class Choice:
    """The copies that a batch's tuples are sent as.

    Attributes:
        rows: The row that each copy is of, ascending, shape (m,); None when each row has exactly one copy.
        tasks: The task that each copy goes to, shape (m,).
        refused: Rows that got no copy because choosing failed, and with which exception.
    """

    rows: Int64s | None
    tasks: Int32s
    refused: Mapping[int, Exception] = field(default_factory=dict)


class Chooser(ABC):
    """A grouping at work for one source task, stream and subscriber.

    Attributes:
        needs_mixes: Whether it looks at the mixes; they cost more than most choices.
    """

    needs_mixes = False

    @abstractmethod
    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:
        """Choose the tasks of each row's copies.

        Args:
            batch: The tuples emitted, n rows.
            mixes: A well mixed number for each row that is the same whenever it is emitted again, shape (n,).
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
    """Set a grouping to work.

    Args:
        grouping: What the subscription says.
        fields: The fields of the stream.
        targets: The tasks that may be chosen, at least one; for a fused shuffle those of this partition.
        source_task: The task that emits.
        context: That task's, for a custom grouping.
        stream: The stream it emits on.

    Raises:
        ProtocolError: No target, or a field that the stream does not have: ``create_topology`` refuses both.
        Exception: What a custom grouping's ``prepare`` raised.
    """
    place = f"{grouping.name} grouping of component {context.component_id!r}, stream {stream!r}"
    tasks = np.array(sorted(targets), dtype=np.int32)
    if not len(tasks):
        raise ProtocolError("a grouping has no task to choose from", place, _REPORT)
    match grouping:
        case Shuffle() | LocalOrShuffle() | NoneGrouping():
            return _ByMix(tasks) if len(tasks) > 1 else _One(tasks[0])
        case Fields(names) | PartialKey(names):
            unknown = [name for name in names if name not in fields]
            if unknown:
                raise ProtocolError(f"a grouping on {unknown}, of fields {list(fields)}", place, _REPORT)
            key = _Key(tuple(names), place)
            return _ByHash(tasks, key) if isinstance(grouping, Fields) else _ByTwoHashes(tasks, key)
        case Global():
            return _One(tasks[0])
        case All():
            return _Every(tasks)
        case Custom(declared):
            # A copy: all source tasks of this process were given the same instance, and it may count.
            own = copy.deepcopy(declared)
            own.prepare(context, stream, tasks.tolist())
            return _ByUser(own, source_task, frozenset(tasks.tolist()), place)
        case _:
            return _NotRouted(place)


_REPORT: Final = "report it with the topology's describe(): this is a bug in acktree"


@dataclass(frozen=True)
class _ByMix(Chooser):
    """Each row's mix says which."""

    tasks: Int32s
    needs_mixes = True

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the values do not matter
        return Choice(None, self.tasks[mixes % np.uint64(len(self.tasks))])


@dataclass(frozen=True)
class _One(Chooser):
    """The one task there is."""

    task: np.int32

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # nothing to decide
        return Choice(None, np.full(batch.num_rows, self.task))


@dataclass(frozen=True)
class _Key:
    """The fields that a grouping goes by."""

    fields: tuple[str, ...]
    place: str

    def hashes(self, batch: pa.RecordBatch) -> tuple[Int64s | None, UInt64s, dict[int, Exception]]:
        """The rows that have a hash (None for all), the hash of each, and why the others have none."""
        # Local: values needs pyarrow, and declaring a topology must not import that.
        from acktree.core.data.values import hash_rows  # noqa: PLC0415

        try:
            return None, hash_rows(batch, self.fields), {}
        except MisuseError:
            pass  # some row's fault: look closer, which is slow but seldom
        hashes: dict[int, np.uint64] = {}
        refused: dict[int, Exception] = {}
        self._by_halves(batch, 0, hashes, refused)
        return np.array([*hashes], dtype=np.int64), np.array([*hashes.values()], dtype=np.uint64), refused

    def _by_halves(
        self, batch: pa.RecordBatch, first: int, hashes: dict[int, np.uint64], refused: dict[int, Exception]
    ) -> None:
        """Hash rows, the first of which has this number, down to those that have no hash."""
        from acktree.core.data.values import hash_rows  # noqa: PLC0415  # as above

        count = batch.num_rows
        try:
            hashes.update(zip(range(first, first + count), hash_rows(batch, self.fields), strict=True))
        except MisuseError as reason:
            if count > 1:
                self._by_halves(batch.slice(0, count // 2), first, hashes, refused)
                self._by_halves(batch.slice(count // 2), first + count // 2, hashes, refused)
                return
            refused[first] = MisuseError(reason.what, f"{self.place} on {list(self.fields)}", reason.fix)


@dataclass(frozen=True)
class _ByHash(Chooser):
    """The hash of the key says which."""

    tasks: Int32s
    key: _Key

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the key alone decides
        rows, hashes, refused = self.key.hashes(batch)
        return Choice(rows, self.tasks[hashes % np.uint64(len(self.tasks))], refused)


class _ByTwoHashes(Chooser):
    """The hash of the key names two different tasks; the one chosen less often so far, the first if equal."""

    def __init__(self, tasks: Int32s, key: _Key) -> None:
        self._tasks = tasks
        self._key = key
        self._used = [0] * len(tasks)

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the key alone decides
        rows, hashes, refused = self._key.hashes(batch)
        n = len(self._tasks)
        firsts = hashes % np.uint64(n)
        # One to n - 1 places further, so never the first again; with one task there is no other.
        steps = mix64(hashes ^ _SECOND) % np.uint64(max(n - 1, 1)) + np.uint64(1)
        seconds = (firsts + steps) % np.uint64(n)
        chosen = list(map(self._less_used, firsts.tolist(), seconds.tolist()))
        return Choice(rows, self._tasks[chosen], refused)

    def _less_used(self, first: int, second: int) -> int:
        place = first if self._used[first] <= self._used[second] else second
        self._used[place] += 1
        return place


@dataclass(frozen=True)
class _Every(Chooser):
    """Each task for each row; the copies of a row stand together."""

    tasks: Int32s

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # nothing to decide
        n = batch.num_rows
        return Choice(np.repeat(np.arange(n), len(self.tasks)), np.tile(self.tasks, n))


@dataclass(frozen=True)
class _ByUser(Chooser):
    """What the user's grouping says, checked."""

    grouping: CustomGrouping
    source_task: int
    targets: frozenset[int]
    place: str

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # the user decides
        # Local for the same reason as in _Key.
        from acktree.core.data.values import decode_rows  # noqa: PLC0415

        rows: list[int] = []
        tasks: list[int] = []
        refused: dict[int, Exception] = {}
        for row, values in enumerate(decode_rows(batch)):
            try:
                named = self._checked(self.grouping.choose_tasks(self.source_task, values))
            except Exception as reason:  # noqa: BLE001  # what user code raises is data
                refused[row] = reason
            else:
                tasks += named
                rows += [row] * len(named)
        return Choice(np.array(rows, dtype=np.int64), np.array(tasks, dtype=np.int32), refused)

    def _checked(self, named: Iterable[int]) -> list[int]:
        call = f"{type(self.grouping).__qualname__}.choose_tasks, {self.place}"
        try:
            tasks = [index(task) for task in named]
        except TypeError as cause:
            what = f"a custom grouping chose {named!r:.80}, which is no list of task ids"
            raise MisuseError(what, call, "return a list of ints, empty for no task") from cause
        strangers = [task for task in tasks if task not in self.targets]
        if strangers:
            what = f"a custom grouping chose {strangers}, which are no tasks of the subscriber"
            fix = f"choose from the target_task_ids that prepare was given: {sorted(self.targets)}"
            raise MisuseError(what, call, fix)
        return tasks


@dataclass(frozen=True)
class _NotRouted(Chooser):
    """Direct: the tuple comes with its task, so asking for one is our mistake."""

    place: str

    def choose(self, batch: pa.RecordBatch, mixes: UInt64s) -> Choice:  # noqa: ARG002  # never chooses
        raise ProtocolError("asked to choose where the producer names the task", self.place, _REPORT)
