"""A message that kills its worker is found and left out, and no neighbour in its place. Without Spark."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

from acktree.core.data.context import TaskContext
from acktree.core.data.frames import Kind, WireRow
from acktree.core.state.store import MemoryStore, StateStore
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import BoltError, ExecuteTimeoutError, ProtocolError
from acktree.spark.query.state_blobs import MapStateStore
from acktree.spark.worker import stopped
from acktree.spark.worker.isolation import UNGUARDED, Isolation
from acktree.spark.worker.marks import Suspects
from acktree.spark.worker.watchdog import in_user_code
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.tasks.bolts.rows.row_names import NOWHERE, Names
from acktree.topology.model import Component

BOLT = Component("bolt", "bolt", False, None, 1, (1,), {}, (), None, None, None, ())  # noqa: FBT003
FIRST, COUNT = 100, 10
NAMES = range(FIRST, FIRST + COUNT)
ROWS = Names(COUNT, FIRST, NAMES)


def exits() -> None:
    os._exit(9)


def crashes() -> None:
    faulthandler.disable()  # pytest's own, which would print the whole stack
    ctypes.string_at(0)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def holds_the_interpreter() -> None:
    sum(range(10**13))  # one call of C: nothing in Python runs meanwhile, no signal's handler either


def sleeps() -> None:
    time.sleep(60)


class Level:
    """Executes rows 100 to 109 and writes down each that it was done with; ``deeds`` are what rows do."""

    def __init__(
        self,
        deeds: dict[int, Callable[[], None]],
        *,
        together: bool = False,
        own_timeout_secs: float | None = None,
        sends: dict[int, Callable[[], None]] | None = None,
        rows: Names = ROWS,
    ) -> None:
        self.deeds, self.together, self.sends, self.rows = deeds, together, sends or {}, rows
        self.bolt = replace(BOLT, execute_timeout_secs=own_timeout_secs)

    def __call__(self, monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        out = {left.row: left for left in monitor.left_out(self.rows)}
        for left in out.values():
            yield row_of(FIRST + left.row, f"{left.cause}: {left.reason}")
        cuts = monitor.cuts(self.rows)
        borders = sorted({0, COUNT, *cuts, *out, *(row + 1 for row in out)})
        for piece in (range(*pair) for pair in pairwise(borders) if pair[0] not in out):
            monitor.begin(self.bolt, self.rows.part(piece.start, piece.stop), together=self.together)
            for place, row in enumerate(piece):
                if not self.together:
                    monitor.mark[0] = place
                name = FIRST + row
                try:
                    self.deeds.get(name, lambda: None)()
                except ExecuteTimeoutError as error:
                    yield row_of(name, str(error.what))
                else:
                    yield row_of(name, "done")
            monitor.sending()
            for row in piece:
                self.sends.get(FIRST + row, lambda: None)()
            monitor.end()
        if store is not None:
            store.put("done", bytes(COUNT - len(out)))


def row_of(name: int, what: str) -> WireRow:
    return WireRow(0, 1, Kind.FRAME, name, 0, 0, what.encode(), b"")


def said(rows: object) -> dict[int, str]:
    return {row.source: bytes(row.head).decode() for row in rows}  # type: ignore[attr-defined]


def isolation(folder: Path, attempt: int, timeout_secs: float | None = None) -> Isolation:
    return Isolation(folder, 7, 1, 0, attempt, timeout_secs)


def first_attempt(folder: Path, level: Level, timeout_secs: float | None = None) -> int:
    """Run it as Spark does first, in a worker of its own; how that ended."""
    child = os.fork()
    if child == 0:
        try:
            list(isolation(folder, 0, timeout_secs).run(level))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("together", [False, True])
def test_without_a_death_all_is_executed_in_this_process(tmp_path: Path, together) -> None:
    here = os.getpid()
    level = Level({103: lambda: None if os.getpid() == here else os._exit(1)}, together=together)
    assert said(isolation(tmp_path, 0).run(level)) == dict.fromkeys(NAMES, "done")
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*.mark")] == [0o600]


@pytest.mark.parametrize("deed", [exits, crashes, is_killed])
@pytest.mark.parametrize("together", [False, True])
def test_a_message_that_kills_its_worker_twice_is_left_out_and_no_other(
    tmp_path: Path, deed: Callable[[], None], together
) -> None:
    level = Level({103: deed, 108: deed}, together=together)
    assert first_attempt(tmp_path, level) != 0
    found = said(isolation(tmp_path, 1).run(level))
    poison = {name: what for name, what in found.items() if what != "done"}
    assert sorted(found) == list(NAMES)
    assert sorted(poison) == [103, 108]
    assert all(what.startswith(FailureCause.KILLED_WORKER) for what in poison.values())
    assert all("2 times over this tuple" in what for what in poison.values())


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_message_that_stops_its_process_is_left_out_and_no_other(tmp_path: Path, monkeypatch) -> None:
    """Its watchdog is stopped with it; the parent kills it. Spark's daemon does so with a worker."""
    monkeypatch.setattr(stopped, "STOPPED_SECS", 0.1)
    level = Level({103: stops})
    found = said(isolation(tmp_path, 1, timeout_secs=60).run(level))
    assert sorted(found) == list(NAMES)
    (poison,) = [what for what in found.values() if what != "done"]
    assert poison.startswith(FailureCause.KILLED_WORKER)
    assert "its worker was stopped for 0.1 s and killed, 2 times over this tuple" in poison


