"""A child process that a signal has stopped is killed after a while, unless it continues."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from acktree.spark.worker import stopped
from acktree.spark.worker.stopped import StoppedChildren
from acktree.system.processes import STOPPED, TRACED, state_and_start

SECS = 30.0
PTRACE_SEIZE = 0x4206


class Clock:
    """Stands in for the module ``time`` of the one file."""

    def __init__(self) -> None:
        self.secs = 0.0

    def monotonic(self) -> float:
        return self.secs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stopped, "time", made)
    return made


@pytest.fixture
def fork() -> Iterator[Callable[[], int]]:
    """Forks children that wait for a signal; all of them are ended and waited for."""
    made: list[int] = []

    def forked() -> int:
        if not (child := os.fork()):
            try:
                signal.pause()
            finally:
                os._exit(1)
        made.append(child)
        return child

    yield forked
    for child in made:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def send(child: int, number: signal.Signals) -> None:
    """Send a signal to a child, and wait until it has stopped or continued; nobody else is told less."""
    os.kill(child, number)
    event = os.WCONTINUED if number == signal.SIGCONT else os.WSTOPPED
    assert os.waitid(os.P_PID, child, event | os.WNOWAIT) is not None


def end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_there(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def test_a_child_that_is_stopped_for_too_long_is_killed_and_no_other(clock, fork, capfd):
    stopped_one, running_one = fork(), fork()
    children = StoppedChildren()
    send(stopped_one, signal.SIGSTOP)
    assert not children.kill_overdue()
    clock.secs += SECS
    assert not children.kill_overdue()
    clock.secs += 1
    assert children.kill_overdue()
    assert end_of(stopped_one) == -signal.SIGKILL
    assert is_there(running_one)
    assert capfd.readouterr().err == f"acktree: process {stopped_one} was stopped for 30 s: it is killed\n"
    assert not children.kill_overdue()


def test_one_that_continues_in_time_goes_on_and_its_next_stop_counts_anew(clock, fork):
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    children.kill_overdue()
    clock.secs += SECS - 1
    send(child, signal.SIGCONT)
    children.kill_overdue()
    clock.secs += SECS
    send(child, signal.SIGSTOP)
    assert not children.kill_overdue()
    clock.secs += SECS
    assert not children.kill_overdue()
    assert is_there(child)
    clock.secs += 1
    assert children.kill_overdue()


def test_a_stop_between_two_looks_that_is_over_is_none(clock, fork):
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    send(child, signal.SIGCONT)
    children.kill_overdue()
    clock.secs += 2 * SECS
    assert not children.kill_overdue()
    assert is_there(child)


def test_one_that_was_stopped_and_has_ended_is_nobodys_any_more(clock, fork):
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    children.kill_overdue()
    os.kill(child, signal.SIGKILL)
    assert end_of(child) == -signal.SIGKILL
    clock.secs += 2 * SECS
    assert not children.kill_overdue()


def test_who_watches_one_child_leaves_the_others_alone(clock, fork):
    mine, users = fork(), fork()
    children = StoppedChildren(mine)
    for child in (mine, users):
        send(child, signal.SIGSTOP)
    children.kill_overdue()
    clock.secs += 2 * SECS
    assert children.kill_overdue()
    assert end_of(mine) == -signal.SIGKILL
    assert is_there(users)


def test_a_process_without_children_has_none_that_are_stopped():
    if not (child := os.fork()):
        try:
            StoppedChildren().kill_overdue()
            os._exit(0)
        finally:
            os._exit(1)
    assert end_of(child) == 0


def test_a_number_that_another_process_has_now_is_not_killed(clock, fork, monkeypatch):
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    monkeypatch.setattr(stopped, "state_and_start", lambda pid: (STOPPED, "1"))
    children.kill_overdue()
    monkeypatch.setattr(stopped, "state_and_start", lambda pid: (STOPPED, "2"))
    clock.secs += 2 * SECS
    assert not children.kill_overdue()
    assert is_there(child)


def test_a_process_has_one_start_whatever_its_state_and_none_when_it_has_ended(fork):
    child = fork()
    running, started = state_and_start(child)
    assert running != STOPPED
    assert started.isdigit()
    send(child, signal.SIGSTOP)
    assert state_and_start(child) == (STOPPED, started)
    os.kill(child, signal.SIGKILL)
    end_of(child)
    assert state_and_start(child) == ("", "")


@contextmanager
def held(child: int) -> Iterator[None]:
    """Hold a stopped process as a debugger does, which lets it go at the end and leaves it stopped."""
    answers, telling = os.pipe()
    if not (debugger := os.fork()):
        try:
            os.write(telling, bytes([ctypes.CDLL(None).ptrace(PTRACE_SEIZE, child, None, None) == 0]))
            signal.pause()
        finally:
            os._exit(1)
    os.close(telling)
    try:
        may_trace = os.read(answers, 1) == b"\1"
        if not may_trace:
            pytest.skip("this process may trace no other")
        await_state(child, TRACED)
        yield
    finally:
        os.close(answers)
        os.kill(debugger, signal.SIGKILL)
        os.waitpid(debugger, 0)
    await_state(child, STOPPED)


def await_state(child: int, state: str) -> None:
    until = time.monotonic() + 60
    while state_of(child) != state:
        assert time.monotonic() < until
        time.sleep(0.01)


def state_of(child: int) -> str:
    return Path("/proc", str(child), "stat").read_text().rpartition(") ")[2][0]


@pytest.mark.skipif(sys.platform != "linux", reason="needs ptrace and /proc")
@pytest.mark.parametrize("comes", ["before the stop is seen", "after the stop is seen"])
def test_one_that_a_debugger_holds_is_killed_only_when_that_has_gone_and_left_it_stopped(clock, fork, comes):
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    if comes == "after the stop is seen":
        children.kill_overdue()
    with held(child):
        for _ in range(3):
            assert not children.kill_overdue()
            clock.secs += SECS + 1
        assert not children.kill_overdue()
        assert is_there(child)
    clock.secs += SECS + 1
    assert children.kill_overdue()
    assert end_of(child) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="needs ptrace and /proc")
def test_one_that_continues_when_the_debugger_has_gone_goes_on(clock, fork):
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    children.kill_overdue()
    with held(child):
        clock.secs += SECS + 1
        assert not children.kill_overdue()
    send(child, signal.SIGCONT)
    clock.secs += SECS + 1
    assert not children.kill_overdue()
    assert is_there(child)


def test_the_exit_of_a_child_is_left_to_who_waits_for_it(clock, fork):
    child, children = fork(), StoppedChildren()
    os.kill(child, signal.SIGTERM)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not children.kill_overdue()
    assert end_of(child) == -signal.SIGTERM


def test_where_the_system_does_not_tell_nothing_is_done(fork, monkeypatch):
    """macOS, before Python 3.13."""
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    without = {name: value for name, value in vars(os).items() if name != "waitid"}
    monkeypatch.setattr(stopped, "os", SimpleNamespace(**without))
    assert not children.kill_overdue()


def test_the_time_is_real(fork, monkeypatch):
    monkeypatch.setattr(stopped, "STOPPED_SECS", 0.2)
    child, children = fork(), StoppedChildren()
    send(child, signal.SIGSTOP)
    until = time.monotonic() + 60
    while not children.kill_overdue():
        assert time.monotonic() < until
        time.sleep(0.02)
    assert end_of(child) == -signal.SIGKILL
