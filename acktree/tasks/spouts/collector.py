"""The collector of spouts: emitted messages wait here until they are handed over in runs.

Rules of this file
------------------
1. An exception from outside may be raised between any two steps, and the spout may catch it and go on: see
   ``runs.py``. What waits is in one list from its first message on, and a run ends when another one, or none,
   is the stream's current run.
2. ``emit`` is called for each tuple, so it does all that is usual inline, without a call of ours.
3. Any thread may emit, at any time, as in Storm. A lock in ``emit`` would cost 20 % of it. But CPython
   changes threads after calls, at backward jumps and where a function begins, and nowhere else. So ``emit``
   counts and writes with none of these in between: the last call writes the id. A run that was taken
   meanwhile refuses its cells with a TypeError. Whatever begins and ends runs holds the lock.

Source of rule 3: Storm's ``OutputCollector`` since 1.0, and ``eval_breaker`` in CPython's ``ceval.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from threading import RLock, current_thread, get_ident
from time import monotonic
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.data.fields import StreamDeclaration
from acktree.core.data.values import ANYWHERE, LOOKED_AT, quick_look
from acktree.core.ids import Int32s, Int64s
from acktree.core.spouts.keys import key_digests
from acktree.core.spouts.pending import MessageIds
from acktree.core.tracking.attempts import MOST_ATTEMPTS, NAMED
from acktree.core.tracking.trace_parent import TraceParent
from acktree.errors import MisuseError
from acktree.spout import SpoutOutputCollector
from acktree.tasks.arguments import batch_of_stream, ids_of, refuse_unpicklable
from acktree.tasks.chunk import CHUNK_BYTES
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.keys.labels import Labelled, checked_label, id_of, shown_id
from acktree.tasks.spouts.runs import Bools, MessageRun, Noted, RunBuffer, UnfitMessage
from acktree.tasks.streams import Streams
from acktree.topology.model import Component

ByRow: TypeAlias = Sequence[object] | npt.NDArray[Any] | pa.Array
"""A key or a label, or None, for each row of a batch."""
_PLAIN_IDS: Final = frozenset({int, str, bytes})
"""Message ids of exactly these types always pickle."""


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
        """Nothing emitted yet. ``own_thread`` is the spout's, whoever makes this.

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
        self._waiting: list[RunBuffer | MessageRun] = []
        self.own_thread = get_ident()
        self._lock = RLock()
        self._is_closed = False
        # The run last emitted to: most spouts emit on one stream. Or none, of a stream that nobody can name.
        self._no_run = _run_without_stream(component.id)
        self._run = self._no_run
        self._fits: dict[str, Callable[[Sequence[object]], bool]] = {}
        self._unacked: list[tuple[str, object]] = []
        self.row_count = 0
        self._untracked_count = 0
        self._weight = 0
        self._digest = key_digests(component.id)
        self.has_keys = False
        """Whether any message had a key."""

    @property
    def tracked_count(self) -> int:
        """How many of the messages that wait are tracked."""
        return max(0, self.row_count - self._untracked_count)  # another thread may read them between changes

    @property
    def is_heavy(self) -> bool:
        """Whether what waits is to be handed over now for its size: the inbox counts bytes only then."""
        return self._weight >= CHUNK_BYTES

    @property
    def _where(self) -> str:
        return f"spout {self._component.id!r}, task {self._task}"

    @property
    def pending_count(self) -> int:
        return self._open_count()

    def fill(
        self, next_tuple: Callable[[], None], enough: int, room: int, verdicts: Sized, until: float
    ) -> None:
        """Ask a spout once, and again while it emits something each time.

        Args:
            enough: At most until this number waits to be taken.
            room: At most until this number of tracked messages waits to be taken.
            verdicts: Or until there are some; looked at after each call that emitted.
            until: Or until then, as ``time.monotonic()`` counts; asked as often, for a spout may be slow.

        Raises:
            BaseException: What ``next_tuple`` raises.
        """
        most = min(enough, room + self._untracked_count)  # the messages to come may all be tracked
        while True:
            before = self.row_count
            next_tuple()
            count = self.row_count
            if count == before or count >= most:
                return
            if verdicts or self._weight >= CHUNK_BYTES or monotonic() >= until:
                return

    def emit(  # noqa: C901  # inline, as said above
        self,
        values: Sequence[Any],
        message_id: object = None,
        stream: str = "default",
        # By keyword alone in the contract: here the defaults of keywords would cost 5 % of an emit.
        attempt: int = 1,
        trace: bool | str = False,  # noqa: FBT001, FBT002
        label: str | None = None,
        key: str | bytes | int | None = None,
    ) -> None:
        run = self._run
        if run.stream is not stream or run.has_ids is (message_id is None):
            run = self._turn_to(stream, has_id=message_id is not None)
        if (type(values) is not list and type(values) is not tuple) or len(values) != run.width:
            values = run.checked(values)
        if run.is_typed:
            if not run.fits(values):
                values = run.frozen(values)
                run = self._weighed(self._buffers, run, values)
        else:
            for value in values:  # as run.fits
                kind = type(value)
                if (len(value) > LOOKED_AT) if kind is str or kind is bytes else (kind not in ANYWHERE):
                    values = run.frozen(values)
                    run = self._weighed(self._buffers, run, values)
                    break
        if self._keeps_ids and run.is_tracked and type(message_id) not in _PLAIN_IDS:
            refuse_unpicklable([message_id], self._where)
        if attempt != 1 or trace or label is not None or key is not None:
            message_id = self._noted(run, message_id, attempt, trace, name=self._name(message_id, label, key))
        try:
            # From here on no other thread is let in before the id is written: see rule 3.
            # Counted first: to count one that was not emitted does no harm until all are taken.
            self.row_count += 1
            run.cells += values
            run.ids.append(message_id)
        except BaseException as error:
            if not run.is_over or type(error) is not TypeError:  # or it was written, and then taken
                run.take_back()
                raise
            self._write_to_next(run, stream, values, message_id)
        if not run.is_tracked:
            self._note_untracked(run, message_id)

    def _write_to_next(self, over: RunBuffer, stream: str, values: Sequence[Any], noted_id: object) -> None:
        """Write what was about to be written to a run that was taken meanwhile to the one after it."""
        with self._lock:
            if self._is_closed:
                self.row_count = sum(map(len, self._waiting))  # emit has counted this one
            run = self._turn_to(stream, has_id=over.has_ids)
            run.has_noted |= over.has_noted
            self.row_count += 1
            run.cells += values  # as in emit
            run.ids.append(noted_id)

    def emit_direct(
        self,
        task_id: int,
        values: Sequence[Any],
        message_id: object = None,
        stream: str = "default",
        *,
        attempt: int = 1,
        trace: bool | str = False,
        label: str | None = None,
        key: str | bytes | int | None = None,
    ) -> None:
        declaration = self._streams.chosen_by_emitter(stream, task_id)
        with self._lock:
            run = self._direct.get(stream)
            if run is None or run.has_ids is (message_id is None):
                run = self._begin_run(self._direct, declaration, has_ids=message_id is not None)
            values = run.checked(values)
            if not run.fits(values):
                values = run.frozen(values)
                run = self._weighed(self._direct, run, values)
            if run.is_tracked and self._keeps_ids and type(message_id) not in _PLAIN_IDS:
                refuse_unpicklable([message_id], self._where)
            if attempt != 1 or trace or label is not None or key is not None:
                name = self._name(message_id, label, key)
                message_id = self._noted(run, message_id, attempt, trace, name=name)
            self.row_count += 1
            run.write(values, message_id, task_id)
        if not run.is_tracked:
            self._note_untracked(run, message_id)

    def _noted(
        self,
        run: RunBuffer,
        message_id: object,
        attempt: int,
        trace: bool | str,  # noqa: FBT001  # as emit
        *,
        name: tuple[str, bytes],
    ) -> object:
        """What to write for the id of a message, with what else is known of it."""
        number, parent = self._marked(attempt, trace, message_id)
        if any(name) and run.is_tracked:
            message_id = Labelled(message_id, *name)
        return run.noted(message_id, number, parent)

    def _name(self, message_id: object, label: str | None, key: object) -> tuple[str, bytes]:
        """The label of a message and the digest of its key, checked; each may be empty."""
        name = "" if label is None else checked_label(label, f"{self._where}, emit(label=...)")
        digest = b"" if key is None else self._checked_key(key, f"{self._where}, emit(key=...)")
        if (name or digest) and message_id is None:
            argument = f"label={name!r:.60}" if name else f"key={shown_id(key):.60}"
            raise MisuseError(f"emit() with {argument} and no message id", self._where, "give a message id")
        return name, digest

    def _checked_key(self, key: object, where: str) -> bytes:
        """The digest of a key."""
        if not self._is_tracking:
            raise MisuseError(
                "a message has a key, and nothing tracks messages: whether it was ACKED is never known",
                where,
                "leave acker_executors=0 out of Config, or leave key out",
            )
        digest = self._digest(key, where)
        self.has_keys = True
        return digest

    def _marked(
        self,
        attempt: int,
        trace: bool | str,  # noqa: FBT001  # as emit
        message_id: object,
    ) -> tuple[int, str | None]:
        """An attempt as it travels, with a mark if the spout wants its message traced; and a traceparent."""
        number = attempt
        if type(attempt) is not int or not 1 <= attempt <= MOST_ATTEMPTS:
            number = int(_checked_attempts([attempt], self._where)[0])
        if not trace:
            return number, None
        if message_id is None or (trace is not True and not isinstance(trace, str)):
            raise MisuseError(
                f"emit() with trace={trace!r:.60} and message id {message_id!r:.60}",
                self._where,
                "give a message id, and trace=True or the text of a W3C traceparent header",
            )
        if not self._is_tracking:
            return number, None
        if not isinstance(trace, str):
            return number | NAMED, None
        parent = TraceParent.of(trace)
        if parent is None or not parent.is_sampled:
            return number, None
        return number | NAMED, str(parent)

    def _note_untracked(self, run: RunBuffer, noted_id: object) -> None:
        """Count a message that is not tracked. If it has an id, there are no ackers: it is acked soon."""
        self._untracked_count += 1  # after a take by another thread one too many: until the next
        message_id = noted_id.message_id if type(noted_id) is Noted else noted_id
        if message_id is not None:
            self._unacked.append((run.declaration.name, message_id))

    def _turn_to(self, stream: str, *, has_id: bool) -> RunBuffer:
        """Select and return the run of a stream that its next message goes to, with an id or without.

        Another kind of tuple begins another run, so that the order is kept.
        """
        run = self._buffers.get(stream)
        if run is None or run.has_ids is not has_id:
            declaration = self._streams.chosen_by_groupings(stream)
            with self._lock:
                run = self._buffers.get(stream)  # another thread may have begun it
                if run is None or run.has_ids is not has_id:
                    run = self._begin_run(self._buffers, declaration, has_ids=has_id)
        run.stream = stream
        self._run = run
        return run

    def _begin_run(
        self, current: dict[str, RunBuffer], declaration: StreamDeclaration, *, has_ids: bool
    ) -> RunBuffer:
        """A run for the next messages of a stream; the current one, if any, ends with this."""
        self._refuse_if_closed()
        if self._must_have_ids and not has_ids:
            raise self._has_no_id()
        name = declaration.name
        if name not in self._fits:
            self._fits[name] = quick_look(declaration.schema)
        is_tracked = has_ids and self._is_tracking
        buffer = RunBuffer(
            declaration, self._component.id, self._fits[name], has_ids=has_ids, is_tracked=is_tracked
        )
        self._run = self._no_run
        self._waiting.append(buffer)
        current[name] = buffer
        return buffer

    def _weighed(self, current: dict[str, RunBuffer], buffer: RunBuffer, values: Sequence[Any]) -> RunBuffer:
        """The run for a tuple that may be large: another one, if the two are too much for one chunk.

        Raises:
            MisuseError: It does not fit the stream's types. It is the spout's error, not its run's.
        """
        weight = buffer.size_of(values)
        with self._lock:
            if buffer.weight + weight > CHUNK_BYTES and buffer.ids:
                buffer = self._begin_run(current, buffer.declaration, has_ids=buffer.has_ids)
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
        keys: ByRow | None = None,
        labels: ByRow | None = None,
    ) -> None:
        where = self._where
        checked = batch_of_stream(batch, self._streams.chosen_by_groupings(stream), where)
        count = checked.num_rows
        ids = None if message_ids is None else ids_of(message_ids, count, where)
        if ids is not None and self._keeps_ids:
            refuse_unpicklable(ids, where)
        if keys is not None or labels is not None:
            ids = self._named(ids, keys, labels, count)
        numbers = None if attempts is None else _checked_attempts(attempts, where)
        if numbers is not None and len(numbers) != count:
            what = f"emit_batch() of {count} rows with {len(numbers)} attempts"
            raise MisuseError(what, where, "give one number for each row, or leave attempts out")
        if not count:
            return
        if ids is None and self._must_have_ids:
            raise self._has_no_id()
        is_tracked = ids is not None and self._is_tracking
        run = MessageRun(
            stream, is_tracked, values=checked, message_ids=ids if ids is not None and is_tracked else (),
            tasks=None, attempts=numbers,
        )  # fmt: skip
        with self._lock:
            self._refuse_if_closed()
            self._run = self._no_run
            self._buffers.pop(stream, None)  # the current run ends
            self.row_count += count
            self._weight += checked.nbytes
            if not is_tracked:
                self._untracked_count += count
            self._waiting.append(run)
        if not is_tracked and ids is not None:
            listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
            self._unacked += [(stream, message_id) for message_id in listed]

    def _named(
        self, ids: MessageIds | None, keys: ByRow | None, labels: ByRow | None, count: int
    ) -> MessageIds:
        """The message ids of a batch, with the keys and labels of its rows."""
        digests = self._by_row("key", ids, keys, count)
        names = self._by_row("label", ids, labels, count)
        assert ids is not None, "else it was refused"
        if not self._is_tracking:  # nothing shows a label, and a key was refused
            return ids
        plain = ids.tolist() if isinstance(ids, np.ndarray) else ids
        named = zip(plain, names, digests, strict=True)
        return [
            Labelled(message_id, name, key) if name or key else message_id for message_id, name, key in named
        ]

    def _by_row(self, noun: str, ids: MessageIds | None, column: ByRow | None, count: int) -> list[Any]:
        """The digest of the key of each row, or its label, checked; empty for none."""
        where = f"{self._where}, emit_batch({noun}s=...)"
        checked, none = (self._checked_key, b"") if noun == "key" else (checked_label, "")
        if column is None:
            return [none] * count
        listed = column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else list(column)
        if ids is None or len(listed) != count:
            said = f"emit_batch() of {count} rows with {len(listed)} {noun}s"
            how = f"give one {noun} for each row, None where it has none, and message ids"
            raise MisuseError(said if ids is not None else f"{said} and no message ids", where, how)
        return [none if value is None else checked(value, where) for value in listed]

    def emit_encoded(self, batch: pa.RecordBatch, message_ids: Int64s, stream: str) -> None:
        """Emit tracked rows of a gate as a chunk has them: no value is unpickled."""
        with self._lock:
            self._refuse_if_closed()
            self._run = self._no_run
            self._buffers.pop(stream, None)  # the current run ends
            self.row_count += batch.num_rows
            self._weight += batch.nbytes
            self._waiting.append(
                MessageRun(
                    stream, is_tracked=True, values=batch, message_ids=message_ids, tasks=None, attempts=None
                )
            )

    def _has_no_id(self) -> MisuseError:
        """Without an id no failure is delivered: the tuple would be lost in spite of the policy."""
        return MisuseError(
            f"spout {self._component.id!r} has a Retry, and emitted a tuple without a message id: no failure "
            "of it would be noticed, so it could never be tried again",
            f"spout {self._component.id!r}, task {self._task}",
            "give a message id: emit(values, message_id=...); or leave retry= out of set_spout",
        )

    def report_error(self, exception: BaseException) -> None:
        self._report(exception)

    def lost(self, message_ids: Iterable[object] | None = None) -> None:
        if get_ident() != self.own_thread:
            raise MisuseError(
                f"lost() on thread {current_thread().name!r}: verdicts may be under way on the spout's own",
                self._where,
                "hand the ids over by a queue, and call lost() in next_tuple, keep_alive or another hook",
            )
        lost = None if message_ids is None else frozenset(message_ids)

        def is_kept(message_id: object) -> bool:
            return lost is not None and id_of(message_id) not in lost

        with self._lock:
            kept = [run.those(_is_kept(run, lost)) if run.is_tracked else run for run in self._end_runs()]
            self._waiting = [run for run in kept if len(run)]
            self.row_count = sum(map(len, kept))
            self._untracked_count = sum(len(run) for run in kept if not run.is_tracked)
            ids = self.take_unacked().items()
            self._unacked[:0] = [
                (stream, message_id)
                for stream, of_stream in ids
                for message_id in of_stream
                if is_kept(message_id)
            ]
            self.unfit = [message for message in self.unfit if is_kept(message.message_id)]
        self._lose(lost)

    def wake(self) -> None:
        self._wake()

    def close(self) -> None:
        """From now on nothing is emitted: MisuseError. What waits can still be taken."""
        with self._lock:
            self._is_closed = True
            self._run = self._no_run
            self._buffers.clear()
            self._direct.clear()
            for buffer in self._waiting:
                if isinstance(buffer, RunBuffer):
                    buffer.end()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise MisuseError(
                f"emitted on thread {current_thread().name!r} after the spout was closed",
                self._where,
                "it was not emitted: leave the message with its queue, which delivers it again, and end the "
                "threads that emit in deactivate()",
            )

    def waiting_ids(self) -> Iterator[object]:
        """The ids of the tracked messages that wait here. Any thread may ask."""
        for part in self._waiting[:]:
            if part.is_tracked:
                yield from part.message_ids()[:] if isinstance(part, RunBuffer) else part.message_ids

    def take_runs(self) -> list[MessageRun]:
        """All that was emitted since last taken; within a stream in the order of the emits of each thread."""
        with self._lock:
            runs = self._end_runs()
            self._waiting = []
            self.row_count = self._untracked_count = self._weight = 0
        return runs

    def _end_runs(self) -> list[MessageRun]:
        """All that waits, as runs; the next message begins another one."""
        self._run = self._no_run
        self._buffers.clear()
        self._direct.clear()
        runs: list[MessageRun] = []
        for part in self._waiting:
            runs += part.runs(self.unfit) if isinstance(part, RunBuffer) else [part]
        return runs

    def take_unacked(self) -> dict[str, list[object]]:
        """Message ids emitted since last taken that nothing tracks, as there are no ackers; by stream."""
        taken: dict[str, list[object]] = {}
        count = len(self._unacked)
        for stream, message_id in self._unacked[:count]:
            taken.setdefault(stream, []).append(message_id)
        del self._unacked[:count]  # other threads may have added some
        return taken


