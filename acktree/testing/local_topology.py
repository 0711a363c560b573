"""A topology in a ``LocalCluster``: its spout tasks, its rounds, and what a running topology can be asked."""

from __future__ import annotations

import copy
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from acktree import markup
from acktree.checkpoint.logs.commit_log import Commit, Outcome
from acktree.checkpoint.logs.gate_log import gate_log_of
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.config import Config
from acktree.core.data.context import forget_cached
from acktree.core.data.frames import WireRow
from acktree.core.micro_batch import MicroBatch
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.numbers import ReportedError, SpoutNumbers, added_lags, outages_together
from acktree.core.stats.statistics import Stats, summary
from acktree.core.stats.table import html_of
from acktree.dead_letters.conversion import redriven_letter, refuse_foreign_letters
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import IN_MEMORY, DeadLetters
from acktree.driver.batch import BatchResults, MemoryAcker, rows_by_kind
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.progress_line import say_progress
from acktree.driver.logs.run_log import RunLog
from acktree.driver.operator_orders import OperatorOrders
from acktree.driver.run_ends import tell_ended
from acktree.driver.running import RunningTopology
from acktree.driver.ticks import Ticks
from acktree.errors import ConnectorError, MisuseError
from acktree.logs.log_lines import Place, standing
from acktree.tasks.acker import Acker
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.opening import opening_error
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import Redrive
from acktree.tasks.spouts.watched_ids import WatchedIds
from acktree.testing.local_host import LocalHost, LocalInbox, Moment
from acktree.testing.local_levels import LocalLevels, refuse_unknown_stream
from acktree.topology.describe import Description
from acktree.topology.gates import GateSpout
from acktree.topology.model import Component, Topology
from acktree.traces.events import Event, EventLog, EventLogger
from acktree.traces.recorder import TraceRecorder
from acktree.traces.store import TraceStore
from acktree.traces.traces import Traces

__all__ = ["LocalTopology"]

_RAISES: Final = 10
"""How often in a row ``next_tuple`` may raise in one round before the others go on."""


