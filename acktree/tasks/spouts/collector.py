"""The collector that spouts are handed: emitted messages wait here until they are handed over in runs.

As in ``collectors``, an exception from outside may be raised between any two steps, and the spout may catch
it and go on. So a message counts when its id is written, which is last; what waits is in one list from its
first message on, and a run ends by being no longer the one at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.batches import joined
from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.values import quick_look
from acktree.core.ids import Int32s
from acktree.core.spouts.pending import MessageIds
from acktree.errors import MisuseError, SpoutError
from acktree.spout import SpoutOutputCollector
from acktree.tasks.arguments import batch_of_stream, ids_of, refuse_unpicklable
from acktree.tasks.chunk import CHUNK_BYTES
from acktree.tasks.plan import Plan
from acktree.tasks.streams import Streams, TupleBuffer
from acktree.topology.model import Component

SMALL_ROWS: Final = 1 << 12
SMALL_BYTES: Final = 1 << 20
"""Runs of at most so many messages and bytes are put together."""
_PLAIN_IDS: Final = frozenset({int, str, bytes})
"""Message ids of exactly these types always pickle."""
_MOST_ATTEMPTS: Final = 2**31 - 1

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class UnfitMessage:
    """A message that was emitted and cannot travel; ``message_id`` is None where nothing tracks it."""

    stream: str
    message_id: object
    error: MisuseError


@dataclass(frozen=True, eq=False)
class Run:
    """Messages of one stream, emitted one after the other; n rows.

    Attributes:
        is_tracked: Whether they have message ids and there are ackers.
        values: A column per field.
        message_ids: One for each row when tracked, else empty.
        tasks: Target of each (``emit_direct``); None when groupings choose.
        attempts: The number of this delivery of each; None when all are the first.
    """

    stream: str
    is_tracked: bool
    values: pa.RecordBatch
    message_ids: MessageIds
    tasks: Int32s | None
    attempts: Int32s | None = None

    def __len__(self) -> int:
        rows: int = self.values.num_rows
        return rows

    def cut(self, most: int) -> Iterator[Run]:
        """The same in pieces of at most so many messages."""
        for first in range(0, len(self), most):
            end = first + most
            yield Run(
                self.stream,
                self.is_tracked,
                self.values.slice(first, most),
                self.message_ids[first:end],
                None if self.tasks is None else self.tasks[first:end],
                None if self.attempts is None else self.attempts[first:end],
            )

    def those(self, which: Bools) -> Run:
        """The messages of a mask, shape (n,)."""
        ids = self.message_ids
        if isinstance(ids, np.ndarray):
            ids = ids[which]
        elif len(ids):
            ids = [ids[place] for place in np.flatnonzero(which).tolist()]
        return replace(
            self,
            values=self.values.filter(pa.array(which)),
            message_ids=ids,
            tasks=None if self.tasks is None else self.tasks[which],
            attempts=None if self.attempts is None else self.attempts[which],
        )


def runs_together(runs: Iterable[Run]) -> Iterator[Run]:
    """The same messages in few runs, so that a spout that emits a handful at a time makes few files.

    Only small ones are copied; within a stream the order stays.
    """
    waiting: list[Run] = []
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


def _are_alike(one: Run, other: Run) -> bool:
    return (
        (one.stream, one.is_tracked) == (other.stream, other.is_tracked)
        and one.tasks is None
        and other.tasks is None
        and one.values.schema.equals(other.values.schema, check_metadata=True)
    )


def _in_few(runs: Sequence[Run]) -> list[Run]:
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
    ids = _ids_together([run.message_ids for run in runs])
    return [replace(runs[0], values=values, message_ids=ids, attempts=attempts)]


def _attempts_of(run: Run) -> Int32s:
    return np.ones(len(run), dtype=np.int32) if run.attempts is None else run.attempts


def _ids_together(several: Sequence[MessageIds]) -> MessageIds:
    arrays = [ids for ids in several if isinstance(ids, np.ndarray)]
    if len(arrays) == len(several):
        together: MessageIds = np.concatenate(arrays)
        return together
    return [*chain.from_iterable(ids.tolist() if isinstance(ids, np.ndarray) else ids for ids in several)]


class _Buffer(TupleBuffer):
    """Tuples emitted one after the other on one stream, all tracked or all not: a run while it is written.

    Attributes:
        attempts: Place -> the number of the delivery, of those that are not the first.
        ids: The message id of each; None for none. It is written last: a tuple without one was not emitted.
        is_tracked: Whether they have ids, and there are ackers.
        fits: A quick look at the values of one: see :func:`~acktree.core.data.values.quick_look`.
        weight: Bytes of the large ones, about.
    """

    __slots__ = ("attempts", "fits", "ids", "is_tracked", "weight")

    def __init__(
        self,
        declaration: StreamDeclaration,
        component: str,
        fits: Callable[[Sequence[object]], bool],
        *,
        is_tracked: bool,
    ) -> None:
        super().__init__(declaration, component)
        self.ids: list[object] = []
        self.attempts: dict[int, int] = {}
        self.is_tracked = is_tracked
        self.fits = fits
        self.weight = 0

    def take_back(self) -> None:
        """Remove what an interrupted write left. Called for every exception, also if nothing was left."""
        count = len(self.ids)
        self.attempts.pop(count, None)
        del self.tasks[count:]
        del self.cells[count * self.width :]

    def runs(self, unfit: list[UnfitMessage]) -> Iterator[Run]:
        """All of it as runs, nearly always one; none if an interrupted emit left it empty.

        Args:
            unfit: Is given the messages that do not go even alone, as their values were changed since.

        Raises:
            SpoutError: It is lost which values belong to which message.
        """
        count, name = len(self.ids), self.declaration.name
        if len(self.cells) != count * self.width or len(self.tasks) not in {0, count}:
            raise SpoutError(
                f"an emit on stream {name!r} was interrupted again while it took back what "
                "an interrupted one had written: which values belong to which message is lost",
                f"spout {self._component!r}",
                "mend the timer or signal handler that raises again and again, and submit the topology again",
            )
        if not count:
            return
        tasks, attempts = self.named_tasks(), self._numbers(count)
        for first, end, batch in self.batches(self.cells, count):
            if isinstance(batch, MisuseError):
                unfit.append(UnfitMessage(name, self.ids[first] if self.is_tracked else None, batch))
                continue
            ids = self.ids[first:end] if self.is_tracked else ()
            yield Run(
                name,
                self.is_tracked,
                batch,
                ids,
                None if tasks is None else tasks[first:end],
                None if attempts is None else attempts[first:end],
            )

    def _numbers(self, count: int) -> Int32s | None:
        """The number of each delivery; None when all are the first."""
        if not self.attempts:
            return None
        numbers = np.ones(count, dtype=np.int32)
        numbers[list(self.attempts)] = list(self.attempts.values())
        return numbers


class SpoutCollector(SpoutOutputCollector):
    """Writes down what a spout emits."""

    def __init__(
        self,
        component: Component,
        task: int,
        plan: Plan,
        open_count: Callable[[], int],
        report: Callable[[BaseException], None],
        lose: Callable[[frozenset[object] | None], None] = lambda _: None,
        wake: Callable[[], None] = lambda: None,
        *,
        keeps_ids: bool = False,
    ) -> None:
        """Nothing emitted yet.

        Args:
            open_count: Says how many messages of the task have no verdict.
            report: Takes what ``report_error`` is given.
            lose: Told which messages are lost, None for all, once none of them waits here any more.
            wake: Lets the spout be asked again.
            keeps_ids: Whether the inbox keeps message ids for a restart, so that they must pickle.
        """
        self._keeps_ids = keeps_ids
        self._lose, self._wake = lose, wake
        self.unfit: list[UnfitMessage] = []
        self._component, self._task, self._plan = component, task, plan
        self._open_count, self._report = open_count, report
        self._streams = Streams(component, plan)
        self._is_tracking = plan.is_tracking
        self._must_have_ids = component.retry is not None
        # The runs at hand, which the next message of a stream goes to; each is among those that wait, too.
        self._buffers: dict[str, _Buffer] = {}
        self._direct: dict[str, _Buffer] = {}
        self._waiting: list[_Buffer | Run] = []
        self._fits: dict[str, Callable[[Sequence[object]], bool]] = {}
        self._unacked: list[tuple[str, object]] = []
        self.row_count = 0
        self.tracked_count = 0
        self._weight = 0

    @property
    def is_heavy(self) -> bool:
        """Whether what waits is so large that it is to be handed over now: only then does the inbox know."""
        return self._weight >= CHUNK_BYTES

    @property
    def _where(self) -> str:
        return f"spout {self._component.id!r}, task {self._task}"

    @property
    def pending_count(self) -> int:
        return self._open_count()

    def fill(
        self, next_tuple: Callable[[], None], enough: int, room: int, is_interrupted: Callable[[], bool]
    ) -> None:
        """Ask a spout once, and again while it emits something each time.

        Args:
            enough: Until so many wait to be taken.
            room: Until so many that are tracked wait to be taken.
            is_interrupted: Or until this says so; asked after each call that emitted.

        Raises:
            BaseException: What ``next_tuple`` raises.
        """
        while True:
            before = self.row_count
            next_tuple()
            count = self.row_count
            if count == before or count >= enough or self.tracked_count >= room or self.is_heavy:
                return
            if is_interrupted():
                return

    def emit(
        self, values: Sequence[Any], message_id: object = None, stream: str = "default", *, attempt: int = 1
    ) -> None:
        is_tracked = message_id is not None and self._is_tracking
        if message_id is None and self._must_have_ids:
            raise self._has_no_id()
        number = 1 if attempt == 1 else int(_checked_attempts([attempt], self._where)[0])
        buffer = self._buffers.get(stream)
        if buffer is None or buffer.is_tracked is not is_tracked:
            # Another kind of tuple begins another run, so that the order is kept.
            declaration = self._streams.chosen_by_groupings(stream)
            buffer = self._begin_run(self._buffers, declaration, is_tracked=is_tracked)
        if (type(values) is not list and type(values) is not tuple) or len(values) != buffer.width:
            values = buffer.checked(values)
        if not buffer.fits(values):
            buffer = self._weighed(self._buffers, buffer, values)
        if is_tracked and self._keeps_ids and type(message_id) not in _PLAIN_IDS:
            refuse_unpicklable([message_id], self._where)
        try:
            # Counted first: to count one that was not emitted does no harm until all are taken.
            self.row_count += 1
            if is_tracked:
                self.tracked_count += 1
            if number != 1:
                buffer.attempts[len(buffer.ids)] = number
            buffer.cells.extend(values)
            buffer.ids.append(message_id)
        except BaseException:
            buffer.take_back()
            raise
        if message_id is not None and not is_tracked:
            self._unacked.append((stream, message_id))

    def emit_direct(
        self,
        task_id: int,
        values: Sequence[Any],
        message_id: object = None,
        stream: str = "default",
        *,
        attempt: int = 1,
    ) -> None:
        is_tracked = message_id is not None and self._is_tracking
        if message_id is None and self._must_have_ids:
            raise self._has_no_id()
        number = 1 if attempt == 1 else int(_checked_attempts([attempt], self._where)[0])
        declaration = self._streams.chosen_by_emitter(stream, task_id)
        buffer = self._direct.get(stream)
        if buffer is None or buffer.is_tracked is not is_tracked:
            buffer = self._begin_run(self._direct, declaration, is_tracked=is_tracked)
        values = buffer.checked(values)
        if not buffer.fits(values):
            buffer = self._weighed(self._direct, buffer, values)
        if is_tracked and self._keeps_ids and type(message_id) not in _PLAIN_IDS:
            refuse_unpicklable([message_id], self._where)
        try:
            self.row_count += 1
            if is_tracked:
                self.tracked_count += 1
            if number != 1:
                buffer.attempts[len(buffer.ids)] = number
            buffer.cells.extend(values)
            buffer.tasks.append(task_id)
            buffer.ids.append(message_id)
        except BaseException:
            buffer.take_back()
            raise
        if message_id is not None and not is_tracked:
            self._unacked.append((stream, message_id))

    def _begin_run(
        self, at_hand: dict[str, _Buffer], declaration: StreamDeclaration, *, is_tracked: bool
    ) -> _Buffer:
        """A run for the next messages of a stream; the one at hand before, if any, has ended with this."""
        name = declaration.name
        if name not in self._fits:
            self._fits[name] = quick_look(declaration.schema)
        buffer = _Buffer(declaration, self._component.id, self._fits[name], is_tracked=is_tracked)
        self._waiting.append(buffer)
        at_hand[name] = buffer
        return buffer

    def _weighed(self, at_hand: dict[str, _Buffer], buffer: _Buffer, values: Sequence[Any]) -> _Buffer:
        """The run for a tuple that may be large: another one, if the two are too much for one chunk.

        Raises:
            MisuseError: It does not fit the stream's types. Here the spout is to blame, and not its run.
        """
        weight = buffer.batch([*values], 1).nbytes
        if buffer.weight + weight > CHUNK_BYTES and buffer.ids:
            buffer = self._begin_run(at_hand, buffer.declaration, is_tracked=buffer.is_tracked)
        buffer.weight += weight
        self._weight += weight
        return buffer

    def emit_batch(
        self,
        batch: pa.RecordBatch,
        message_ids: MessageIds | pa.Array | None = None,
        stream: str = "default",
        *,
        attempts: Sequence[int] | npt.NDArray[Any] | pa.Array | None = None,
    ) -> None:
        where = self._where
        checked = batch_of_stream(batch, self._streams.declaration(stream), where)
        count = checked.num_rows
        ids = None if message_ids is None else ids_of(message_ids, count, where)
        if ids is not None and self._keeps_ids:
            refuse_unpicklable(ids, where)
        numbers = None if attempts is None else _checked_attempts(attempts, where)
        if numbers is not None and len(numbers) != count:
            what = f"emit_batch() of {count} rows with {len(numbers)} attempts"
            raise MisuseError(what, where, "give one number for each row, or leave attempts out")
        if not count:
            return
        if ids is None and self._must_have_ids:
            raise self._has_no_id()
        self._buffers.pop(stream, None)  # the run at hand ends
        is_tracked = ids is not None and self._is_tracking
        run = Run(stream, is_tracked, checked, ids if ids is not None and is_tracked else (), None, numbers)
        self.row_count += count
        self._weight += checked.nbytes
        if is_tracked:
            self.tracked_count += count
        self._waiting.append(run)
        if not is_tracked and ids is not None:
            listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
            self._unacked += [(stream, message_id) for message_id in listed]

    def _has_no_id(self) -> MisuseError:
        """Without an id nobody hears that the tuple failed: it would be lost in spite of the policy."""
        return MisuseError(
            f"spout {self._component.id!r} has a Retry, and emitted a tuple without a message id: no failure "
            "of it would be noticed, so it could never be tried again",
            f"spout {self._component.id!r}, task {self._task}",
            "give a message id: emit(values, message_id=...); or leave retry= out of set_spout",
        )

    def report_error(self, exception: BaseException) -> None:
        self._report(exception)

    def lost(self, message_ids: Iterable[object] | None = None) -> None:
        lost = None if message_ids is None else frozenset(message_ids)
        kept = [run.those(_is_kept(run, lost)) if run.is_tracked else run for run in self._end_runs()]
        self._waiting = [run for run in kept if len(run)]
        self.row_count = sum(map(len, kept))
        self.tracked_count = sum(len(run) for run in kept if run.is_tracked)
        if lost is None:
            self.unfit, self._unacked = [], []
        else:
            self.unfit = [each for each in self.unfit if each.message_id not in lost]
            self._unacked = [each for each in self._unacked if each[1] not in lost]
        self._lose(lost)

    def wake(self) -> None:
        self._wake()

    def waiting_ids(self) -> Iterator[object]:
        """The ids of the tracked messages that wait here."""
        for each in self._waiting:
            if each.is_tracked:
                yield from each.ids if isinstance(each, _Buffer) else each.message_ids

    def take_runs(self) -> list[Run]:
        """All that was emitted since last taken; within a stream in the order of the emits."""
        runs = self._end_runs()
        self._waiting = []
        self.row_count = self.tracked_count = self._weight = 0
        return runs

    def _end_runs(self) -> list[Run]:
        """All that waits, as runs; the next message begins another one."""
        runs: list[Run] = []
        for each in self._waiting:
            runs += each.runs(self.unfit) if isinstance(each, _Buffer) else [each]
        self._buffers.clear()
        self._direct.clear()
        return runs

    def take_unacked(self) -> dict[str, list[object]]:
        """Message ids emitted since last taken that nothing tracks, as there are no ackers; by stream."""
        taken: dict[str, list[object]] = {}
        for stream, message_id in self._unacked:
            taken.setdefault(stream, []).append(message_id)
        self._unacked.clear()
        return taken


def _is_kept(run: Run, lost: frozenset[object] | None) -> Bools:
    """Which messages of a tracked run are not lost, shape (n,)."""
    if lost is None:
        return np.zeros(len(run), dtype=np.bool_)
    ids = run.message_ids.tolist() if isinstance(run.message_ids, np.ndarray) else run.message_ids
    return np.array([message_id not in lost for message_id in ids], dtype=np.bool_)


def _checked_attempts(attempts: Sequence[int] | npt.NDArray[Any] | pa.Array, where: str) -> Int32s:
    """The numbers of deliveries, as an array of our own. MisuseError when one is no number from 1 on."""
    numbers = np.asarray(attempts)
    if numbers.size and (numbers.dtype.kind not in "iu" or numbers.ndim != 1):
        what = f"attempts are {attempts!r:.60}, which are no whole numbers"
        raise MisuseError(what, where, "give the number of this delivery, from 1")
    if numbers.size and not 1 <= int(numbers.min()) <= int(numbers.max()) <= _MOST_ATTEMPTS:
        what = f"an attempt is {int(numbers.min() if numbers.min() < 1 else numbers.max())}"
        raise MisuseError(what, where, "give the number of this delivery: the first is 1")
    return numbers.astype(np.int32)
