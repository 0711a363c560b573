"""Orders to kill a running topology: a further one sets a new wait, as in Storm."""

from __future__ import annotations

import threading
import time

import pytest

from acktree.cli.main import main
from acktree.ui.client import find


@pytest.fixture
def busy(running):
    """A topology with open messages whose verdicts never come."""
    running.fill()
    return running


def test_a_second_order_with_a_longer_wait_counts(busy):
    door = find("numbers").door
    assert door.order("kill", {"wait_secs": 1}) == {"done": True, "wait_secs": 1.0}
    assert door.order("kill", {"wait_secs": 600}) == {"done": True, "wait_secs": 600.0}
    assert not busy.run.ended.wait(2.5)
    assert door.snapshot(0).status == "KILLED"


def test_a_second_order_with_a_shorter_wait_counts(busy):
    door = find("numbers").door
    door.order("kill", {"wait_secs": 600})
    assert not busy.run.ended.wait(0.3)
    door.order("kill", {"wait_secs": 0.2})
    assert busy.run.ended.wait(120)


def test_an_order_without_a_wait_sets_the_usual_one(busy):
    door = find("numbers").door
    door.order("kill", {"wait_secs": 1})
    assert door.order("kill")["wait_secs"] == busy.handle.message_timeout_secs
    assert not busy.run.ended.wait(2)


def test_an_order_ends_the_wait_of_the_program_s_own_kill(busy):
    waiting = threading.Thread(target=busy.handle.kill, args=(600,), daemon=True)
    waiting.start()
    while not busy.run.kill.is_given:
        time.sleep(0.005)
    find("numbers").door.order("kill", {"wait_secs": 0})
    waiting.join(120)
    assert not waiting.is_alive()


def test_the_command_line_sets_a_new_wait(busy, capsys):
    assert main(["kill", "numbers", "-w", "600", "--timeout", "0.1"]) == 4
    assert main(["kill", "numbers", "-w", "0"]) == 0
    assert "is stopped; open: 10" in capsys.readouterr().out


def test_orders_leave_no_threads_behind(busy):
    door = find("numbers").door
    door.order("kill", {"wait_secs": 600})
    before = names_of_threads()
    for _ in range(20):
        door.order("kill", {"wait_secs": 600})
    deadline = time.monotonic() + 120  # those that answered the orders end by themselves
    while len(names_of_threads()) > len(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(names_of_threads()) <= len(before), names_of_threads()
    assert busy.handle.is_running


def names_of_threads():
    return sorted(each.name for each in threading.enumerate())


def test_while_it_stops_the_answer_says_that_there_is_no_wait(busy, monkeypatch):
    stops, go_on = threading.Event(), threading.Event()
    stop_query = busy.supervisor._stop_query

    def slow():
        stops.set()
        assert go_on.wait(120)
        stop_query()

    monkeypatch.setattr(busy.supervisor, "_stop_query", slow)
    door = find("numbers").door
    door.order("kill", {"wait_secs": 0})
    assert stops.wait(120)
    assert door.order("kill", {"wait_secs": 600}) == {"done": True, "wait_secs": 0.0}
    go_on.set()
    assert busy.run.ended.wait(120)