def _run_without_stream(component: str) -> RunBuffer:
    """A run that no emit is for: no argument is its stream, as ``None`` may be."""
    run = RunBuffer(StreamDeclaration("", ()), component, bool, has_ids=False, is_tracked=False)
    run.stream = object()
    return run


def _is_kept(run: MessageRun, lost: frozenset[object] | None) -> Bools:
    """Which messages of a tracked run are not lost, shape (n,)."""
    if lost is None:
        return np.zeros(len(run), dtype=np.bool_)
    ids = run.message_ids.tolist() if isinstance(run.message_ids, np.ndarray) else run.message_ids
    return np.array([id_of(message_id) not in lost for message_id in ids], dtype=np.bool_)


def _checked_attempts(attempts: Sequence[int] | npt.NDArray[Any] | pa.Array, where: str) -> Int32s:
    """The numbers of deliveries, 1 to ``MOST_ATTEMPTS``, as an array of our own. MisuseError for others."""
    numbers = np.asarray(attempts)
    if numbers.size and (numbers.dtype.kind not in "iu" or numbers.ndim != 1):
        what = f"attempts are {attempts!r:.60}, which are no whole numbers"
        raise MisuseError(what, where, "give the number of this delivery, from 1")
    if numbers.size and not 1 <= int(numbers.min()) <= int(numbers.max()) <= MOST_ATTEMPTS:
        what = f"an attempt is {int(numbers.min() if numbers.min() < 1 else numbers.max())}"
        how = f"give the number of this delivery: the first is 1, the largest {MOST_ATTEMPTS}"
        raise MisuseError(what, where, how)
    return numbers.astype(np.int32)
