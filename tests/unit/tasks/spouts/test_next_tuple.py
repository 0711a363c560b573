"""When a spout is asked for more: while there is room, and never longer than somebody waits for it."""

from __future__ import annotations

from time import monotonic

import numpy as np
import pytest

from acktree import Config, EndOfStream, Retry
from acktree.errors import SpoutError
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits, raises


def test_a_next_tuple_that_raises_is_reported_and_called_again_and_what_it_emitted_stands():
    def both(spout):
        emits(("x", "a"))(spout)
        raise ValueError("in between")

    harness = Harness(Source(both, raises(KeyError("k")), emits(("y", "b"))))
    assert harness.task.step(0) is True
    assert harness.task.step(0) is False  # nothing moved: time for the wait strategy
    assert harness.run() == [[("x",), ("y",)]]
    assert [failure.reason for _, _, failure in harness.reports] == [
        "ValueError: in between",
        "KeyError: 'k'",
    ]


def test_a_spout_that_asks_for_a_pause_is_not_asked_before_it_is_over():
    rest = SpoutError("away", "the queue", "wait", pause_secs=2)
    harness = Harness(Source(raises(rest), emits(("x", "a"))))
    assert harness.run() == []
    assert harness.task.due_ms() == 2_000
    assert not harness.task.may_emit()
    harness.now_ms = 1_999
    assert harness.run() == []
    harness.now_ms = 2_000
    assert harness.run() == [[("x",)]]
    assert harness.task.due_ms() is None
    assert len(harness.reports) == 1


def test_a_clock_that_is_set_back_does_not_make_a_pause_longer():
    harness = Harness(Source(raises(SpoutError("a", "b", "c", pause_secs=2)), emits(("x", "a"))))
    harness.now_ms = 1_000_000
    assert harness.run() == []
    harness.now_ms = 0
    assert harness.run(2) == [[("x",)]]


def test_a_spout_that_cannot_go_on_stops_with_its_error():
    stop = SpoutError("broken", "the queue", "correct it", can_go_on=False)
    harness = Harness(Source(raises(stop)))
    with pytest.raises(SpoutError) as caught:
        harness.run()
    assert caught.value is stop


def test_after_end_of_stream_nothing_is_asked_and_verdicts_are_delivered():
    harness = Harness(Source(emits(("x", "a")), raises(EndOfStream()), emits(("never", "n"))))
    harness.run(4)
    assert harness.task.has_ended
    assert not harness.task.is_idle
    harness.verdict(acked=[0])
    assert harness.spout.delivered() == [("ack", "a")]
    assert harness.task.is_idle
    assert len(harness.spout.plan) == 1


def test_what_is_emitted_from_fail_after_the_end_is_a_new_message():
    class EmitsAgain(Source):
        def fail(self, message_id, failure):
            super().fail(message_id, failure)
            self.collector.emit(["again"], message_id=message_id + "'")

    harness = Harness(EmitsAgain(emits(("x", "a")), raises(EndOfStream())))
    harness.run(2)
    assert harness.verdict(failed=[0]) == [[("again",)]]
    assert not harness.task.is_idle
    harness.verdict(acked=[1])
    assert [call[:2] for call in harness.spout.delivered()] == [("fail", "a"), ("ack", "a'")]
    assert harness.task.is_idle


def test_emit_never_blocks_room_is_asked_for_before_next_tuple():
    harness = Harness(Source(emits(*((n, n) for n in range(1000))), emits(("more", "m"))))
    harness.inbox.has_room = False
    assert harness.run() == []
    harness.inbox.has_room = True
    harness.task.step(0)
    harness.inbox.has_room = False  # full while it emits: what it emitted is there all the same
    assert harness.task.buffered_count == 1000
    harness.task.step(0)
    assert not harness.task.may_emit()
    assert len(harness.run()[0]) == 1000


def test_what_is_not_handed_over_yet_takes_room_too():
    harness = Harness(Source(*(emits((n, n)) for n in range(10))))
    harness.inbox.most = 3
    for _ in range(5):
        harness.task.step(0)
    assert harness.task.buffered_count == 3
    harness.task.flush(0)
    harness.task.step(0)
    assert harness.task.buffered_count == 1
    harness.task.step(
        0, enough=100, until=monotonic() + 60
    )  # nor does one that is asked again and again pass it
    assert harness.task.buffered_count == 3


def one_each(count):
    """One message at each of ``count`` calls of ``next_tuple``."""
    return [emits((n, n)) for n in range(count)]


