"""When a spout is asked for more: while there is room, and never longer than somebody waits for it."""

from __future__ import annotations

from time import monotonic

import numpy as np
import pytest

from acktree import Config, EndOfStream, Retry
from acktree.errors import SpoutError
from acktree.tasks.mail import Mail
from tests.unit.tasks.spout_desk import BROKEN, Desk, Source, emits, raises


def test_a_next_tuple_that_raises_is_reported_and_called_again_and_what_it_emitted_stands():
    def both(spout):
        emits(("x", "a"))(spout)
        raise ValueError("in between")

    desk = Desk(Source(both, raises(KeyError("k")), emits(("y", "b"))))
    assert desk.task.step(0) is True
    assert desk.task.step(0) is False  # nothing moved: time for the wait strategy
    assert desk.run() == [[("x",), ("y",)]]
    assert [failure.reason for _, _, failure in desk.reports] == ["ValueError: in between", "KeyError: 'k'"]


def test_a_spout_that_asks_for_a_pause_is_not_asked_before_it_is_over():
    rest = SpoutError("away", "the queue", "wait", pause_secs=2)
    desk = Desk(Source(raises(rest), emits(("x", "a"))))
    assert desk.run() == []
    assert desk.task.due_ms() == 2_000
    assert not desk.task.may_emit()
    desk.now_ms = 1_999
    assert desk.run() == []
    desk.now_ms = 2_000
    assert desk.run() == [[("x",)]]
    assert desk.task.due_ms() is None
    assert len(desk.reports) == 1


def test_a_clock_that_is_set_back_does_not_make_a_pause_longer():
    desk = Desk(Source(raises(SpoutError("a", "b", "c", pause_secs=2)), emits(("x", "a"))))
    desk.now_ms = 1_000_000
    assert desk.run() == []
    desk.now_ms = 0
    assert desk.run(2) == [[("x",)]]


def test_a_spout_that_cannot_go_on_stops_with_its_error():
    stop = SpoutError("broken", "the queue", "mend it", can_go_on=False)
    desk = Desk(Source(raises(stop)))
    with pytest.raises(SpoutError) as caught:
        desk.run()
    assert caught.value is stop


def test_after_end_of_stream_nothing_is_asked_and_verdicts_are_told():
    desk = Desk(Source(emits(("x", "a")), raises(EndOfStream()), emits(("never", "n"))))
    desk.run(4)
    assert desk.task.has_ended
    assert not desk.task.is_idle
    desk.verdict(acked=[0])
    assert desk.spout.told() == [("ack", "a")]
    assert desk.task.is_idle
    assert len(desk.spout.plan) == 1


def test_what_is_emitted_from_fail_after_the_end_is_a_new_message():
    class EmitsAgain(Source):
        def fail(self, message_id, failure):
            super().fail(message_id, failure)
            self.collector.emit(["again"], message_id=message_id + "'")

    desk = Desk(EmitsAgain(emits(("x", "a")), raises(EndOfStream())))
    desk.run(2)
    assert desk.verdict(failed=[0]) == [[("again",)]]
    assert not desk.task.is_idle
    desk.verdict(acked=[1])
    assert [call[:2] for call in desk.spout.told()] == [("fail", "a"), ("ack", "a'")]
    assert desk.task.is_idle


def test_emit_never_blocks_room_is_asked_for_before_next_tuple():
    desk = Desk(Source(emits(*((n, n) for n in range(1000))), emits(("more", "m"))))
    desk.inbox.has_room = False
    assert desk.run() == []
    desk.inbox.has_room = True
    desk.task.step(0)
    desk.inbox.has_room = False  # full while it emits: what it emitted is there all the same
    assert desk.task.buffered_count == 1000
    desk.task.step(0)
    assert not desk.task.may_emit()
    assert len(desk.run()[0]) == 1000


def test_what_is_not_handed_over_yet_takes_room_too():
    desk = Desk(Source(*(emits((n, n)) for n in range(10))))
    desk.inbox.most = 3
    for _ in range(5):
        desk.task.step(0)
    assert desk.task.buffered_count == 3
    desk.task.flush(0)
    desk.task.step(0)
    assert desk.task.buffered_count == 1
    desk.task.step(
        0, enough=100, until=monotonic() + 60
    )  # nor does one that is asked again and again pass it
    assert desk.task.buffered_count == 3


def one_each(count):
    """At each of so many calls of ``next_tuple`` one message."""
    return [emits((n, n)) for n in range(count)]


