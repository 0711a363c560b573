"""One spout task: runs the user's spout on its thread, from ``open`` to ``close``.

It is opened in ``opening.py``; what it emits is handed over in ``hand_over.py``; verdicts are delivered in
``delivery.py``; what is given up becomes a dead letter in ``given_up.py``.

Rules of this file
------------------
1. Everything happens in :meth:`SpoutTask.step` and the calls beside it, on whichever thread calls them: one
   thread a task, so user code needs no locks. Only :meth:`dispatch` may be called from elsewhere, and
   :meth:`flush_beside`, which does something only while ``next_tuple`` has not returned.
2. ``emit`` never blocks and never refuses for lack of room: whether there is room is asked before
   ``next_tuple``. A full inbox that made ``emit`` wait would keep this thread from what empties it: verdicts.
3. A message leaves the pending table once, with its verdict; with a retry policy it then waits for its next
   attempt, or is a dead letter, durably, before the spout's ``fail`` is called.

Source: Storm's ``executor/spout/SpoutExecutor`` and ``SpoutOutputCollectorImpl``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from sys import maxsize
from threading import Lock, get_ident
from time import monotonic
from typing import Final, Literal

import numpy as np

from acktree.core.data.context import Clock, TaskContext, TaskServices
from acktree.core.data.instruments import Increment
from acktree.core.ids import Int64s, root_ids
from acktree.core.spouts.pending import MessageIds, one_by_one
from acktree.core.stats.numbers import Lag, Outage
from acktree.core.tracking.verdicts import Failure, FailureCause
from acktree.errors import CheckpointError, ConnectorError, SpoutError
from acktree.logs.log_lines import Place
from acktree.spout import EndOfStream, Spout
from acktree.tasks.chunk import Chunk
from acktree.tasks.own_metrics import grown_metrics
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.chunks.open_chunks import OpenChunks
from acktree.tasks.spouts.chunks.open_listing import OpenListing, OpenMessage
from acktree.tasks.spouts.chunks.recovery import Recovery
from acktree.tasks.spouts.collector import SpoutCollector
from acktree.tasks.spouts.delivery import Delivery
from acktree.tasks.spouts.dependencies import OutageChange, configuration_error
from acktree.tasks.spouts.given_up import GivenUp, without_spent
from acktree.tasks.spouts.hand_over import HandOver
from acktree.tasks.spouts.host import SpoutHost
from acktree.tasks.spouts.keys.keyed_messages import KeyedMessages
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.keys.latest import Latest
from acktree.tasks.spouts.opening import Opening, opening_error
from acktree.tasks.spouts.reporter import Reporter
from acktree.tasks.spouts.retries import Attempt, Redriven, Retries
from acktree.tasks.spouts.runs import MessageRun
from acktree.tasks.spouts.spout_calls import Hooks, pass_on_exit
from acktree.tasks.spouts.task_hooks import SpoutHooks
from acktree.tasks.spouts.upkeep import OpenNow, Pulse, checked_lag
from acktree.tasks.spouts.verdict_batch import Mail, Redrive, VerdictBatch
from acktree.topology.gates import GateSpout
from acktree.topology.model import Component

NotAsked = Literal["inactive", "outage", "pause", "inbox_full", "pending_full"]
"""Why a spout is not asked for messages."""
_LAG_SECS: Final = 5.0
"""How often a spout is asked for its lag."""


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
        self.place = Place(plan.topology.name, component.id, task)
        self.has_ended = False
        self.is_active = self.is_open = False
        self.asked_at: float | None = None
        """Since when ``next_tuple`` is being called, as ``time.monotonic`` counts; None: it is not."""
        self._gate = Lock()  # held while another thread hands over: next_tuple returns only to a whole task
        self.lag: Lag | None = None
        """How many messages waited at the source when the spout was last asked; None: not known."""
        self._host = spout_host
        self._pulse, self._lag_pulse = Pulse(), Pulse()
        self._clock, self._mail = Clock(), deque[Mail]()
        reporter = self._reporter = Reporter(component.id, task, spout_host)
        self.counters, self.complete_ms, self.own = reporter.counters, reporter.complete_ms, reporter.own
        self._report = reporter.error
        keys = spout_host.keys
        retries = self._retries = Retries(component.retry, keys, component.id, task)
        roots_of = partial(root_ids, plan.run_salt, task)
        chunks = self._chunks = OpenChunks(spout_host.inbox, retries.needs, roots_of)
        self.sent, self._pending = chunks.sent, chunks.pending
        latest = self._latest = Latest(component.latest_by, chunks, retries, spout_host.inbox.read)
        self.recovery = Recovery(
            chunks, retries, keys, latest, spout_host.letters_among, dispatch=self.dispatch
        )
        hooks = self._hooks = Hooks(spout, reporter.error, reporter.note_recovered)
        self.calling = hooks.calling
        task_hooks = self._task_hooks = SpoutHooks(plan, task, reporter.error)
        self._clock_ms = self._pause_ms = self._asked_again_ms = 0
        self._limit = plan.config.max_spout_pending
        if component.max_spout_pending is not None:
            self._limit = component.max_spout_pending or None
        self._collector = SpoutCollector(
            component, task, plan, open_count=lambda: self.open_count, report=self._report, lose=self._lose,
            wake=partial(spout_host.wake, task), keeps_ids=not spout.redelivers,
        )  # fmt: skip
        self._keyed = KeyedMessages(keys, chunks, retries, redelivers=spout.redelivers)
        self._opening = Opening(spout, self._context, hooks=hooks, task_hooks=task_hooks, reporter=reporter)
        self._hand_over = HandOver(
            spout, component.remembers, host=spout_host, chunks=chunks, retries=retries, keyed=self._keyed,
            latest=latest,
            reporter=reporter, task_hooks=task_hooks, first_sequence=first_sequence,
        )  # fmt: skip
        self._given_up = GivenUp(
            spout_host, chunks, retries, reporter=reporter, hooks=hooks, only_redriven=spout.own_dead_letters
        )
        self._delivery = Delivery(
            chunks, retries, given_up=self._given_up, reporter=reporter, hooks=hooks, task_hooks=task_hooks
        )
        self._open_messages = OpenListing(
            component.id, task, chunks=chunks, retries=retries, collector=self._collector
        )

    def _context(self, services: TaskServices) -> TaskContext:
        context = self.plan.context(self.component, self.task, self._clock, services)
        return replace(context, max_spout_pending=self._limit)

    def open(self, now_ms: int = 0) -> None:
        """Call the spout's ``open``; what it raises stops the topology.

        A ConnectorError that may pass does not: ``open`` is called again by a later step.
        """
        self._collector.own_thread = get_ident()
        open_ids = () if self.spout.redelivers else self._recovered_ids()
        self._hooks.now_ms = self._clock.now_ms = now_ms
        self.is_open = self._opening.open(self.plan.config, self._collector, open_ids)
        if not self.is_open:
            return
        self._pulse.start(now_ms)
        self._lag_pulse.start(now_ms)
        if self.is_active:
            self._hooks.call(self.spout.activate)

    def _recovered_ids(self) -> tuple[object, ...]:
        """The ids of messages that an earlier run left open."""
        return tuple(one_by_one(self._open_ids(maxsize)))

    def recover_parked(self, number: int, chunk: Chunk, now_ms: int) -> None:  # noqa: ARG002
        """Before ``open``: take up messages that an earlier run has parked. Call after those it has sent."""
        self._keyed.wait_in(number, chunk)

    def remember(self, position: bytes) -> None:
        """Before ``open``: set what the spout remembered with its last message of an earlier run."""
        self._opening.remember(position)

    def activate(self) -> None:
        """Let the spout emit."""
        if not self.is_active:
            self.is_active = True
            if self.is_open:
                self._hooks.call(self.spout.activate)

    def deactivate(self) -> None:
        """Stop calling ``next_tuple``; verdicts still arrive."""
        self._collector.own_thread = get_ident()
        if self.is_active:
            self.is_active = False
            if self.is_open:
                self._hooks.call(self.spout.deactivate)

    def close(self) -> None:
        """Call the spout's ``close``, if it was opened."""
        self._collector.close()
        self._collector.own_thread = get_ident()
        if self.is_open:
            self._reporter.call(self.spout.close)
        self._task_hooks.end()

    def dispatch(self, mail: Mail) -> None:
        """Leave mail for the next step. May be called from any thread."""
        if isinstance(mail, Redrive) and self.plan.is_tracking:
            self._given_up.note_redriven(mail.letters)
        self._mail.append(mail)

    def has_open_letter(self, letter_id: int) -> bool:
        """Whether a dead letter was sent again and has no verdict yet. May be asked from any thread."""
        return self._given_up.has_open_letter(letter_id)

    def grown_metrics(self) -> dict[str, Increment]:
        """What the metrics that the spout registered grew by since this was called last. On any thread."""
        return grown_metrics(self._opening.services, self._report)

    @property
    def outages(self) -> list[Outage]:
        """What the task waits for: its queue, the store of dead letters, and what bolts need. Any thread."""
        calls = (self._hooks.outage, self._given_up.outage)
        return [outage for outage in calls if outage is not None] + self._retries.dependencies.outages

    @property
    def open_count(self) -> int:
        """Messages without a final verdict: in the tree, waiting for a retry, or not handed over yet."""
        return self._open_messages.count

    @property
    def awaiting_count(self) -> int:
        """Messages that wait for their next attempt. Any thread may ask."""
        return self._retries.awaiting_count

    @property
    def waiting_for_keys(self) -> int:
        """Messages that wait for the verdict on another one with their key. Any thread may ask."""
        return self._retries.waiting_for_keys

    @property
    def lag_now(self) -> Lag | None:
        """What waits at the source: of a gate now, else what the spout said last. Any thread may ask."""
        return Lag(self.spout.waiting(self.component.id)) if isinstance(self.spout, GateSpout) else self.lag

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open, and nothing waits to be handed over or delivered."""
        undelivered = self._mail or self._hooks.has_undelivered or self._keyed.has_repeated
        return not (self.open_count or self.buffered_count or undelivered)

    @property
    def has_verdicts(self) -> bool:
        """Whether verdicts wait to be taken. May be asked from any thread."""
        return bool(self._mail)

    @property
    def is_durable(self) -> bool:
        """Whether what verdicts led to is durable: dead letters, and what ``ack`` and ``fail`` emitted."""
        waits = bool(self._mail) and not self.is_open  # none is taken before `open` has returned
        return not (waits or self.buffered_count or self._retries.has_records or self._hooks.has_undelivered)

    @property
    def buffered_count(self) -> int:
        """Messages emitted and not handed over yet, and those that cannot go. Any thread may ask."""
        return self._collector.row_count + len(self._collector.unfit)

    @property
    def waiting_count(self) -> int:
        """The buffered messages that can be handed over. Any thread may ask."""
        return self._collector.row_count

    @property
    def has_enough(self) -> bool:
        """Whether what was emitted is so large that it is to be handed over now, however few they are."""
        return self._collector.is_heavy

    def oldest_ms(self) -> int | None:
        """When the oldest open message was first emitted; None when none is open."""
        return self._open_messages.oldest_ms()

    def due_ms(self) -> int | None:
        """When the next retry is due, the next try to store dead letters, or the end of the spout's pause.

        None before ``open`` has returned: nothing of it is done.
        """
        if not self.is_open:
            return None
        if self._keyed.has_repeated:
            return self._clock_ms
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
        """Take verdicts, send due retries, ask the spout if it may emit. True if anything happened.

        Args:
            enough: While the spout emits something each time, it is asked again until this number of
                messages waits to be handed over, or no more may be open, or verdicts come.
            until: By when to stop asking again, as ``time.monotonic()`` counts: a spout may be slow.
        """
        self._hooks.now_ms = self._clock.now_ms = now_ms
        self._collector.own_thread = get_ident()
        if not (self.is_open or self._open_again(now_ms)):
            return False
        self._retries.look_at_clock(now_ms)
        self._pending.look_at_clock(now_ms)
        self._clock_ms = now_ms
        before = self._collector.row_count
        self._keep_up(now_ms)
        moved = self._hooks.try_again() | self._take_mail(now_ms)
        repeated = self._keyed.look_again(now_ms)
        self._delivery.ack_repeated(repeated, now_ms)
        if not self._hooks.has_undelivered:
            self._keyed.release_acked()
        moved |= bool(repeated) | self._hand_over.due_attempts(now_ms)
        self._note_changes(self._retries.dependencies.settle(), now_ms)
        if self.may_emit():
            moved |= self._ask(enough, until)
        # Without ackers emitted is acked, but not before next_tuple, or whichever hook emitted, has returned.
        self._delivery.ack_untracked(self._collector.take_unacked())
        return moved or self._collector.row_count > before

    def _open_again(self, now_ms: int) -> bool:
        """Call ``open`` once more, if it is time for that. True if it is open now."""
        if self._hooks.may_ask:
            try:
                self.open(now_ms)
            except ConnectorError:
                raise
            except Exception as error:
                raise opening_error(self.component.id, self.task, error) from error
        return self.is_open

    def _keep_up(self, now_ms: int) -> None:
        """Call ``keep_alive`` and ``lag`` where they are due."""
        if self._pulse.is_due(self.spout.keep_alive_secs, now_ms):
            self._pulse.start(now_ms)
            oldest_ms = self.oldest_ms()
            if oldest_ms is None and self._collector.tracked_count:
                oldest_ms = now_ms
            is_asked = self._has_room() and not self.component.is_dataframe
            now = OpenNow(self.open_count, oldest_ms, now_ms, self._open_ids)
            self._hooks.keep_alive(now, is_asked=is_asked)
        if self._lag_pulse.is_due(_LAG_SECS, now_ms) and self._hooks.may_ask:
            self._lag_pulse.start(now_ms)
            self._hooks.call(self._ask_lag)

    def _ask_lag(self) -> None:
        self.lag = None
        self.lag = checked_lag(self.spout.lag(), f"spout {self.component.id!r}, task {self.task}")

    def _open_ids(self, moment_ms: int) -> Iterator[MessageIds]:
        return self._open_messages.ids(moment_ms, self._hooks.now_ms)

    def oldest_open(self, most: int) -> list[OpenMessage]:
        """The oldest messages without a final verdict, at most ``most``. Any thread may call it.

        Raises:
            RuntimeError, ValueError, IndexError: The task's own thread changed what was read: call it again.
        """
        return self._open_messages.oldest(most)

    def ids_at(self, sequences: Int64s) -> MessageIds:
        """The ids of open messages by sequences, which ascend; None for one not there. Any thread may ask."""
        return self._pending.ids_at(sequences)

    def open_ids_by_sequence(self) -> Iterator[tuple[int, object]]:
        """Each message that was handed over and is open, as (sequence, message id)."""
        return self._pending.items()

    def _lose(self, lost: frozenset[object] | None) -> None:
        """The queue brings these messages back (None: all): forget them, and deliver no verdict."""

        def is_lost(message_id: object) -> bool:
            return not isinstance(message_id, Redriven) and (lost is None or id_of(message_id) in lost)

        with self._gate:
            lost_now = [item for item in self._pending.items() if is_lost(item[1])]
            self._keyed.lose(is_lost, lost_now)
            gone = [sequence for sequence, _ in lost_now]
            self._pending.close(np.array(gone, dtype=np.int64))
            self._hooks.lose(is_lost)
            self._chunks.release_unneeded(self._retries.lose(is_lost, gone))

    def _ask(self, enough: int, until: float) -> bool:
        limit = self._limit or maxsize
        room = limit - self._pending.open_count - len(self._retries)
        room = min(room, self._retries.dependencies.room(self._sequence_of_next))
        enough = min(enough, self._host.inbox.room(enough))
        self.asked_at = monotonic()
        try:
            self._collector.fill(self.spout.next_tuple, enough, room, self._mail, until)
        except EndOfStream:
            self.has_ended = True
        except ConnectorError as error:
            if not error.can_retry:
                raise
            self._hooks.failed(error)
            return False
        except BaseException as error:
            pass_on_exit(error)
            if isinstance(error, CheckpointError) and self.component.gated is not None:
                raise  # what the gate has to hand over cannot be read, and could not be at the next call
            if isinstance(error, SpoutError):
                if not error.can_go_on:
                    raise
                self._pause_ms = round(error.pause_secs * 1000)
                self._asked_again_ms = self._clock_ms + self._pause_ms
            self._report(error)
        finally:
            with self._gate:
                self.asked_at = None
        self._hooks.succeeded()
        return self.has_ended

    def may_emit(self) -> bool:
        """Whether ``next_tuple`` would be called."""
        return self.is_open and self._hooks.may_ask and self._has_room()

    def not_asked_because(self) -> NotAsked | None:
        """Why ``next_tuple`` would not be called; None if it would be, or never will be again."""
        if self.has_ended:
            return None
        if not self.is_active:
            return "inactive"
        if not (self.is_open and self._hooks.may_ask and self._is_reachable()):
            return "outage"
        if self._is_pausing:
            return "pause"
        if not self._is_inbox_open():
            return "inbox_full"
        return None if self._is_pending_open() else "pending_full"

    def note_not_asked(self, why: NotAsked, secs: float) -> None:
        """Count the time for which ``next_tuple`` was not called."""
        self._reporter.add_not_asked(why, secs)

    def _has_room(self) -> bool:
        return (
            self.is_active
            and not self.has_ended
            and not self._is_pausing
            and self._is_reachable()
            and self._is_inbox_open()
            and self._is_pending_open()
        )

    def _is_reachable(self) -> bool:
        """Whether what bolts need is not away, or a few messages may be sent to see whether it is."""
        return self._retries.dependencies.room(self._sequence_of_next) > 0

    @property
    def _sequence_of_next(self) -> int:
        """The sequence of the next message, after those that wait to be handed over."""
        return self._hand_over.next_sequence + self._collector.row_count

    def _is_inbox_open(self) -> bool:
        return self._host.inbox.room(self._collector.row_count + 1) > self._collector.row_count

    def _is_pending_open(self) -> bool:
        return self._pending.has_room(self._limit, len(self._retries) + self._collector.tracked_count)

    def flush(self, now_ms: int, *, is_last: bool = False) -> bool:
        """Hand over what was emitted. True if anything was.

        Args:
            is_last: Whether the collector refuses all that comes later.
        """
        if is_last:
            self._collector.close()
        if not self.buffered_count:
            return False
        position = self._hand_over.position()  # first: with what is emitted meanwhile it is none too new
        taken = self._taken(now_ms)
        unfit, self._collector.unfit = self._collector.unfit, []
        self._delivery.fail_unfit(unfit)
        return self._hand_over.emitted(taken, position, now_ms)

    @property
    def flushes_beside(self) -> bool:
        """Whether another thread may hand over for this one.

        Not where the spout remembers a position: it may be changing it. Not where task hooks watch: they are
        called on the spout's thread.
        """
        return not self.component.remembers and not self._task_hooks.are_there

    def flush_beside(self, now_ms: int) -> bool:
        """On another thread, while ``next_tuple`` does not return: hand over what was emitted before.

        Verdicts wait: they are delivered on the task's own thread. So does what cannot be encoded.
        """
        with self._gate:
            if self.asked_at is None or not self.flushes_beside:
                return False
            return self._hand_over.emitted(self._taken(now_ms), b"", now_ms)

    def _taken(self, now_ms: int) -> list[MessageRun]:
        """What was emitted, without what waits for its key or has used up its attempts."""
        taken = self._collector.take_runs()
        if self._collector.has_keys:
            taken = self._keyed.admitted(taken, now_ms)
        if self.component.retry is None or not self.spout.redelivers:
            return taken

        def spend(attempt: Attempt, failure: Failure) -> None:
            self._given_up.spend(self._hand_over.sequences(1), attempt, failure, now_ms)

        return without_spent(taken, self.component.retry.max_attempts, spend)

    def _take_mail(self, now_ms: int) -> bool:
        moved = False
        while self._mail:
            mail = self._mail.popleft()
            moved = True
            if isinstance(mail, VerdictBatch):
                self._take_verdicts(mail, now_ms)
            elif isinstance(mail, Redrive):
                for letter in mail.letters:
                    self._retries.add_redriven(letter, now_ms)
            else:
                self.recovery.run_again(mail.lost_through, now_ms)
        if moved and self._latest.is_used:
            self._retries.unblock()
        if self._retries.may_record(now_ms):
            self._given_up.record(now_ms)
        self._chunks.release_done()
        return moved

    def _take_verdicts(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        self._judge_dependencies(verdict_batch, now_ms)
        if self._latest.is_used:
            self._take_of_gate(verdict_batch, now_ms)
        else:
            self._take_acked(verdict_batch, now_ms)
            self._take_failed(verdict_batch, now_ms)
        self._take_rows(verdict_batch, now_ms)
        self._refuse_configuration(verdict_batch)

    def _take_acked(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        """One segment at a time: ``ack`` may say that the others are lost."""
        for closed in self._pending.closing(verdict_batch.acked):
            self._delivery.acked(closed, now_ms)

    def _take_failed(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        for sequences, failure in verdict_batch.failed:
            for closed in self._pending.closing(sequences):
                self._delivery.failed(closed, failure, now_ms)
        self._delivery.tell_failed(now_ms)

    def _take_of_gate(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        """What was ACKED supersedes what failed in the same micro-batch, but no dead letter."""
        self._take_failed(verdict_batch, now_ms)
        if self._retries.may_record(now_ms):
            self._given_up.record(now_ms)
        acked = self._pending.close(verdict_batch.acked)
        for closed in acked:
            self._delivery.acked(closed, now_ms)
        for newer, attempts in self._latest.superseded(acked):
            self._delivery.superseded(attempts, newer, now_ms)

    def _judge_dependencies(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        """Learn what bolts cannot reach, and what works again."""
        next_sequence, acked = self._hand_over.next_sequence, verdict_batch.acked
        failed = [*verdict_batch.failed]
        if self.component.is_dataframe and self.component.retry is not None:
            # Its rows have no sequences, and are sent all the time.
            acked = np.append(acked, np.full(verdict_batch.acked_rows, next_sequence))
            failed += [(np.full(len(rows), next_sequence), why) for rows, why in verdict_batch.failed_rows]
        self._note_changes(self._retries.dependencies.judge(acked, failed, next_sequence, now_ms), now_ms)

    def _note_changes(self, changes: Iterable[OutageChange], now_ms: int) -> None:
        """Let the host log that something is away, or works again."""
        for outage, works in changes:
            if works:
                self._reporter.note_recovered(outage, now_ms)
            else:
                self._reporter.note_away(outage)

    def _refuse_configuration(self, verdict_batch: VerdictBatch) -> None:
        """Stop the topology if a bolt says that it cannot work as it is. Its messages stay open.

        Not for what an earlier run has journalled: it may have been corrected.
        """
        for _, failure in (*verdict_batch.failed, *verdict_batch.failed_rows):
            if failure.cause is FailureCause.CONFIGURATION and not verdict_batch.is_journalled:
                raise configuration_error(failure)

    def _take_rows(self, verdict_batch: VerdictBatch, now_ms: int) -> None:
        """What was decided of a DataFrame's rows; only its own kind of task has any."""
