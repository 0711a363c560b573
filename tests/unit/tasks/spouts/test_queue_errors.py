"""Errors of connectors: what may pass is tried again, what cannot ends the topology."""

from __future__ import annotations

import numpy as np
import pytest

from acktree.errors import ConnectorError, SpoutError
from acktree.tasks.spouts.upkeep import LONGEST_PAUSE_MS
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.unit.tasks.spouts.queue_source import GONE, REFUSED, Beating, tries
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits, raises


def test_an_error_that_may_pass_is_reported_once_and_tried_again_with_doubling_pauses():
    harness = Harness(Source(*[raises(GONE)] * 12, emits(("x", "a")), raises(GONE)))
    moments = tries(harness, 150)
    pauses = np.diff(moments[:12]).tolist()
    assert pauses == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, LONGEST_PAUSE_MS, LONGEST_PAUSE_MS]
    assert len(harness.reports) == 2  # one outage, one report
    assert "see whether the server runs" in harness.reports[0][2].reason


@pytest.mark.parametrize("hook", ["next_tuple", "ack", "fail", "activate", "deactivate", "keep_alive"])
def test_an_error_that_cannot_pass_leaves_any_hook(hook):
    spout = Beating(emits(("x", "a"), ("y", "b")))
    harness = Harness(spout)
    harness.run()

    def refuse(*_):
        raise REFUSED

    setattr(spout, hook, refuse)
    with pytest.raises(ConnectorError, match="access refused"):  # noqa: PT012  # whichever hook it is
        harness.now_ms = 4000
        harness.task.dispatch(VerdictBatch(np.array([0]), [(np.array([1]), BROKEN)]))
        harness.task.step(harness.now_ms)
        harness.task.deactivate()
        harness.task.activate()


def test_a_close_that_cannot_be_is_reported_and_stops_nothing():
    harness = Harness(Source())

    def refuse():
        raise REFUSED

    harness.spout.close = refuse
    harness.task.close()
    assert len(harness.reports) == 1


def test_verdicts_that_could_not_be_delivered_are_delivered_later_in_their_order():
    class Away(Source):
        is_away = True

        def ack(self, message_id):
            if self.is_away and message_id == "b":
                raise GONE
            super().ack(message_id)

    spout = Away(emits(("x", "a"), ("y", "b"), ("z", "c"), ("w", "d")))
    harness = Harness(spout)
    harness.run()
    harness.verdict(acked=[0, 1, 2])
    harness.verdict(failed=[3])
    assert spout.delivered() == [("ack", "a")]
    assert not harness.task.is_idle
    assert not harness.task.is_durable
    assert not harness.task.may_emit()
    harness.now_ms = 99
    harness.run()
    assert spout.delivered() == [("ack", "a")]
    assert harness.task.upkeep_due_ms() == 100
    harness.now_ms, spout.is_away = 100, False
    harness.run()
    assert [call[:2] for call in spout.delivered()] == [
        ("ack", "a"),
        ("ack", "b"),
        ("ack", "c"),
        ("fail", "d"),
    ]
    assert harness.task.is_idle
    assert harness.task.upkeep_due_ms() is None
    assert len(harness.reports) == 1


def test_verdicts_that_wait_for_the_connection_go_when_their_messages_are_lost():
    class Away(Source):
        def ack_batch(self, message_ids):
            self.collector.lost(["a"])
            raise GONE

    harness = Harness(Away(emits(("x", "a"), ("y", "b"))))
    harness.run()
    harness.verdict(acked=[0, 1])
    assert not harness.task.is_idle
    harness.spout.collector.lost()
    assert harness.task.is_idle


def test_an_open_that_may_pass_is_tried_again_and_activated_then():
    class Late(Source):
        left = 3

        def open(self, config, context, collector):
            self.left -= 1
            if self.left:
                raise GONE
            super().open(config, context, collector)

    harness = Harness(Late(emits(("x", "a"))))
    assert harness.spout.calls == []
    assert harness.task.upkeep_due_ms() == 100
    assert tries(harness, 1) == [300]
    assert harness.spout.calls == [("open",), ("activate",)]
    assert len(harness.reports) == 1


def test_a_later_open_that_raises_otherwise_stops_the_topology():
    class Broken(Source):
        error = GONE

        def open(self, config, context, collector):
            raise self.error

    harness = Harness(Broken())
    harness.spout.error = KeyError("host")
    with pytest.raises(SpoutError, match="KeyError"):
        harness.task.step(100)
    harness.spout.error = REFUSED
    with pytest.raises(ConnectorError, match="access refused"):
        harness.task.step(100)
    harness.task.close()
    assert harness.spout.calls == []


def test_an_outage_that_keep_alive_meets_first_is_reported_once():
    class Away(Beating):
        def keep_alive(self, open_messages):
            self.note("keep_alive")
            raise GONE

    harness = Harness(Away(emits(("x", "a")), *[raises(GONE)] * 3, emits(("y", "b"))))
    harness.run()
    harness.spout.plan, plan = [], harness.spout.plan
    harness.now_ms = 4000
    harness.run()
    harness.spout.plan = plan
    tries(harness, 3)
    assert len(harness.reports) == 1
    assert harness.task.open_count == 2


def test_while_saturated_or_deactivated_a_pause_is_nothing_to_wait_for():
    harness = Harness(Source(raises(GONE)))
    harness.run()
    assert harness.task.upkeep_due_ms() == 100
    harness.task.deactivate()
    assert harness.task.upkeep_due_ms() is None
