"""A spout task tells each message its verdict once, and lives from open to close."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, EndOfStream
from acktree.tasks.mail import Mail
from tests.unit.tasks.spout_desk import BROKEN, LATE, Desk, Source, emits, raises


def test_every_message_is_told_its_verdict_once_between_two_calls_of_next_tuple():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    assert desk.run() == [[("x",), ("y",), ("z",)]]
    desk.verdict(acked=[0, 1])
    desk.verdict(acked=[0, 1, 2], failed=[1])
    desk.verdict(failed=[2])
    assert desk.spout.told() == [("ack", "a"), ("ack", "b"), ("ack", "c")]


@settings(max_examples=50)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["ack", "fail", "late"])), max_size=8),
        max_size=8,
    )
)
def test_whatever_verdicts_come_however_often_each_message_is_told_one(mails):
    desk = Desk(Source(emits(*((n, n) for n in range(10)))))
    desk.run()
    for mail in mails:
        acked = [n for n, verdict in mail if verdict == "ack"]
        failures = [(np.array([n]), BROKEN if how == "fail" else LATE) for n, how in mail if how != "ack"]
        desk.task.deliver(Mail(np.array(acked, dtype=np.int64), failures))
        desk.run()
    told = [call[1] for call in desk.spout.told()]
    assert sorted(told) == sorted({n for mail in mails for n, _ in mail if n < 10})
    assert desk.task.open_count == 10 - len(told)
    assert desk.inbox.released == ([0] if len(told) == 10 else [])


def test_without_a_policy_each_failure_is_told_with_final_false_and_nothing_is_buried():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"))))
    desk.run()
    desk.verdict(failed=[0])
    desk.verdict(failed=[1], failure=LATE)
    assert desk.spout.told() == [
        ("fail", "a", "ValueError: broken", 1, False),
        ("fail", "b", "late", 1, False),
    ]
    assert desk.letters == []
    assert desk.inbox.released == [0]


def test_a_callback_that_raises_is_reported_and_the_others_are_told():
    class Touchy(Source):
        def ack(self, message_id):
            super().ack(message_id)
            if message_id == "a":
                raise RuntimeError("do not touch")

    desk = Desk(Touchy(emits(("x", "a"), ("y", "b"))))
    desk.run()
    desk.verdict(acked=[0, 1])
    assert desk.spout.told() == [("ack", "a"), ("ack", "b")]
    ((component, task, failure),) = desk.reports
    assert (component, task, failure.reason) == ("source", desk.number, "RuntimeError: do not touch")
    assert desk.task.counters.total("errors", component="source") == 1


@pytest.mark.parametrize("hook", ["activate", "deactivate", "close"])
def test_any_other_hook_that_raises_is_reported(hook):
    class Touchy(Source):
        pass

    setattr(Touchy, hook, lambda self: (_ for _ in ()).throw(RuntimeError(hook)))
    desk = Desk(Touchy())
    desk.task.deactivate()
    desk.task.close()
    assert [failure.reason for _, _, failure in desk.reports] == [f"RuntimeError: {hook}"]


def test_a_spout_lives_from_open_to_close_and_asks_for_nothing_twice():
    desk = Desk(Source())
    desk.task.activate()
    desk.task.deactivate()
    desk.task.deactivate()
    desk.task.activate()
    desk.task.close()
    assert desk.spout.calls == [("open",), ("activate",), ("deactivate",), ("activate",), ("close",)]


def test_a_deactivated_spout_takes_its_mail_and_is_not_asked():
    desk = Desk(Source(emits(("x", "a")), emits(("y", "b"))))
    desk.run()
    desk.task.deactivate()
    assert desk.verdict(acked=[0]) == []
    assert desk.spout.told() == [("ack", "a")]


# ---- no ackers ------------------------------------------------------------------------------------------


def test_without_ackers_all_ids_are_acked_after_next_tuple_returned_by_stream():
    def emit(spout):
        spout.collector.emit(["x"], message_id="a")
        spout.collector.emit([1], message_id="b", stream="typed")
        spout.collector.emit(["y"])

    desk = Desk(Source(emit), config=Config(acker_executors=0))
    desk.task.step(0)
    assert desk.spout.told() == [("ack", "a"), ("ack", "b")]  # note() would refuse it inside next_tuple
    assert desk.task.open_count == 0
    assert desk.task.counters.by_stream("acked", "source") == {"default": 1, "typed": 1}
    desk.run()
    assert not any(desk.chunk(number).is_tracked for number in range(len(desk.inbox.chunks)))
    assert sorted(desk.inbox.released) == sorted(desk.inbox.chunks)


def test_without_ackers_what_ack_emits_is_acked_too_also_after_the_end():
    class Chain(Source):
        def ack(self, message_id):
            super().ack(message_id)
            if message_id < 3:
                self.collector.emit(["more"], message_id=message_id + 1)

    desk = Desk(Chain(emits(("x", 1)), raises(EndOfStream())), config=Config(acker_executors=0))
    desk.run(6)
    assert desk.spout.told() == [("ack", 1), ("ack", 2), ("ack", 3)]
    assert desk.task.is_idle