class LocalTopology(RunningTopology):
    """A topology that runs in a :class:`LocalCluster`; its times are the cluster's clock.

    ``await_idle``, ``await_termination`` and ``kill`` step that clock, for all topologies of the cluster.

    Attributes:
        plan: What runs, for tests of the engine.
    """

    def __init__(
        self,
        topology: Topology,
        config: Config,
        now_ms: Callable[[], int],
        advance_until: Callable[[Callable[[], bool], int | None], bool],
        event_logger: EventLogger | None = None,
    ) -> None:
        """Open every spout task.

        Args:
            now_ms: The cluster's clock.
            advance_until: Steps that clock until something is done, at most to a time: see ``LocalCluster``.

        Raises:
            SpoutError: A spout's ``open`` raised.
        """
        # A sink's marks are kept under the salt: those of another cluster are not this one's.
        salt = secrets.randbits(64) if any(bolt.is_sink for bolt in topology.bolts) else 0
        salt = salt if config.run_salt is None else config.run_salt
        self.plan = Plan.of(topology, config.without_secrets(), config.partitions or 1, salt)
        self._error_log = ErrorLog(config)
        self._dead_letters = DeadLetters(
            IN_MEMORY, self._send_again, is_open=self._has_open_letter, now_ms=now_ms
        )
        self._now_ms, self._advance_until = now_ms, advance_until
        self._given = topology
        self._recorded = TraceRecorder(
            TraceStore(IN_MEMORY), self.plan.trace_rate, self.plan.run_salt, is_threaded=False
        )
        self._levels = LocalLevels(self.plan, Ticks(self.plan, now_ms()))
        self._watched = WatchedIds(now_ms)
        self._orders = OperatorOrders(self.plan, self._recorded, self._levels.obey, self._watched)
        self._events = EventLog(event_logger, self.plan.topology.name, is_threaded=False)
        acker = Acker(self.plan)
        self._keys = KeyLog(self.plan, now_ms)
        self._gates = gate_log_of(
            self.plan, acker.ledger.still_open, self._keys,
            lambda task, sequences: self._tasks[task].ids_at(sequences),
        )  # fmt: skip
        origins_of = None if self._gates is None else self._gates.origins_of
        self._recorder = DeadLetterRecorder(self._dead_letters, topology, config, origins_of=origins_of)
        self._results = BatchResults(
            self.plan,
            MemoryAcker(acker),
            self._error_log,
            traces=self._recorded,
            events=self._events,
        )
        self._batch_id = -1
        self._inbox = LocalInbox()
        self._wants_beat = False
        self._tasks: dict[int, SpoutTask] = {}
        self._is_closed = False
        self._moment = Moment(now_ms())
        self._host = LocalHost(
            self._inbox, self._keys.keys, errors=self._error_log, log=RunLog(topology.name),
            recorder=self._recorder, traces=self._recorded, watched=self._watched,
            moment=lambda: self._moment,
        )  # fmt: skip
        try:
            for spout in topology.spouts:
                for task_id in spout.task_ids:
                    self._open(spout, task_id)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"LocalTopology({self.name!r:.50}, {'running' if self.is_running else 'over'})"

    @property
    def name(self) -> str:
        """The topology's name."""
        return self.plan.topology.name

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages given up, as on Spark but in memory."""
        return self._dead_letters

    @property
    def traces(self) -> Traces:
        """Traced messages, as on Spark but in memory."""
        recorded, watched = self._recorded, self._watched
        return Traces(
            recorded.store, set_rate=self._orders.set_rate, rate=lambda: recorded.rate,
            watch=self._orders.watch_messages, watched=lambda: watched.secs_left,
        )  # fmt: skip

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""
        return not (self._is_closed or self.has_ended)

    @property
    def errors(self) -> Sequence[ReportedError]:
        """What components raised or reported, throttled as ``Config`` says; counters count all."""
        return self._error_log.kept

    @property
    def now_ms(self) -> int:
        """The cluster's clock."""
        return self._now_ms()

    def round(self, *, is_first: bool = False, most: float = math.inf, until: float = math.inf) -> bool:
        """Run a micro-batch if there is anything for one. True if anything moved.

        Args:
            is_first: Whether to count anew what happens while the clock stands.
            most: After how many messages no spout task is asked for another.
            until: The same by the time, as ``time.monotonic()`` counts.

        Raises:
            SpoutError: A spout will not rest before the clock moves.
            DeadLetterLimitError: More messages were given up than ``Config`` allows; from now on always.
        """
        moved = False
        if self._is_closed:
            return moved
        if is_first:
            self._moment = Moment(self.now_ms)
        self._moment.now_ms = self.now_ms
        for task in self._tasks.values():
            with standing(task.place):
                moved |= self._ask(task, min(most, self._inbox.chunk_rows), until)
                most -= task.buffered_count
                task.flush(self.now_ms)
        if self._recorder.limit_reached is not None:
            raise self._recorder.limit_reached
        if self._moment.restless is not None:
            raise self._moment.restless
        chunks = self._inbox.take()
        self._moment.count(chunk for _, chunk in chunks)
        if not chunks and not self._wants_beat:
            return moved
        self._wants_beat = False
        self._dispatch(self._levels.run(chunks, self.now_ms, self._batch_id + 1))
        return True

    @property
    def emitted_count(self) -> int:
        """How many messages were emitted while the clock stands."""
        return self._moment.emitted.total()

    def beat(self) -> None:
        """The clock moved: let a micro-batch come if one is due, whether or not there are messages."""
        due_ms = self._batch_due_ms(with_ticks=True)
        self._wants_beat |= due_ms is not None and due_ms <= self.now_ms

    def due_ms(self, *, with_ticks: bool = True) -> int | None:
        """When something happens by itself: a timeout, a retry, a tick; None when nothing will.

        Args:
            with_ticks: Whether to count ticks and ``keep_alive``, which never end.
        """
        if self._is_closed:
            return None
        due = [self._batch_due_ms(with_ticks=with_ticks)]
        if with_ticks:
            due += [task.upkeep_due_ms() for task in self._tasks.values()]
        return min((at for at in due if at is not None), default=None)

    def _batch_due_ms(self, *, with_ticks: bool) -> int | None:
        due = [self._results.progress.next_deadline_ms, *(task.due_ms() for task in self._tasks.values())]
        if with_ticks:
            due.append(self._levels.next_tick_ms())
        return min((at for at in due if at is not None), default=None)

    def debug(self, *, on: bool = True, component: str | None = None, percent: float = 100) -> None:
        """Log the tuples that components emit, from the next micro-batches on: see ``RunningTopology``."""
        self._orders.set_debug(on=on, component=component, percent=percent)

    def events(self, limit: int = 100, component: str | None = None) -> list[Event]:
        """The last tuples that were logged, 1,000 at most, the newest last."""
        return self._events.recent(limit, component)

    def activate(self) -> None:
        """Let the spouts emit again."""
        for task in self._tasks.values():
            task.activate()

    def deactivate(self) -> None:
        """Stop asking the spouts for messages; verdicts still arrive."""
        for task in self._tasks.values():
            if task.component.gated is None:  # what has passed a gate goes on
                task.deactivate()

    def tuples(self, component: str, stream: str = "default") -> list[list[Any]]:
        """All that a component emitted on a stream.

        Raises:
            MisuseError: There is no such component, or it has no such stream.
        """
        refuse_unknown_stream(self.plan.topology, component, stream)
        return self._levels.tuples(component, stream)

    def stats(self) -> Stats:
        """The numbers so far."""
        counters = self._results.counters()
        for task in self._tasks.values():
            counters.merge(task.counters)
        spouts = {spout.id: self._open_messages(spout.task_ids) for spout in self.plan.topology.spouts}
        metrics = self._results.metrics.metrics(self.now_ms)
        components = self.plan.topology.components
        return Stats.of(
            counters, components=components, spouts=spouts, errors=self.errors, metrics=metrics,
            traces=self._recorded.numbers(self._events), held=self._results.holders.counts(self.now_ms),
            open_roots=self._results.progress.open_count,
            next_deadline_ms=self._results.progress.next_deadline_ms,
            keys=self._keys.numbers(sum(task.waiting_for_keys for task in self._tasks.values())),
        )  # fmt: skip

    @property
    def has_ended(self) -> bool:
        """Whether every spout has ended and every message has its verdict."""
        users = (task for task in self._tasks.values() if task.component.gated is None)
        return self._is_idle and all(task.has_ended for task in users)

    def describe(self) -> Description:
        """What runs where."""
        return self.plan.topology.describe(self.plan.partitions)

    def await_idle(self, timeout_secs: float) -> bool:
        """Step the cluster's clock until no message is open and nothing waits to be handed over.

        Returns:
            True when idle, False when the clock went ``timeout_secs`` on first.
        """
        return self._await(lambda: self._is_idle, timeout_secs)

    def _repr_html_(self) -> str:
        """For notebooks: the numbers, and how it is."""
        how = "running" if self.is_running else "over"
        return markup.block(f"topology {self.name}, {how}", html_of(self.stats()))

    def await_termination(self, timeout_secs: float | None = None, *, progress: bool = False) -> bool:
        """Step the cluster's clock until the topology has ended or was stopped.

        Args:
            timeout_secs: How far at the most. None: until nothing but ticks would happen.
            progress: Print the numbers once that is over, to stderr.

        Returns:
            True when it ended, False when the clock went so far first, or nothing is left to wait for.
        """
        has_ended = self._await(lambda: not self.is_running, timeout_secs)
        if progress:
            say_progress(f"{self.name}: {summary(self.stats())}")
        return has_ended

    def kill(self, wait_secs: float | None = None) -> None:
        """Deactivate, step the cluster's clock until nothing is open, close the spouts.

        Args:
            wait_secs: How far the clock may go; None: the message timeout.
        """
        if self._is_closed:
            return
        self.deactivate()
        own_secs = (timeout_ms / 1000 for timeout_ms in self.plan.timeout_of.values())
        longest_secs = max(self.plan.config.message_timeout_secs, *own_secs, 0.0)
        most_secs = longest_secs if wait_secs is None else wait_secs
        try:
            if most_secs > 0:
                self.await_idle(most_secs)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(wait_secs=0)

    def _await(self, done: Callable[[], bool], timeout_secs: float | None) -> bool:
        end_ms = None if timeout_secs is None else self.now_ms + round(timeout_secs * 1000)
        return self._advance_until(done, end_ms)

    @property
    def _is_idle(self) -> bool:
        is_passed = self._gates is None or self._gates.is_empty
        return is_passed and all(task.is_idle for task in self._tasks.values())

    def close(self) -> None:
        """Deactivate and close the spouts. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as steps:  # each, whatever another raises
            steps.callback(forget_cached, self.plan.checkpoint_id, self.name)
            steps.callback(tell_ended, self._given, self.plan.run_id)
            steps.callback(self._end_worker)
            steps.callback(self._events.close)
            for task in self._tasks.values():
                steps.callback(_call_at, task.place, task.close)
                steps.callback(_call_at, task.place, task.deactivate)

    def _end_worker(self) -> None:
        for error in self.plan.worker.end():
            self._error_log.add(ReportedError("__worker", None, str(error), self.now_ms))

    def _open(self, spout: Component, task_id: int) -> None:
        name, given = spout.id, spout.user_object
        if spout.is_dataframe:
            raise MisuseError(
                f"spout {name!r} is a DataFrameSpout, which only Spark can run",
                "LocalCluster.submit()",
                "test with a FeederSpout in its place, or complete_topology() with fixed tuples",
            )
        bare = self.plan.topology.components[name]
        spout_copy = copy.deepcopy(given)
        if isinstance(spout_copy, GateSpout):
            assert self._gates is not None, "a topology with gates has their log"
            spout_copy.connect(self._gates)
        task = SpoutTask(
            spout_copy, bare, task=task_id, plan=self.plan, spout_host=self._host, first_sequence=0
        )
        try:
            with standing(task.place):
                task.open(self.now_ms)
        except ConnectorError:
            raise  # its fix says what to do
        except Exception as error:
            raise opening_error(name, task_id, error) from error
        self._tasks[task_id] = task
        self._results.metrics.watch(name, task_id, task.grown_metrics)
        task.activate()

    def _ask(self, task: SpoutTask, most: float, until: float) -> bool:
        """Let a spout task work until it has nothing, or ``most`` messages, or the time is over."""
        moved, raised = False, 0
        while raised < _RAISES and task.buffered_count < most and time.monotonic() < until:
            before = self._error_log.count
            if task.step(self.now_ms):
                moved, raised = True, 0
            elif self._error_log.count == before:
                break
            else:
                raised += 1
        return moved

    def _dispatch(self, rows: list[WireRow]) -> None:
        """Dispatch a micro-batch's verdicts to the spout tasks at once: there is no commit to wait for."""
        by_kind = rows_by_kind(rows)
        self._results.note(by_kind, self.now_ms)
        self._batch_id += 1
        decided = self._results.judge(MicroBatch(self._batch_id, self.now_ms), by_kind, lambda _: iter(()))
        for participant in (self._keys, self._gates):
            if participant is not None:
                commit = Commit(self._batch_id, self.now_ms, -1)
                participant.write(commit, Outcome(by_kind, decided.verdicts))
                participant.publish(self._batch_id)
        for task, verdicts in decided.by_task.items():
            self._tasks[task].dispatch(verdicts)

    def _send_again(self, letters: Sequence[DeadLetter]) -> None:
        refuse_foreign_letters(letters, self.plan.topology, is_running=not self._is_closed)
        for letter in letters:
            self._tasks[letter.task_id].dispatch(Redrive([redriven_letter(letter)]))

    def _has_open_letter(self, letter: DeadLetter) -> bool:
        task = self._tasks.get(letter.task_id)
        return task is not None and letter.id is not None and task.has_open_letter(letter.id)

    def _open_messages(self, tasks: Iterable[int]) -> SpoutNumbers:
        own_tasks = [self._tasks[task] for task in tasks]
        ages = [age for task in own_tasks if (age := task.oldest_ms()) is not None]
        oldest = (self.now_ms - min(ages)) / 1000 if ages else None
        complete_ms = Histogram()
        for task in own_tasks:
            complete_ms.merge(task.complete_ms)
        open_count = sum(task.open_count for task in own_tasks)
        outages = outages_together(each for task in own_tasks for each in task.outages)
        awaiting = sum(task.awaiting_count for task in own_tasks)
        lag, by_partition = added_lags(task.lag_now for task in own_tasks)
        return SpoutNumbers(
            open_count, oldest, lag, complete_ms, outages, awaiting_retry=awaiting,
            lag_by_partition=by_partition,
        )  # fmt: skip


def _call_at(place: Place, call: Callable[[], None]) -> None:
    with standing(place):
        call()