def runs_out_of_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize("deed", [is_killed, runs_out_of_memory])
@pytest.mark.parametrize("together", [False, True])
def test_a_message_whose_children_kill_the_worker_when_they_are_sent_is_left_out_and_no_other(
    tmp_path: Path, deed: Callable[[], None], together
) -> None:
    """All rows were executed by then: it is found by halves."""
    level = Level({}, together=together, sends={103: deed, 109: deed})
    assert first_attempt(tmp_path, level) in {0, -signal.SIGKILL}
    found = said(isolation(tmp_path, 1).run(level))
    assert sorted(name for name, what in found.items() if what != "done") == [103, 109]
    assert sorted(found) == list(NAMES)
    assert all("2 times over this tuple" in found[name] for name in (103, 109))


def test_a_worker_that_runs_out_of_memory_without_a_marked_row_says_so(tmp_path: Path) -> None:
    def level(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        monitor.begin(BOLT, ROWS, together=False)
        monitor.end()
        raise MemoryError
        yield

    with pytest.raises(MemoryError):
        list(isolation(tmp_path, 1).run(level))


def test_what_is_being_sent_is_not_interrupted(tmp_path: Path) -> None:
    level = Level({}, sends={103: lambda: time.sleep(0.4)})
    assert set(said(isolation(tmp_path, 0, timeout_secs=0.1).run(level)).values()) == {"done"}


def test_a_benchmark_may_take_the_guards_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNGUARDED, "1")
    assert set(said(isolation(tmp_path, 1).run(Level({}))).values()) == {"done"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("first", "deaths"), [(FIRST, 2), (NOWHERE, 3)])
def test_a_workers_own_death_counts_where_the_same_frames_come_again(tmp_path: Path, first, deaths) -> None:
    """Where they may not, nobody can say whose it was: it only leads to the child."""
    died = tmp_path / "died"

    def dies() -> None:
        with died.open("a") as file:
            file.write("x")
        exits()

    level = Level({103: dies}, rows=Names(COUNT, first, [7 * name for name in NAMES]))
    first_attempt(tmp_path, Level({103: dies}, rows=Names(COUNT, first)))
    found = said(isolation(tmp_path, 1).run(level))
    assert [name for name, what in found.items() if what != "done"] == [103]
    assert died.stat().st_size == deaths
    assert "2 times over this tuple" in found[103]


