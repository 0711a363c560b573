"""A spout task takes sequences so that no more messages are traced in a second than the bound says."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config, IterableSpout, TopologyBuilder
from acktree.core.tracking.sampling import TRACE_BLOCK
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.retries import RedrivenLetter
from acktree.tasks.spouts.trace_pace import TracePace
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing import FeederSpout, LocalCluster
from tests.unit.tasks.spouts.spout_harness import Harness, Source, emits

SOURCES = {
    "slow": (10, 1),
    "at the bound": (1_000, 1),
    "fast": (1_000_000, 10_000),
    "a large batch now and then": (100_000, TRACE_BLOCK),
    "one at a time": (20_000, 1),
}


def sampled_of(first: int, count: int) -> int:
    """How many of some sequences are in even blocks."""
    return sum(
        max(0, min(first + count, (block + 1) * TRACE_BLOCK) - max(first, block * TRACE_BLOCK))
        for block in range(first // TRACE_BLOCK, (first + count) // TRACE_BLOCK + 1)
        if block % 2 == 0
    )


def taken(pace: TracePace, chunks: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(time, first sequence, count) of chunks that are given as (time, count)."""
    found, following = [], 0
    for now_ms, count in chunks:
        first = pace.first(following, count, now_ms)
        found.append((now_ms, first, count))
        following = first + count
    return found


@given(
    st.lists(st.tuples(st.integers(-500, 3_000), st.integers(1, TRACE_BLOCK)), max_size=60),
    st.sampled_from([0.0001, 0.001, 0.05, 0.9]),
    st.sampled_from([0.5, 10.0, 100.0, None]),
)
def test_each_message_has_a_sequence_of_its_own_and_no_second_has_too_many_that_are_sampled(
    steps, rate, most
):
    chunks, now_ms = [], 1_700_000_000_000
    for step_ms, count in steps:
        now_ms += step_ms  # a clock may be set back
        chunks.append((now_ms, count))
    found = taken(TracePace(lambda: rate, most), chunks)
    following = 0
    for _, first, count in found:
        assert following <= first <= following + 2 * TRACE_BLOCK
        following = first + count
    passed_ms = sum(max(0, step_ms) for step_ms, _ in steps)
    traced = rate * sum(sampled_of(first, count) for _, first, count in found)
    if most is None:
        assert traced == pytest.approx(rate * sum(count for _, count in steps))
    else:
        assert traced <= max(most, 1) + most * passed_ms / 1000 + 1e-6


@pytest.mark.parametrize("source", SOURCES)
def test_as_many_are_sampled_as_the_bound_allows(source):
    per_sec, count = SOURCES[source]
    secs, rate, most = 200, 0.01, 10.0
    chunks = [(int(1000 * at * count / per_sec), count) for at in range(secs * per_sec // count)]
    if per_sec * rate > 100 * most and count == 1:
        chunks = chunks[: 20 * per_sec]
        secs = 20
    found = taken(TracePace(lambda: rate, most), chunks)
    a_sec = rate * sum(sampled_of(first, count) for _, first, count in found) / secs
    wanted = min(most, per_sec * rate)
    apart_secs = max(1.0, count / per_sec)  # what is not used within a second is lost
    assert 0.45 * wanted / apart_secs <= a_sec <= wanted * (1 + 1 / secs) + 1e-9
    if per_sec * rate <= most:
        assert a_sec == pytest.approx(per_sec * rate)


def test_of_many_spout_tasks_each_has_a_trace_now_and_then():
    chunks = [(1000 * at, 10) for at in range(100)]
    found = taken(TracePace(lambda: 0.9, 0.1), chunks)
    assert 5 <= sum(sampled_of(first, count) for _, first, count in found) <= 11


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_where_all_messages_are_traced_or_none_no_sequence_is_left_out(rate):
    chunks = [(at, 10_000) for at in range(100)]
    assert [first for _, first, _ in taken(TracePace(lambda: rate, 1.0), chunks)] == [
        10_000 * at for at in range(100)
    ]


@pytest.mark.parametrize(("rate", "most"), [(1e-310, 100.0), (0.001, 1e308), (0.9, 1e-310)])
def test_numbers_that_are_hardly_any_stop_no_spout(rate, most):
    pace = TracePace(lambda: rate, most)
    assert pace.first(0, 10, 1_700_000_000_000) in {0, TRACE_BLOCK, TRACE_BLOCK - 1}


def test_few_sequences_are_left_out_at_a_million_messages_a_second():
    chunks = [(at * 10, 10_000) for at in range(10_000)]
    *_, (_, first, count) = taken(TracePace(lambda: 0.001, 100.0), chunks)
    assert first + count < 3 * sum(count for _, count in chunks)


def test_a_rate_that_an_operator_raises_holds_for_the_next_messages():
    rates = [0.0]
    pace = TracePace(lambda: rates[-1], 10.0)
    assert pace.first(TRACE_BLOCK + 5, 100, 1_000) == TRACE_BLOCK + 5
    rates.append(0.01)
    assert pace.first(TRACE_BLOCK + 105, 100, 2_000) == 2 * TRACE_BLOCK


def test_a_task_emits_within_its_bound_and_dead_letters_that_are_sent_again_take_part():
    messages = [(n, n) for n in range(1_000)]
    harness = Harness(
        Source(emits(*messages)),
        trace_rate=lambda: 0.5,
        max_traces_per_sec=10.0,
        reserve=lambda at: at + (1 << 40),
    )
    values = pa.record_batch({"value": ["again"]})
    harness.run()
    harness.task.dispatch(VerdictBatch(redriven=[RedrivenLetter(7, "default", values)]))
    harness.run()
    harness.now_ms += 5_000  # the bucket is full again
    harness.task.dispatch(VerdictBatch(redriven=[RedrivenLetter(8, "default", values)]))
    harness.run()
    chunks = [harness.chunk(number) for number in range(3)]
    assert [len(chunk) for chunk in chunks] == [1_000, 1, 1]
    assert [sampled_of(chunk.first_sequence, len(chunk)) for chunk in chunks] == [20, 0, 1]


def test_a_batch_that_is_larger_than_a_block_is_cut_so_that_all_of_it_can_be_sampled():
    count = TRACE_BLOCK + 5

    def emit(spout):
        spout.collector.emit_batch(pa.record_batch({"value": ["x"] * count}), message_ids=range(count))

    harness = Harness(Source(emit), trace_rate=lambda: 0.001, reserve=lambda at: at + (1 << 40))
    harness.run()
    chunks = [harness.chunk(number) for number in range(2)]
    assert sum(sampled_of(chunk.first_sequence, len(chunk)) for chunk in chunks) == count


def test_the_bound_is_divided_among_the_spout_tasks():
    builder = TopologyBuilder("three")
    builder.set_spout("one", FeederSpout(["n"]))
    builder.set_spout("two", IterableSpout(range(3), ["n"]), parallelism=2)
    plan = Plan.of(builder.create_topology(), Config(max_traces_per_sec=30), 1, 5)
    assert plan.max_traces_per_sec == 10
    assert (
        Plan.of(builder.create_topology(), Config(max_traces_per_sec=None), 1, 5).max_traces_per_sec is None
    )


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
