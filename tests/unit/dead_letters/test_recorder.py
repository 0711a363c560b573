"""From given up to dead letter: within the limit, none lost by it; redriven letters are settled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, Retry
from acktree.core.data.values import decode_rows
from acktree.dead_letters import DeadLetters
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import IN_MEMORY
from acktree.errors import DeadLetterLimitError
from acktree.tasks.spouts.retries import NO_CHUNK, Redriven, redriven_ids
from tests.drawn import drawn
from tests.unit.dead_letters.harness import Harness

LIMIT = Config(dead_letter_limit_count=3, dead_letter_limit_ratio=0.5, dead_letter_limit_window_secs=60)


@pytest.fixture
def letters():
    with DeadLetters(IN_MEMORY) as opened:
        yield opened


@pytest.fixture
def harness(letters):
    return Harness(Retry(max_attempts=1), letters, LIMIT)


def emitted(harness, number):
    return [values for (values,) in decode_rows(harness.inbox.read(number).values)]


# ---- the limit ---------------------------------------------------------------------------------------------


def test_without_a_limit_all_that_is_given_up_is_dead_lettered(letters):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    harness.feed(*range(1_000))
    harness.fail_all()
    assert (harness.given_up_count, len(letters), harness.recorder.limit_reached) == (1_000, 1_000, None)


def test_letters_up_to_the_limit_are_stored_and_a_batch_beyond_it_is_not(harness, letters):
    harness.feed("a", "b", "c")
    harness.fail_all()
    assert (harness.given_up_count, len(letters), harness.recorder.limit_reached) == (3, 3, None)
    harness.feed("d", "e")
    harness.fail_all()
    assert (harness.given_up_count, len(letters)) == (3, 3)
    assert harness.recorder.limit_reached is not None


def test_the_error_says_what_happened_where_and_what_to_do(harness):
    harness.feed("a", "b", "c", "d", "e")
    harness.verdicts(acked=[4], failed=[0, 1, 2, 3])
    reached = harness.recorder.limit_reached
    assert reached.what == (
        "spout 'source' gave up 4 messages within 60 s, while 1 were acked: more than "
        "dead_letter_limit_count=3 and dead_letter_limit_ratio=0.5 allow"
    )
    assert reached.where == (
        "topology 'harness'; the last of 4 messages beyond the limit failed in 'sink': ValueError: broken"
    )
    assert "submit again on the same checkpoint" in reached.fix
    assert "raise Config(dead_letter_limit_count=...)" in reached.fix


def test_after_the_limit_no_message_is_dead_lettered(harness, letters):
    harness.feed(*range(4))
    harness.fail_all()
    harness.feed("later")
    harness.ack_all()
    harness.now_ms += 1_000_000
    harness.feed("much later")
    harness.fail_all()
    assert (len(letters), harness.given_up_count) == (0, 0)


def test_what_is_not_dead_lettered_is_emitted_again_as_a_first_attempt_before_its_verdict_counts(harness):
    harness.feed("a", "b", "c", "d")
    harness.verdicts(acked=[0])
    harness.dispatch(failed=[1, 2, 3])
    harness.recorder.record(harness.records(3))  # another task of this spout brings the limit near
    harness.task.step(0)
    assert harness.task.is_durable  # so its verdicts count as delivered, once the chunk below is durable
    again = max(harness.inbox.chunks)
    chunk = harness.inbox.read(again)
    assert emitted(harness, again) == ["b", "c", "d"]
    assert chunk.attempts.tolist() == [1, 1, 1]
    assert chunk.retry_of.tolist() == [1, 2, 3]
    assert harness.task.open_count == 3


def test_a_mended_run_finishes_what_the_limit_stopped(harness, letters):
    harness.feed(*range(8))
    harness.fail_all()
    assert harness.task.open_count == 8
    mended = Harness(Retry(max_attempts=1), letters, LIMIT)
    mended.resume(harness)
    assert mended.task.open_count == 8
    mended.ack_all()
    assert sorted(mended.spout.acked) == list(range(8))
    assert (len(letters), mended.task.open_count) == (0, 0)


def test_letters_that_could_not_be_stored_do_not_count(letters):
    harness = Harness(Retry(max_attempts=1), letters, LIMIT)
    full = OSError(28, "no space")
    harness.letters.put, put = raising(full), harness.letters.put
    harness.feed("a", "b", "c")
    harness.fail_all()
    for _ in range(5):
        harness.now_ms = harness.task.due_ms()
        harness.step()
    assert len(harness.errors) == 6
    harness.letters.put = put
    harness.now_ms = harness.task.due_ms()
    harness.step()
    assert (harness.given_up_count, harness.recorder.limit_reached) == (3, None)


def resumed(earlier, letters):
    """The next run of a harness that died after it stored its letters, before it journalled the verdicts."""
    again = Harness(Retry(max_attempts=1), letters, LIMIT, first_sequence=1_000)
    again.resume(earlier, were_delivered=False)
    return again


def test_letters_of_a_run_that_died_before_it_noted_its_verdicts_do_not_count(harness, letters):
    harness.feed("a", "b")
    harness.fail_all()
    again = resumed(harness, letters)
    again.feed("c", "d", "e")
    again.dispatch(failed=[1_000, 1_001, 1_002])
    again.step()
    assert again.spout.given_up == ["a", "b", "c", "d", "e"]
    assert (len(letters), again.recorder.limit_reached) == (5, None)
    again.feed("f")
    again.fail_all()
    assert again.recorder.limit_reached is not None


def test_a_letter_of_a_run_that_died_is_delivered_and_not_tried_again_when_the_limit_is_reached(
    harness, letters
):
    harness.feed("a", "b")
    harness.fail_all()
    again = resumed(harness, letters)
    again.spout.waiting += ["c", "d", "e", "f"]
    again.spout.next_tuple()
    again.task.flush(0)
    again.dispatch(failed=[1_000, 1_001, 1_002, 1_003])
    again.step()
    assert again.spout.given_up == ["a", "b"]
    assert (len(letters), again.task.open_count, again.task.is_durable) == (2, 4, True)
    assert emitted(again, max(again.inbox.chunks)) == ["c", "d", "e", "f"]
    assert again.recorder.limit_reached.what.startswith("spout 'source' gave up 4 messages")
    assert "the last of 4 " in again.recorder.limit_reached.where
    again.ack_all()
    assert again.spout.acked == ["c", "d", "e", "f"]
    assert sorted(again.inbox.released) == sorted(again.inbox.chunks)


def test_once_the_limit_is_reached_a_letter_of_a_run_that_died_is_still_delivered(harness, letters):
    harness.feed("a")
    harness.fail_all()
    again = resumed(harness, letters)
    with pytest.raises(DeadLetterLimitError):
        again.recorder.record(again.records(4))
    again.step()
    assert (again.spout.given_up, again.task.is_idle, len(letters)) == (["a"], True, 1)


def test_a_redriven_letter_that_was_recorded_again_before_a_death_is_settled_and_not_tried_again(letters):
    harness = Harness(Retry(max_attempts=1), letters, LIMIT)
    harness.feed("a")
    harness.fail_all()
    letters.mark_redriven([1], now_ms=10)
    harness.redrive(letters.get([1]))
    harness.step()
    letters.mark_settled, mark_settled = raising(OSError(5, "died here")), letters.mark_settled
    harness.fail_all()
    letters.mark_settled = mark_settled
    assert letters.count(settled=False) == 2
    again = resumed(harness, letters)
    with pytest.raises(DeadLetterLimitError):
        again.recorder.record(again.records(4))
    again.step()
    assert [letter.settled_ms is not None for letter in letters] == [True, False]
    assert again.task.is_idle


def test_while_the_store_cannot_be_read_nothing_is_delivered_or_counted(harness, letters):
    harness.feed("a", "b", "c")
    letters.known_roots, known_roots = raising(OSError(5, "away")), letters.known_roots
    harness.fail_all()
    harness.now_ms = harness.task.due_ms()
    harness.step()
    assert (harness.given_up_count, harness.task.is_durable, len(letters)) == (0, False, 0)
    assert harness.errors == ["OSError: [Errno 5] away"] * 2
    letters.known_roots = known_roots
    harness.now_ms = harness.task.due_ms()
    harness.step()
    assert (harness.given_up_count, len(letters), harness.recorder.limit_reached) == (3, 3, None)


def test_letters_that_were_stored_although_the_store_raised_count_once(letters):
    """A connection may be lost behind a commit."""
    harness = Harness(Retry(max_attempts=1), letters, LIMIT)
    put = letters.put

    def stores_and_says_no(records):
        put(records)
        raise OSError(5, "connection lost")

    letters.put = stores_and_says_no
    harness.feed("a", "b")
    harness.fail_all()
    assert (harness.given_up_count, len(letters)) == (0, 2)
    letters.put = put
    harness.now_ms = harness.task.due_ms()
    harness.step()
    assert (harness.given_up_count, harness.recorder.limit_reached) == (2, None)
    assert not harness.recorder._in_doubt  # what was doubtful is kept no longer than the doubt
    harness.feed("c")
    harness.fail_all()
    assert (harness.given_up_count, harness.recorder.limit_reached) == (3, None)
    harness.feed("d")
    harness.fail_all()
    assert (harness.given_up_count, len(letters)) == (3, 3)
    assert harness.recorder.limit_reached is not None


def test_without_a_limit_the_store_is_not_read_for_letters(letters):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    letters.known_roots = raising(OSError(5, "asked"))
    harness.feed("a")
    harness.fail_all()
    assert (harness.given_up_count, harness.errors) == (1, [])


@pytest.mark.parametrize("were_delivered", [True, False])
def test_a_dead_letter_stays_one_although_a_new_policy_would_try_it_again(letters, *, were_delivered):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    harness.feed("a", "b")
    harness.verdicts(failed=[0])
    patient = Harness(Retry(max_attempts=9), letters, Config(), first_sequence=1_000)
    patient.resume(harness, were_delivered=were_delivered)
    patient.step()
    assert patient.spout.given_up == ["a"] * (not were_delivered)
    assert (len(letters), patient.task.due_ms(), patient.task.open_count) == (1, None, 1)


@pytest.mark.parametrize(
    "later", [Retry(max_attempts=9, backoff_secs=(1, 1), max_age_secs=5), Retry(max_attempts=1)]
)
def test_a_message_that_is_too_late_for_its_retry_after_a_restart_becomes_a_letter_and_fails(letters, later):
    harness = Harness(Retry(max_attempts=9, backoff_secs=(1, 1), max_age_secs=5), letters, Config())
    harness.feed("a")
    harness.fail_all()
    assert (harness.task.is_durable, harness.task.due_ms() is not None) == (True, True)
    again = Harness(later, letters, Config(), first_sequence=1_000)
    again.now_ms = 60_000
    again.resume(harness)
    again.step()
    assert again.spout.given_up == ["a"]
    assert [stored.values for stored in letters] == [["a"]]
    assert again.task.is_idle


def raising(error):
    def refuse(*_):
        raise error

    return refuse


def test_the_pause_before_the_next_try_doubles_up_to_five_seconds_and_a_success_forgets_it(letters):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    harness.letters.put, put = raising(OSError(28, "no space")), harness.letters.put
    harness.feed("a", "b")
    harness.verdicts(failed=[0])
    pauses = []
    for _ in range(8):
        pauses.append(harness.task.due_ms() - harness.now_ms)
        harness.step()  # too early: not tried
        harness.now_ms = harness.task.due_ms()
        harness.step()
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert len(harness.errors) == 9
    harness.letters.put = put
    harness.now_ms -= 1_000_000  # a clock that is set back does not make it wait for that
    harness.step()
    assert (harness.given_up_count, harness.task.due_ms()) == (1, None)
    harness.letters.put = raising(OSError(28, "no space"))
    harness.verdicts(failed=[1])
    assert harness.task.due_ms() - harness.now_ms == 100


def test_one_spouts_letters_do_not_stop_a_topology_for_anothers(letters):
    one = Harness(Retry(max_attempts=1), letters, LIMIT)
    recorder = one.recorder
    one.feed("a", "b", "c")
    one.fail_all()
    others = [replace(record, component="other") for record in one.records(3)]
    recorder.record(others)
    assert recorder.limit_reached is None
    with pytest.raises(DeadLetterLimitError, match="spout 'source'"):
        recorder.record(one.records(1))
    with pytest.raises(DeadLetterLimitError, match="spout 'source'"):
        recorder.record(others[:1])  # but once it is reached, no spout's


def test_the_callback_that_stops_the_topology_is_called_once(letters):
    calls = []
    harness = Harness(
        Retry(max_attempts=1), letters, LIMIT, on_limit=lambda: calls.append(harness.recorder.limit_reached)
    )
    harness.feed(*range(9))
    harness.fail_all()
    harness.fail_all()
    assert len(calls) == 1
    assert calls[0] is not None


def test_messages_that_were_acked_make_room_for_letters(harness, letters):
    harness.feed(*range(20))
    harness.verdicts(acked=range(9))
    harness.verdicts(failed=range(9, 17))
    assert (len(letters), harness.recorder.limit_reached) == (8, None)
    harness.verdicts(failed=[17, 18])
    assert len(letters) == 8
    assert harness.recorder.limit_reached is not None


@settings(max_examples=drawn(60))
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 30_000)), min_size=1, max_size=12
    ),
    st.integers(0, 6),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_whatever_happens_each_message_is_acked_dead_lettered_or_open_and_never_two(batches, most, ratio):
    config = Config(dead_letter_limit_count=most, dead_letter_limit_ratio=ratio)
    with DeadLetters(IN_MEMORY) as letters:
        harness = Harness(Retry(max_attempts=1), letters, config)
        emitted = 0
        for acked, failed, pause_ms in batches:
            first, emitted = emitted, emitted + acked + failed
            harness.feed(*range(first, emitted))
            harness.verdict_on(acked=range(first, first + acked), failed=range(first + acked, emitted))
            harness.now_ms += pause_ms
        dead = [letter.values[0] for letter in letters]
        assert dead == harness.spout.given_up
        assert sorted([*dead, *harness.spout.acked, *harness.open_values()]) == list(range(emitted))
        assert bool(harness.open_values()) == (harness.recorder.limit_reached is not None)


# ---- redriven letters --------------------------------------------------------------------------------------


def test_a_redriven_letter_is_settled_when_it_is_acked_and_its_source_gets_no_verdict(letters):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    harness.feed("a", "b")
    harness.fail_all()
    letters.mark_redriven([1, 2], now_ms=10)
    harness.redrive(letters.get([2, 1]))
    harness.step()
    assert letters.count(redriven=True, settled=False) == 2
    harness.now_ms = 77
    harness.ack_all()
    assert [letter.settled_ms for letter in letters] == [77, 77]
    assert (harness.spout.acked, harness.given_up_count) == ([], 2)


def test_a_redriven_letter_that_dies_again_is_settled_too_and_is_another_letter(letters):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    harness.feed("a")
    harness.fail_all()
    letters.mark_redriven([1], now_ms=10)
    harness.redrive(letters.get([1]))
    harness.step()
    harness.now_ms = 77
    harness.fail_all()
    assert [(letter.redriven_ms, letter.settled_ms) for letter in letters] == [(10, 77), (None, None)]
    assert [letter.values for letter in letters] == [["a"], ["a"]]
    assert harness.given_up_count == 1


def test_letters_that_are_redriven_and_die_again_do_not_count_against_the_limit(harness, letters):
    harness.feed("a", "b", "c")
    harness.fail_all()
    harness.redrive(letters.get([1, 2, 3]))
    harness.step()
    harness.fail_all()
    assert (len(letters), harness.recorder.limit_reached) == (6, None)


def test_a_letter_that_cannot_be_marked_as_settled_is_reported_and_the_verdicts_are_delivered(letters):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    harness.feed("a", "b")
    harness.verdicts(failed=[0])
    harness.redrive(letters.get([1]))
    harness.step()
    letters.mark_settled = raising(OSError(28, "no space"))
    harness.ack_all()
    assert harness.spout.acked == ["b"]
    assert harness.errors == ["OSError: [Errno 28] no space"]


def test_a_row_without_an_id_of_its_own_is_no_redriven_letter():
    assert redriven_ids(["a", Redriven(NO_CHUNK), Redriven(3), None]) == [3]


def test_a_message_id_that_cannot_be_shown_does_not_hold_up_its_letter(letters):
    harness = Harness(Retry(max_attempts=1), letters, Config())
    [record] = harness.records(1)
    harness.recorder.record([replace(record, attempt=replace(record.attempt, message_id=Unshowable()))])
    [letter] = letters
    assert letter.message_id_repr == "<Unshowable, whose repr raises RuntimeError>"


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no words")


def test_nothing_given_up_is_nothing_to_do(letters):
    recorder = DeadLetterRecorder(letters, Harness(None, letters, LIMIT).topology, LIMIT)
    recorder.record([])
    assert len(letters) == 0
