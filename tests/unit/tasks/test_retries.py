"""What failed is tried again by policy, and buried before its source is told; letters come again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from acktree import Retry
from acktree.core.ids import root_ids
from acktree.core.values import decode_rows
from acktree.dead_letters.wills import letter_of, redriven_letter
from acktree.errors import DeadLetterLimitError
from acktree.tasks.mail import Mail
from acktree.tasks.retries import Retries
from tests.unit.tasks.spout_desk import Desk, Source, emits


def test_after_a_clock_was_set_back_a_retry_waits_no_longer_than_its_pause():
    desk = Desk(
        Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=3, backoff_secs=(10, 60), jitter=False)
    )
    desk.now_ms = 3_600_000
    desk.run()
    desk.verdict(failed=[0])
    desk.now_ms += 4_000
    assert desk.run() == []
    desk.now_ms = 0
    desk.verdict(failed=[1])
    assert desk.run() == []
    assert desk.task.due_ms() == 6_000
    desk.now_ms = 6_000
    assert desk.run() == [[("x",)]]
    assert desk.task.due_ms() == 10_000
    desk.now_ms = 10_000
    assert desk.run() == [[("y",)]]


def test_with_a_policy_a_message_is_tried_again_as_a_new_root_and_told_once_when_it_is_final():
    desk = Desk(
        Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=3, backoff_secs=(1, 60), jitter=False)
    )
    desk.run()
    roots = []
    for attempt, due_ms in ((1, 1_000), (2, 3_000)):
        desk.verdict(acked=[1], failed=[0 if attempt == 1 else 2])
        assert desk.task.due_ms() == due_ms
        assert desk.run() == []
        desk.now_ms = due_ms
        assert desk.run() == [[("x",)]]
        chunk = desk.chunk(attempt)
        assert (chunk.attempts.tolist(), chunk.first_emitted_ms.tolist()) == ([attempt + 1], [0])
        assert chunk.retry_of.tolist() == [0 if attempt == 1 else 2]
        roots += root_ids(5, desk.number, chunk.sequences).tolist()
    assert len(set(roots)) == 2
    assert desk.spout.told() == [("ack", "b")]
    assert desk.letters == []
    desk.verdict(failed=[3])
    assert desk.spout.told()[1:] == [("fail", "a", "ValueError: broken", 3, True)]
    (letter,) = desk.letters
    assert (letter.attempts, letter.values, letter.message_id_repr) == (3, ["x"], "'a'")
    assert (letter.first_emitted_ms, letter.dead_ms) == (0, 3_000)
    assert letter.root == roots[-1]
    assert desk.inbox.released == [0, 1, 2]
    assert desk.task.is_idle
    assert desk.task.counters.total("failed", component="source") == 3


def test_a_retry_that_is_acked_is_told_as_an_ack_and_leaves_no_letter():
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=2, backoff_secs=(0, 0)))
    desk.run()
    desk.verdict(failed=[0])
    desk.run()
    desk.verdict(acked=[1])
    assert desk.spout.told() == [("ack", "a")]
    assert desk.letters == []
    assert desk.inbox.released == [0, 1]


def test_an_exception_that_is_final_is_not_tried_again():
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=9, final=(ValueError,)))
    desk.run()
    desk.verdict(failed=[0])
    assert desk.spout.told() == [("fail", "a", "ValueError: broken", 1, True)]
    assert len(desk.letters) == 1


def test_fail_is_told_only_after_the_dead_letter_is_durable():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=1))
    desk.run()
    desk.broken_store = OSError(28, "disk full")
    desk.verdict(failed=[0], acked=[1])
    desk.run(3)
    assert desk.spout.told() == [("ack", "b")]
    assert desk.task.open_count == 1
    assert not desk.task.is_idle
    assert desk.inbox.released == []
    assert desk.reports[0][2].reason == "OSError: [Errno 28] disk full"
    desk.broken_store = None
    desk.run()
    assert desk.spout.told()[1:] == []  # not again at once: a database that is away would be hammered
    desk.now_ms = desk.task.due_ms()
    desk.run()
    assert desk.spout.told()[1:] == [("fail", "a", "ValueError: broken", 1, True)]
    assert len(desk.letters) == 1
    assert desk.inbox.released == [0]


def test_of_what_the_limit_refuses_letters_are_told_and_only_the_others_tried_anew():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"), ("z", "c"))), Retry(max_attempts=1))
    desk.run()
    letter, *_ = root_ids(desk.plan.run_salt, desk.number, np.array([1])).tolist()
    desk.broken_store = DeadLetterLimitError("too many", "here", "mend it", buried=frozenset({letter, 77}))
    assert desk.verdict(failed=[0, 1, 2]) == [[("x",), ("z",)]]
    assert desk.spout.told() == [("fail", "b", "ValueError: broken", 1, True)]
    assert (desk.task.open_count, desk.task.is_settled, desk.reports) == (2, True, [])
    chunk = desk.chunk(1)
    assert (chunk.attempts.tolist(), chunk.retry_of.tolist()) == ([1, 1], [0, 2])
    assert desk.inbox.released == [0]
    desk.verdict(acked=chunk.sequences.tolist())
    assert desk.spout.told()[1:] == [("ack", "a"), ("ack", "c")]
    assert (desk.inbox.released, desk.task.is_idle) == ([0, 1], True)


def test_a_letter_that_the_limit_refuses_lets_go_of_its_chunk_only_with_its_neighbours():
    desk = Desk(Source(emits(("x", "a"), ("y", "b"))), Retry(max_attempts=1))
    desk.run()
    letter, *_ = root_ids(desk.plan.run_salt, desk.number, np.array([0])).tolist()
    desk.broken_store = DeadLetterLimitError("too many", "here", "mend it", buried=frozenset({letter}))
    desk.verdict(failed=[0])
    assert (desk.inbox.released, desk.task.open_count) == ([], 1)
    desk.verdict(acked=[1])
    assert [call[:2] for call in desk.spout.told()] == [("fail", "a"), ("ack", "b")]
    assert desk.inbox.released == [0]


def test_a_chunk_stays_while_a_message_of_it_may_be_wanted_again():
    desk = Desk(
        Source(emits(*((n, n) for n in range(4)))), Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False)
    )
    desk.run()
    desk.verdict(acked=[0, 1])
    desk.verdict(failed=[2, 3])
    assert desk.inbox.released == []
    desk.now_ms = 1_000
    assert desk.run() == [[(2,), (3,)]]
    assert desk.inbox.released == [0]
    desk.verdict(failed=[4])
    assert desk.inbox.released == [0]
    desk.verdict(acked=[5])
    assert desk.inbox.released == [0, 1]
    assert [call[0] for call in desk.spout.told()] == ["ack", "ack", "fail", "ack"]


def test_messages_of_several_streams_are_tried_again_on_theirs():
    def emit(spout):
        spout.collector.emit([(1, 2)], message_id="a")
        spout.collector.emit([7], message_id="b", stream="typed")
        spout.collector.emit([2.5], message_id="c")

    desk = Desk(Source(emit), Retry(max_attempts=2, backoff_secs=(0, 0)))
    desk.run()
    sequences = {desk.chunk(n).stream: desk.chunk(n).sequences.tolist() for n in desk.inbox.chunks}
    desk.verdict(failed=[*sequences["default"], *sequences["typed"]])
    again = {desk.chunk(n).stream: decode_rows(desk.chunk(n).values) for n in (2, 3)}
    assert again == {"default": [((1, 2),), (2.5,)], "typed": [(7,)]}


def test_a_redriven_letter_is_a_first_attempt_whose_source_is_told_nothing():
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=1))
    desk.run()
    desk.verdict(failed=[0])
    told = desk.spout.told()
    desk.now_ms = 9_000
    desk.task.deliver(Mail(redriven=[redriven_letter(desk.letters[0])]))
    assert desk.run() == [[("x",)]]
    chunk = desk.chunk(1)
    assert (chunk.attempts.tolist(), chunk.first_emitted_ms.tolist(), chunk.sequences.tolist()) == (
        [1],
        [9_000],
        [1],
    )
    desk.verdict(acked=[1])
    assert desk.spout.told() == told
    assert len(desk.letters) == 1


@pytest.mark.parametrize("retry", [Retry(max_attempts=1), None], ids=["with a policy", "without"])
def test_a_redriven_letter_that_fails_for_good_is_a_letter_again(retry):
    desk = Desk(Source(emits(("x", "a"))), Retry(max_attempts=1))
    desk.run()
    desk.verdict(failed=[0])
    again = Desk(Source(), retry)
    again.task.deliver(Mail(redriven=[redriven_letter(desk.letters[0])]))
    again.run()
    again.verdict(failed=[0])
    assert again.spout.told() == []
    assert [letter.values for letter in again.letters] == [["x"]]
    assert again.task.is_idle


def test_redriven_letters_and_own_messages_are_told_apart_in_one_verdict():
    desk = Desk(Source(emits(("x", "a")), emits(("y", "b"))), Retry(max_attempts=2, backoff_secs=(0, 0)))
    desk.run()
    letter = replace(redriven_letter(letter_of(will_of("z"), desk.topology, 4)), letter_id=4)
    desk.task.deliver(Mail(redriven=[letter]))
    desk.run()
    desk.verdict(failed=[0, 1, 2])
    assert sorted(decode_rows(desk.chunk(max(desk.inbox.chunks)).values)) == [("x",), ("y",), ("z",)]
    desk.verdict(acked=[3, 4, 5])
    assert sorted(desk.spout.told()) == [("ack", "a"), ("ack", "b")]


def will_of(value):
    """The will of a message of some earlier run."""
    desk = Desk(Source(emits((value, "old"))), Retry(max_attempts=1))
    wills = []
    desk.task._around = replace(desk.task._around, bury=wills.extend)
    desk.run()
    desk.verdict(failed=[0])
    return wills[0]


# ---- the table of retries -------------------------------------------------------------------------------


def test_equal_due_times_keep_the_order_of_the_data():
    desk = Desk(
        Source(emits(*((n, n) for n in range(20)))), Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False)
    )
    desk.run()
    desk.verdict(failed=[*range(20)])
    desk.now_ms = 1_000
    assert desk.run() == [[(n,) for n in range(20)]]


def test_an_empty_table_waits_for_nothing():
    retries = Retries(None)
    assert (len(retries), retries.due_ms(), retries.oldest_ms(), retries.take_due(10**12)) == (
        0,
        None,
        None,
        {},
    )
    assert not retries.has_wills
    assert not retries.needs(3)
