"""One spout task: the user's spout, and what becomes of what it emits.

Rules of this file
------------------
1. Everything happens in :meth:`SpoutTask.step` and the calls beside it, on whichever thread calls them: one
   thread a task, so user code needs no locks. Only :meth:`dispatch` may be called from elsewhere.
2. ``emit`` never blocks and never refuses for lack of room: whether there is room is asked before
   ``next_tuple``. A full inbox that made ``emit`` wait would keep this thread from what empties it: verdicts.
3. A message leaves the pending table once, with its verdict; with a retry policy it then waits for its next
   attempt, or is a dead letter, durably, before its source is told.

Source: Storm's ``executor/spout/SpoutExecutor`` and ``SpoutOutputCollectorImpl``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from numbers import Integral
from sys import maxsize
from typing import Final, Literal

import numpy as np

from acktree.core import durable
from acktree.core.data.context import Clock, TaskContext
from acktree.core.data.hooks import TaskHook
from acktree.core.data.instruments import Increment
from acktree.core.data.services import TaskServices
from acktree.core.ids import root_ids
from acktree.core.spouts.pending import Closed
from acktree.core.stats.counters import NO_STREAM, Counters, What
from acktree.core.stats.histograms import Histogram
from acktree.core.tracking.verdicts import Failure, FailureKind
from acktree.errors import ConnectorError, DeadLetterLimitError, MisuseError, SpoutError
from acktree.spout import EndOfStream, Spout
from acktree.tasks.chunk import Chunk
from acktree.tasks.failures import failure_of
from acktree.tasks.hook_calls import HookCalls
from acktree.tasks.own_metrics import grown_metrics, task_services
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.collector import SpoutCollector
from acktree.tasks.spouts.hooks import Hooks
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.open_chunks import OpenChunks
from acktree.tasks.spouts.recovery import Recovery
from acktree.tasks.spouts.retries import Attempt, Payloads, Redriven, Retries, redriven_ids
from acktree.tasks.spouts.runs import runs_together
from acktree.tasks.spouts.spent import without_spent
from acktree.tasks.spouts.upkeep import OpenNow, Pulse
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.tasks.spouts.watch import SpoutWatch
from acktree.topology.model import Component

_LAG_SECS: Final = 5.0
"""How often a spout is asked for its lag."""


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A message without a final verdict, for display.

    Attributes:
        root: Of its last attempt; None while it waits for the next.
        attempt: The last one that was begun, from 1.
        state: Whether its tuples are processed, or it waits for its next attempt.
    """

    spout: str
    task_id: int
    message_id: object
    root: int | None
    attempt: int
    first_emitted_ms: int
    state: Literal["open", "retry"]


