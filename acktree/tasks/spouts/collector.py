"""The collector that spouts are handed: emitted messages wait here until they are handed over in runs.

An exception from outside may be raised between any two steps, and the spout may catch it and go on: see
``runs.py``. What waits is in one list from its first message on, and a run ends when another one, or none, is
the stream's current run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.values import quick_look
from acktree.core.ids import Int32s
from acktree.core.spouts.pending import MessageIds
from acktree.errors import MisuseError
from acktree.spout import SpoutOutputCollector
from acktree.tasks.arguments import batch_of_stream, ids_of, refuse_unpicklable
from acktree.tasks.chunk import CHUNK_BYTES
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.runs import Bools, Run, RunBuffer, UnfitMessage
from acktree.tasks.streams import Streams
from acktree.topology.model import Component

_PLAIN_IDS: Final = frozenset({int, str, bytes})
"""Message ids of exactly these types always pickle."""
_MOST_ATTEMPTS: Final = 2**31 - 1


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
        # The current run of each stream, which its next message goes to; each is among those that wait, too.
        self._buffers: dict[str, RunBuffer] = {}
        self._direct: dict[str, RunBuffer] = {}
        self._waiting: list[RunBuffer | Run] = []
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
            enough: Until this number waits to be taken.
            room: Until this number of tracked messages waits to be taken.
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
        buffer = self._buffers.get(stream)
        if buffer is None or buffer.is_tracked is not is_tracked:
            # Another kind of tuple begins another run, so that the order is kept.
            declaration = self._streams.chosen_by_groupings(stream)
            buffer = self._begin_run(self._buffers, declaration, is_tracked=is_tracked)
        self._add(self._buffers, buffer, values, message_id, attempt)

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
        declaration = self._streams.chosen_by_emitter(stream, task_id)
        buffer = self._direct.get(stream)
        if buffer is None or buffer.is_tracked is not is_tracked:
            buffer = self._begin_run(self._direct, declaration, is_tracked=is_tracked)
        self._add(self._direct, buffer, values, message_id, attempt, task_id)

    def _add(
        self,
        current: dict[str, RunBuffer],
        buffer: RunBuffer,
        values: Sequence[Any],
        message_id: object,
        attempt: int,
        task_id: int | None = None,
    ) -> None:
        """Check one message and write it to a run. ``task_id``: its target; None when groupings choose."""
        if message_id is None and self._must_have_ids:
            raise self._has_no_id()
        is_tracked = buffer.is_tracked
        number = 1 if attempt == 1 else int(_checked_attempts([attempt], self._where)[0])
        if (type(values) is not list and type(values) is not tuple) or len(values) != buffer.width:
            values = buffer.checked(values)
        if not buffer.fits(values):
            buffer = self._weighed(current, buffer, values)
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
            if task_id is not None:
                buffer.tasks.append(task_id)
            buffer.ids.append(message_id)
        except BaseException:
            buffer.take_back()
            raise
        if message_id is not None and not is_tracked:
            self._unacked.append((buffer.declaration.name, message_id))

    def _begin_run(
        self, current: dict[str, RunBuffer], declaration: StreamDeclaration, *, is_tracked: bool
    ) -> RunBuffer:
        """A run for the next messages of a stream; the current one, if any, ends with this."""
        name = declaration.name
        if name not in self._fits:
            self._fits[name] = quick_look(declaration.schema)
        buffer = RunBuffer(declaration, self._component.id, self._fits[name], is_tracked=is_tracked)
        self._waiting.append(buffer)
        current[name] = buffer
        return buffer

    def _weighed(self, current: dict[str, RunBuffer], buffer: RunBuffer, values: Sequence[Any]) -> RunBuffer:
        """The run for a tuple that may be large: another one, if the two are too much for one chunk.

        Raises:
            MisuseError: It does not fit the stream's types. Here the spout is to blame, and not its run.
        """
        weight = buffer.batch([*values], 1).nbytes
        if buffer.weight + weight > CHUNK_BYTES and buffer.ids:
            buffer = self._begin_run(current, buffer.declaration, is_tracked=buffer.is_tracked)
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
        self._buffers.pop(stream, None)  # the current run ends
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
                yield from each.ids if isinstance(each, RunBuffer) else each.message_ids

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
            runs += each.runs(self.unfit) if isinstance(each, RunBuffer) else [each]
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
