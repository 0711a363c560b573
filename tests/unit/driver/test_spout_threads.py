"""A spout's thread: what it delivers, when it waits, and that it always ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acktree import Config, EndOfStream, Spout, TopologyBuilder, bolt
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import Taken
from acktree.core.data.values import decode_rows
from acktree.core.stats.counters import Counters
from acktree.core.stats.histograms import Histogram
from acktree.core.stats.numbers import Lag
from acktree.driver import supervisor
from acktree.driver.spouts import spout_threads as spouts
from acktree.driver.spouts.spout_threads import SpoutThread, Threads
from acktree.errors import CheckpointError, ConfigError, ConnectorError, MisuseError
from acktree.tasks.failures import failure_of
from acktree.tasks.plan import Plan
from acktree.tasks.spouts import collector, task
from acktree.tasks.spouts.runs import UnfitMessage
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import VerdictBatch, timed_out
from acktree.topology.model import Topology
from tests import in_module
from tests.unit.checkpoint.inbox_chunks import chunk_of
from tests.unit.tasks.spouts.spout_harness import HostOf


@bolt(outputs=[])
def swallow(tup):
    """Nothing."""


class Scripted(Spout):
    """Emits what it is given, and calls hooks of the test."""

    outputs = ["n"]
    redelivers = False

    def __init__(self, count: int = 0):
        self.count, self.emitted = count, 0
        self.calls: list[str] = []
        self.on_next: Callable[[], None] = lambda: None
        self.on_ack: Callable[[object], None] = lambda _: None

    def open(self, config, context, collector):
        self.collector = collector
        self.calls.append("open")

    def next_tuple(self):
        self.on_next()
        if self.emitted < self.count:
            self.emitted += 1
            self.collector.emit([self.emitted], message_id=self.emitted)

    def ack(self, message_id):
        self.on_ack(message_id)
        self.calls.append(f"ack {message_id}")

    def deactivate(self):
        self.calls.append("deactivate")

    def close(self):
        self.calls.append("close")


class Rig:
    """A spout thread over a real inbox, without Spark."""

    def __init__(self, folder: Path, spout: Scripted, config: Config | None = None):
        self.spout, config = spout, config or Config()
        builder = TopologyBuilder("scripted")
        builder.set_spout("numbers", spout)
        builder.set_bolt("swallow", swallow).shuffle_grouping("numbers")
        topology: Topology = builder.create_topology()
        plan = Plan.of(topology, config, 1, 7)
        [self.task_id] = topology.components["numbers"].task_ids
        self.inbox = FileInbox(folder, -1, config.inbox_max_messages, config.inbox_max_bytes)
        self.reported: list[str] = []
        spout_host = HostOf(self.inbox, report=lambda _, task, failure: self.reported.append(failure.reason))
        bare = plan.topology.components["numbers"]
        self.task = SpoutTask(spout, bare, self.task_id, plan, spout_host, 0)
        self.changed = threading.Event()
        self.is_busy = False
        self.thread = SpoutThread(self.task, config, self.changed.set, lambda: self.is_busy)

    def acked(self, *sequences: int) -> VerdictBatch:
        return VerdictBatch(np.array(sequences, dtype=np.int64))

    def stop(self) -> None:
        self.thread.stop()
        assert self.thread.join(120)
        self.inbox.close()


@pytest.fixture
def rig(tmp_path: Path):
    made: list[Rig] = []

    def make(spout: Scripted, config: Config | None = None) -> Rig:
        made.append(Rig(tmp_path, spout, config))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def test_a_next_tuple_that_does_not_return_is_known_while_it_blocks(rig, monkeypatch) -> None:
    monkeypatch.setattr(spouts, "BLOCKED_SECS", 0.05)
    spout, asked, go_on = Scripted(1), threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        go_on.wait(120)

    run = rig(spout)
    spout.on_next = ask
    assert run.thread.blocked_call is None
    run.thread.start()
    assert asked.wait(120)
    until(lambda: run.thread.blocked_call is not None)
    assert run.thread.blocked_call[0] == "next_tuple"
    go_on.set()
    until(lambda: run.thread.blocked_call is None)


class Blocks(Scripted):
    """Emits two messages, one a call; then its next_tuple does not return."""

    def __init__(self):
        super().__init__()
        self.is_blocked, self.go_on = threading.Event(), threading.Event()
        self.numbers = iter([1, 2])
        self.failed: list[object] = []

    def __deepcopy__(self, memo):
        return self

    def next_tuple(self):
        number = next(self.numbers, None)
        if number is not None:
            self.collector.emit([number], message_id=str(number))
            return
        self.is_blocked.set()
        self.go_on.wait(120)

    def fail(self, message_id, failure):
        self.failed.append((message_id, threading.current_thread().name))


def test_what_was_emitted_before_a_next_tuple_that_does_not_return_is_handed_over(rig, monkeypatch) -> None:
    monkeypatch.setattr(spouts, "_BESIDE_SECS", 0.0)
    monkeypatch.setattr(spouts, "BLOCKED_SECS", 0.0)
    monkeypatch.setattr(spouts, "LINGER_SECS", 60.0)
    spout = Blocks()
    run = rig(spout)
    run.thread.start()
    assert spout.is_blocked.wait(120)
    assert run.inbox.last_number == -1
    spout.collector.unfit.append(UnfitMessage("default", "unfit", MisuseError("changed", "here", "do not")))
    run.thread.flush_beside()
    assert [run.inbox.waiting[0], run.task.open_count, run.task.waiting_count] == [2, 2, 0]
    assert run.thread.beside_due_secs is None
    assert spout.failed == []  # it is called on the spout's own thread
    call = run.thread.blocked
    assert call is not None
    assert "next_tuple of task 1 has not returned: acks and fails of this task wait for it" in call.reason
    run.thread.dispatch(run.acked(0, 1), 0)
    spout.go_on.set()
    until(lambda: len([each for each in spout.calls if each.startswith("ack")]) == 2)
    until(lambda: bool(spout.failed))
    assert spout.failed == [("unfit", "spout numbers task 1")]
    run.thread.flush_beside()
    assert run.inbox.waiting[0] == 2  # nothing was handed over twice


def test_a_spout_that_remembers_a_position_hands_over_by_itself_and_says_so(rig, monkeypatch) -> None:
    monkeypatch.setattr(spouts, "_BESIDE_SECS", 0.0)
    monkeypatch.setattr(spouts, "BLOCKED_SECS", 0.0)
    monkeypatch.setattr(spouts, "LINGER_SECS", 60.0)
    spout = Blocks()
    spout.remembers = ["emitted"]
    run = rig(spout)
    run.thread.start()
    assert spout.is_blocked.wait(120)
    run.thread.flush_beside()
    assert (run.inbox.last_number, run.thread.beside_due_secs) == (-1, None)
    call = run.thread.blocked
    assert call is not None
    assert "and 2 emitted messages, as the spout remembers a position" in call.reason
    spout.go_on.set()


def test_a_thread_whose_next_tuple_does_not_return_is_not_waited_for_to_the_end(rig, monkeypatch) -> None:
    monkeypatch.setattr(spouts, "BLOCKED_SECS", 0.0)
    monkeypatch.setattr(supervisor, "_BLOCKED_SECS", 0.0)
    spout, forever = Blocks(), time.monotonic() + 3600
    run = rig(spout)
    run.thread.start()
    assert spout.is_blocked.wait(120)
    run.thread.stop()
    assert not supervisor._joined(run.thread, forever, time.monotonic())
    spout.go_on.set()
    assert supervisor._joined(run.thread, forever, forever)


def test_verdicts_that_come_while_next_tuple_runs_are_noted_after_their_delivery(rig) -> None:
    spout, asked, go_on = Scripted(1), threading.Event(), threading.Event()
    run = rig(spout)

    def ask() -> None:
        if run.inbox.last_number >= 0 and not go_on.is_set():  # what it emitted was handed over
            asked.set()
            go_on.wait(120)

    spout.on_next = ask
    run.thread.start()
    assert asked.wait(120)
    run.thread.dispatch(run.acked(0), 5)
    delivered_meanwhile = run.thread.delivered_through
    spout.on_ack = lambda _: seen.append(run.thread.delivered_through)
    seen: list[int] = []
    go_on.set()
    until(lambda: run.thread.delivered_through == 5)
    assert (delivered_meanwhile, seen, spout.calls[-1]) == (-1, [-1], "ack 1")


@pytest.mark.parametrize("redelivers", [False, True])
def test_a_delivery_that_the_journal_notes_is_told_at_once(rig, redelivers) -> None:
    spout = Scripted(2)
    spout.redelivers = redelivers
    run = rig(spout)
    run.thread.start()
    until(lambda: run.inbox.last_number >= 0 and run.task.open_count == 2)
    run.changed.clear()  # the second message stays open, so the task is not idle afterwards
    run.thread.dispatch(run.acked(0), 5)
    until(lambda: run.thread.delivered_through == 5)
    assert run.changed.wait(0.5) is not redelivers


def one_of_three_calls(spout: Scripted, each: Callable[[], None] = lambda: None) -> None:
    """Let a call bring a message, and the next two nothing."""
    polls, count = iter(range(10**9)), spout.count

    def poll() -> None:
        number = next(polls)
        spout.count = min(count, number // 3 + 1)
        each()

    spout.on_next = poll


def test_while_a_micro_batch_runs_what_single_polls_bring_is_handed_over_together(rig) -> None:
    spout = Scripted(200)
    one_of_three_calls(spout)
    run = rig(spout)
    run.is_busy = True
    run.thread.start()
    until(lambda: run.thread.numbers().open_count == 200 and not run.task.buffered_count)
    assert run.inbox.last_number < 100
    emitted = [row for n in range(run.inbox.last_number + 1) for row in decode_rows(run.inbox.read(n).values)]
    assert emitted == [(n,) for n in range(1, 201)]


def test_a_query_that_waits_gets_what_a_poll_brought_before_the_next_poll_brings_more(rig) -> None:
    spout = Scripted(20)
    run = rig(spout)
    handed_over: list[tuple[int, int]] = []
    one_of_three_calls(spout, lambda: handed_over.append((spout.emitted, run.inbox.last_number + 1)))
    run.thread.start()
    until(lambda: run.inbox.last_number == 19)
    assert {(emitted, chunks) for emitted, chunks in handed_over if chunks < emitted - 1} == set()


def test_where_a_hand_over_takes_long_more_messages_are_handed_over_at_once(rig, monkeypatch) -> None:
    spout, clock = Scripted(300), [0.0]

    def pass_by(secs: float) -> None:
        clock[0] += secs

    in_module.replace(monkeypatch, spouts, "time", monotonic=lambda: clock[0])
    for module in (collector, task):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    spout.on_next = lambda: pass_by(0.001)
    run = rig(spout)
    append, handed_over = run.inbox.append, []

    def slow(chunks, parked=()):
        pass_by(0.1)
        handed_over.append(chunks)
        return append(chunks, parked)

    monkeypatch.setattr(run.inbox, "append", slow)
    run.is_busy = True
    run.thread.start()
    until(lambda: run.thread.numbers().open_count == 300 and not run.task.buffered_count)
    assert len(handed_over) < 8  # 20 ms after each other it would be 15 and more


@pytest.mark.parametrize("ends", [False, True])
def test_what_no_poll_can_add_to_is_handed_over_though_a_micro_batch_runs(rig, monkeypatch, ends) -> None:
    monkeypatch.setattr(spouts, "LINGER_SECS", 10**6)
    spout = Scripted(3)
    run = rig(spout, Config(max_spout_pending=None if ends else 3))
    run.is_busy = True

    def end() -> None:
        if spout.emitted == 3:
            raise EndOfStream

    spout.on_next = end
    run.thread.start()
    until(lambda: run.inbox.last_number == 0)


def test_what_ack_emits_is_in_the_inbox_before_its_verdict_counts_as_delivered(rig) -> None:
    spout = Scripted(1)
    run = rig(spout)
    spout.on_ack = lambda message_id: spout.collector.emit([10], message_id=10) if message_id == 1 else None
    run.thread.start()
    until(lambda: run.inbox.last_number == 0)
    run.thread.dispatch(run.acked(0), 3)
    until(lambda: run.thread.delivered_through == 3)
    assert decode_rows(run.inbox.read(1).values) == [(10,)]


def test_what_ack_emits_while_the_thread_stops_is_handed_over_too(rig) -> None:
    spout = Scripted(1)
    run = rig(spout)
    spout.on_ack = lambda message_id: spout.collector.emit([10], message_id=10) if message_id == 1 else None
    run.thread.start()
    until(lambda: run.inbox.last_number == 0 and run.thread.numbers().open_count == 1)
    run.thread.set_active(False)
    run.thread.task.dispatch(run.acked(0))
    run.thread.stop()
    assert run.thread.join(120)
    assert decode_rows(run.inbox.read(1).values) == [(10,)]
    assert spout.calls[-2:] == ["ack 1", "close"] or spout.calls[-3:] == ["ack 1", "deactivate", "close"]


def test_a_task_without_verdicts_does_not_hold_back_those_of_the_others(rig) -> None:
    run = rig(Scripted())
    threads = Threads()
    threads.by_task[run.task_id] = run.thread
    run.thread.start()
    threads.hold(4, {})
    threads.dispatch(4)
    until(lambda: threads.delivered_through() == 4)


def test_verdicts_wait_for_the_commit_of_their_micro_batch_and_a_later_one_proves_it(rig) -> None:
    run = rig(Scripted(2))
    threads = Threads()
    threads.by_task[run.task_id] = run.thread
    threads.hold(4, {run.task_id: run.acked(0)})
    threads.dispatch(3)
    assert not run.task.has_verdicts
    threads.hold(5, {run.task_id: run.acked(1)})  # 5 runs, so 4 is committed
    assert len(run.task._mail) == 1
    threads.dispatch(5)
    assert len(run.task._mail) == 2


def test_a_spout_that_exits_breaks_the_topology_and_is_closed(rig) -> None:
    spout = Scripted()
    run = rig(spout)

    def leave() -> None:
        raise SystemExit(3)

    spout.on_next = leave
    run.thread.start()
    until(lambda: run.thread.broken is not None)
    assert "SystemExit: 3" in str(run.thread.broken)
    assert run.thread.join(120)
    assert spout.calls == ["open", "close"]


def test_an_error_in_next_tuple_is_reported_and_it_is_asked_again(rig) -> None:
    spout, errors = Scripted(1), iter([ValueError("once"), ValueError("twice")])
    run = rig(spout)

    def raise_twice() -> None:
        error = next(errors, None)
        if error is not None:
            raise error

    spout.on_next = raise_twice
    run.thread.start()
    until(lambda: run.inbox.last_number == 0)
    assert run.reported == ["ValueError: once", "ValueError: twice"]
    assert run.thread.broken is None


def test_an_inbox_that_cannot_be_written_breaks_the_topology_and_the_spout_is_closed(rig) -> None:
    spout = Scripted(1)
    run = rig(spout)
    run.inbox.close()
    run.thread.start()
    until(lambda: run.thread.broken is not None)
    assert run.thread.join(120)
    assert "inbox is closed" in str(run.thread.broken)
    assert spout.calls[-1] == "close"


def test_an_inbox_without_room_breaks_the_topology_with_the_operators_error(
    rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("acktree.system.private_files.write_private", full)
    run = rig(Scripted(1))
    run.thread.start()
    run.thread.set_active(True)
    until(lambda: run.thread.broken is not None)
    assert isinstance(run.thread.broken, CheckpointError)
    assert run.thread.join(120)
    assert run.spout.calls[-1] == "close"


def test_a_thread_that_was_stopped_before_it_started_never_opens_its_spout(rig) -> None:
    spout = Scripted()
    run = rig(spout)
    run.thread.stop()
    run.thread.start()
    assert run.thread.join(0)
    assert spout.calls == []


def test_a_spout_that_does_not_come_back_is_left_and_what_it_emits_is_not_taken(rig, tmp_path: Path) -> None:
    spout, asked, go_on = Scripted(1), threading.Event(), threading.Event()
    run = rig(spout)

    def hang() -> None:
        asked.set()
        go_on.wait(120)

    spout.on_next = hang
    run.thread.start()
    assert asked.wait(120)
    run.thread.stop()
    assert not run.thread.join(0.01)
    run.inbox.close()  # the topology goes on without it
    go_on.set()
    assert run.thread.join(120)
    assert not list(tmp_path.glob("0*"))


def test_numbers_may_be_asked_while_the_spout_works(rig) -> None:
    spout = Scripted(3000)
    run = rig(spout)
    run.thread.start()
    acked_count = 0
    while run.thread.numbers().counters.total("acked") < 3000:
        emitted = spout.emitted
        if emitted > acked_count and run.inbox.last_number >= 0:
            run.thread.dispatch(run.acked(*range(acked_count, emitted)), emitted)
            acked_count = emitted
        if acked_count == 3000:
            run.thread.dispatch(run.acked(*range(3000)), 3001)
    assert run.thread.numbers().open_count == 0


class NotedWaits(threading.Event):
    """Notes how long each wait may take."""

    def __init__(self) -> None:
        super().__init__()
        self.secs: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.secs.append(timeout)
        return super().wait(timeout)


@pytest.mark.parametrize("who", ["source", "task"])
def test_room_in_the_inbox_that_nobody_tells_of_is_seen_soon_however_long_it_was_full(rig, who: str) -> None:
    limits = {"source": Config(inbox_max_messages=4), "task": Config(inbox_max_bytes=3000)}
    spout = Scripted(100)
    run = rig(spout, limits[who])
    if who == "task":
        run.inbox.append([chunk_of(*range(500), task=99)])
        run.inbox.committed(0)
    waits = run.thread._wake = NotedWaits()
    run.thread.set_active(True)
    run.thread.start()
    until(lambda: run.task.is_active and run.task.not_asked_because() == "inbox_full")
    for _ in range(120):  # each is a wait of a spout that may not emit
        run.thread.wake()
        until(lambda: not run.thread._wake.is_set())
    emitted = spout.emitted
    if who == "task":
        run.inbox.release(0)
    else:
        Taken(run.inbox.last_number, 8192).write(run.inbox._folder)
    until(lambda: spout.emitted > emitted)
    assert len(waits.secs) > 100
    assert max(waits.secs) <= 0.1


def test_a_recovered_chunk_of_retries_outlives_the_chunk_that_it_speaks_of(rig) -> None:
    run = rig(Scripted())
    first = chunk_of(1, 2, task=run.task_id, first_sequence=0)
    retries = replace(
        chunk_of(1, task=run.task_id, first_sequence=2),
        attempts=np.array([2], np.int32),
        first_emitted_ms=np.array([1_000]),
        retry_of=np.array([0]),
    )
    run.inbox.append([first, retries])
    for number, chunk in ((0, first), (1, retries)):
        run.task.recovery.reopen(number, chunk)
    for number, chunk in ((0, first), (1, retries)):
        run.task.recovery.must_outlive(number, chunk)
    run.inbox.committed(1)
    failed = timed_out(1)
    run.task.recovery.apply_journalled(VerdictBatch(failed=[(np.array([0]), failed)]), 0, were_delivered=True)
    run.task.dispatch(run.acked(2))
    run.task.step(0)
    assert run.inbox.oldest_kept == 0
    assert len(run.inbox.read(1)) == 1  # acked, and yet the only word that sequence 0 was tried again
    run.task.dispatch(run.acked(1))
    run.task.step(0)
    assert run.inbox.oldest_kept == 2


# ---- queues ----------------------------------------------------------------------------------------------

GONE = ConnectorError("the connection is gone", "queue 'q'", "see whether the server runs", can_retry=True)
REFUSED = ConnectorError("access refused", "queue 'q'", "give the user the right to read it")


class Beating(Scripted):
    """Notes when it is kept alive, and on which thread."""

    keep_alive_secs = 0.02

    def __init__(self, count=0):
        super().__init__(count)
        self.beats: list[tuple[float, int, object]] = []

    def __deepcopy__(self, memo):
        return self

    def keep_alive(self, open_messages):
        self.beats.append((time.monotonic(), open_messages.count, threading.current_thread()))


def test_keep_alive_comes_on_the_spouts_thread_while_saturated_and_deactivated(rig) -> None:
    spout = Beating(5)
    made = rig(spout, Config(max_spout_pending=2))
    made.thread.start()
    until(lambda: len(spout.beats) >= 3 and spout.beats[-1][1] == 2)
    made.thread.set_active(False)
    until(lambda: "deactivate" in spout.calls)
    before = len(spout.beats)
    until(lambda: len(spout.beats) >= before + 3)
    assert {thread for _, _, thread in spout.beats} == {made.thread._thread}
    assert min(np.diff([at for at, _, _ in spout.beats])) > 0.01


def test_a_woken_spout_is_asked_at_once(rig) -> None:
    spout = Scripted()
    made = rig(spout, Config(spout_wait_strategy="park", spout_wait_park_microsec=60_000_000))
    made.thread.start()
    asked = threading.Semaphore(0)
    spout.on_next = asked.release
    until(lambda: "open" in spout.calls)
    made.thread.wake()
    assert asked.acquire(timeout=120)


def test_an_error_that_cannot_pass_breaks_the_thread_with_its_own_words(rig) -> None:
    spout = Scripted()

    def refuse():
        raise REFUSED

    spout.on_next = refuse
    made = rig(spout)
    made.thread.start()
    until(lambda: made.thread.broken is not None)
    assert made.thread.broken is REFUSED
    until(lambda: "close" in spout.calls)


@pytest.mark.parametrize("kind", [ConfigError, ConnectorError])
def test_what_a_bolt_cannot_work_with_breaks_the_thread_with_an_error_of_its_class(rig, kind) -> None:
    made = rig(Scripted(1))
    made.thread.start()
    until(lambda: made.spout.emitted == 1)
    wrong = failure_of(kind("no such model", "model 'x'", "name one that is there"), "swallow", in_hook=True)
    made.thread.dispatch(VerdictBatch(failed=[(np.array([0]), wrong)]), 1)
    until(lambda: made.thread.broken is not None)
    assert type(made.thread.broken) is kind
    assert str(made.thread.broken).splitlines() == [
        "no such model",
        "  where: bolt 'swallow': model 'x'",
        "  fix:   name one that is there",
    ]


def test_an_error_that_may_pass_is_tried_again_until_it_has(rig) -> None:
    spout, tries = Scripted(1), iter(range(3))

    def fail_thrice():
        if next(tries, None) is not None:
            raise GONE

    spout.on_next = fail_thrice
    made = rig(spout)
    made.thread.start()
    until(lambda: spout.emitted == 1)
    assert len(made.reported) == 1
    assert made.thread.broken is None


def test_an_open_that_cannot_be_stops_and_one_that_may_is_tried_again(rig) -> None:
    class Late(Scripted):
        errors = [GONE, GONE]

        def open(self, config, context, collector):
            if self.errors:
                raise self.errors.pop()
            super().open(config, context, collector)

    spout = Late(1)
    made = rig(spout)
    made.thread.start()
    until(lambda: spout.emitted == 1)
    assert spout.calls == ["open"]


def test_a_refused_open_breaks_the_thread_with_its_own_words(rig) -> None:
    class Refused(Scripted):
        def open(self, config, context, collector):
            raise REFUSED

    made = rig(Refused())
    made.thread.start()
    until(lambda: made.thread.broken is not None)
    assert made.thread.broken is REFUSED


class Passing:
    """A gate's task: a tuple passes after one number is read, and before the next."""

    counters, complete_ms = Counters(), Histogram()

    def __init__(self) -> None:
        self.open, self.waiting = 0, 1

    @property
    def open_count(self) -> int:
        found, self.open, self.waiting = self.open, 1, 0
        return found

    @property
    def lag_now(self) -> Lag:
        found, self.open, self.waiting = self.waiting, 1, 0
        return Lag(found)

    def oldest_ms(self) -> None:
        return None


def test_a_tuple_that_passes_a_gate_while_its_numbers_are_read_is_in_one_of_them(rig) -> None:
    run = rig(Scripted())
    run.thread.task = Passing()
    numbers = run.thread.numbers()
    run.thread.task = run.task
    assert numbers.lag is not None
    assert numbers.open_count + numbers.lag.total >= 1
