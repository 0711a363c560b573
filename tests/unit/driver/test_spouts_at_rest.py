"""When a spout task is at rest: nothing of it is open, and it was asked whether it has more."""

from __future__ import annotations

from acktree import Config
from acktree.errors import SpoutError
from tests.unit.driver.test_spout_threads import Scripted, rig, until

__all__ = ["rig"]


def test_a_spout_that_is_broken_is_at_rest_and_has_not_ended(rig) -> None:  # the fixture
    run = rig(Scripted())
    run.task.has_ended = True
    run.thread._rests_in = 1
    assert run.thread.has_ended
    run.thread.broken = SpoutError("what", "where", "fix")
    assert run.thread.is_at_rest
    assert not run.thread.has_ended


def test_a_spout_that_has_a_message_since_it_was_asked_rests_when_that_has_its_verdict(rig) -> None:
    hour = 3_600_000_000
    spout = Scripted()
    run = rig(spout, Config(spout_wait_strategy="park", spout_wait_park_microsec=hour))
    run.thread.start()
    until(lambda: run.thread.is_at_rest)
    run.task.spout.count = 1
    assert run.thread.is_at_rest, "as it was when the spout was asked"
    began = run.thread.ask_again()
    assert not run.thread.rests_since(began)
    until(lambda: run.task.open_count == 1)
    assert not run.thread.rests_since(began)
    run.thread.dispatch(run.acked(0), 0)
    until(lambda: run.thread.rests_since(began))
    assert run.task.open_count == 0
