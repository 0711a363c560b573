"""Errors of user code are throttled by component, as Storm does."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config
from acktree.core.stats.numbers import ReportedError
from acktree.driver.logs.error_log import ERRORS_KEPT, ErrorLog
from acktree.tasks.failures import failure_of
from acktree.texts import MOST_REASON, MOST_TRACEBACK


def error(at_ms: int, component: str = "split", reason: str = "ValueError: boom") -> ReportedError:
    return ReportedError(component, 3, reason, at_ms)


@given(st.lists(st.tuples(st.integers(0, 300_000), st.sampled_from("ab")), max_size=60), st.integers(0, 4))
def test_no_component_has_more_than_its_share_of_any_interval(arrivals, most: int) -> None:
    errors = ErrorLog(Config(max_error_report_per_interval=most, error_throttle_interval_secs=10))
    arrivals.sort()
    for at_ms, component in arrivals:
        errors.add(error(at_ms, component))
    assert errors.count == len(arrivals)
    for component in "ab":
        kept = [each.at_ms for each in errors.kept if each.component == component]
        # An interval begins with an error, so any stretch as long as one touches two of them at the most.
        assert all(sum(at <= other < at + 10_000 for other in kept) <= 2 * most for at in kept)
        first = [at_ms for at_ms, name in arrivals if name == component][:most]
        assert kept[: len(first)] == first or len(kept) > ERRORS_KEPT // 2


def test_a_noisy_component_does_not_silence_another() -> None:
    errors = ErrorLog(Config(max_error_report_per_interval=1))
    assert [errors.add(error(0)), errors.add(error(1)), errors.add(error(2, "count"))] == [True, False, True]


def test_a_clock_that_is_set_back_begins_a_new_interval() -> None:
    errors = ErrorLog(Config(max_error_report_per_interval=1))
    assert errors.add(error(1_000_000))
    assert errors.add(error(0))


def test_only_so_many_are_kept_in_all() -> None:
    errors = ErrorLog(Config(error_throttle_interval_secs=0.001))
    for at_ms in range(2 * ERRORS_KEPT):
        errors.add(error(at_ms))
    assert [each.at_ms for each in errors.kept] == list(range(ERRORS_KEPT, 2 * ERRORS_KEPT))


def test_what_is_kept_is_logged_once_as_key_and_value(caplog: pytest.LogCaptureFixture) -> None:
    errors = ErrorLog(Config(max_error_report_per_interval=1))
    with caplog.at_level(logging.WARNING, logger="acktree"):
        errors.add(error(0))
        errors.add(error(0))
    assert [record.getMessage() for record in caplog.records] == [
        "component=split task=3 error=ValueError: boom"
    ]


def test_what_a_failure_keeps_of_a_large_exception_is_bounded_and_says_so():
    try:
        raise ValueError("x" * 1_000_000)  # noqa: TRY301  # a traceback is wanted
    except ValueError as error:
        failure = failure_of(error, "b")
    said = failure_of(None, "b", "y" * 1_000_000)
    for text, most in (
        (failure.reason, MOST_REASON),
        (failure.traceback, MOST_TRACEBACK),
        (said.reason, MOST_REASON),
    ):
        assert len(text) < most + 40
        assert "characters left out" in text
    assert len(failure.to_bytes()) < 50_000
    assert failure.traceback.startswith("Traceback")
