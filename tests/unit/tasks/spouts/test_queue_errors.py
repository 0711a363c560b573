"""Errors of connectors: what may pass is tried again, what cannot ends the topology."""

from __future__ import annotations

import math
from contextvars import copy_context

import numpy as np
import pyarrow as pa
import pytest

from acktree import Config
from acktree.errors import ConfigError, ConnectorError, MisuseError, SpoutError, Unavailable
from acktree.tasks.failures import failure_of
from acktree.tasks.spouts.dependencies import configuration_error
from acktree.tasks.spouts.upkeep import LONGEST_PAUSE_MS, outage_of
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


def test_what_a_call_that_is_made_again_loses_gets_no_verdict_later_either():
    class Reconnects(Source):
        tries = 0

        def ack(self, message_id):
            self.tries += 1
            if self.tries == 2:
                self.collector.lost()
            if self.tries <= 2:
                raise GONE
            super().ack(message_id)

    harness = Harness(Reconnects(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    harness.run()
    harness.verdict(acked=[0])
    harness.verdict(acked=[2], failed=[1])  # these wait behind the first
    harness.now_ms = 100
    harness.run()
    harness.now_ms = 60_000
    harness.run()
    assert harness.spout.delivered() == []
    assert harness.task.is_idle


IDS = [
    ["a", "b", "c", "d"],
    [1_000, 1_001, 1_002, 1_003],
    np.arange(1_000, 1_004),
    [[0], [1], [2], [3]],
    [("q", 10_000), ("q", 10_001), ("r", 10_000), ("r", [1])],
    ["a", "a", "b", "b"],
]


@pytest.mark.parametrize("message_ids", IDS, ids=["texts", "numbers", "array", "lists", "pairs", "twice"])
def test_a_spout_that_calls_the_ack_batch_of_its_base_class_gets_each_ack_once(message_ids):
    class Calls(Source):
        is_away = True

        def ack_batch(self, message_ids):
            super().ack_batch(message_ids)

        def ack(self, message_id):
            if self.is_away and len(self.delivered()) == 2:
                raise GONE
            super().ack(message_id)

    def emit(spout):
        spout.collector.emit_batch(pa.record_batch({"value": [b"x"] * 4}), message_ids=message_ids)

    harness = Harness(Calls(emit))
    harness.run()
    harness.verdict(acked=[0, 1, 2, 3])
    assert len(harness.spout.delivered()) == 2
    harness.now_ms, harness.spout.is_away = 100, False
    harness.run()
    assert [each for _, each in harness.spout.delivered()] == list(message_ids)
    assert harness.task.is_idle


def test_equal_ids_come_as_often_as_they_are_acked_however_a_spout_divides_them():
    class Divides(Source):
        def ack_batch(self, message_ids):
            for message_id in message_ids:
                super().ack_batch([message_id])

    harness = Harness(Divides(emits(("x", 7), ("y", 7), ("z", 8))))
    harness.run()
    harness.verdict(acked=[0, 1, 2])
    assert harness.spout.delivered() == [("ack", 7), ("ack", 7), ("ack", 8)]


def test_a_spout_over_other_spouts_hands_on_all_verdicts():
    inner = [Source(), Source()]

    class Both(Source):
        def ack_batch(self, message_ids):
            for each in inner:
                each.ack_batch([number for queue, number in message_ids if each is inner[queue]])
            super().ack_batch(message_ids)

        def fail_batch(self, failures):
            inner[0].fail_batch([(number, why) for (_, number), why in failures])

    harness = Harness(Both(emits(("x", (0, 1)), ("y", (1, 1)), ("z", (0, 2)))))
    harness.run()
    harness.verdict(acked=[0, 1], failed=[2])
    assert harness.spout.delivered() == [("ack", (0, 1)), ("ack", (1, 1))]
    assert [call[:2] for call in inner[0].delivered()] == [("ack", 1), ("fail", 2)]
    assert inner[1].delivered() == [("ack", 1)]


@pytest.mark.parametrize("error", [GONE, REFUSED])
def test_an_error_of_an_inner_spout_is_one_of_its_own(error):
    class Inner(Source):
        error = None

        def ack(self, message_id):
            if self.error is not None:
                raise self.error
            super().ack(message_id)

    inner = Inner()
    inner.error = error

    class Over(Source):
        def ack_batch(self, message_ids):
            inner.ack_batch(message_ids)

    harness = Harness(Over(emits(("x", "a"), ("y", "b"))))
    harness.run()
    if error is REFUSED:
        with pytest.raises(ConnectorError, match="access refused"):
            harness.verdict(acked=[0, 1])
        return
    harness.verdict(acked=[0, 1])
    inner.error, harness.now_ms = None, 100
    harness.run()
    assert inner.delivered() == [("ack", "a"), ("ack", "b")]


def test_a_context_that_user_code_keeps_delivers_later_as_the_class_does():
    class Keeps(Source):
        def ack_batch(self, message_ids):
            self.kept = copy_context()
            super().ack_batch(message_ids)

    harness = Harness(Keeps(emits(("x", "a"))))
    harness.run()
    harness.verdict(acked=[0])
    harness.spout.kept.run(Source.ack_batch, harness.spout, ["a", "b"])
    assert harness.spout.delivered() == [("ack", "a"), ("ack", "a"), ("ack", "b")]


def test_a_spout_that_acks_what_was_given_up_gets_each_of_it_once():
    class Forgets(Source):
        is_away = True

        def fail_batch(self, failures):
            self.ack_batch([message_id for message_id, _ in failures])

        def ack(self, message_id):
            if self.is_away and message_id == "b":
                raise GONE
            super().ack(message_id)

    harness = Harness(Forgets(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    harness.run()
    harness.verdict(failed=[0, 1, 2])
    harness.now_ms, harness.spout.is_away = 100, False
    harness.run()
    assert harness.spout.delivered() == [("ack", "a"), ("ack", "b"), ("ack", "c")]


def test_what_one_ack_of_several_loses_is_not_acked():
    class Loses(Source):
        def ack_batch(self, message_ids):
            super().ack_batch(message_ids)

        def ack(self, message_id):
            self.collector.lost(["b"])
            super().ack(message_id)

    harness = Harness(Loses(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    harness.run()
    harness.verdict(acked=[0, 1, 2])
    assert harness.spout.delivered() == [("ack", "a"), ("ack", "c")]


def test_what_keep_alive_loses_and_comes_again_with_its_id_has_its_verdict():
    class Loses(Beating):
        def keep_alive(self, open_messages):
            self.collector.lost()

    harness = Harness(Loses(emits(("x", "a"))))
    harness.run()
    harness.now_ms = 4000
    harness.run()
    assert harness.task.is_idle
    harness.spout.plan = [emits(("x", "a"))]
    harness.run()
    harness.verdict(acked=[1])
    assert harness.spout.delivered() == [("ack", "a")]


def test_a_fail_that_loses_all_others_of_its_chunk_stops_nothing():
    class Loses(Source):
        def fail(self, message_id, failure):
            super().fail(message_id, failure)
            self.collector.lost()

    harness = Harness(Loses(emits(("x", "a"), ("y", "b"))))
    harness.run()
    harness.verdict(failed=[0], failure=failure_of(Unavailable("rates"), "b0"))  # it waits
    harness.verdict(failed=[1])
    assert [call[:2] for call in harness.spout.delivered()] == [("fail", "b")]
    assert harness.task.is_idle
    assert harness.inbox.released == [0]


@pytest.mark.parametrize("is_deactivated", [True, False])
def test_an_outage_of_keep_alive_ends_with_keep_alive_and_the_next_one_is_told(is_deactivated):
    class Away(Beating):
        is_away = True

        def keep_alive(self, open_messages):
            super().keep_alive(open_messages)
            if self.is_away:
                raise GONE

    harness = Harness(Away(emits(("x", "a"))), config=Config(max_spout_pending=1))
    if is_deactivated:
        harness.task.deactivate()
    else:
        harness.run()  # it is saturated
    for is_away, outages in ((True, 1), (False, 1), (True, 2)):
        harness.spout.is_away = is_away
        harness.now_ms += 4000
        harness.run()
        assert len(harness.task.outages) == is_away
        assert len(harness.reports) == outages


@pytest.mark.parametrize("secs", [0, -5, math.inf, math.nan, "3", True])
def test_an_interval_that_open_sets_is_looked_at(secs):
    class Sets(Beating):
        def open(self, config, context, collector):
            self.keep_alive_secs = secs

    with pytest.raises(MisuseError, match="keep_alive_secs"):
        Harness(Sets())


@pytest.mark.parametrize("secs", [-1, math.inf, math.nan, "3", None])
def test_a_pause_without_a_length_is_refused(secs):
    with pytest.raises(MisuseError, match="pause_secs"):
        SpoutError("slow down", "api", "wait", pause_secs=secs)


def test_an_error_that_says_only_what_is_wrong_leaves_no_gap_where_it_is_told():
    gone, wrong = ConnectorError("gone", can_retry=True), ConfigError("no right")
    assert outage_of(gone, 0, None).reason == "ConnectorError: gone"
    told = configuration_error(failure_of(wrong, "b0", in_hook=True))
    assert (told.what, told.where, told.fix) == ("no right", "bolt 'b0'", "")
