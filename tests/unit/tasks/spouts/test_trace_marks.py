"""All attempts after the first are traced, within a bound; the mark that says so is of one attempt alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config, IterableSpout, Retry, TopologyBuilder
from acktree.core.ids import root_ids
from acktree.core.tracking.attempts import CHOSEN, NAMED, number_of
from acktree.core.tracking.sampling import TraceRule
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.trace_marks import TraceMarks
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits


def marks(rate=0.001, most_per_sec=None):
    return TraceMarks(lambda: rate, most_per_sec, lambda: None)


def later(count):
    return np.full(count, 2, np.int32)


@given(
    st.lists(st.tuples(st.integers(-500, 3_000), st.integers(1, 2_000)), max_size=60),
    st.sampled_from([0.5, 1.0, 7.5, 100.0]),
)
def test_no_more_are_marked_than_the_bound_and_one_bucket(steps, most):
    marker, now_ms, marked, wanted = marks(most_per_sec=most), 10_000, 0, 0
    for passed_ms, count in steps:
        now_ms += passed_ms
        found = marker.put_on(later(count), range(count), now_ms)
        marked, wanted = marked + int((found < 0).sum()), wanted + count
    forwards_ms = sum(max(0, passed_ms) for passed_ms, _ in steps)
    assert marked <= max(1.0, most) + most * forwards_ms / 1000 + 1e-6
    assert marked == wanted or marked >= min(wanted, int(max(1.0, most)))


@pytest.mark.parametrize("most", [None, 100.0])
def test_all_later_attempts_are_marked_within_the_bound_and_no_first_one(most):
    given = np.array([1, 2, 1, 9, NAMED | 1, NAMED | 3], np.int32)
    found = marks(most_per_sec=most).put_on(given, range(6), 0)
    assert found.tolist() == [1, CHOSEN | 2, 1, CHOSEN | 9, NAMED | 1, NAMED | 3]
    assert given.tolist() == [1, 2, 1, 9, NAMED | 1, NAMED | 3]
    assert TraceRule(7).is_traced(np.arange(1, 7), 1e-9, found).tolist() == [False, True, False, *[True] * 3]


def test_those_that_a_spout_names_take_no_part_in_the_bound():
    marker = marks(most_per_sec=2.0)
    marker.put_on(np.full(100, NAMED | 2, np.int32), range(100), 0)
    assert (marker.put_on(later(5), range(5), 0) < 0).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_where_the_rate_says_all_there_is_no_mark(rate):
    assert marks(rate).put_on(later(3), range(3), 0).tolist() == [2, 2, 2]


def test_where_nothing_is_named_first_attempts_stay_as_they_are():
    assert marks().put_on(None, range(3), 0) is None


def test_the_next_attempt_of_a_message_takes_part_in_the_bound_again():
    """A mark that stayed with the message would pass by the bound from its third attempt on."""
    harness = Harness(
        Source(emits(*[(n, n) for n in range(10)])),
        retry=Retry(max_attempts=4, backoff_secs=(1, 1), jitter=False),
        trace_rate=lambda: 1e-9,
        max_retries_traced_per_sec=3.0,
        reserve=lambda at: at + (1 << 40),
    )
    harness.run()
    first, marked = 0, []
    for number in range(1, 4):
        sequences = np.concatenate(
            [harness.chunk(at).sequences for at in range(first, len(harness.inbox.chunks))]
        )
        first = len(harness.inbox.chunks)
        harness.task.dispatch(VerdictBatch(failed=[(sequences, BROKEN)]))
        harness.run()
        harness.now_ms += 1_500
        harness.run()
        given = np.concatenate([harness.chunk(at).attempts for at in range(first, len(harness.inbox.chunks))])
        assert number_of(given).tolist() == [number + 1] * 10
        marked.append(int((given < 0).sum()))
    assert marked == [3, 3, 3]


def test_the_bound_of_later_attempts_is_divided_among_all_spout_tasks():
    builder = TopologyBuilder("three")
    builder.set_spout("one", IterableSpout(range(3), ["n"]))
    builder.set_spout("two", IterableSpout(range(3), ["n"]), parallelism=2)
    plan = Plan.of(builder.create_topology(), Config(max_traces_per_sec=30), 1, 5)
    assert plan.max_retries_traced_per_sec == 10
    unbounded = Plan.of(builder.create_topology(), Config(max_traces_per_sec=None), 1, 5)
    assert unbounded.max_retries_traced_per_sec is None


def test_those_beyond_the_bound_are_traced_no_more_often_than_others():
    rule, roots = TraceRule(7, (3,), has_rows=False), root_ids(7, 3, np.arange(100_000))
    assert rule.is_traced(roots, 0.001, later(100_000)).tolist() == rule.is_traced(roots, 0.001).tolist()
