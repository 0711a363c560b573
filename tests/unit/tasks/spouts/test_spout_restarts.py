"""What an earlier run left goes on; no verdict is delivered twice, and no attempt made twice."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pyarrow as pa
import pytest

from acktree import IterableSpout, Retry
from acktree.core import durable
from acktree.core.data.values import decode_rows
from acktree.errors import MisuseError
from acktree.tasks.spouts.retries import RedrivenLetter
from acktree.tasks.spouts.verdict_batch import Redrive, VerdictBatch
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits


class Positioned(IterableSpout):
    """A position spout that notes its verdicts."""

    def __init__(self, items):
        super().__init__(items, ["value"])
        self.calls = []

    def __deepcopy__(self, memo):
        return self

    def ack(self, message_id):
        self.calls.append(("ack", message_id))

    def fail(self, message_id, failure):
        self.calls.append(("fail", message_id, failure.attempt, failure.final))

    def delivered(self):
        return self.calls


def restarted(harness, retry):
    """A second run over the chunks of the first that were not released."""
    again = Harness(Positioned(harness.spout.factory), retry, first_sequence=100)
    again.inbox.chunks = dict(harness.inbox.chunks)
    for number in [number for number in harness.inbox.chunks if number not in harness.inbox.released]:
        chunk = again.chunk(number)
        again.task.remember(chunk.position or b"\x80\x05}\x94.")
        again.task.recovery.reopen(number, chunk)
    return again


def test_the_position_is_saved_with_each_chunk_and_comes_back():
    harness = Harness(Positioned(["x", "y", "z"]))
    harness.run(2)
    assert harness.spout.position == 2
    again = restarted(harness, None)
    assert again.spout.position == 2
    assert again.run(2) == [[("z",)]]


def test_open_messages_of_a_spout_that_does_not_redeliver_go_on_and_get_verdicts():
    harness = Harness(Positioned(["x", "y", "z"]))
    harness.run(3)
    harness.verdict(acked=[0])
    again = restarted(harness, None)
    assert again.task.open_count == 3 - 1  # one chunk each; the first is gone
    again.verdict(acked=[1], failed=[2])
    assert again.spout.delivered() == [("ack", 1), ("fail", 2, 1, False)]


def test_verdicts_that_were_delivered_before_the_crash_are_not_delivered_again():
    harness = Harness(Positioned(["x", "y", "z"]))
    for _ in range(3):
        harness.task.step(0)
    harness.task.flush(0)  # one chunk
    again = restarted(harness, None)
    verdict_batch = VerdictBatch(np.array([0]), [(np.array([1]), BROKEN)])
    again.task.recovery.apply_journalled(verdict_batch, 0, were_delivered=True)
    again.run()
    assert again.spout.delivered() == []
    assert again.task.open_count == 1
    again.task.recovery.apply_journalled(VerdictBatch(np.array([2])), 0, were_delivered=False)
    again.run()
    assert again.spout.delivered() == [("ack", 2)]


def test_a_retry_that_was_emitted_before_the_crash_is_not_emitted_again():
    retry = Retry(max_attempts=2, backoff_secs=(0, 0))
    harness = Harness(Positioned(["x", "y"]), retry)
    for _ in range(2):
        harness.task.step(0)
    harness.task.flush(0)
    harness.verdict(failed=[0])  # retried at once: chunk 1; chunk 0 stays, since message 1 is open
    assert decode_rows(harness.chunk(1).values) == [("x",)]
    again = restarted(harness, retry)
    again.task.recovery.apply_journalled(
        VerdictBatch(failed=[(np.array([0]), BROKEN)]), 0, were_delivered=True
    )
    before = len(again.inbox.chunks)
    again.run()
    assert len(again.inbox.chunks) == before
    assert again.task.open_count == 2
    again.verdict(acked=[1, 2])
    assert sorted(again.spout.delivered()) == [("ack", 0), ("ack", 1)]


def test_a_retry_that_was_not_emitted_before_the_crash_is_emitted_after_it():
    retry = Retry(max_attempts=2, backoff_secs=(5, 5), jitter=False)
    harness = Harness(Positioned(["x", "y"]), retry)
    for _ in range(2):
        harness.task.step(0)
    harness.task.flush(0)
    harness.verdict(failed=[0])
    again = restarted(harness, retry)
    again.task.recovery.apply_journalled(
        VerdictBatch(failed=[(np.array([0]), BROKEN)]), 0, were_delivered=True
    )
    again.now_ms = 5_000
    (values,) = again.run()
    assert values == [("x",)]
    assert again.chunk(max(again.inbox.chunks)).attempts.tolist() == [2]


def test_a_redriven_letter_is_open_after_a_restart_until_it_has_its_verdict():
    harness = Harness(Positioned([]))
    letters = [
        RedrivenLetter(number, "default", pa.record_batch({"value": ["again"]})) for number in (7, 8, 9)
    ]
    harness.task.dispatch(Redrive(letters))
    harness.run()  # all in one chunk, which stays while one of them is open
    again = restarted(harness, None)
    assert [again.task.has_open_letter(number) for number in (7, 8, 9)] == [True, True, True]
    verdicts = VerdictBatch(np.array([0]), [(np.array([1]), BROKEN)])
    again.task.recovery._letters_among = frozenset  # the failed one is a letter again
    again.task.recovery.apply_journalled(verdicts, 0, were_delivered=True)
    again.run()
    assert [again.task.has_open_letter(number) for number in (7, 8, 9)] == [False, False, True]


class SetsInOpen(Positioned):
    """Sets what it remembers in ``open``, where a restart has set it already."""

    def __init__(self, begin):
        super().__init__([])
        self.begin = begin

    def open(self, config, context, collector):
        super().open(config, context, collector)
        self.begin(self)


def overwritten(begin, *positions, **host):
    """What a host is told when ``open`` is called after a restart, or several."""
    told = []
    harness = Harness(SetsInOpen(lambda _: None), note_overwritten=lambda *each: told.append(each), **host)
    harness.spout.begin = begin
    for position in positions:
        harness.task.remember(durable.dumps({"position": position}))
        harness.task.open()
    return told


@pytest.mark.parametrize("before", [7, (3, "x"), [1], np.arange(3), pa.array([1])])
def test_a_remembered_attribute_that_open_sets_to_another_value_is_reported(before):
    def sets(spout):
        spout.position = 0

    assert overwritten(sets, before) == [("source", "position")]


@pytest.mark.parametrize(
    "begin",
    [
        lambda spout: None,
        lambda spout: setattr(spout, "position", spout.position or 0),
        lambda spout: setattr(spout, "position", copy.deepcopy(spout.position)),
        lambda spout: setattr(spout, "another", 0),
    ],
    ids=["leaves it", "sets it if there is none", "an equal one", "another attribute"],
)
@pytest.mark.parametrize("before", [7, (3, "x"), [1], float("nan")])
def test_an_attribute_that_keeps_its_value_is_not(begin, before):
    assert overwritten(begin, before) == []


def test_nor_is_one_that_had_no_value_or_that_open_sets_in_the_first_run():
    def sets(spout):
        spout.position = 0

    assert overwritten(sets, None) == []
    assert overwritten(sets) == []


def test_what_cannot_be_compared_stops_no_spout():
    class Unequal:
        def __eq__(self, other):
            raise SystemExit

        def __reduce__(self):
            raise ValueError("no pickle")

        __hash__ = None

    assert overwritten(lambda spout: setattr(spout, "position", Unequal()), 7) == []


def test_a_remembered_value_that_pickle_refuses_is_named():
    class Locks(Source):
        remembers = ("position", "guard")
        redelivers = False
        position = guard = None

    harness = Harness(Locks(emits(("x", "a"))))
    harness.spout.guard = threading.Lock()
    with pytest.raises(MisuseError, match=r"guard, which the spout remembers, cannot be saved: .*pickle"):
        harness.run()


def test_a_remembered_attribute_that_is_not_there_is_reported():
    class Misspelt(Source):
        remembers = ("postion", "other")
        redelivers = False
        position = other = 0

    harness = Harness(Misspelt())
    ((_, _, failure),) = harness.reports
    assert "remembers 'postion' and has no such attribute" in failure.reason
