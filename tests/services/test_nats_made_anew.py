"""A stream of JetStream that is deleted and made anew counts from 1 again: its messages are others."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("nats")

from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy

from acktree.testing import SpoutHarness
from tests.services.test_nats import CONSUMER, STREAM, SUBJECT, Bare, Stream, stream

__all__ = ["stream"]


def make_work_queue(stream: Stream) -> None:
    stream.drop_queue()
    stream.do(stream.js.add_stream(name=STREAM, subjects=[SUBJECT], retention=RetentionPolicy.WORK_QUEUE))
    settings = ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT)
    stream.do(stream.js.add_consumer(STREAM, settings))


@pytest.mark.parametrize(
    "login", ["reader:right@", "poor:right@"], ids=["all rights", "not the stream's info"]
)
@pytest.mark.parametrize("when", ["while it runs", "between two runs"])
def test_a_stream_that_is_made_anew_is_read_as_a_whole_and_no_ack_of_an_old_message_is_one_of_a_new(
    stream: Stream, when: str, login: str
) -> None:
    is_running = when == "while it runs"
    stream.clear(ack_wait=60)
    stream.put([b"old 1", b"old 2", b"old 3"])
    run = Bare(stream.make_spout(stream.url(login)))
    run.until(3)
    old = run.ids
    if not is_running:
        run.spout.close()
    stream.clear(ack_wait=60)
    stream.put([b"new 1", b"new 2", b"new 3", b"new 4"])
    if not is_running:
        run = Bare(stream.make_spout(stream.url(login)), old)
    run.until(4 + 3 * is_running)
    assert run.bodies[-4:] == [b"new 1", b"new 2", b"new 3", b"new 4"]
    failed, *others = run.ids[-4:]
    run.spout.fail_batch([(failed, SimpleNamespace(final=False))])
    run.spout.ack_batch(old)
    run.until(5 + 3 * is_running)
    assert run.bodies[-1] == b"new 1"
    assert stream.info().num_ack_pending == 4
    run.spout.ack_batch([*others, run.ids[-1]])
    run.spout.close()
    assert stream.count() == 0


def test_an_ack_of_an_old_stream_removes_no_message_of_a_work_queue_that_was_not_delivered(
    stream: Stream,
) -> None:
    stream.clear()
    stream.put([b"old"])
    run = Bare(stream.make_spout())
    run.until(1)
    run.spout.close()
    make_work_queue(stream)
    stream.put([b"new"])
    again = Bare(stream.make_spout(max_ack_pending=None), run.ids)
    again.spout.ack_batch(run.ids)
    again.until(1)
    again.spout.close()
    assert again.bodies == [b"new"]


def test_acks_of_a_saturated_spout_remove_no_message_that_was_not_delivered(stream: Stream) -> None:
    stream.clear()
    make_work_queue(stream)
    stream.put([b"old"] * 10)
    new = {b"new %d" % n for n in range(10)}
    with SpoutHarness(stream.make_spout(), max_spout_pending=2) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 60, "two are open")
        spout = harness.spout
        harness.until(
            lambda: len(spout._receiver) == 2 and not spout._session._asked,
            60,
            "no request is open, or comes",
        )
        make_work_queue(stream)
        stream.put(sorted(new))
        acked, deadline = 0, time.monotonic() + 60
        while not new <= {each.values[1] for each in harness.arrived} and time.monotonic() < deadline:
            acked, before = len(harness.arrived), acked
            harness.ack(harness.arrived[before:])
            harness.rest(0.1)
        assert new <= {each.values[1] for each in harness.arrived}
