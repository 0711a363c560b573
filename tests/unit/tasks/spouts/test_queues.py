"""The contract of spouts for queues: lost messages, attempts of the broker, errors that pass, keep_alive."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from acktree import Config, EndOfStream, Retry
from acktree.core.stats.numbers import Lag
from acktree.core.tracking.verdicts import FailureCause
from acktree.errors import MisuseError
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.retries import RedrivenLetter
from acktree.tasks.spouts.verdict_batch import Redrive, VerdictBatch
from tests.unit.tasks.spouts.queue_source import GONE, Beating, ids, nothing
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits, raises

# ---- lost ------------------------------------------------------------------------------------------------


def test_what_is_lost_gets_no_verdict_and_leaves_room_at_once():
    harness = Harness(Source(emits(*((n, n) for n in range(4)))), config=Config(max_spout_pending=4))
    harness.run()
    assert not harness.task.may_emit()
    harness.spout.collector.lost([1, 3])
    assert harness.spout.collector.pending_count == 2
    assert harness.task.may_emit()
    harness.verdict(acked=[0, 1], failed=[2, 3])
    assert [call[:2] for call in harness.spout.delivered()] == [("ack", 0), ("fail", 2)]
    assert harness.task.is_idle
    assert harness.inbox.released == [0]


@pytest.mark.parametrize("which", [None, ["a", "b"]])
def test_what_waits_for_a_retry_or_was_not_handed_over_yet_is_lost_too(which):
    spout = Source(emits(("x", "a")), nothing, emits(("y", "b")))
    harness = Harness(spout, retry=Retry(max_attempts=2, jitter=False))
    harness.run()
    harness.verdict(failed=[0])
    harness.task.step(0)  # b is emitted and not handed over
    assert harness.task.open_count == 2
    spout.collector.lost(which)
    harness.now_ms = 10**6
    assert harness.run(3) == []
    assert harness.task.is_idle
    assert harness.letters == []
    assert spout.delivered() == []
    assert harness.task.due_ms() is None
    assert harness.inbox.released == [0]


def test_a_message_that_is_lost_after_it_was_given_up_is_no_dead_letter():
    harness = Harness(Source(emits(("x", "a"))), retry=Retry(max_attempts=1))
    harness.run()
    harness.broken_store = OSError("full")
    harness.verdict(failed=[0])
    harness.spout.collector.lost()
    harness.broken_store, harness.now_ms = None, 10**6
    harness.run(3)
    assert harness.letters == []
    assert harness.task.is_idle


def test_a_dead_letter_that_is_tried_again_is_not_the_queues_to_lose():
    harness = Harness(Source(emits(("x", "a"))))
    values = pa.record_batch({"value": ["again"]})
    harness.task.dispatch(Redrive([RedrivenLetter(7, "default", values)]))
    harness.run(2)
    harness.spout.collector.lost()
    assert harness.task.open_count == 1


def test_what_a_hook_says_is_lost_while_verdicts_are_delivered_gets_none_of_them():
    class LosesAll(Source):
        def ack(self, message_id):
            super().ack(message_id)
            self.collector.lost()

    harness = Harness(LosesAll(emits(("x", "a"), ("y", "b")), emits(("z", "c"))))
    harness.run(2)
    harness.verdict(acked=[0, 1, 2])
    assert harness.spout.delivered() == [("ack", "a")]
    assert harness.task.is_idle


def test_only_the_named_of_a_batch_is_lost_while_it_is_delivered():
    class LosesB(Source):
        def fail(self, message_id, failure):
            super().fail(message_id, failure)
            self.collector.lost(["b"])

    harness = Harness(LosesB(emits(("x", "a"), ("y", "b"), ("z", "c"))))
    harness.run()
    harness.verdict(failed=[0, 1, 2])
    assert [call[1] for call in harness.spout.delivered()] == ["a", "c"]


def test_rows_of_a_batch_are_lost_by_id_and_the_others_go_on():
    def batch(spout):
        spout.collector.emit_batch(pa.record_batch({"value": [1, 2, 3]}), np.array([10, 20, 30]))
        spout.collector.lost([20])

    harness = Harness(Source(batch))
    assert harness.run() == [[(1,), (3,)]]
    harness.spout.collector.lost([10])
    assert harness.task.open_count == 1
    harness.verdict(acked=[0, 1])
    assert harness.spout.delivered() == [("ack", 30)]


def test_without_ackers_what_is_lost_is_not_acked():
    def both(spout):
        emits(("x", "a"), ("y", "b"))(spout)
        spout.collector.lost(["a"])

    harness = Harness(Source(both), config=Config(acker_executors=0))
    harness.run()
    assert harness.spout.delivered() == [("ack", "b")]


# ---- attempts --------------------------------------------------------------------------------------------


def test_an_attempt_goes_on_from_the_brokers_number():
    harness = Harness(
        Source(emits(("x", "a"), attempt=3), emits(("y", "b"))), retry=Retry(max_attempts=4, jitter=False)
    )
    harness.task.step(0, enough=2)
    harness.task.step(0)
    harness.run()
    assert harness.chunk(0).attempts.tolist() == [3, 1]
    harness.verdict(failed=[0])
    harness.now_ms = 60_000
    harness.run()
    assert harness.chunk(1).attempts.tolist() == [4]
    harness.may_be_delivered = {"a"}
    harness.verdict(failed=[2])
    assert harness.spout.delivered() == [("fail", "a", "ValueError: broken", 4, True)]
    assert [letter.attempts for letter in harness.letters] == [4]


def test_a_batch_may_have_attempts_and_is_cut_with_them():
    def batch(spout):
        spout.collector.emit_batch(
            pa.record_batch({"value": [1, 2, 3]}), [1, 2, 3], attempts=np.array([1, 5, 2])
        )

    harness = Harness(Source(batch))
    harness.inbox.chunk_rows = 2
    harness.run()
    assert [harness.chunk(number).attempts.tolist() for number in (0, 1)] == [[1, 5], [2]]
    harness.verdict(failed=[1])
    assert harness.spout.delivered() == [("fail", 2, "ValueError: broken", 5, False)]


@pytest.mark.parametrize("trace", [False, True])
def test_a_message_whose_attempts_ended_with_their_driver_is_given_up_without_being_run(trace):
    plan = emits(("x", "a"), attempt=4, trace=trace), emits(("y", "b"), attempt=3, trace=trace)
    harness = Harness(Source(*plan), retry=Retry(max_attempts=3))
    harness.task.step(0)
    harness.task.step(0)
    harness.may_be_delivered = {"a"}
    assert harness.run(2) == [[("y",)]]
    [letter] = harness.letters
    assert (letter.attempts, letter.cause, letter.message_id_repr) == (3, FailureCause.GAVE_UP, "'a'")
    [(_, message_id, _, attempt, is_final)] = harness.spout.delivered()
    assert (message_id, attempt, is_final) == ("a", 3, True)
    assert harness.task.open_count == 1
    own = {what: n for (_, _, _, what), n in harness.task.own.items() if what.startswith("failed")}
    assert own == {"failed": 1, "failed_by_GAVE_UP": 1}  # no micro-batch counts it


@pytest.mark.parametrize("attempt", [0, -1, 2**31, 1.5, "2"])
def test_an_attempt_is_a_number_from_one_on(attempt):
    harness = Harness(Source())
    with pytest.raises(MisuseError, match="attempt"):
        harness.spout.collector.emit(["x"], message_id=1, attempt=attempt)
    with pytest.raises(MisuseError, match="attempt"):
        harness.spout.collector.emit_batch(pa.record_batch({"value": ["x"]}), [1], attempts=[attempt])
    assert harness.run() == []


def test_a_batch_has_as_many_attempts_as_rows():
    harness = Harness(Source())
    with pytest.raises(MisuseError, match="2 attempts"):
        harness.spout.collector.emit_batch(pa.record_batch({"value": ["x"]}), [1], attempts=[1, 2])


# ---- what an earlier run left ----------------------------------------------------------------------------


def test_a_spout_that_does_not_redeliver_gets_the_open_message_ids_at_open():
    earlier = Source(emits(("x", "a"), ("y", "b"), ("z", "c")))
    earlier.redelivers = False
    first = Harness(earlier, retry=Retry(max_attempts=5))
    first.run()
    first.verdict(acked=[1], failed=[2])

    class Later(Source):
        redelivers = False

        def open(self, config, context, collector):
            self.open_ids = context.open_message_ids
            super().open(config, context, collector)

    later = Later()
    harness = Harness(later, retry=Retry(max_attempts=5))
    assert later.open_ids == ()
    blob = first.inbox.chunks[0]
    harness.task.recovery.reopen(0, Chunk.from_bytes(blob))
    harness.task.recovery.apply_journalled(VerdictBatch(np.array([1])), 0, were_delivered=True)
    harness.task.recovery.apply_journalled(
        VerdictBatch(failed=[(np.array([2]), BROKEN)]), 0, were_delivered=True
    )
    harness.task.open()
    assert sorted(later.open_ids) == ["a", "c"]


def test_what_the_queue_keeps_is_no_dead_letter_of_ours():
    spout = Source(emits(("x", "a")))
    spout.own_dead_letters = True
    harness = Harness(spout, retry=Retry(max_attempts=1))
    harness.may_be_delivered = {"a"}
    harness.run()
    harness.verdict(failed=[0])
    assert spout.delivered() == [("fail", "a", "ValueError: broken", 1, True)]
    assert harness.letters == []
    harness.task.dispatch(Redrive([RedrivenLetter(7, "default", pa.record_batch({"value": ["again"]}))]))
    harness.run()
    harness.verdict(failed=[1])
    assert len(harness.letters) == 1
    assert harness.task.is_idle


# ---- keep_alive ------------------------------------------------------------------------------------------


def test_keep_alive_is_called_in_every_state():
    spout = Beating(emits(("x", "a"), ("y", "b")), raises(EndOfStream()))
    harness = Harness(spout, config=Config(max_spout_pending=2))

    def beats(secs):
        before = len(spout.seen)
        for _ in range(secs):
            harness.now_ms += 1000
            harness.run()
        return len(spout.seen) - before

    assert beats(8) == 2  # saturated
    assert spout.seen[-1][:3] == (2, 7.0, ["a", "b"])
    harness.task.deactivate()
    assert beats(8) == 2
    harness.verdict(acked=[0])
    assert (spout.seen[-1][3].older_than(15), spout.seen[-1][3].older_than(15.1)) == (["b"], [])
    harness.task.activate()
    harness.run()
    assert harness.task.has_ended
    assert beats(8) == 2
    assert spout.seen[-1][:3] == (1, 23.0, ["b"])
    assert harness.task.upkeep_due_ms() == harness.now_ms + 4000


def test_keep_alive_sees_what_waits_for_a_retry_and_what_was_not_handed_over():
    spout = Beating(emits(("x", "a")), nothing, emits(("y", "b")))
    harness = Harness(spout, retry=Retry(max_attempts=9, backoff_secs=(60, 60)))
    harness.run()
    harness.verdict(failed=[0])
    harness.now_ms = 4000
    harness.task.step(4000)
    assert spout.seen[-1][:3] == (1, 4.0, ["a"])
    harness.task.step(8000)
    assert spout.seen[-1][:3] == (2, 8.0, ["a", "b"])
    assert spout.seen[-1][3].older_than(5) == ["a"]


def test_a_clock_that_is_set_back_makes_nobody_miss_a_keep_alive():
    spout = Beating()
    harness = Harness(spout)
    harness.task.step(10**6)
    harness.task.step(5000)
    harness.task.step(9000)
    assert len(spout.seen) == 3


def test_a_clock_that_is_set_back_hides_no_open_message():
    spout = Beating(emits(("x", "a")), nothing, raises(GONE))
    harness = Harness(spout, retry=Retry(max_attempts=2, backoff_secs=(3600, 3600)))
    harness.now_ms = 3_600_000
    harness.run()
    spout.plan = [emits(("y", "b"))]
    harness.verdict(failed=[0])
    assert harness.task.open_count == 2
    for set_back_ms in (600_000, 1_000, 20_000):
        harness.now_ms += 15_000 - set_back_ms
        harness.run()
        assert spout.seen[-1][2] == ["a", "b"], "older_than(0)"
    harness.now_ms += 60_000
    harness.run()
    assert ids(spout.seen[-1][3].older_than(60)) == ["b"]


def test_messages_of_an_earlier_run_whose_clock_was_ahead_are_kept_alive():
    class Kept(Beating):
        redelivers = False

    spout = Kept()
    before, harness = Harness(Kept(emits(("x", "a")))), Harness(spout, is_open=False, first_sequence=100)
    before.now_ms = 10_000_000
    before.run()
    harness.inbox.chunks = before.inbox.chunks
    harness.task.recovery.reopen(0, harness.chunk(0))
    for harness.now_ms in (9_700_000, 9_705_000, 9_710_000):
        if not harness.task.is_open:
            harness.task.open(harness.now_ms)
        harness.run()
    assert spout.seen[-1][1:3] == (10, ["a"])


def test_keep_alive_may_say_what_is_lost():
    class Gone(Beating):
        def keep_alive(self, open_messages):
            super().keep_alive(open_messages)
            self.collector.lost(open_messages.older_than(3))

    harness = Harness(Gone(emits(("x", "a"))))
    harness.run()
    harness.now_ms = 4000
    harness.run()
    assert harness.task.is_idle
    assert harness.spout.seen[-1][0] == 1


# ---- limits, lag -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "common", "most"), [(2, 10, 2), (None, 3, 3), (0, 3, None), (5, None, 5)])
def test_a_spouts_own_limit_of_open_messages_counts(own, common, most):
    def build(builder):
        builder._declared[0].settings["max_spout_pending"] = own

    spout = Source(*(emits((n, n)) for n in range(8)))
    harness = Harness(spout, config=Config(max_spout_pending=common), build=build)
    harness.run(8)
    assert harness.task.open_count == (most or 8)


@pytest.mark.parametrize(
    "lag", ["many", -1, 2.5, True, float("nan"), 1 << 63, {"p": -1}, {"p": None}], ids=repr
)
def test_a_lag_that_is_no_number_of_messages_is_reported_and_not_shown(lag):
    spout = Source()
    spout.lag = iter([7, lag]).__next__
    harness = Harness(spout)
    harness.run()
    harness.task.step(5000)
    assert harness.task.lag == Lag(7)
    harness.task.step(10_000)
    assert harness.task.lag is None
    [(_, _, failure)] = harness.reports
    wrong = lag["p"] if isinstance(lag, dict) else lag
    assert f"lag() returned {wrong!r}" in failure.reason


def test_a_lag_by_partition_is_added_up():
    spout = Source()
    lags = iter(
        [
            {"orders-0": 3, 1: 4},
            {1: 4, "1": 5, "a\x1b\ud800": 1, "y" * 500: 2},
            dict.fromkeys(range(10_001), 2),
        ]
    )
    spout.lag = lambda: next(lags)
    harness = Harness(spout)
    harness.run()
    harness.task.step(5000)
    assert harness.task.lag == Lag(7, {"orders-0": 3, "1": 4})
    harness.task.step(10_000)
    assert harness.task.lag.total == sum(harness.task.lag.by_partition.values()) == 12
    assert harness.task.lag.by_partition["1"] == 9  # they are called the same
    for name in harness.task.lag.by_partition:
        assert name.isprintable()
        assert len(name.encode()) < 1000
    harness.task.step(15_000)
    assert harness.task.lag == Lag(20_002)  # of more than 10,000 partitions the sum alone


def test_the_lag_is_asked_for_every_few_seconds():
    spout = Source()
    spout.lag = iter([7, None]).__next__
    harness = Harness(spout)
    harness.run()
    assert harness.task.lag is None
    harness.task.step(5000)
    harness.task.step(6000)
    assert harness.task.lag == Lag(7)
    harness.task.step(10_000)
    assert harness.task.lag is None


# ---- outages ---------------------------------------------------------------------------------------------


def test_what_is_tried_again_is_an_outage_until_it_works():
    recovered = []
    harness = Harness(
        Source(raises(GONE), raises(GONE), emits(("x", "a"))),
        note_recovered=lambda *said: recovered.append(said),
    )
    harness.now_ms = 1_000
    harness.run()
    first = harness.task.outages[0]
    assert (first.since_ms, first.tries, first.fix) == (1_000, 1, "see whether the server runs")
    assert first.reason == "ConnectorError: the connection is gone (queue 'q')"
    harness.now_ms = 1_100
    harness.run()
    second = harness.task.outages[0]
    assert (second.since_ms, second.tries) == (1_000, 2)
    assert recovered == []
    harness.now_ms = 1_300
    harness.run(2)
    assert harness.task.outages == []
    assert recovered == [("source", harness.number, second, 1_300)]


@pytest.mark.parametrize("is_bulk", [True, False])
def test_an_ack_that_is_tried_again_is_an_outage_too(is_bulk):
    class Acks(Source):
        errors = 2

        def ack(self, message_id):
            if self.errors:
                self.errors -= 1
                raise GONE
            super().ack(message_id)

        if is_bulk:

            def ack_batch(self, message_ids):
                for message_id in message_ids:
                    self.ack(message_id)

    recovered = []
    harness = Harness(Acks(emits(("x", "a"))), note_recovered=lambda *said: recovered.append(said))
    harness.run()
    harness.verdict(acked=[0])
    assert harness.task.outages[0].tries == 1
    harness.now_ms = 10_000
    harness.run()
    assert harness.task.outages[0].tries == 2
    harness.now_ms = 20_000
    harness.run(2)
    assert harness.task.outages == []
    assert [outage.tries for _, _, outage, _ in recovered] == [2]


def test_a_store_of_dead_letters_that_is_away_is_an_outage():
    recovered = []
    harness = Harness(
        Source(emits(("x", "a"))), retry=Retry(max_attempts=1),
        note_recovered=lambda *said: recovered.append(said),
    )  # fmt: skip
    harness.run()
    harness.broken_store = OSError("the disk\x1b is full")
    harness.verdict(failed=[0])
    assert harness.task.outages[0].reason == "OSError: the disk\\x1b is full"
    harness.broken_store = None
    harness.now_ms = 60_000
    harness.run()
    assert harness.task.outages == []
    assert [(outage.tries, at) for _, _, outage, at in recovered] == [(1, 60_000)]
