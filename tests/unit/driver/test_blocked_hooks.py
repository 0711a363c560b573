"""A hook of a spout that does not return is told, as a ``next_tuple`` is."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from acktree.driver.spouts import spout_threads as spouts
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.unit.driver.test_spout_threads import Scripted, rig, until
from tests.unit.tasks.spouts.spout_harness import BROKEN

__all__ = ["rig"]


@pytest.mark.parametrize("hook", ["open", "activate", "ack", "fail", "keep_alive", "lag"])
def test_a_hook_that_does_not_return_is_known_by_its_name_while_it_blocks(rig, monkeypatch, hook) -> None:
    monkeypatch.setattr(spouts, "BLOCKED_HOOK_SECS", 0.05)
    go_on = threading.Event()

    class Blocks(Scripted):
        keep_alive_secs = 0.001

        def __deepcopy__(self, memo):
            return self

        def fail(self, message_id, failure):
            """Forgets it."""

        def keep_alive(self, open_messages):
            """Does nothing."""

    spout = Blocks(2)
    before = getattr(spout, hook)

    def blocked(*arguments: object) -> object:
        go_on.wait(120)
        return before(*arguments)

    blocked.__name__ = hook
    setattr(spout, hook, blocked)
    run = rig(spout)
    run.thread.start()
    try:
        if hook in {"ack", "fail"}:
            until(lambda: run.task.open_count == 2)
            failed = [(np.arange(2), BROKEN)] if hook == "fail" else []
            run.thread.dispatch(VerdictBatch(np.arange(0 if failed else 2), failed), 0)
        until(lambda: (run.thread.blocked_call or [""])[0] == hook)  # another one may be slow, too
        assert run.thread.blocked.reason.startswith(f"{hook} of task 1 has not returned")
    finally:
        go_on.set()
    until(lambda: run.thread.blocked_call is None)
