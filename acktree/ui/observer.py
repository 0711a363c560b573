"""Makes snapshots of a running topology, on a thread of its own.

Whoever asks gets the last snapshot, as bytes that are already there. While somebody asks, a new one is made
at most four times a second, and less often where it takes long; otherwise one in half a minute, for the
windows and for the copy in the checkpoint. Who wants numbers that are new ends the rest after a long one. The
thread reads what spout threads and the sink have counted, as ``running.stats()`` does.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from threading import Condition, Event, Thread
from typing import Final

from acktree.core.stats.statistics import Stats
from acktree.driver.run import Run
from acktree.errors import AcktreeError
from acktree.logs.loggers import logger
from acktree.ui.history import LOOK_SECS, History
from acktree.ui.history_store import IN_MEMORY, HistoryStore
from acktree.ui.snapshot import (
    ALL_TIME,
    RECENT,
    RUN,
    STORM_WINDOWS,
    InboxNumbers,
    LetterNumbers,
    Snapshot,
    Status,
    Window,
)

log = logger("acktree")

_IDLE_SECS: Final = 30.0
_LEAST_SECS: Final = 0.25
_RESTS: Final = 20
"""After a snapshot the thread rests 20 times as long as the snapshot took: at most a twentieth of a core."""
_LONG_REST_SECS: Final = 0.5
"""The longest rest that a question waits for; after a longer one it has the last snapshot at once."""
_WAIT_SECS: Final = 2.0
_NEW_WAIT_SECS: Final = 8.0
"""Less than a client waits for an answer."""
_CLOSE_SECS: Final = 5.0
"""The longest wait for the last snapshot when a topology stops."""
_LETTERS_SECS: Final = 2.0
"""How old the counts of dead letters may be: they ask a database."""
_LENGTHS: Final = tuple(int(name) for name in (RECENT, *STORM_WINDOWS) if name != ALL_TIME)


def _nothing(_: Snapshot) -> None:
    """The default: nothing is kept of a snapshot."""


class TopologyObserver:
    """The snapshots of one run.

    Args:
        run: The run.
        began_ms: When it began; milliseconds since 1970.
        version: The version of acktree.
        batch_ms: Gives where the time of the last micro-batch went, in milliseconds by phase.
        keep: Called with a snapshot every half minute, and with the last one.
        store: Where the history is kept.
    """

    def __init__(
        self,
        run: Run,
        began_ms: int,
        version: str,
        batch_ms: Callable[[], Mapping[str, float]] = dict,
        keep: Callable[[Snapshot], None] = _nothing,
        store: HistoryStore | None = None,
    ) -> None:
        self._run, self._began_ms, self._version = run, began_ms, version
        self._batch_ms, self._keep = batch_ms, keep
        self._totals = run.results.totals
        self.history = History(
            store or HistoryStore(IN_MEMORY), self._totals, run.checkpoint.run, run.name,
            spouts=[spout.id for spout in run.plan.topology.spouts if spout.gated is None],
            is_committed=run.checkpoint.is_committed,
        )  # fmt: skip
        self._windows = self.history.begin(_LENGTHS, _steady_ms(), run.checkpoint.last_committed())
        self._orders = run.orders
        self._letters, self._letters_at = LetterNumbers(), -_LETTERS_SECS
        self._is_closed, self._asked, self._is_late = Event(), Event(), Event()
        self._ends_rest = Event()
        self._forgotten_at = -1e9
        self._rests_until = self._may_make_at = -1e9
        self._making_since = -1e9
        self._fails = False
        self._made = Condition()
        self._latest: tuple[float, Snapshot, bytes] | None = None
        self._stopped_by: BaseException | None = None
        self._thread = Thread(target=self._observe, name=f"snapshots {run.name}", daemon=True)

    @property
    def id(self) -> str:
        """The topology's id in this run."""
        return f"{self._run.name}-{self._run.checkpoint.run}-{self._began_ms // 1000}"

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def latest(self, most_age_secs: float = 1.0, wait_secs: float | None = None) -> bytes:
        """The last snapshot as JSON.

        Args:
            most_age_secs: If it is older, a new one is asked for. The old one is returned at once all the
                same where the thread rests for long after a large one. 0 ends that rest, but for as long
                as the large one took.
            wait_secs: The longest wait for a new one; then the old one is returned. None: 2 s, and 8 s with
                an age of 0.

        Returns empty bytes where none is made in time.
        """
        asked, is_new = time.monotonic(), most_age_secs <= 0
        if wait_secs is None:
            wait_secs = _NEW_WAIT_SECS if is_new else _WAIT_SECS
        with self._made:
            while not self._is_closed.is_set():
                if self._latest is not None and self._latest[0] >= asked - most_age_secs:
                    break
                now = time.monotonic()
                secs_left = asked + wait_secs - now
                if self._making_since < asked - most_age_secs:  # else the one that is being made will do
                    self._asked.set()
                    if is_new and now < self._may_make_at:
                        secs_left = min(secs_left, self._may_make_at - now)
                    elif is_new and now < self._rests_until:
                        self._ends_rest.set()
                if now >= asked + wait_secs or (not is_new and self._rests_long()):
                    break
                self._made.wait(secs_left)
            return b"" if self._latest is None else self._latest[2]

    def _rests_long(self) -> bool:
        is_new = self._latest is not None and self._latest[0] > self._forgotten_at
        return is_new and self._rests_until - time.monotonic() > _LONG_REST_SECS

    def forget(self) -> None:
        """An order was given: what is asked next shows its effect."""
        self._letters_at = -_LETTERS_SECS
        with self._made:
            self._forgotten_at, self._making_since = time.monotonic(), -1e9
            if self._latest is not None:
                self._latest = (-1e9, *self._latest[1:])
        self._ends_rest.set()

    def close(self, stopped_by: BaseException | None) -> None:
        """Let the thread make and keep the last snapshot, and end. Never raises.

        A store of dead letters that hangs holds the thread up; the topology does not stop later for it.
        """
        self._stopped_by = stopped_by
        self._is_closed.set()
        self._ends_rest.set()
        self._asked.set()
        with suppress(RuntimeError):  # it was not begun
            self._thread.join(_CLOSE_SECS)
        with self._made:
            self._made.notify_all()  # nobody waits for a snapshot that is not made any more
        self._is_late.set()  # what the thread still makes is not stored: the next run may have begun

    def _observe(self) -> None:
        kept_at = -_IDLE_SECS  # the first one is kept: a stopped topology is known by it
        while not self._is_closed.is_set():
            began = time.monotonic()
            self._make()
            took_secs = time.monotonic() - began
            if time.monotonic() - kept_at >= _IDLE_SECS and self._latest is not None:
                kept_at = time.monotonic()
                self._keep_one(self._latest[1])
            rest_secs = max(_LEAST_SECS, _RESTS * took_secs)
            with self._made:  # who waits looks again: the thread rests now, or could make none
                rests_from = time.monotonic()
                self._may_make_at = rests_from + max(_LEAST_SECS, took_secs)
                self._rests_until = rests_from + rest_secs
                self._made.notify_all()
            self._ends_rest.wait(rest_secs)  # until an order, which is shown at once, or who wants a new one
            with self._made:
                self._rests_until = -1e9
                self._ends_rest.clear()
            self._rest(began)
        self._letters_at = -_LETTERS_SECS
        self._make(is_over=True)
        self.history.look(is_over=True)

    def _rest(self, made_at: float) -> None:
        """Wait for a question, at most half a minute; what has changed meanwhile goes into the history."""
        self.history.look()
        while not self._is_closed.is_set() and time.monotonic() - made_at < _IDLE_SECS:
            if self._asked.wait(LOOK_SECS):
                break
            self.history.look()
        self._asked.clear()

    def _make(self, *, is_over: bool = False) -> None:
        """Make a snapshot and give it to those who wait; an error is logged, and the old one stays."""
        began = time.monotonic()
        with self._made:
            self._making_since = began
        try:
            made = self._snapshot(is_over=is_over)
            packed = made.to_json()
        except Exception:
            if not self._fails:  # once, and not at each question
                log.exception("topology=%s no snapshot could be made", self._run.name)
            self._fails, self._making_since = True, -1e9
            return
        self._fails = False
        with self._made:
            # One that was begun before the last order may not show its effect: it is old at once.
            self._making_since = began if began > self._forgotten_at else -1e9
            self._latest = self._making_since, made, packed
            self._made.notify_all()
        if is_over:
            self._keep_one(made)

    def _keep_one(self, made: Snapshot) -> None:
        if self._is_late.is_set():
            return
        try:
            self._keep(made)
        except (OSError, AcktreeError) as error:  # a full disk stops the topology by itself
            log.warning("topology=%s the last snapshot was not stored: %s", self._run.name, error)

    def _snapshot(self, *, is_over: bool) -> Snapshot:
        run, plan, stopped_by = self._run, self._run.plan, self._stopped_by
        errors, windows = run.errors.kept, self._windows_now()
        return Snapshot(
            topology=run.name,
            id=self.id,
            checkpoint=str(run.checkpoint.place),
            status=_final_status(run, stopped_by) if is_over else _status(run),
            run=run.checkpoint.run,
            batch_id=run.results.progress.batch_id,
            taken_ms=time.time_ns() // 1_000_000,
            began_ms=self._began_ms,
            host=socket.gethostname(),
            pid=os.getpid(),
            user=user_name(),
            version=self._version,
            config=plan.config.without_secrets().to_mapping(),
            graph=run.describe().data,
            windows=windows,
            errors=errors,
            acker=windows[RUN].stats.acker,
            inbox=InboxNumbers(
                *run.inbox.waiting, plan.config.inbox_max_messages, plan.config.inbox_max_bytes
            ),
            keys=run.key_numbers(),
            dead_letters=self._letters_now(),
            batch_ms={} if is_over else self._batch_ms(),
            metrics_dropped=0 if run.consumers is None else run.consumers.dropped,
            stopped_by=None if stopped_by is None else str(stopped_by),
            debug={} if is_over else self._orders.order.debug_percents,
        )

    def _windows_now(self) -> dict[str, Window]:
        run, totals, now_ms, clock_ms = (
            self._run,
            self._totals.now(),
            _steady_ms(),
            time.time_ns() // 1_000_000,
        )
        spouts, components = run.open_messages(), run.plan.topology.components
        self._windows.note(totals.counters, now_ms, totals.ran_ms)
        age_secs = max(0.0, time.time() - self._began_ms / 1000)
        metrics = run.results.metrics.metrics(clock_ms)
        traces = run.traces.numbers(run.events)
        held, progress = run.results.holders.counts(clock_ms), run.results.progress
        of_now = partial(
            Stats.of, components=components, held=held, open_roots=progress.open_count,
            next_deadline_ms=progress.next_deadline_ms,
        )  # fmt: skip
        of_run = of_now(run.counters(), spouts=spouts, metrics=metrics, traces=traces)
        spread = {
            name: replace(each, complete_ms=totals.spread.get(name, each.complete_ms))
            for name, each in spouts.items()
        }
        whole = of_now(totals.counters, spouts=spread, metrics=metrics, traces=traces)
        found = {RUN: Window(age_secs, of_run), ALL_TIME: Window(totals.ran_ms / 1000, whole)}
        # How latencies are spread is known of whole runs alone.
        spouts = {name: replace(each, complete_ms=None) for name, each in spouts.items()}
        for length in _LENGTHS:
            grown, secs = self._windows.since(totals.counters, length, now_ms, totals.ran_ms)
            found[str(length)] = Window(secs, of_now(grown, spouts=spouts))
        return found

    def _letters_now(self) -> LetterNumbers:
        now = time.monotonic()
        if now - self._letters_at >= _LETTERS_SECS:
            self._letters_at = now
            letters = self._run.dead_letters
            with suppress(AcktreeError):  # the store's own errors are reported where letters are stored
                self._letters = LetterNumbers(
                    waiting=letters.count(redriven=False),
                    redriven=letters.count(redriven=True, settled=False),
                    settled=letters.count(settled=True),
                )
        return self._letters


def _status(run: Run) -> Status:
    if run.kill.is_given:
        return "KILLED"
    if run.results.progress.batch_id < 0:
        return "STARTING"
    return "ACTIVE" if run.is_active else "INACTIVE"


def _final_status(run: Run, stopped_by: BaseException | None) -> Status:
    if stopped_by is not None:
        return "FAILED"
    return "ENDED" if run.checkpoint.is_over else "STOPPED"


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def own_version() -> str:
    """The version of acktree; "unknown" where its code was copied, and not installed."""
    try:
        return version("acktree")
    except PackageNotFoundError:
        return "unknown"


def user_name() -> str:
    """The name of this process's user, or else the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())
