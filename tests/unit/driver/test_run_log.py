"""What a run says in the log: at most one screen a minute, and what was left out is counted."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config, FailureCause, FailureKind
from acktree.core.stats.numbers import Outage, ReportedError
from acktree.core.tracking.verdicts import Failure
from acktree.driver.logs import run_log
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.line_budget import LineBudget
from acktree.driver.logs.run_log import Account, RunLog
from acktree.tasks.spouts.keys.labels import Labelled
from tests.in_module import replace

FAILURE = Failure(
    "ValueError: bad", FailureKind.FAILED, FailureCause.EXCEPTION, "split", None, (), None, 1, final=False
)
SCREEN = 50


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "acktree")
    return caplog


@given(st.lists(st.tuples(st.integers(0, 600_000), st.sampled_from("abcdefgh")), max_size=200))
def test_no_minute_has_more_lines_than_its_budget_and_none_is_uncounted(arrivals):
    arrivals.sort()
    budget = LineBudget(most=5, most_of_one=2)
    said = [(at_ms, name) for at_ms, name in arrivals if budget.allows(name, at_ms)]
    assert len(said) + budget.take_left_out() == len(arrivals)
    for at_ms, name in said:
        # A minute begins with a line, so any stretch as long as one touches two of them at most.
        later = [each for each in said if at_ms <= each[0] < at_ms + 60_000]
        assert len(later) <= 10
        assert sum(each[1] == name for each in later) <= 4


def test_a_clock_that_is_set_back_silences_nobody():
    budget = LineBudget(most=1)
    assert [budget.allows("a", at_ms) for at_ms in (10**9, 10**9 + 1, 5)] == [True, False, True]


def test_failures_have_their_message_and_attempt_and_the_rest_is_counted(log):
    run = RunLog("orders-topology")
    run.failed("orders", 5, ((f"m{n}", n + 1) for n in range(5)), FAILURE, 7)
    run.failed("rows", 4, (), FAILURE, None)
    run.ends(Account(9, 0, 9, 0, 0))
    assert "spout=orders message='m0' attempt=1/7 FAILED component=split" in log.messages[0]
    assert [f"message='m{n}'" in log.messages[n] for n in range(3)] == [True] * 3
    assert "spout=rows messages=4 FAILED" in log.messages[3]
    assert log.messages[4].endswith("emitted=9 acked=0 failed=9 timed_out=0 open=0; not logged: 2 failures")


class Detached:
    def __repr__(self):
        raise RuntimeError("the instance is detached")


def test_an_id_whose_repr_raises_is_logged_by_its_type_and_one_with_a_key_as_it_was_given(log):
    run = RunLog("orders-topology")
    ids = [Detached(), Labelled("m1", "order-17", b""), Labelled("m2", "", bytes(16)), "m" * 10**6]
    run.failed("orders", 4, ((message_id, 1) for message_id in ids), FAILURE, None)
    shown = [each.partition(" message=")[2].partition(" attempt=")[0] for each in log.messages]
    assert shown[:3] == ["<Detached, whose repr raises RuntimeError>", "'m1' label='order-17'", "'m2'"]
    assert all(len(each) < 10_000 for each in log.messages)


def test_twenty_components_that_fail_fit_one_screen_a_minute(log):
    run = RunLog("many")
    errors = ErrorLog(Config(max_error_report_per_interval=5), run.errors)
    for number in range(20):
        for at_ms in range(1000):
            errors.add(ReportedError(f"bolt-{number}", 3, "boom", at_ms))
        run.failed(f"spout-{number}", 1000, ((n, 1) for n in range(1000)), FAILURE, None)
    run.is_warm()
    run.progress(Account(20_000, 0, 20_000, 0, 0, 1.5), 7, 0.25)
    assert len(log.messages) < SCREEN
    assert "not logged: 19,992 failures and 19,992 errors" in log.messages[-1]
    assert "oldest_secs=1.5 micro_batch=7 (0.25 s)" in log.messages[-1]


def test_a_progress_line_is_due_ten_seconds_after_the_start_then_every_minute(monkeypatch, log):
    now = 1000.0
    replace(monkeypatch, run_log, "time", monotonic=lambda: now)
    run = RunLog("orders", began=990.0)
    assert (run.is_due, run.warming_up_secs) == (False, 10.0)
    run.is_warm()
    assert (run.warm_secs, run.warming_up_secs, run.is_due) == (10.0, None, False)
    due = []
    for now in range(1000, 1200):
        if run.is_due:
            due.append(now)
            run.progress(Account(now, now, 0, 0, 0), 1, None)
    assert due == [1010, 1070, 1130, 1190]
    assert "rate=1.0/s acked=1,070" in log.messages[2]
    run.progress(Account(1190, 1190, 0, 0, 0), 1, None)
    assert len(log.messages) == 5, "an idle topology is silent"


def test_a_run_begins_new_or_resumed(log):
    RunLog("a").begins(1, 0, "/tmp/a")
    resumed = RunLog("a")
    resumed.begins(3, 156, "/tmp/a")
    assert resumed.open_at_start == 156
    assert "new run=1 open=0" in log.messages[0]
    assert "resumed run=3 open=156" in log.messages[1]


def test_a_next_tuple_that_blocks_is_warned_of_once_a_minute_for_each_task(log, monkeypatch):
    clock = [1000.0]
    replace(monkeypatch, run_log, "time", monotonic=lambda: clock[-1])
    run, call = RunLog("orders-topology"), Outage("next_tuple has not returned", "return", 0, 0)
    for secs in (0.0, 30.0, 61.0):
        clock.append(1000.0 + secs)
        run.blocked("orders", 1, call, 5_000)
    run.blocked("orders", 2, call, 5_000)
    assert ["task=1" in each for each in log.messages] == [True, True, False]
    assert "spout=orders task=1 since 5.0 s: next_tuple has not returned. fix: return" in log.messages[0]


def test_a_remembered_attribute_that_open_has_set_is_warned_of_once_for_all_tasks(log):
    run = RunLog("orders-topology")
    for spout, attribute in (("a", "position"), ("a", "position"), ("a", "file"), ("b", "position")):
        run.overwritten(spout, attribute)
    assert [each.partition(" open() ")[0] for each in log.messages] == [
        "topology=orders-topology spout=a",
        "topology=orders-topology spout=a",
        "topology=orders-topology spout=b",
    ]
    assert "open() has set position, which the spout remembers" in log.messages[0]
    assert "fix: give position its first value in __init__" in log.messages[0]
