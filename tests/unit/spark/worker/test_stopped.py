"""A child process that a signal has stopped is killed after a while, unless it continues."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from acktree.spark.worker import stopped
from acktree.spark.worker.stopped import StoppedChildren
from acktree.system.processes import stopped_since

SECS = 30.0


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
    monkeypatch.setattr(stopped, "stopped_since", lambda pid: "1")
    children.kill_overdue()
    monkeypatch.setattr(stopped, "stopped_since", lambda pid: "2")
    clock.secs += 2 * SECS
    assert not children.kill_overdue()
    assert is_there(child)


def test_a_process_that_runs_or_has_ended_is_not_stopped(fork):
    child = fork()
    assert stopped_since(child) == ""
    send(child, signal.SIGSTOP)
    assert stopped_since(child).isdigit()
    os.kill(child, signal.SIGKILL)
    end_of(child)
    assert stopped_since(child) == ""


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