FAR = float("inf")


@pytest.mark.parametrize(("enough", "asked"), [(1, 1), (3, 3), (100, 5)])
def test_a_step_asks_again_while_the_spout_emits_until_there_is_enough(enough, asked):
    desk = Desk(Source(*one_each(5)))
    assert desk.task.step(0, enough=enough, until=FAR) is True
    assert desk.task.buffered_count == 5 - len(desk.spout.plan) == asked


def test_a_step_asks_once_if_not_told_otherwise_and_when_the_time_is_up():
    desk = Desk(Source(*one_each(5)))
    desk.task.step(0)
    desk.task.step(0, enough=100)
    desk.task.step(0, enough=100, until=monotonic() - 1)
    assert desk.task.buffered_count == 3


@pytest.mark.parametrize("stop", [lambda spout: None, raises(ValueError("x")), raises(EndOfStream())])
def test_a_step_that_may_ask_again_does_not_after_silence_a_raise_or_the_end(stop):
    desk = Desk(Source(emits(("x", "a")), stop, emits(("y", "b"))))
    assert desk.task.step(0, enough=100, until=FAR) is True
    assert (desk.task.buffered_count, len(desk.spout.plan)) == (1, 1)


def test_verdicts_that_come_while_a_spout_is_asked_do_not_wait_for_enough():
    def mail_comes(spout):
        emits(("y", "b"))(spout)
        desk.task.deliver(Mail(np.array([0])))

    desk = Desk(Source(emits(("x", "a")), mail_comes, emits(("z", "c"))))
    desk.run()
    desk.task.step(0, enough=100, until=FAR)
    assert (desk.spout.told(), desk.task.buffered_count) == ([], 1)
    desk.task.step(0, enough=100, until=FAR)
    assert desk.spout.told() == [("ack", "a")]
    assert desk.task.buffered_count == 2


@pytest.mark.parametrize(("limit", "asked"), [(1, 1), (4, 4), (None, 6), (0, 6)])
def test_a_step_that_asks_again_keeps_to_the_limit_as_one_that_does_not(limit, asked):
    desk = Desk(Source(*one_each(6)), config=Config(max_spout_pending=limit))
    desk.task.step(0, enough=2, until=FAR)
    desk.task.flush(0)  # open is what was handed over as well as what was not
    desk.task.step(0, enough=100, until=FAR)
    assert 6 - len(desk.spout.plan) == asked


def test_a_message_that_waits_for_its_retry_is_open_to_a_step_that_asks_again():
    desk = Desk(
        Source(*one_each(6)), retry=Retry(3, backoff_secs=(1000, 1000)), config=Config(max_spout_pending=3)
    )
    desk.run()
    desk.may_be_told = {0}
    desk.task.deliver(Mail(failed=[(np.array([0]), BROKEN)]))
    desk.task.step(0, enough=100, until=FAR)
    assert desk.task.open_count == 3


def test_without_ackers_a_step_that_asks_again_tells_all_that_it_emitted():
    desk = Desk(Source(*one_each(3)), config=Config(acker_executors=0))
    desk.task.step(0, enough=100, until=FAR)
    assert desk.spout.told() == [("ack", 0), ("ack", 1), ("ack", 2)]


@pytest.mark.parametrize(("limit", "asked"), [(1, 1), (2, 2), (3, 3), (None, 5), (0, 5)])
def test_next_tuple_is_called_while_fewer_than_the_limit_are_open(limit, asked):
    desk = Desk(Source(*(emits((n, n)) for n in range(5))), config=Config(max_spout_pending=limit))
    for _ in range(8):  # what is not handed over yet is open, too
        desk.task.step(0)
    assert 5 - len(desk.spout.plan) == asked
    desk.run(8)
    assert 5 - len(desk.spout.plan) == asked
    desk.verdict(acked=[0])
    assert 5 - len(desk.spout.plan) == min(5, asked + 1)


def test_a_message_that_waits_for_its_retry_is_open():
    config = Config(max_spout_pending=1)
    desk = Desk(
        Source(emits(("x", "a")), emits(("y", "b"))), Retry(max_attempts=2, backoff_secs=(9, 9)), config
    )
    desk.run()
    desk.verdict(failed=[0])
    assert desk.task.open_count == 1
    assert desk.spout.collector.pending_count == 1
    assert not desk.task.may_emit()
    assert desk.task.oldest_ms() == 0
    assert not desk.task.is_idle