def test_who_has_another_name_each_time_is_not_run_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acktree.spark.worker.isolation.IN_VAIN", 5)
    died = tmp_path / "died"

    def level(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        with died.open("a") as file:
            file.write("x")
        names = range(died.stat().st_size * COUNT, (died.stat().st_size + 1) * COUNT)
        monitor.begin(BOLT, Names(COUNT, NOWHERE, names), together=False)
        monitor.mark[0] = 3
        exits()
        yield

    with pytest.raises(BoltError, match="5 processes died in a row"):
        list(isolation(tmp_path, 1).run(level))
    assert died.stat().st_size == 5


def test_who_was_there_by_accident_runs_the_second_time(tmp_path: Path) -> None:
    level = Level({105: is_killed})
    first_attempt(tmp_path, level)
    assert said(isolation(tmp_path, 1).run(Level({}))) == dict.fromkeys(NAMES, "done")


def test_what_was_found_is_known_when_the_micro_batch_runs_again(tmp_path: Path) -> None:
    level = Level({103: exits})
    first_attempt(tmp_path, level)
    found = said(isolation(tmp_path, 1).run(level))
    assert said(isolation(tmp_path, 0).run(level)) == found
    assert Suspects.read(tmp_path / "7.1.0.suspects").deaths == {103: 2}


def test_code_that_waits_is_interrupted_and_its_worker_lives(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    found = said(isolation(tmp_path, 0, timeout_secs=0.2).run(Level({104: sleeps})))
    assert found.pop(104) == "execute took longer than execute_timeout_secs=0.2"
    assert set(found.values()) == {"done"}
    assert_alarm_is_untouched(before)


def assert_alarm_is_untouched(before: tuple[object, tuple[float, float]]) -> None:
    """SIGALRM and its timer are the user's: the handler is the same, and a timer only ran on."""
    handler, (left, interval) = before
    assert signal.getsignal(signal.SIGALRM) is handler
    now_left, now_interval = signal.getitimer(signal.ITIMER_REAL)
    assert now_interval == interval
    assert (now_left > 0) == (left > 0)
    assert now_left <= left


@pytest.mark.parametrize("usual_secs", [None, 0.05, 60])
def test_a_bolt_with_a_timeout_of_its_own_has_that_and_no_other(tmp_path: Path, usual_secs) -> None:
    level = Level({103: lambda: time.sleep(0.2), 104: sleeps}, own_timeout_secs=0.8)
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    found = said(isolation(tmp_path, 0, timeout_secs=usual_secs).run(level))
    assert found.pop(104) == "execute took longer than execute_timeout_secs=0.8"
    assert set(found.values()) == {"done"}
    assert_alarm_is_untouched(before)


def test_after_a_bolt_the_usual_timeout_applies_again(tmp_path: Path) -> None:
    clocks = []

    def level(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        for secs in (8.0, None):
            clocks.append(monitor.watchdog.timeout_secs)  # type: ignore[attr-defined]
            monitor.begin(replace(BOLT, execute_timeout_secs=secs), ROWS, together=False)
            clocks.append(monitor.watchdog.timeout_secs)  # type: ignore[attr-defined]
            monitor.end()
        yield row_of(100, "done")

    list(isolation(tmp_path, 0, timeout_secs=4.0).run(level))
    assert clocks == [4.0, 8.0, 4.0, 4.0]
    clocks.clear()
    list(isolation(tmp_path, 0).run(level))
    assert clocks == [None, 8.0, None, None]


def test_a_bolt_without_a_timeout_in_a_topology_without_one_is_never_interrupted(tmp_path: Path) -> None:
    found = said(isolation(tmp_path, 0).run(Level({104: lambda: time.sleep(0.3)})))
    assert set(found.values()) == {"done"}


def test_code_that_cannot_be_interrupted_loses_its_worker(tmp_path: Path) -> None:
    level = Level({104: holds_the_interpreter})
    assert first_attempt(tmp_path, level, timeout_secs=0.2) == 1
    found = said(isolation(tmp_path, 1, timeout_secs=0.2).run(level))
    assert found.pop(104).startswith(FailureCause.HUNG)
    assert set(found.values()) == {"done"}


def test_slow_is_not_hung_as_long_as_rows_follow_each_other(tmp_path: Path) -> None:
    def slow() -> None:
        time.sleep(0.1)

    level = Level(dict.fromkeys(NAMES, slow))
    found = said(isolation(tmp_path, 0, timeout_secs=0.9).run(level))  # of ten rows, a second in all
    assert set(found.values()) == {"done"}


def test_a_childs_writes_are_made_once_by_its_parent(tmp_path: Path) -> None:
    store = MemoryStore()
    level = Level({103: exits})
    first_attempt(tmp_path, level)
    list(isolation(tmp_path, 1).run(level, store))
    assert store.get("done") == bytes(9)


def test_what_the_level_itself_raises_is_raised_here(tmp_path: Path) -> None:
    def broken(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        raise ProtocolError("what", "where", "fix")

    with pytest.raises(ProtocolError, match="what"):
        isolation(tmp_path, 1).run(broken)


def test_a_death_without_a_marked_row_is_left_to_sparks_retry(tmp_path: Path) -> None:
    def dies(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        os._exit(3)

    with pytest.raises(ProtocolError, match="exited with code 3"):
        isolation(tmp_path, 1).run(dies)


@pytest.mark.parametrize("hook", ["prepare", "tick", "flush", "cleanup"])
def test_a_hook_that_ends_its_process_each_time_is_named_and_one_accident_is_not(
    tmp_path: Path, hook: str
) -> None:
    first = os.getpid()

    def calls(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        monitor.begin(BOLT, ROWS, together=False)
        monitor.end()
        monitor.enter(BOLT, hook)
        if os.getpid() != first and not (tmp_path / "mended").exists():
            os._exit(3)
        monitor.end()
        yield row_of(100, "done")

    with pytest.raises(
        BoltError, match=rf"bolt 'bolt' ended its process in {hook}\(\): .* exited with code 3"
    ):
        isolation(tmp_path, 1).run(calls)
    child = os.fork()  # the next attempt of Spark's dies too, in its worker
    if child == 0:
        next(iter(isolation(tmp_path, 0).run(calls)))
    os.waitpid(child, 0)
    (tmp_path / "mended").touch()
    assert said(isolation(tmp_path, 1).run(calls)) == {100: "done"}


class AskedOverASocket(StateStore):
    """As Spark's: a question goes out over a socket, its answer comes back, and nothing says whose it is."""

    def __init__(self) -> None:
        self.home = os.getpid()
        self.here, there = socket.socketpair()
        threading.Thread(target=self.answer, args=(there,), daemon=True).start()

    def answer(self, there: socket.socket) -> None:
        while name := there.recv(100):
            there.send(b"the blob of " + name)

    def get(self, name: str) -> bytes:
        self.here.send(name.encode())
        if name == "large" and os.getpid() != self.home:
            is_killed()  # by who thought that its answer takes too much memory
        return self.here.recv(100)

    def put(self, name: str, blob: bytes) -> None:
        assert self.get(name) == b"the blob of " + name.encode()


def test_a_child_that_dies_while_it_reads_its_state_leaves_no_answer_to_the_next_one(tmp_path: Path) -> None:
    def reads(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        assert store is not None
        monitor.begin(BOLT, ROWS, together=False)
        monitor.mark[0] = 0
        if not (tmp_path / "7.1.0.suspects").exists():
            store.get("large")
            exits()
        for name in ("a", "b", "c"):
            yield row_of(100, bytes(store.get(name) or b"").decode())
        store.put("d", b"")

    answers = [bytes(row.head).decode() for row in isolation(tmp_path, 1).run(reads, AskedOverASocket())]
    assert answers == ["the blob of a", "the blob of b", "the blob of c"]


def test_what_a_child_wrote_it_reads_and_what_is_not_there_is_none(tmp_path: Path) -> None:
    def reads(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        assert store is not None
        store.put("new", b"1")
        store.delete("old")
        yield row_of(100, repr([store.get(name) for name in ("new", "old", "kept", "nowhere")]))

    store = MemoryStore()
    store.blobs.update(old=b"2", kept=b"3")
    (row,) = isolation(tmp_path, 1).run(reads, store)
    assert bytes(row.head).decode() == "[b'1', None, b'3', None]"
    assert store.blobs == {"new": b"1", "kept": b"3"}


@pytest.mark.parametrize("mark", [b"", bytes(64), b"of an earlier version, 32 bytes.."])
def test_a_worker_that_died_while_it_wrote_its_mark_blames_no_row(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "7.1.0.mark").write_bytes(mark)
    assert set(said(isolation(tmp_path, 1).run(Level({}))).values()) == {"done"}


def uses_an_alarm_of_its_own() -> None:
    """What libraries for timeouts do: they set an alarm and switch it off, and with it whatever was there."""
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 5)
    time.sleep(0.18)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_bolt_with_an_alarm_of_its_own_is_not_hung_and_is_still_interrupted(tmp_path: Path) -> None:
    level = Level(dict.fromkeys(NAMES, uses_an_alarm_of_its_own))
    assert first_attempt(tmp_path, level, timeout_secs=0.3) == 0  # 1.8 s, longer than the hard kill waits

    def hangs() -> None:
        uses_an_alarm_of_its_own()
        sleeps()

    found = said(isolation(tmp_path, 0, timeout_secs=0.3).run(Level({103: hangs})))
    assert found.pop(103) == "execute took longer than execute_timeout_secs=0.3"
    assert set(found.values()) == {"done"}


class SlowMap:
    """A state that is asked slowly, in Python that is not the engine's, as Spark's client is."""

    def __init__(self) -> None:
        self.answered = 0

    def getValue(self, key: tuple[str]) -> None:  # noqa: N802  # Spark's name
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            time.sleep(0.01)
        self.answered += 1


def test_a_request_to_the_state_is_never_interrupted_and_its_caller_is_as_soon_as_it_is_answered(
    tmp_path: Path,
) -> None:
    slow, after = SlowMap(), []
    store = MapStateStore(slow)  # type: ignore[arg-type]

    def asks() -> None:
        try:
            store.get("a")
            after.append("answered")
            sleeps()
        except ExecuteTimeoutError:
            after.append("late")
            raise

    found = said(isolation(tmp_path, 0, timeout_secs=0.2).run(Level({103: asks})))
    assert found[103] == "execute took longer than execute_timeout_secs=0.2"
    assert slow.answered == 1
    assert after[-1] == "late"
    store.channel.refuse_if_lost()


def test_engine_code_is_not_user_code_and_a_library_called_by_user_code_is() -> None:
    def frames() -> Iterator[FrameType]:
        yield sys._getframe()

    (here,) = frames()
    assert not in_user_code(None)
    assert not in_user_code(here)  # nobody of ours called it
    engine = {"__name__": "acktree.tasks.bolts.kinds", "f": lambda: in_user_code(sys._getframe())}
    exec("def execute(): return f()", engine)
    assert engine["execute"]()
    for name in (
        "acktree.tasks.bolts.collectors",
        "acktree.core.state.key_value_state",
        "acktree.spark.query.state_blobs",
    ):
        engine["__name__"] = name
        assert not engine["execute"]()


def test_a_child_that_is_interrupted_in_a_question_to_its_parent_dies_of_it_and_the_row_is_suspected(
    tmp_path: Path,
) -> None:
    def level(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        assert store is not None
        out = {left.row: left for left in monitor.left_out(ROWS)}
        monitor.begin(BOLT, ROWS, together=False)
        for row in range(COUNT):
            if row in out:
                yield row_of(FIRST + row, str(out[row].cause))
                continue
            monitor.mark[0] = row
            with suppress(Exception):  # the user's
                ask(store, row)
            yield row_of(FIRST + row, "done")
        monitor.end()

    def ask(store: StateStore, row: int) -> None:
        if row == 4:
            signal.signal(signal.SIGALRM, late)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        store.get(str(row))

    def late(*_: object) -> None:
        raise TimeoutError

    class Slow(MemoryStore):
        def get(self, name: str) -> bytes | None:
            time.sleep(0.3 if name == "4" else 0)
            return name.encode()

    (tmp_path / "7.1.0.hung").touch()
    found = said(isolation(tmp_path, 1).run(level, Slow()))
    assert found.pop(104) == FailureCause.KILLED_WORKER
    assert set(found.values()) == {"done"}


def test_a_forked_child_does_not_use_what_its_parent_has_cached(tmp_path: Path) -> None:
    context = TaskContext("topology", "bolt", 1, 0, {})
    assert context.cached("pid", os.getpid) == os.getpid()

    def level(monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        yield row_of(os.getpid(), str(context.cached("pid", os.getpid)))

    ((child, cached),) = said(isolation(tmp_path, 1).run(level)).items()
    assert child != os.getpid()
    assert cached == str(child)
    assert context.cached("pid", os.getpid) == os.getpid()
