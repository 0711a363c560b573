"""Which attempts a spout task marks as traced: a sample, and all after the first, each within a bound."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config, IterableSpout, Retry, TopologyBuilder
from acktree.core.ids import root_ids
from acktree.core.tracking.attempts import CHOSEN, NAMED, number_of
from acktree.core.tracking.sampling import is_sampled
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.retries import RedrivenLetter
from acktree.tasks.spouts.trace_marks import TraceMarks
from acktree.tasks.spouts.verdict_batch import Redrive, VerdictBatch
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits


def marks(rate=1e-9, most_later=None, most=None):
    """Puts marks on messages whose names are 1, 2, ..."""
    put_on = TraceMarks(lambda: rate, most, most_later, lambda: None).put_on
    return lambda attempts, ids, now_ms: put_on(attempts, ids, np.arange(1, len(ids) + 1), now_ms)


def names(first, count):
    return root_ids(0, 3, np.arange(first, first + count))


def later(count):
    return np.full(count, 2, np.int32)


@given(
    st.lists(st.tuples(st.integers(-500, 3_000), st.integers(1, 2_000)), max_size=60),
    st.sampled_from([0.5, 1.0, 7.5, 100.0]),
)
def test_no_more_are_marked_than_the_bound_and_one_bucket(steps, most):
    marker, now_ms, marked, wanted = marks(most_later=most), 10_000, 0, 0
    for passed_ms, count in steps:
        now_ms += passed_ms
        found = marker(later(count), range(count), now_ms)
        marked, wanted = marked + int((found < 0).sum()), wanted + count
    forwards_ms = sum(max(0, passed_ms) for passed_ms, _ in steps)
    assert marked <= max(1.0, most) + most * forwards_ms / 1000 + 1e-6
    assert marked == wanted or marked >= min(wanted, int(max(1.0, most)))


@pytest.mark.parametrize("most", [None, 100.0])
def test_all_later_attempts_are_marked_within_the_bound_and_no_first_one(most):
    given = np.array([1, 2, 1, 9, NAMED | 1, NAMED | 3], np.int32)
    found = marks(most_later=most)(given, range(6), 0)
    assert found.tolist() == [1, CHOSEN | 2, 1, CHOSEN | 9, CHOSEN | NAMED | 1, CHOSEN | NAMED | 3]
    assert given.tolist() == [1, 2, 1, 9, NAMED | 1, NAMED | 3]


def test_those_that_a_spout_names_take_no_part_in_the_bound():
    marker = marks(most_later=2.0)
    marker(np.full(100, NAMED | 2, np.int32), range(100), 0)
    assert (marker(later(5), range(5), 0) < 0).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(("rate", "mark"), [(0.0, 0), (1.0, CHOSEN)])
def test_at_a_rate_of_1_all_are_marked_whatever_the_bounds_are_and_at_0_none(rate, mark):
    marker = marks(rate, 1.0, 1.0)
    assert marker(later(3), range(3), 0).tolist() == [mark | 2] * 3
    assert marker(np.array([NAMED | 1]), range(1), 0).tolist() == [mark | NAMED | 1]
    first = marker(None, range(3), 0)
    assert first is None if mark == 0 else first.tolist() == [mark | 1] * 3


@given(
    st.lists(st.tuples(st.integers(-500, 3_000), st.integers(1, 9_000)), max_size=40),
    st.sampled_from([0.001, 0.05, 0.9]),
    st.sampled_from([0.5, 10.0, 100.0, None]),
)
def test_the_first_of_a_sample_are_marked_as_far_as_the_bound_allows(steps, rate, most):
    marker, now_ms, first = TraceMarks(lambda: rate, most, None, lambda: None), 1_700_000_000_000, 0
    marked = sampled = 0
    for step_ms, count in steps:
        now_ms += step_ms  # a clock may be set back
        drawn = np.flatnonzero(is_sampled(names(first, count), rate))
        found = marker.put_on(None, range(count), names(first, count), now_ms)
        traced = np.zeros(0, int) if found is None else np.flatnonzero(found < 0)
        assert traced.tolist() == drawn[: len(traced)].tolist()
        marked, sampled, first = marked + len(traced), sampled + len(drawn), first + count
    passed_ms = sum(max(0, step_ms) for step_ms, _ in steps)
    if most is None:
        assert marked == sampled
    else:
        assert min(sampled, int(max(most, 1))) <= marked <= max(most, 1) + most * passed_ms / 1000 + 1e-6


@pytest.mark.parametrize(("rate", "most"), [(1e-310, 100.0), (0.001, 1e308), (0.9, 1e-310)])
def test_numbers_that_are_hardly_any_stop_no_spout(rate, most):
    found = marks(rate, most, most)(None, range(10), 1_700_000_000_000)
    assert found is None or (found < 0).sum() <= 1


def test_a_rate_that_an_operator_raises_holds_for_the_next_messages():
    rates = [0.0]
    marker = TraceMarks(lambda: rates[-1], 10.0, 10.0, lambda: None)
    assert marker.put_on(None, range(100), names(0, 100), 1_000) is None
    rates.append(0.5)
    assert (marker.put_on(None, range(100), names(100, 100), 2_000) < 0).sum() == 10


def test_a_task_emits_within_its_bound_and_dead_letters_that_are_sent_again_take_part():
    messages = [(n, n) for n in range(1_000)]
    harness = Harness(
        Source(emits(*messages)),
        trace_rate=lambda: 0.999,
        max_traces_per_sec=10.0,
        reserve=lambda at: at + (1 << 40),
    )
    values = pa.record_batch({"value": ["again"]})
    harness.run()
    harness.task.dispatch(Redrive([RedrivenLetter(7, "default", values)]))
    harness.run()
    harness.now_ms += 5_000  # the bucket is full again
    harness.task.dispatch(Redrive([RedrivenLetter(8, "default", values)]))
    harness.run()
    chunks = [harness.chunk(number) for number in range(3)]
    assert [len(chunk) for chunk in chunks] == [1_000, 1, 1]
    assert [chunk.first_sequence for chunk in chunks] == [0, 1_000, 1_001], "none is left out"
    assert [int((chunk.attempts < 0).sum()) for chunk in chunks] == [10, 0, 1]


def test_the_bound_is_divided_among_the_spout_tasks():
    builder = TopologyBuilder("three")
    builder.set_spout("one", FeederSpout(["n"]))
    builder.set_spout("two", IterableSpout(range(3), ["n"]), parallelism=2)
    plan = Plan.of(builder.create_topology(), Config(max_traces_per_sec=30), 1, 5)
    assert plan.max_traces_per_sec == 10
    unbounded = Plan.of(builder.create_topology(), Config(max_traces_per_sec=None), 1, 5)
    assert unbounded.max_traces_per_sec is None


def test_a_local_cluster_has_no_bound():
    feeder, builder = FeederSpout(["n"]), TopologyBuilder("unbounded")
    builder.set_spout("one", feeder)
    with LocalCluster() as cluster:
        config = Config(trace_sample_rate=0.5, max_traces_per_sec=1, run_salt=7)
        running = cluster.submit(builder.create_topology(), config=config)
        for number in range(500):
            feeder.feed([number], message_id=number)
        cluster.advance()
        assert 150 < len(running.traces) < 350


def test_where_nothing_is_named_first_attempts_stay_as_they_are():
    assert marks()(None, range(3), 0) is None


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
    marker = TraceMarks(lambda: 0.001, None, 2.0, lambda: None)
    found = marker.put_on(later(100_000), range(100_000), names(0, 100_000), 0)
    assert (found[2:] < 0).tolist() == is_sampled(names(0, 100_000), 0.001)[2:].tolist()
