"""The retry policy: bounded, growing, repeatable, and never silent about why it stopped."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from acktree.core.spouts.retry import GiveUp, Retry, RetryAt
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind, exception_type_names
from acktree.errors import ConfigError


class OrderRefusedError(ValueError):
    pass


def failed(attempt: int = 1, exception: BaseException | None = None, *, left_behind: bool = False) -> Failure:
    return Failure(
        reason="",
        kind=FailureKind.FAILED,
        cause=FailureCause.EXCEPTION if exception else FailureCause.FAILED_BY_BOLT,
        component="split",
        exception=None if left_behind else exception,
        exception_types=exception_type_names(exception),
        traceback=None,
        attempt=attempt,
        final=False,
    )


roots = st.integers(-(2**63), 2**63 - 1)
attempts = st.integers(1, 10_000)
pauses = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(lambda pair: (min(pair), max(pair)))
policies = st.builds(
    Retry,
    max_attempts=st.integers(1, 20_000),
    backoff_secs=pauses,
    jitter=st.booleans(),
    max_age_secs=st.none() | st.floats(0.001, 1e6),
    final=st.just(()),
)


@given(policies, attempts, roots, st.integers(0, 2**42), st.integers(0, 2**42))
def test_the_same_failure_is_always_decided_alike(policy, attempt, root, emitted_ms, now_ms):
    again = pickle.loads(pickle.dumps(policy))
    first = policy.decide(failed(attempt), root, emitted_ms, now_ms)
    assert first == again.decide(failed(attempt), root, emitted_ms, now_ms)


@given(policies, attempts, roots, st.integers(0, 2**42))
def test_a_retry_is_never_due_in_the_past_nor_after_the_longest_pause(policy, attempt, root, now_ms):
    match policy.decide(failed(attempt), root, now_ms, now_ms):
        case RetryAt(due_ms):
            assert now_ms <= due_ms <= now_ms + policy.backoff_secs[1] * 1000 + 1
        case GiveUp(why):
            assert why


@given(policies, roots)
def test_every_message_is_given_up_after_max_attempts(policy, root):
    assert isinstance(policy.decide(failed(policy.max_attempts), root, 0, 0), GiveUp)
    assert isinstance(policy.decide(failed(policy.max_attempts + 1), root, 0, 0), GiveUp)


@given(pauses, attempts, roots)
def test_jitter_takes_away_at_most_half_a_pause(backoff_secs, attempt, root):
    whole = Retry(1, backoff_secs, jitter=False).pause_ms(attempt, root)
    jittered = Retry(1, backoff_secs).pause_ms(attempt, root)
    assert whole / 2 - 1 <= jittered <= whole


@given(pauses, attempts, roots)
def test_without_jitter_a_later_pause_is_never_shorter(backoff_secs, attempt, root):
    policy = Retry(1, backoff_secs, jitter=False)
    assert policy.pause_ms(attempt, root) <= policy.pause_ms(attempt + 1, root)


def test_pauses_double_from_the_first_to_the_longest():
    policy = Retry(max_attempts=9, backoff_secs=(1, 10), jitter=False)
    assert [policy.pause_ms(attempt, 0) for attempt in range(1, 7)] == [1000, 2000, 4000, 8000, 10000, 10000]


def test_a_first_pause_of_zero_tries_again_at_once_each_time():
    policy = Retry(max_attempts=9, backoff_secs=(0, 60))
    assert policy.decide(failed(5), 1, 0, 700) == RetryAt(700)


def test_jitter_spreads_messages_that_failed_together_over_the_whole_half():
    policy = Retry(max_attempts=2, backoff_secs=(10, 60))
    due = sorted(policy.pause_ms(1, root) for root in range(-500, 500))
    assert due[0] < 5100
    assert due[-1] > 9900
    assert len(set(due)) > 800


def test_the_last_attempt_is_given_up_and_says_which_it_was():
    policy = Retry(max_attempts=3)
    assert isinstance(policy.decide(failed(2), 1, 0, 0), RetryAt)
    assert policy.decide(failed(3), 1, 0, 0) == GiveUp("attempt 3 of 3 failed")


def test_max_attempts_of_one_never_tries_again():
    assert isinstance(Retry(max_attempts=1).decide(failed(1), 1, 0, 0), GiveUp)


@given(st.integers(0, 100_000), st.integers(0, 100_000))
@example(30_000, 20_000)
@example(30_000, 20_001)
def test_nothing_is_tried_again_at_an_age_above_max_age(age_ms, pause_ms):
    policy = Retry(5, (pause_ms / 1000, pause_ms / 1000), jitter=False, max_age_secs=50)
    decision = policy.decide(failed(1), 1, first_emitted_ms=1000, now_ms=1000 + age_ms)
    if age_ms + pause_ms <= 50_000:
        assert decision == RetryAt(1000 + age_ms + pause_ms)
    else:
        assert decision == GiveUp("at the next attempt it would be older than 50 s")


@pytest.mark.parametrize("left_behind", [False, True], ids=["with the exception", "by its name alone"])
@pytest.mark.parametrize("final", [OrderRefusedError, ValueError, Exception, BaseException])
def test_a_final_exception_or_a_subclass_of_it_is_given_up_at_once(final, left_behind):
    policy = Retry(max_attempts=5, final=(KeyError, final))
    decision = policy.decide(failed(1, OrderRefusedError("no"), left_behind=left_behind), 1, 0, 0)
    assert isinstance(decision, GiveUp)
    assert "OrderRefusedError is final" in decision.why


@pytest.mark.parametrize("left_behind", [False, True], ids=["with the exception", "by its name alone"])
def test_an_exception_beside_the_final_ones_is_tried_again(left_behind):
    policy = Retry(max_attempts=5, final=(KeyError, OrderRefusedError))
    assert isinstance(policy.decide(failed(1, ValueError(), left_behind=left_behind), 1, 0, 0), RetryAt)


def test_a_failure_without_an_exception_is_never_final_by_type():
    assert isinstance(Retry(max_attempts=5, final=(BaseException,)).decide(failed(1), 1, 0, 0), RetryAt)


@given(roots, roots)
def test_the_attempts_of_one_message_are_jittered_apart(root, other):
    assume(root != other)
    policy = Retry(max_attempts=2, backoff_secs=(1e9, 1e9))
    assert policy.pause_ms(1, root) != policy.pause_ms(1, other)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"max_attempts": True}, "max_attempts=True"),
        ({"max_attempts": 2.0}, "max_attempts=2.0"),
        ({"backoff_secs": (1,)}, "backoff_secs=(1,)"),
        ({"backoff_secs": [1, 2]}, "backoff_secs=[1, 2]"),
        ({"backoff_secs": 1}, "backoff_secs=1"),
        ({"backoff_secs": (-1, 2)}, "backoff_secs=(-1, 2)"),
        ({"backoff_secs": (1, float("inf"))}, "backoff_secs=(1, inf)"),
        ({"backoff_secs": (float("nan"), 1)}, "backoff_secs=(nan, 1)"),
        ({"backoff_secs": (60, 1)}, "backoff_secs=(60, 1)"),
        ({"jitter": 1}, "jitter=1"),
        ({"max_age_secs": 0}, "max_age_secs=0"),
        ({"max_age_secs": "1 h"}, "max_age_secs='1 h'"),
        ({"max_age_secs": True}, "max_age_secs=True"),
        ({"final": ValueError}, "final=<class 'ValueError'>"),
        ({"final": (ValueError("x"),)}, "final=(ValueError('x'),)"),
        ({"final": (int,)}, "final=(<class 'int'>,)"),
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(arguments, named):
    with pytest.raises(ConfigError) as refusal:
        Retry(**{"max_attempts": 3, **arguments})
    assert named in refusal.value.what
    assert refusal.value.fix.startswith(named.split("=")[0])
