"""A spout that breaks after its stream has ended: its messages are open, and the topology has not ended."""

from __future__ import annotations

from acktree.errors import SpoutError
from tests.unit.driver.test_spout_threads import Scripted, rig

__all__ = ["rig"]


def test_a_spout_that_is_broken_is_at_rest_and_has_not_ended(rig) -> None:  # the fixture
    run = rig(Scripted())
    run.task.has_ended = True
    run.thread._rests = True
    assert run.thread.has_ended
    run.thread.broken = SpoutError("what", "where", "fix")
    assert run.thread.is_at_rest
    assert not run.thread.has_ended
