"""What failed is tried again by policy, or recorded before its failure is delivered; letters are redriven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from acktree import Retry
from acktree.core.data.values import decode_rows
from acktree.core.ids import root_ids
from acktree.dead_letters.conversion import letter_of, redriven_letter
from acktree.errors import DeadLetterLimitError
from acktree.tasks.spouts.keys.key_table import Keys
from acktree.tasks.spouts.retries import Retries
from acktree.tasks.spouts.verdict_batch import Redrive
from tests.unit.tasks.spouts.spout_harness import Harness, Source, emits, replace_in_host


def test_after_a_clock_was_set_back_a_retry_waits_no_longer_than_its_pause():
    harness = Harness(
        Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=3, backoff_secs=(10, 60), jitter=False)
    )
    harness.now_ms = 3_600_000
    harness.run()
    harness.verdict(failed=[0])
    harness.now_ms += 4_000
    assert harness.run() == []
    harness.now_ms = 0
    harness.verdict(failed=[1])
    assert harness.run() == []
    assert harness.task.due_ms() == 6_000
    harness.now_ms = 6_000
    assert harness.run() == [[("x",)]]
    assert harness.task.due_ms() == 10_000
    harness.now_ms = 10_000
    assert harness.run() == [[("y",)]]


def test_with_a_policy_a_message_is_tried_again_as_a_new_root_and_fails_once_when_it_is_final():
    harness = Harness(
        Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=3, backoff_secs=(1, 60), jitter=False)
    )
    harness.run()
    roots = []
    for attempt, due_ms in ((1, 1_000), (2, 3_000)):
        harness.verdict(acked=[1], failed=[0 if attempt == 1 else 2])
        assert harness.task.due_ms() == due_ms
        assert harness.run() == []
        harness.now_ms = due_ms
        assert harness.run() == [[("x",)]]
        chunk = harness.chunk(attempt)
        assert (chunk.attempts.tolist(), chunk.first_emitted_ms.tolist()) == ([attempt + 1], [0])
        assert chunk.retry_of.tolist() == [0 if attempt == 1 else 2]
        roots += root_ids(5, harness.number, chunk.sequences).tolist()
    assert len(set(roots)) == 2
    assert harness.spout.delivered() == [("ack", "b")]
    assert harness.letters == []
    harness.verdict(failed=[3])
    assert harness.spout.delivered()[1:] == [("fail", "a", "ValueError: broken", 3, True)]
    (letter,) = harness.letters
    assert (letter.attempts, letter.values, letter.message_id_repr) == (3, ["x"], "'a'")
    assert (letter.first_emitted_ms, letter.dead_ms) == (0, 3_000)
    assert letter.root == roots[-1]
    assert harness.inbox.released == [0, 1, 2]
    assert harness.task.is_idle
    assert harness.task.counters.total("failed", component="source") == 3


def test_a_retry_that_is_acked_is_delivered_as_an_ack_and_leaves_no_letter():
    harness = Harness(Source(emits(("x", "a"))), Retry(max_attempts=2, backoff_secs=(0, 0)))
    harness.run()
    harness.verdict(failed=[0])
    harness.run()
    harness.verdict(acked=[1])
    assert harness.spout.delivered() == [("ack", "a")]
    assert harness.letters == []
    assert harness.inbox.released == [0, 1]


def test_an_exception_that_is_final_is_not_tried_again():
    harness = Harness(Source(emits(("x", "a"))), Retry(max_attempts=9, final=(ValueError,)))
    harness.run()
    harness.verdict(failed=[0])
    assert harness.spout.delivered() == [("fail", "a", "ValueError: broken", 1, True)]
    assert len(harness.letters) == 1


def test_fail_is_called_only_after_the_dead_letter_is_durable():
    harness = Harness(Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=1))
    harness.run()
    harness.broken_store = OSError(28, "disk full")
    harness.verdict(failed=[0], acked=[1])
    harness.run(3)
    assert harness.spout.delivered() == [("ack", "b")]
    assert harness.task.open_count == 1
    assert not harness.task.is_idle
    assert harness.inbox.released == []
    assert harness.reports[0][2].reason == "OSError: [Errno 28] disk full"
    harness.broken_store = None
    harness.run()
    assert harness.spout.delivered()[1:] == []  # not again at once: a database that is away would be hammered
    harness.now_ms = harness.task.due_ms()
    harness.run()
    assert harness.spout.delivered()[1:] == [("fail", "a", "ValueError: broken", 1, True)]
    assert len(harness.letters) == 1
    assert harness.inbox.released == [0]


def test_of_what_the_limit_refuses_letters_are_delivered_and_only_the_others_tried_anew():
    harness = Harness(Source(emits(("x", "a"), ("y", "b"), ("z", "c"))), Retry(max_attempts=1))
    harness.run()
    letter, *_ = root_ids(harness.plan.run_salt, harness.number, np.array([1])).tolist()
    harness.broken_store = DeadLetterLimitError(
        "too many", "here", "correct it", recorded=frozenset({letter, 77})
    )
    assert harness.verdict(failed=[0, 1, 2]) == [[("x",), ("z",)]]
    assert harness.spout.delivered() == [("fail", "b", "ValueError: broken", 1, True)]
    assert (harness.task.open_count, harness.task.is_durable, harness.reports) == (2, True, [])
    chunk = harness.chunk(1)
    assert (chunk.attempts.tolist(), chunk.retry_of.tolist()) == ([1, 1], [0, 2])
    assert harness.inbox.released == [0]
    harness.verdict(acked=chunk.sequences.tolist())
    assert harness.spout.delivered()[1:] == [("ack", "a"), ("ack", "c")]
    assert (harness.inbox.released, harness.task.is_idle) == ([0, 1], True)


def test_a_letter_that_the_limit_refuses_lets_go_of_its_chunk_only_with_its_neighbours():
    harness = Harness(Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=1))
    harness.run()
    letter, *_ = root_ids(harness.plan.run_salt, harness.number, np.array([0])).tolist()
    harness.broken_store = DeadLetterLimitError(
        "too many", "here", "correct it", recorded=frozenset({letter})
    )
    harness.verdict(failed=[0])
    assert (harness.inbox.released, harness.task.open_count) == ([], 1)
    harness.verdict(acked=[1])
    assert [call[:2] for call in harness.spout.delivered()] == [("fail", "a"), ("ack", "b")]
    assert harness.inbox.released == [0]


def test_a_chunk_stays_while_a_message_of_it_may_be_wanted_again():
    harness = Harness(
        Source(emits(*((n, n) for n in range(4)))), Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False)
    )
    harness.run()
    harness.verdict(acked=[0, 1])
    harness.verdict(failed=[2, 3])
    assert harness.inbox.released == []
    harness.now_ms = 1_000
    assert harness.run() == [[(2,), (3,)]]
    assert harness.inbox.released == [0]
    harness.verdict(failed=[4])
    assert harness.inbox.released == [0]
    harness.verdict(acked=[5])
    assert harness.inbox.released == [0, 1]
    assert [call[0] for call in harness.spout.delivered()] == ["ack", "ack", "fail", "ack"]


def test_messages_of_several_streams_are_tried_again_on_theirs():
    def emit(spout):
        spout.collector.emit([(1, 2)], message_id="a")
        spout.collector.emit([7], message_id="b", stream="typed")
        spout.collector.emit([2.5], message_id="c")

    harness = Harness(Source(emit), Retry(max_attempts=2, backoff_secs=(0, 0)))
    harness.run()
    sequences = {harness.chunk(n).stream: harness.chunk(n).sequences.tolist() for n in harness.inbox.chunks}
    harness.verdict(failed=[*sequences["default"], *sequences["typed"]])
    again = {harness.chunk(n).stream: decode_rows(harness.chunk(n).values) for n in (2, 3)}
    assert again == {"default": [((1, 2),), (2.5,)], "typed": [(7,)]}


def test_a_redriven_letter_is_a_first_attempt_whose_source_gets_no_verdict():
    harness = Harness(Source(emits(("x", "a"))), Retry(max_attempts=1))
    harness.run()
    harness.verdict(failed=[0])
    delivered = harness.spout.delivered()
    harness.now_ms = 9_000
    harness.task.dispatch(Redrive([redriven_letter(harness.letters[0])]))
    assert harness.run() == [[("x",)]]
    chunk = harness.chunk(1)
    assert (chunk.attempts.tolist(), chunk.first_emitted_ms.tolist(), chunk.sequences.tolist()) == (
        [1],
        [9_000],
        [1],
    )
    harness.verdict(acked=[1])
    assert harness.spout.delivered() == delivered
    assert len(harness.letters) == 1


@pytest.mark.parametrize("retry", [Retry(max_attempts=1), None], ids=["with a policy", "without"])
def test_a_redriven_letter_that_fails_for_good_is_a_letter_again(retry):
    harness = Harness(Source(emits(("x", "a"))), Retry(max_attempts=1))
    harness.run()
    harness.verdict(failed=[0])
    again = Harness(Source(), retry)
    again.task.dispatch(Redrive([redriven_letter(harness.letters[0])]))
    again.run()
    again.verdict(failed=[0])
    assert again.spout.delivered() == []
    assert [letter.values for letter in again.letters] == [["x"]]
    assert again.task.is_idle


def test_redriven_letters_and_own_messages_are_distinguished_in_one_verdict():
    harness = Harness(
        Source(emits(("x", "a")), emits(("y", "b"))), Retry(max_attempts=2, backoff_secs=(0, 0))
    )
    harness.run()
    letter = replace(redriven_letter(letter_of(record_of("z"), harness.topology, 4)), letter_id=4)
    harness.task.dispatch(Redrive([letter]))
    harness.run()
    harness.verdict(failed=[0, 1, 2])
    assert sorted(decode_rows(harness.chunk(max(harness.inbox.chunks)).values)) == [("x",), ("y",), ("z",)]
    harness.verdict(acked=[3, 4, 5])
    assert sorted(harness.spout.delivered()) == [("ack", "a"), ("ack", "b")]


def record_of(value):
    """The given-up record of a message of an earlier run."""
    harness = Harness(Source(emits((value, "old"))), Retry(max_attempts=1))
    records = []
    replace_in_host(harness.task, record=records.extend)
    harness.run()
    harness.verdict(failed=[0])
    return records[0]


# ---- the table of retries -------------------------------------------------------------------------------


def test_equal_due_times_keep_the_order_of_the_data():
    harness = Harness(
        Source(emits(*((n, n) for n in range(20)))), Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False)
    )
    harness.run()
    harness.verdict(failed=[*range(20)])
    harness.now_ms = 1_000
    assert harness.run() == [[(n,) for n in range(20)]]


def test_an_empty_table_waits_for_nothing():
    retries = Retries(None, Keys(), "source", 1)
    assert (len(retries), retries.due_ms(), retries.oldest_ms(), retries.take_due(10**12)) == (
        0,
        None,
        None,
        {},
    )
    assert not retries.has_records
    assert not retries.needs(3)
