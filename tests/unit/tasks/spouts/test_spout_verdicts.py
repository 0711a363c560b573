"""A spout task delivers one verdict for each message, from ``open`` to ``close``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, EndOfStream
from acktree.tasks.failures import failure_of
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.drawn import drawn
from tests.unit.tasks.spouts.spout_harness import BROKEN, LATE, Harness, Source, emits, raises


def test_every_message_gets_its_verdict_once_between_two_calls_of_next_tuple():
    harness = Harness(Source(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    assert harness.run() == [[("x",), ("y",), ("z",)]]
    harness.verdict(acked=[0, 1])
    harness.verdict(acked=[0, 1, 2], failed=[1])
    harness.verdict(failed=[2])
    assert harness.spout.delivered() == [("ack", "a"), ("ack", "b"), ("ack", "c")]


@settings(max_examples=drawn(50))
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["ack", "fail", "late"])), max_size=8),
        max_size=8,
    )
)
def test_whatever_verdicts_come_however_often_each_message_gets_one(verdict_batches):
    harness = Harness(Source(emits(*((n, n) for n in range(10)))))
    harness.run()
    for verdict_batch in verdict_batches:
        acked = [n for n, verdict in verdict_batch if verdict == "ack"]
        failures = [
            (np.array([n]), BROKEN if how == "fail" else LATE) for n, how in verdict_batch if how != "ack"
        ]
        harness.task.dispatch(VerdictBatch(np.array(acked, dtype=np.int64), failures))
        harness.run()
    delivered = [call[1] for call in harness.spout.delivered()]
    assert sorted(delivered) == sorted(
        {n for verdict_batch in verdict_batches for n, _ in verdict_batch if n < 10}
    )
    assert harness.task.open_count == 10 - len(delivered)
    assert harness.inbox.released == ([0] if len(delivered) == 10 else [])


def test_without_a_policy_each_failure_is_delivered_with_final_false_and_nothing_is_recorded():
    harness = Harness(Source(emits(("x", "a"), ("y", "b"))))
    harness.run()
    harness.verdict(failed=[0])
    harness.verdict(failed=[1], failure=LATE)
    assert harness.spout.delivered() == [
        ("fail", "a", "ValueError: broken", 1, False),
        ("fail", "b", "late", 1, False),
    ]
    assert harness.letters == []
    assert harness.inbox.released == [0]


def test_a_callback_that_raises_is_reported_and_the_others_are_called():
    class Touchy(Source):
        def ack(self, message_id):
            super().ack(message_id)
            if message_id == "a":
                raise RuntimeError("do not touch")

    harness = Harness(Touchy(emits(("x", "a"), ("y", "b"))))
    harness.run()
    harness.verdict(acked=[0, 1])
    assert harness.spout.delivered() == [("ack", "a"), ("ack", "b")]
    ((component, task, failure),) = harness.reports
    assert (component, task, failure.reason) == ("source", harness.number, "RuntimeError: do not touch")
    assert harness.task.counters.total("errors", component="source") == 1


@pytest.mark.parametrize("hook", ["activate", "deactivate", "close"])
def test_any_other_hook_that_raises_is_reported(hook):
    class Touchy(Source):
        pass

    setattr(Touchy, hook, lambda self: (_ for _ in ()).throw(RuntimeError(hook)))
    harness = Harness(Touchy())
    harness.task.deactivate()
    harness.task.close()
    assert [failure.reason for _, _, failure in harness.reports] == [f"RuntimeError: {hook}"]


def test_a_spout_lives_from_open_to_close_and_asks_for_nothing_twice():
    harness = Harness(Source())
    harness.task.activate()
    harness.task.deactivate()
    harness.task.deactivate()
    harness.task.activate()
    harness.task.close()
    assert harness.spout.calls == [("open",), ("activate",), ("deactivate",), ("activate",), ("close",)]


def test_a_deactivated_spout_takes_its_verdicts_and_is_not_asked():
    harness = Harness(Source(emits(("x", "a")), emits(("y", "b"))))
    harness.run()
    harness.task.deactivate()
    assert harness.verdict(acked=[0]) == []
    assert harness.spout.delivered() == [("ack", "a")]


# ---- no ackers ------------------------------------------------------------------------------------------


def test_without_ackers_all_ids_are_acked_after_next_tuple_returned_by_stream():
    def emit(spout):
        spout.collector.emit(["x"], message_id="a")
        spout.collector.emit([1], message_id="b", stream="typed")
        spout.collector.emit(["y"])

    harness = Harness(Source(emit), config=Config(acker_executors=0))
    harness.task.step(0)
    assert harness.spout.delivered() == [
        ("ack", "a"),
        ("ack", "b"),
    ]  # note() would refuse it inside next_tuple
    assert harness.task.open_count == 0
    counters = harness.task.counters
    assert [counters.total("acked", stream=stream) for stream in (None, "default", "typed")] == [2, 1, 1]
    harness.run()
    assert not any(harness.chunk(number).is_tracked for number in range(len(harness.inbox.chunks)))
    assert sorted(harness.inbox.released) == sorted(harness.inbox.chunks)


def test_without_ackers_what_ack_emits_is_acked_too_also_after_the_end():
    class Chain(Source):
        def ack(self, message_id):
            super().ack(message_id)
            if message_id < 3:
                self.collector.emit(["more"], message_id=message_id + 1)

    harness = Harness(Chain(emits(("x", 1)), raises(EndOfStream())), config=Config(acker_executors=0))
    harness.run(6)
    assert harness.spout.delivered() == [("ack", 1), ("ack", 2), ("ack", 3)]
    assert harness.task.is_idle


def test_messages_that_failed_each_for_its_own_reason_are_told_in_one_call():
    class InBulk(Source):
        def fail_batch(self, failures):
            self.note("fail", [(message_id, failure.reason) for message_id, failure in failures])

    harness = Harness(InBulk(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    harness.run()
    failed = [(np.array([n]), failure_of(ValueError(n), "b0")) for n in range(3)]
    harness.task.dispatch(VerdictBatch(np.zeros(0, dtype=np.int64), failed))
    harness.run()
    reasons = [(message_id, f"ValueError: {n}") for n, message_id in enumerate("abc")]
    assert harness.spout.delivered() == [("fail", reasons)]