class SpoutTask:
    """A task of a spout."""

    def __init__(
        self,
        spout: Spout,
        component: Component,
        task: int,
        plan: Plan,
        spout_host: SpoutHost,
        first_sequence: int,
    ) -> None:
        """Take over the task's own copy of the spout; nothing of it is called yet.

        Args:
            first_sequence: The first sequence of this run.
        """
        self.spout, self.component, self.task, self.plan = spout, component, task, plan
        # Replace the key-sharing dict, as the bolts' guard does: with one, CPython 3.11 does not cache
        # attribute lookups of a copied object, which cost half of the time of a small next_tuple.
        object.__setattr__(spout, "__dict__", dict(vars(spout)))
        self.counters = Counters()
        self.complete_ms = Histogram()
        """The complete latencies of its acked messages, in milliseconds."""
        self.has_ended = False
        self.is_active = False
        self.is_open = False
        self.is_asking = False
        """Whether ``next_tuple`` is being called."""
        self.lag: int | None = None
        """How many messages waited at the source when the spout was last asked; None: not known."""
        self._host = spout_host
        self._hooks = Hooks(spout, self._report)
        self._watch: SpoutWatch | None = None
        self._services = task_services()
        self._pulse, self._lag_pulse = Pulse(), Pulse()
        self._clock = Clock()
        self._retries = Retries(component.retry)
        self._chunks = OpenChunks(spout_host.inbox, self._retries.needs)
        self._pending = self._chunks.pending
        self._verdict_batches: deque[VerdictBatch] = deque()
        self._sent_letters: set[int] = set()
        roots_of = partial(root_ids, plan.run_salt, task)
        self.recovery = Recovery(
            self._chunks, self._retries, roots_of, spout_host.letters_among, self.dispatch
        )
        self._next_sequence = first_sequence
        self._reserved = spout_host.reserve(first_sequence)
        self._clock_ms = self._pause_ms = self._asked_again_ms = 0
        self._limit = plan.config.max_spout_pending
        if component.max_spout_pending is not None:
            self._limit = component.max_spout_pending or None
        self._collector = SpoutCollector(
            component, task, plan, lambda: self.open_count, self._report, self._lose,
            partial(spout_host.wake, task), keeps_ids=not spout.redelivers,
        )  # fmt: skip

    def open(self, now_ms: int = 0) -> None:
        """Call the spout's ``open``; what it raises stops the topology.

        A ConnectorError that may pass does not: ``open`` is called again by a later step.
        """
        open_ids = () if self.spout.redelivers else self._recovered_ids()
        self._clock.now_ms = now_ms
        services = self._services = task_services()
        context = self.plan.context(self.component, self.task, self._clock, services)
        context = replace(context, open_message_ids=open_ids, max_spout_pending=self._limit)
        self._hooks.now_ms = now_ms
        self._begin_watch(context, services)
        try:
            self.spout.open(self.plan.config, context, self._collector)
        except ConnectorError as error:
            self._end_watch()  # `open` is called again, and adds its hooks again
            if not error.can_retry:
                raise
            self._hooks.failed(error)
            return
        finally:
            services.close()
        self.is_open = True
        self._hooks.succeeded()
        self._pulse.start(now_ms)
        self._lag_pulse.start(now_ms)
        if self.is_active:
            self._hooks.call(self.spout.activate)

    def _begin_watch(self, context: TaskContext, services: TaskServices) -> None:
        """Before ``open``: begin to tell task hooks, and let ``open`` add some."""
        calls = HookCalls(self.plan.config, context, self._report, self.plan.reported)

        def add(hook: TaskHook) -> None:
            self._watch = self._watch or SpoutWatch(calls, self.task)
            calls.add(hook)

        services.add_hook = add
        for hook in self.plan.task_hooks():
            add(hook)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _recovered_ids(self) -> tuple[object, ...]:
        """The ids of messages that an earlier run left open."""
        return tuple(self._open_ids(maxsize))

    def remember(self, position: bytes) -> None:
        """Before ``open``: set what the spout remembered with its last message of an earlier run."""
        for name, value in durable.loads(position).items():
            setattr(self.spout, name, value)

    def activate(self) -> None:
        """Let the spout emit."""
        if not self.is_active:
            self.is_active = True
            if self.is_open:
                self._hooks.call(self.spout.activate)

    def deactivate(self) -> None:
        """Stop calling ``next_tuple``; verdicts still arrive."""
        if self.is_active:
            self.is_active = False
            if self.is_open:
                self._hooks.call(self.spout.deactivate)

    def close(self) -> None:
        """Call the spout's ``close``, if it was opened."""
        if self.is_open:
            self._call(self.spout.close)
        self._end_watch()

    def dispatch(self, verdict_batch: VerdictBatch) -> None:
        """Leave verdicts, or letters to be tried again, for the next step. May be called from any thread."""
        if verdict_batch.redriven and self.plan.is_tracking:
            self._sent_letters.update(letter.letter_id for letter in verdict_batch.redriven)
        self._verdict_batches.append(verdict_batch)

    def has_open_letter(self, letter_id: int) -> bool:
        """Whether a dead letter was sent again and has no verdict yet. May be asked from any thread."""
        return letter_id in self._sent_letters or letter_id in self.recovery.letters

    def grown_metrics(self) -> dict[str, Increment]:
        """What the metrics that the spout registered grew by since this was called last. On any thread."""
        return grown_metrics(self._services, self._report)

    @property
    def open_count(self) -> int:
        """Messages without a final verdict: in the tree, waiting for a retry, or not handed over yet."""
        return self._pending.open_count + len(self._retries) + self._collector.tracked_count

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open and nothing waits to be handed over or told."""
        return not (
            self.open_count or self._collector.row_count or self._verdict_batches or self._hooks.has_untold
        )

    @property
    def has_verdicts(self) -> bool:
        """Whether verdicts wait to be taken. May be asked from any thread."""
        return bool(self._verdict_batches)

    @property
    def is_settled(self) -> bool:
        """Whether dead letters, and what ``ack`` and ``fail`` emitted, are durable."""
        return not (self._collector.row_count or self._retries.has_records or self._hooks.has_untold)

    @property
    def buffered_count(self) -> int:
        """Messages emitted and not handed over yet."""
        return self._collector.row_count

    @property
    def has_enough(self) -> bool:
        """Whether what was emitted is so large that it is to be handed over now, however few they are."""
        return self._collector.is_heavy

    def oldest_ms(self) -> int | None:
        """When the oldest open message was first emitted; None when none is open."""
        ages = [self._pending.oldest_ms(), self._retries.oldest_ms()]
        return min((age for age in ages if age is not None), default=None)

    def due_ms(self) -> int | None:
        """When the next retry is due, the next try to store dead letters, or the end of the spout's pause."""
        due_ms = self._retries.due_ms()
        if not self._is_pausing:
            return due_ms
        return self._asked_again_ms if due_ms is None else min(due_ms, self._asked_again_ms)

    @property
    def _is_pausing(self) -> bool:
        # A clock that was set back does not make the pause longer.
        return self.is_active and 0 < self._asked_again_ms - self._clock_ms <= self._pause_ms

    def upkeep_due_ms(self) -> int | None:
        """When ``keep_alive`` is due, or a call that raised is to be made again; None when neither is."""
        if not self.is_open:
            return self._hooks.due_ms(can_ask=True)
        dues = (self._hooks.due_ms(can_ask=self._has_room()), self._pulse.due_ms(self.spout.keep_alive_secs))
        return min((due for due in dues if due is not None), default=None)

    def step(self, now_ms: int, *, enough: int = 1, until: float = 0.0) -> bool:
        """Take the mail, send due retries, ask the spout if it may emit. True if anything happened.

        Args:
            enough: While the spout emits something each time, it is asked again until this number of
                messages waits to be handed over, or no more may be open, or mail comes.
            until: By when to stop asking again, as ``time.monotonic()`` counts: a spout may be slow.
        """
        self._hooks.now_ms = self._clock.now_ms = now_ms
        if not (self.is_open or self._open_again(now_ms)):
            return False
        self._retries.look_at_clock(now_ms)
        self._clock_ms = now_ms
        before = self._collector.row_count
        self._keep_up(now_ms)
        moved = self._hooks.try_again() | self._take_verdicts(now_ms) | self._retry(now_ms)
        if self.may_emit():
            moved |= self._ask(enough, until)
        # Without ackers emitted is acked, but not before next_tuple, or whichever hook emitted, has returned.
        for stream, message_ids in self._collector.take_unacked().items():
            self._count(stream, "acked", len(message_ids))
            self._hooks.ack(message_ids)
            if self._watch is not None:
                self._watch.acked_untracked(message_ids)
        return moved or self._collector.row_count > before

    def _open_again(self, now_ms: int) -> bool:
        """Call ``open`` once more, if it is time for that. True if it is open now."""
        if self._hooks.may_ask:
            try:
                self.open(now_ms)
            except ConnectorError:
                raise
            except Exception as error:
                what = f"spout {self.component.id!r} could not be opened: {type(error).__name__}: {error}"
                fix = "mend what the exception says and submit again; nothing was emitted"
                raise SpoutError(what, f"task {self.task}, open()", fix) from error
        return self.is_open

    def _keep_up(self, now_ms: int) -> None:
        """Call ``keep_alive`` and ``lag`` where they are due."""
        if self._pulse.is_due(self.spout.keep_alive_secs, now_ms):
            self._pulse.start(now_ms)
            oldest_ms = self.oldest_ms()
            if oldest_ms is None and self._collector.tracked_count:
                oldest_ms = now_ms
            self._hooks.keep_alive(OpenNow(self.open_count, oldest_ms, now_ms, self._open_ids))
        if self._lag_pulse.is_due(_LAG_SECS, now_ms) and self._hooks.may_ask:
            self._lag_pulse.start(now_ms)
            self._hooks.call(self._ask_lag)

    def _ask_lag(self) -> None:
        self.lag = None
        lag: object = self.spout.lag()  # it may return anything
        if lag is None:
            return
        if isinstance(lag, bool) or not isinstance(lag, Integral) or int(lag) < 0:
            raise MisuseError(
                f"lag() returned {lag!r:.60}, which is no number of messages",
                f"spout {self.component.id!r}, task {self.task}",
                "return a whole number from 0 on, or None where it is not known",
            )
        self.lag = int(lag)

    def _open_ids(self, moment_ms: int) -> Iterator[object]:
        """The ids of what is open and was first emitted at a moment or before it."""
        given = (self._pending.emitted_by(moment_ms), self._retries.emitted_by(moment_ms))
        young = self._collector.waiting_ids() if moment_ms >= self._hooks.now_ms else ()
        return (each for each in chain(*given, young) if not isinstance(each, Redriven))

    def oldest_open(self, most: int) -> list[OpenMessage]:
        """The oldest messages without a final verdict, at most ``most``. Any thread may call it.

        Raises:
            RuntimeError, ValueError, IndexError: The task's own thread changed what was read: call it again.
        """
        spout, roots = self.component.id, partial(root_ids, self.plan.run_salt, self.task)
        found = [
            OpenMessage(
                spout, self.task, each, int(roots(np.array([sequence]))[0]), attempt, first_ms, "open"
            )
            for first_ms, sequence, each, attempt in self._pending.oldest(most)
        ]
        found += [
            OpenMessage(
                spout, self.task, place.message_id, None, place.attempt, place.first_emitted_ms, "retry"
            )
            for place in self._retries.oldest(most)
        ]
        return sorted(found, key=lambda each: each.first_emitted_ms)[:most]

    def open_ids_by_sequence(self) -> Iterator[tuple[int, object]]:
        """Each message that was handed over and is open, as (sequence, message id)."""
        return self._pending.items()

    def _lose(self, lost: frozenset[object] | None) -> None:
        """The queue brings these messages back (None: all): forget them, and tell nobody of them."""

        def is_lost(message_id: object) -> bool:
            return not isinstance(message_id, Redriven) and (lost is None or message_id in lost)

        gone = [sequence for sequence, message_id in self._pending.items() if is_lost(message_id)]
        self._pending.close(np.array(gone, dtype=np.int64))
        self._hooks.lose(is_lost)
        self._chunks.release_unneeded(self._retries.lose(is_lost))

    def _ask(self, enough: int, until: float) -> bool:
        limit = self._limit or maxsize
        room = limit - self._pending.open_count - len(self._retries)
        enough = min(enough, self._host.inbox.room(enough))
        self.is_asking = True
        try:
            self._collector.fill(self.spout.next_tuple, enough, room, self._verdict_batches, until)
        except EndOfStream:
            self.has_ended = True
        except ConnectorError as error:
            if not error.can_retry:
                raise
            self._hooks.failed(error)
            return False
        except Exception as error:
            if isinstance(error, SpoutError):
                if not error.can_go_on:
                    raise
                self._pause_ms = round(error.pause_secs * 1000)
                self._asked_again_ms = self._clock_ms + self._pause_ms
            self._report(error)
        finally:
            self.is_asking = False
        self._hooks.succeeded()
        return self.has_ended

    def may_emit(self) -> bool:
        """Whether ``next_tuple`` would be called."""
        return self.is_open and self._hooks.may_ask and self._has_room()

    def _has_room(self) -> bool:
        return (
            self.is_active
            and not self.has_ended
            and not self._is_pausing
            and self._host.inbox.room(self._collector.row_count + 1) > self._collector.row_count
            and self._pending.has_room(self._limit, len(self._retries) + self._collector.tracked_count)
        )

    def flush(self, now_ms: int) -> bool:
        """Hand over what was emitted. True if anything was."""
        most = self._host.inbox.chunk_rows
        taken = self._collector.take_runs()
        if self.component.retry is not None and self.spout.redelivers:
            taken = without_spent(taken, self.component.retry.max_attempts, partial(self._spend, now_ms))
        self._tell_unfit()
        parents = self._collector.take_parents()
        runs = [part for run in runs_together(taken) for part in run.cut(most)]
        if not runs:
            return False
        position = self._position()
        chunks: list[Chunk] = []
        for run in runs:
            first = self._sequences(len(run))
            ids = durable.dumps(run.message_ids) if run.is_tracked and not self.spout.redelivers else b""
            chunks.append(Chunk(
                self.component.id, self.task, run.stream, run.is_tracked, first, now_ms, run.values,
                run.attempts, run.tasks, message_ids=ids, position=position,
            ))  # fmt: skip
        number = self._host.inbox.append(chunks)
        for offset, (run, chunk) in enumerate(zip(runs, chunks, strict=True)):
            if run.is_tracked:
                self._chunks.add(number + offset, chunk, run.message_ids)
                self._host.note_emitted(chunk, run.message_ids, parents)
            else:
                self._host.inbox.release(number + offset)
        if self._watch is not None:
            self._watch.emitted(chunks)
        return True

    def _tell_unfit(self) -> None:
        """Fail the messages whose values were changed after their emit so that they cannot travel.

        Nothing is left to be tried again or kept in a dead letter.
        """
        unfit, self._collector.unfit = self._collector.unfit, []
        for message in unfit:
            self._report(message.error)
            if message.message_id is not None:
                self._count(message.stream, "failed", 1)
                failure = replace(failure_of(message.error, self.component.id), final=True)
                self._call(self.spout.fail_batch, [(message.message_id, failure)])

    def _take_verdicts(self, now_ms: int) -> bool:
        moved = False
        while self._verdict_batches:
            verdict_batch = self._verdict_batches.popleft()
            moved = True
            # One segment at a time: a hook may say that the others are lost.
            for closed in self._pending.closing(verdict_batch.acked):
                self._acked(closed, now_ms)
            for sequences, failure in verdict_batch.failed:
                for closed in self._pending.closing(sequences):
                    self._failed(closed, failure, now_ms)
            for letter in verdict_batch.redriven:
                self._retries.add_redriven(letter, now_ms)
            self.recovery.run_again(verdict_batch.lost_through, now_ms)
            self._take_rows(verdict_batch, now_ms)
        if self._retries.may_record(now_ms):
            self._record(now_ms)
        self._chunks.release_done()
        return moved

    def _take_rows(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        """What was decided of a DataFrame's rows; only its own kind of task has any."""

    def _acked(self, closed: Closed, now_ms: int) -> None:
        count = len(closed.message_ids)
        stream = self._chunks.stream_of(closed.chunk)
        self._count(stream, "acked", count)
        waited_ms = max(0.0, float(closed.waited_ms(now_ms)))
        self.counters.add_latency(self.component.id, self.task, stream, "complete_ms", waited_ms, count)
        self.complete_ms.add_all(closed.waits_ms(now_ms), count)
        self._host.note_acked(self.component.id, count, now_ms)
        mine = closed.message_sequence()
        if isinstance(closed.message_ids, list) and Redriven in map(type, mine):
            mine = [message_id for message_id in mine if not isinstance(message_id, Redriven)]
            if len(mine) < count:
                self._settle(closed.message_ids, now_ms)
        if mine:
            self._hooks.ack(mine)
        if self._watch is not None:
            self._watch.acked(closed, now_ms)

    def _failed(self, closed: Closed, failure: Failure, now_ms: int) -> None:
        stream = self._chunks.stream_of(closed.chunk)
        what: What = "timed_out" if failure.kind is FailureKind.TIMED_OUT else "failed"
        self._count(stream, what, len(closed.message_ids))
        self._note_failed(len(closed.message_ids), _named(closed), failure)
        if self.component.retry is None:
            told = [
                (message_id, replace(failure, attempt=int(attempt)))
                for message_id, attempt in zip(closed.message_list(), closed.attempts, strict=True)
                if not isinstance(message_id, Redriven)
            ]
            if told:
                self._hooks.fail(told)
        if self._watch is not None:
            self._watch.failed(closed, failure, now_ms)
        self.recovery.decide(closed, failure, now_ms)

    def _note_failed(self, count: int, named: Iterable[tuple[object, int]], failure: Failure) -> None:
        retry = self.component.retry
        most = None if retry is None else retry.max_attempts
        self._host.note_failed(self.component.id, count, named, failure, most)

    def _record(self, now_ms: int) -> None:
        """Make dead letters of what was given up; only then tell the spout. Tried again after a pause."""
        letters = self._retries.take_records(self.component.id, self.task, now_ms, self._host.inbox.read)
        if self.spout.own_dead_letters:  # but for what is a letter of ours already
            letters = [each for each in letters if isinstance(each.attempt.message_id, Redriven)]
        try:
            if letters:
                self._host.record(letters)
        except DeadLetterLimitError as reached:
            # The topology stops, and these shall be there when it comes again; but a letter stays dead.
            self._retries.requeue(now_ms, reached.recorded)
        except Exception as error:  # noqa: BLE001  # a full disk: the verdict waits, and somebody must know
            self._report(error)
            self._retries.record_later(now_ms)
            return
        given_up = self._retries.records
        chunks = self._retries.record()
        self._settle([place.message_id for place, _, _ in given_up], now_ms)
        told = [(p.message_id, f) for p, f, _ in given_up if not isinstance(p.message_id, Redriven)]
        if told:
            self._hooks.fail(told)
        self._chunks.release_unneeded(chunks)

    def _settle(self, message_ids: Iterable[object], now_ms: int) -> None:
        """Of messages that came to their end, note so at those that were redriven."""
        letters = redriven_ids(message_ids)
        if letters:
            self._sent_letters.difference_update(letters)
            self.recovery.letters.difference_update(letters)
            self._call(self._host.settle, letters, now_ms)

    def _retry(self, now_ms: int) -> bool:
        """Emit again what is due, as new attempts with roots of their own."""
        due = self._retries.take_due(now_ms)
        for stream, attempts in due.items():
            parts = list(self._retries.payloads_of(attempts, self._host.inbox.read))
            chunks = [self._next_attempts(stream, part, now_ms) for part in parts]
            # All or none: what is let go of below may hold messages of each.
            number = self._host.inbox.append(chunks)
            earlier = {place.chunk for place in attempts}
            for offset, (part, chunk) in enumerate(zip(parts, chunks, strict=True)):
                self._chunks.add(number + offset, chunk, part.message_ids)
                self._host.note_emitted(chunk, part.message_ids, {})
                if not self.spout.redelivers:
                    self._chunks.must_outlive(number + offset, {place.chunk for place in part.attempts})
            self._chunks.release_unneeded(earlier)
            if self._watch is not None:
                self._watch.emitted(chunks)
        return bool(due)

    def _next_attempts(self, stream: str, part: Payloads, now_ms: int) -> Chunk:
        attempts = part.attempts
        return Chunk(
            self.component.id, self.task, stream, True, self._sequences(len(attempts)), now_ms, part.values,  # noqa: FBT003
            np.array([place.attempt + 1 for place in attempts], dtype=np.int32), part.targets,
            first_emitted_ms=np.array([place.first_emitted_ms for place in attempts], dtype=np.int64),
            retry_of=np.array([place.sequence for place in attempts], dtype=np.int64),
            message_ids=b"" if self.spout.redelivers else durable.dumps(part.message_ids),
        )  # fmt: skip

    def _spend(self, now_ms: int, place: Attempt, failure: Failure) -> None:
        """Give up a message whose attempts ended, one after the other, with their driver or connection."""
        sequence = np.array([self._sequences(1)], dtype=np.int64)
        for what in ("emitted", "failed"):
            self._count(place.stream, what, 1)
        place = replace(place, first_emitted_ms=now_ms)
        self._retries.give_up(place, failure, int(self.recovery.roots_of(sequence)[0]))

    def _sequences(self, count: int) -> int:
        """Reserve new sequences and return the first; no message has one of them before."""
        first = self._next_sequence
        self._next_sequence += count
        while self._next_sequence > self._reserved:
            self._reserved = self._host.reserve(self._reserved)
        return first

    def _position(self) -> bytes:
        if not self.component.remembers:
            return b""
        return durable.dumps({name: getattr(self.spout, name, None) for name in self.component.remembers})

    def _count(self, stream: str, what: What, n: int) -> None:
        self.counters.add(self.component.id, self.task, stream, what, n)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001  # user code
            self._report(error)

    def _report(self, error: BaseException) -> None:
        self._count(NO_STREAM, "errors", 1)
        self._host.report(self.component.id, self.task, failure_of(error, self.component.id))


def _named(closed: Closed) -> Iterator[tuple[object, int]]:
    """The id and the attempt of each message; a generator, since few are asked for."""
    yield from zip(closed.message_sequence(), closed.attempts.tolist(), strict=True)
