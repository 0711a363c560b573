"""The handle of a running topology: watch it, pause it, stop it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from acktree import markup
from acktree.core.stats.numbers import ReportedError
from acktree.core.stats.statistics import Stats
from acktree.core.stats.table import html_of
from acktree.dead_letters.store import DeadLetters
from acktree.driver import signals
from acktree.driver.logs.progress_line import progress_shown
from acktree.driver.run import Run
from acktree.driver.running import RunningTopology
from acktree.driver.shutdown import stop_on_signal, stop_on_signals
from acktree.driver.spouts.spout_threads import now_ms
from acktree.driver.supervisor import Supervisor
from acktree.errors import ending_at_caller
from acktree.system.stopped_by import StoppedBySignal
from acktree.topology.describe import Description
from acktree.traces.events import Event
from acktree.traces.traces import Traces

_LOOK_SECS: Final = 0.05
_HURRY_SECS: Final = 10.0
"""Longest wait after a second signal."""


class SubmittedTopology(RunningTopology):
    """A topology that runs on Spark: what ``submit`` returns.

    All methods may be called from any thread of the driver.
    """

    def __init__(self, run: Run, supervisor: Supervisor) -> None:
        """A handle over a run and the supervisor that ends it."""
        self._run, self._supervisor = run, supervisor
        self._block = ExitStack()
        self._in_block = self._has_raised = False

    def __repr__(self) -> str:
        how = ("warm" if self.is_warm else "warming up") if self.is_running else "over"
        return f"SubmittedTopology({self.name!r:.30}, {how}, checkpoint={str(self.checkpoint)!r:.40})"

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages given up."""
        return self._run.dead_letters

    @property
    def errors(self) -> Sequence[ReportedError]:
        """What components raised or reported, throttled as ``Config`` says; ``stats()`` counts all."""
        return self._run.errors.kept

    @property
    def traces(self) -> Traces:
        """The paths of some messages through the topology: ``Config(trace_sample_rate=...)``."""
        recorded = self._run.traces
        if not self.is_running:
            return Traces(recorded.store, recorded.settle, rate=lambda: recorded.rate)
        orders, watched = self._run.orders, self._run.watched
        return Traces(
            recorded.store, recorded.settle, orders.set_rate, rate=lambda: recorded.rate,
            watch=orders.watch_messages, watched=lambda: watched.secs_left,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The topology's name."""
        return self._run.name

    @property
    def checkpoint(self) -> Path | str:
        """The folder of its checkpoint, or its URL: submitted on it again, it goes on."""
        return self._run.checkpoint.place

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""
        return not self._run.ended.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether every spout has ended and every message has its verdict, in this run or an earlier one."""
        return self._run.checkpoint.is_over

    @property
    def message_timeout_secs(self) -> float:
        """The longest time a message may be open in any spout, and how long ``kill`` waits for one."""
        return self._run.plan.longest_timeout_secs

    @property
    def is_warm(self) -> bool:
        """Whether the first micro-batch has run, which takes seconds, and the spouts are being opened."""
        return self._run.results.progress.batch_id >= 0

    def describe(self) -> Description:
        """What runs where."""
        return self._run.describe()

    def stats(self) -> Stats:
        """The numbers of this run so far: Storm UI's, per component, stream and task."""
        run = self._run
        components = run.plan.topology.components
        return Stats.of(
            run.counters(),
            components=components,
            spouts=run.open_messages(),
            metrics=run.results.metrics.metrics(now_ms()),
            errors=self.errors,
            warming_up_secs=run.log.warming_up_secs if self.is_running else None,
            open_at_start=run.log.open_at_start,
            traces=run.traces.numbers(run.events),
            held=run.results.holders.counts(now_ms()),
            open_roots=run.results.progress.open_count,
            next_deadline_ms=run.results.progress.next_deadline_ms,
            keys=run.key_numbers(),
        )

    @ending_at_caller
    def debug(self, *, on: bool = True, component: str | None = None, percent: float = 100) -> None:
        """Log the tuples that components emit, from the next micro-batches on: see ``RunningTopology``."""
        self._run.orders.set_debug(on=on, component=component, percent=percent)

    def events(self, limit: int = 100, component: str | None = None) -> list[Event]:
        """The last tuples that were logged, 1,000 at most, the newest last."""
        return self._run.events.recent(limit, component)

    def activate(self) -> None:
        """Let the spouts emit again."""
        self._run.set_active(active=True)

    def deactivate(self) -> None:
        """Stop asking the spouts for messages; what is open goes on, and verdicts arrive."""
        self._run.set_active(active=False)

    def _repr_html_(self) -> str:
        """For notebooks: the numbers, and how it is."""
        how = ("warm" if self.is_warm else "warming up") if self.is_running else "over"
        return markup.block(f"topology {self.name}, {how}", html_of(self.stats()))

    @ending_at_caller
    def await_termination(self, timeout_secs: float | None = None, *, progress: bool = False) -> bool:
        """Wait until the topology has ended or was stopped.

        Args:
            timeout_secs: The longest wait; None for no limit.
            progress: Show the numbers meanwhile: one line on a terminal if rich is installed, otherwise one
                line a second, to stderr.

        Returns:
            True when it ended, False when ``timeout_secs`` passed first.

        Raises:
            SpoutError: A spout could not be opened.
            DeadLetterLimitError: More messages were given up than ``Config`` allows.
            CheckpointError: A disk is full, or the checkpoint's URL fails: submit again once that is mended;
                or the checkpoint is an older copy, or damaged.
            AcktreeError, StreamingQueryException: Whatever else stopped it.
        """
        with progress_shown(self._said) if progress else nullcontext():
            return self._await(self._run.ended.is_set, timeout_secs)

    def _said(self) -> str:
        """The progress as one line."""
        batch_id, warming_secs = self._run.results.progress.batch_id, self._run.log.warming_up_secs
        if warming_secs is not None and self.is_running:
            return f"{self.name}: warming up for {warming_secs:.0f} s"
        return f"{self.name}: {self._run.account()} micro_batch={batch_id}"

    @ending_at_caller
    def await_idle(self, timeout_secs: float) -> bool:
        """Wait until no message is open, and all that was emitted has run through a committed micro-batch.

        Each spout that may emit is asked once more: what it has when this is called is waited for. With 0
        seconds none is.

        Returns:
            True when idle, False when the time passed first. Raises what stopped it, if that happens.
        """
        rounds = self._run.ask_spouts() if timeout_secs > 0 else {}
        return self._await(lambda: self._run.ended.is_set() or self._run.is_idle_since(rounds), timeout_secs)

    @ending_at_caller
    def kill(self, wait_secs: float | None = None) -> None:
        """Deactivate, wait for open messages, stop between two micro-batches.

        Args:
            wait_secs: How long to wait for open messages; None: ``message_timeout_secs``. What is open
                afterwards is brought back by the spouts' queues, or by the same checkpoint.

        A second call, or an operator's order, sets a new wait, shorter or longer, as in Storm. A micro-batch
        that takes more than 60 s is interrupted. Returns when it has stopped. Called by a spout, on its own
        thread, it waits for nothing: the topology cannot stop before that thread has. A Ctrl-C or SIGTERM
        meanwhile lets it stop at once.
        """
        ended = self._run.ended.is_set
        if any(thread.is_current for thread in self._run.threads.by_task.values()):
            self._run.order_kill(0.0)
            return
        if ended():
            return
        self._run.order_kill(self.message_timeout_secs if wait_secs is None else wait_secs)
        try:
            self._wait(ended, None)
        except StoppedBySignal:
            self._supervisor.hurry()
            with suppress(StoppedBySignal):  # one more changes nothing
                self._wait(ended, _HURRY_SECS)
            raise

    def __enter__(self) -> Self:
        """Until the block is left, Ctrl-C and SIGTERM stop it politely and a second one at once.

        An error that has stopped the topology is raised when the block is left, if no call has raised it.
        """
        self._block.enter_context(signals.signals_raise())
        self._in_block = True
        return self

    @ending_at_caller
    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._block:
            if isinstance(raised, StoppedBySignal):
                stop_on_signal(self, raised)
            else:
                self.kill(wait_secs=0)
                if raised is None and not self._has_raised:
                    self._raise_what_stopped()

    def _await(self, done: Callable[[], bool], timeout_secs: float | None) -> bool:
        """Whether it was done in time. Raises what stopped the run."""
        with stop_on_signals(self, stops=not self._in_block):
            if not self._wait(done, timeout_secs):
                return False
        self._raise_what_stopped()
        return True

    def _raise_what_stopped(self) -> None:
        if self._supervisor.stopped_by is not None:
            self._has_raised = True
            raise self._supervisor.stopped_by

    def _wait(self, done: Callable[[], bool], timeout_secs: float | None) -> bool:
        """Whether it was done in time. StoppedBySignal when a signal came first, in the main thread."""
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        with signals.signals_wait() as came:
            while not done():
                secs_left = _LOOK_SECS if deadline is None else min(_LOOK_SECS, deadline - time.monotonic())
                if secs_left <= 0 or came():
                    return False
                self._run.ended.wait(secs_left)
        return True