FAR = float("inf")


@pytest.mark.parametrize(("enough", "asked"), [(1, 1), (3, 3), (100, 5)])
def test_a_step_asks_again_while_the_spout_emits_until_there_is_enough(enough, asked):
    harness = Harness(Source(*one_each(5)))
    assert harness.task.step(0, enough=enough, until=FAR) is True
    assert harness.task.buffered_count == 5 - len(harness.spout.plan) == asked


def test_a_step_asks_once_by_default_and_when_the_time_is_up():
    harness = Harness(Source(*one_each(5)))
    harness.task.step(0)
    harness.task.step(0, enough=100)
    harness.task.step(0, enough=100, until=monotonic() - 1)
    assert harness.task.buffered_count == 3


@pytest.mark.parametrize("stop", [lambda spout: None, raises(ValueError("x")), raises(EndOfStream())])
def test_a_step_that_may_ask_again_does_not_after_silence_a_raise_or_the_end(stop):
    harness = Harness(Source(emits(("x", "a")), stop, emits(("y", "b"))))
    assert harness.task.step(0, enough=100, until=FAR) is True
    assert (harness.task.buffered_count, len(harness.spout.plan)) == (1, 1)


def test_verdicts_that_come_while_a_spout_is_asked_do_not_wait_for_enough():
    def verdicts_come(spout):
        emits(("y", "b"))(spout)
        harness.task.dispatch(VerdictBatch(np.array([0])))

    harness = Harness(Source(emits(("x", "a")), verdicts_come, emits(("z", "c"))))
    harness.run()
    harness.task.step(0, enough=100, until=FAR)
    assert (harness.spout.delivered(), harness.task.buffered_count) == ([], 1)
    harness.task.step(0, enough=100, until=FAR)
    assert harness.spout.delivered() == [("ack", "a")]
    assert harness.task.buffered_count == 2


@pytest.mark.parametrize(("limit", "asked"), [(1, 1), (4, 4), (None, 6), (0, 6)])
def test_a_step_that_asks_again_keeps_to_the_limit_as_one_that_does_not(limit, asked):
    harness = Harness(Source(*one_each(6)), config=Config(max_spout_pending=limit))
    harness.task.step(0, enough=2, until=FAR)
    harness.task.flush(0)  # open is what was handed over as well as what was not
    harness.task.step(0, enough=100, until=FAR)
    assert 6 - len(harness.spout.plan) == asked


def test_a_message_that_waits_for_its_retry_is_open_to_a_step_that_asks_again():
    harness = Harness(
        Source(*one_each(6)), retry=Retry(3, backoff_secs=(1000, 1000)), config=Config(max_spout_pending=3)
    )
    harness.run()
    harness.may_be_delivered = {0}
    harness.task.dispatch(VerdictBatch(failed=[(np.array([0]), BROKEN)]))
    harness.task.step(0, enough=100, until=FAR)
    assert harness.task.open_count == 3


def test_without_ackers_a_step_that_asks_again_acks_all_that_it_emitted():
    harness = Harness(Source(*one_each(3)), config=Config(acker_executors=0))
    harness.task.step(0, enough=100, until=FAR)
    assert harness.spout.delivered() == [("ack", 0), ("ack", 1), ("ack", 2)]


@pytest.mark.parametrize(("limit", "asked"), [(1, 1), (2, 2), (3, 3), (None, 5), (0, 5)])
def test_next_tuple_is_called_while_fewer_than_the_limit_are_open(limit, asked):
    harness = Harness(Source(*(emits((n, n)) for n in range(5))), config=Config(max_spout_pending=limit))
    for _ in range(8):  # what is not handed over yet is open, too
        harness.task.step(0)
    assert 5 - len(harness.spout.plan) == asked
    harness.run(8)
    assert 5 - len(harness.spout.plan) == asked
    harness.verdict(acked=[0])
    assert 5 - len(harness.spout.plan) == min(5, asked + 1)


def test_a_message_that_waits_for_its_retry_is_open():
    config = Config(max_spout_pending=1)
    harness = Harness(
        Source(emits(("x", "a")), emits(("y", "b"))), Retry(max_attempts=2, backoff_secs=(9, 9)), config
    )
    harness.run()
    harness.verdict(failed=[0])
    assert harness.task.open_count == 1
    assert harness.spout.collector.pending_count == 1
    assert not harness.task.may_emit()
    assert harness.task.oldest_ms() == 0
    assert not harness.task.is_idle
