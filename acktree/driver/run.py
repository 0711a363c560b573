"""One run of a topology in the driver: its parts, and what can be asked of all of them together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from threading import Event

from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.logs.gate_log import GateLog
from acktree.checkpoint.logs.journal import Journal
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import KeyNumbers, SpoutNumbers, outages_together
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import DeadLetters
from acktree.driver.batch import BatchResults
from acktree.driver.kill_order import KillOrder
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.run_log import Account, RunLog
from acktree.driver.metrics.consumers import Consumers
from acktree.driver.operator_orders import OperatorOrders
from acktree.driver.spouts.spout_threads import SpoutThread, Threads, now_ms
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.chunks.open_listing import OpenMessage
from acktree.tasks.spouts.watched_ids import WatchedIds
from acktree.tasks.waits import waits_in
from acktree.topology.describe import Description
from acktree.traces.events import EventLog
from acktree.traces.recorder import TraceRecorder


def do_nothing(*_: BaseException | None) -> None:
    """The default of what is called at the end: nobody is to be told."""


@dataclass(frozen=True)
class Run:
    """The parts of one run of a topology in the driver.

    Attributes:
        change: Set when something changed that the supervisor may have to act on.
        ended: Set when the run is over and everything is closed.
        stop_session: Ends the use of the Spark session.
        log: What the run says of itself.
        keys: The keys of messages.
        journal: None if the queues of all spouts redeliver open messages.
        recorder: None if the topology ended in an earlier run.
        close_door: Called with what stopped the run, when everything was counted and before the checkpoint is
            released. It does not raise.
        leave_door: Called when the checkpoint is released: from then on nobody waits for this run's end. It
            does not raise.
        tell_ended: Tells components that the run is over. It does not raise.
        consumers: The metrics consumers; None if the topology ended in an earlier run.
        kill: The order to kill it, while open messages are waited for and from then on.
        events: Where the event log goes.
        traces: Where traced messages are recorded.
        watched: The messages that operators watch.
        gates: The gates; None if there are none.
        described: With the user's classes, which the plan does not have; None where there is only the plan.
    """

    plan: Plan
    checkpoint: Checkpoint
    inbox: FileInbox
    results: BatchResults
    threads: Threads
    dead_letters: DeadLetters
    errors: ErrorLog
    change: Event
    ended: Event
    stop_session: Callable[[], None]
    log: RunLog
    keys: KeyLog
    journal: Journal | None = None
    recorder: DeadLetterRecorder | None = None
    close_door: Callable[[BaseException | None], None] = do_nothing
    leave_door: Callable[[], None] = do_nothing
    tell_ended: Callable[[], None] = do_nothing
    consumers: Consumers | None = None
    kill: KillOrder = field(default_factory=KillOrder)
    described: Description | None = None
    events: EventLog = field(default_factory=lambda: EventLog(None, ""))
    traces: TraceRecorder = field(default_factory=lambda: TraceRecorder(None, 0.0, 0))
    watched: WatchedIds = field(default_factory=WatchedIds)
    gates: GateLog | None = None

    @property
    def name(self) -> str:
        """The topology's name."""
        return self.plan.topology.name

    def _without_gates(self) -> list[SpoutThread]:
        """The threads of the user's spouts."""
        return [thread for thread in self.threads.by_task.values() if thread.task.component.gated is None]

    def set_active(self, *, active: bool) -> None:
        """Activate or deactivate all spouts. What has passed a gate goes on."""
        for thread in self._without_gates():
            thread.set_active(active)

    def order_kill(self, wait_secs: float) -> float:
        """Deactivate, and let the supervisor stop the run once no message is open. Returns without waiting.

        Args:
            wait_secs: How long open messages are waited for at most. It replaces that of an earlier order.

        Returns:
            The wait that counts: 0 where the run stops already.
        """
        counts_secs = self.kill.give(wait_secs)
        self.set_active(active=False)
        self.change.set()
        return counts_secs

    def describe(self) -> Description:
        """What runs where."""
        return self.described or self.plan.topology.describe(self.plan.partitions)

    @property
    def is_active(self) -> bool:
        """Whether spouts are to be asked for messages, and not deactivated."""
        return any(thread.is_wanted for thread in self._without_gates())

    def counters(self) -> Counters:
        """All counters of this run so far, in a copy."""
        counters = self.results.counters()
        for thread in self.threads.by_task.values():
            counters.merge(thread.numbers().counters)
        return counters

    def open_messages(self) -> dict[str, SpoutNumbers]:
        """The open messages of each spout."""
        spouts = self.plan.topology.spouts
        by_spout = {spout.id: self.threads.open_messages(spout.task_ids, self.rows_open) for spout in spouts}
        if self.gates is not None and self.checkpoint.files.is_seen:
            for wait in waits_in(self.checkpoint.marks):
                sink = self.plan.topology.components.get(wait.component)
                for edge in () if sink is None else sink.inputs:
                    gate = by_spout[edge.source]
                    outages = outages_together((*gate.outages, wait.outage()))
                    by_spout[edge.source] = replace(gate, outages=outages)
        return by_spout

    def key_numbers(self) -> KeyNumbers:
        """The keys of messages, of all spouts together."""
        return self.keys.numbers(
            sum(thread.task.waiting_for_keys for thread in self.threads.by_task.values())
        )

    def oldest_open(self, most: int) -> list[OpenMessage]:
        """The oldest messages without a final verdict, at most ``most``; without rows of DataFrames."""
        by_thread = (thread.oldest_open(most) for thread in self.threads.by_task.values())
        return heapq.nsmallest(most, chain(*by_thread), key=lambda message: message.first_emitted_ms)

    def rows_open(self) -> int:
        """How many rows of DataFrames are open: open roots of the acker minus messages of spout tasks."""
        threads = self.threads.by_task.values()
        if not any(thread.task.component.is_dataframe for thread in threads):
            return 0
        known = sum(thread.numbers().open_count for thread in threads)
        return max(0, self.results.progress.open_count - known)

    def account(self) -> Account:
        """The messages of all spouts so far, without gates."""
        threads = self._without_gates()
        numbers = [thread.numbers() for thread in threads]
        emitted_by = {thread.task.component.id for thread in threads}
        ages = [
            (now_ms() - spout_numbers.oldest_ms) / 1000
            for spout_numbers in numbers
            if spout_numbers.oldest_ms is not None
        ]
        open_count = sum(spout_numbers.open_count for spout_numbers in numbers) + self.rows_open()
        counters = [self.results.counters(), *(spout_numbers.counters for spout_numbers in numbers)]
        return Account.of(counters, sorted(emitted_by), open_count, max(ages, default=None))

    @cached_property
    def orders(self) -> OperatorOrders:
        """What operators have ordered of the run."""
        levels = len(self.plan.levels)
        return OperatorOrders(
            self.plan,
            self.traces,
            lambda order: self.inbox.append_watch(order.to_bytes(), levels),
            self.watched,
        )

    def ask_spouts(self) -> Mapping[int, int]:
        """Let every spout be asked at once; for :meth:`is_idle_since`."""
        return {task: thread.ask_again() for task, thread in self.threads.by_task.items()}

    @property
    def is_idle(self) -> bool:
        """Whether no message is open and every emitted message was in a committed micro-batch."""
        return self.is_idle_since({})

    def is_idle_since(self, rounds: Mapping[int, int]) -> bool:
        """The same, and no spout has had a message since it was asked."""
        return (
            all(thread.rests_since(rounds.get(task, 1)) for task, thread in self.threads.by_task.items())
            and self.inbox.has_run_all
            and self.checkpoint.is_committed(self.results.progress.batch_id)
            and not self.rows_open()
            and (self.gates is None or self.gates.is_empty)
        )
