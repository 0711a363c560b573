"""A small share is lowered where very many messages are traced, and what is kept lacks nothing."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import BasicBolt
from acktree.core.data.frames import Kind, WireRow
from acktree.core.ids import root_ids
from acktree.core.micro_batch import MicroBatch
from acktree.core.tracking.attempts import NAMED
from acktree.core.tracking.sampling import is_sampled
from acktree.driver.operator_orders import Watch
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.traces.events import EventLog
from acktree.traces.pace import MOST_PER_SEC, SMALL, TracePace
from acktree.traces.packs import unpacked
from acktree.traces.recorder import TraceRecorder
from acktree.traces.store import IN_MEMORY, TraceStore
from acktree.traces.traces import Traces
from tests.unit.tasks.bolts.bolt_harness import bench
from tests.unit.traces.facts import body_of

SALT = 7


def counted(pace: TracePace, per_sec: int, start_ms: int = 0) -> float:
    """What is proposed when that many messages were counted for two seconds."""
    for at_ms in range(start_ms, start_ms + 2001, 500):
        pace.judged(at_ms)
        pace.emitted(per_sec // 2)
    return pace.proposed


def test_a_share_is_lowered_until_few_enough_are_traced_and_raised_by_halves():
    pace = TracePace(SMALL)
    assert counted(pace, 9 * MOST_PER_SEC) == SMALL / 16
    pace.agree()
    assert counted(pace, MOST_PER_SEC) == SMALL / 16
    assert counted(pace, MOST_PER_SEC // 5, 10_000) == SMALL / 8
    pace.agree()
    assert counted(pace, 0, 20_000) == SMALL / 4


def test_a_proposal_waits_for_the_levels_and_is_dropped_where_they_cannot_be_told():
    pace = TracePace(SMALL)
    proposed = counted(pace, 9 * MOST_PER_SEC)
    assert counted(pace, 90 * MOST_PER_SEC, 10_000) == proposed
    pace.refuse()
    assert pace.proposed == SMALL
    assert counted(pace, 9 * MOST_PER_SEC, 20_000) == proposed


def test_three_micro_batches_are_counted_however_long_they_last():
    pace = TracePace(SMALL)
    for at_ms in (0, 60_000, 120_000):
        pace.judged(at_ms)
        pace.emitted(60_000 * MOST_PER_SEC)
    assert pace.proposed == SMALL
    pace.judged(180_000)
    assert pace.proposed < SMALL


def test_a_clock_that_goes_back_begins_anew():
    pace = TracePace(SMALL)
    counted(pace, 0, 50_000)
    assert counted(pace, 9 * MOST_PER_SEC, 1000) == SMALL / 16


def test_who_asks_for_a_large_share_gets_it():
    assert counted(TracePace(0.02), 1000 * MOST_PER_SEC) == 0.02


def chunk_of(count: int, first: int = 0, attempts: list[int] | None = None) -> Chunk:
    given = None if attempts is None else np.array(attempts, np.int32)
    return Chunk(
        "source", 1, "default", is_tracked=True, first_sequence=first, emitted_ms=first,
        values=pa.record_batch({"n": range(count)}), attempts=given,
    )  # fmt: skip


class Paced:
    """A recorder whose levels are told: each message is one tuple, executed in a micro-batch of its own."""

    def __init__(self) -> None:
        self.store = TraceStore(IN_MEMORY)
        self.recorder = TraceRecorder(self.store, SMALL, SALT, is_threaded=False)
        self.clock_ms = self.next = 0
        self.rate = SMALL  # of the levels
        self.open: list[int] = []

    def micro_batch(self, emitted: int, acked: int) -> None:
        """Emit messages, and execute and ack the oldest open ones of earlier micro-batches."""
        self.clock_ms += 700
        fresh, done = np.arange(self.next, self.next + emitted), np.array(self.open[:acked], np.int64)
        if emitted:
            self.recorder.emitted(chunk_of(emitted, self.next), [*range(emitted)])
        links = [
            link
            for root in self.traced(fresh)
            for link in (
                [root, root, [], "source", 1, "default", "source", 1, []],
                [root, root ^ 1, [root], "source", 1, "default", "b", 2, []],
            )
        ]
        executions = [[root, root ^ 1, "b", 2, 1, 1.0, 1, "acked", ""] for root in self.traced(done)]
        row = WireRow(0, 0, Kind.TRACE, 0, 0, 0, b"", body_of(links, executions))
        batch = MicroBatch(self.clock_ms, self.clock_ms)
        self.recorder.add(batch, [row] if links or executions else [])
        self.recorder.judged(batch, {1: VerdictBatch(acked=done)})
        self.open, self.next = self.open[acked:] + fresh.tolist(), self.next + emitted

    def traced(self, sequences: np.ndarray) -> list[int]:
        roots = root_ids(SALT, 1, sequences)
        return roots[is_sampled(roots, self.rate)].tolist()

    def tell_levels(self) -> None:
        self.rate = self.recorder.proposed_rate
        self.recorder.keep_pace()

    def look(self) -> None:
        """Micro-batches with few messages, until the open ones were looked at."""
        for _ in range(5):
            self.micro_batch(1, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.sampled_from([1, 15_000, 20_000]), st.integers(0, 20_000)),
        st.just(("tell",)),
    ),
    min_size=6,
    max_size=20,
)


@settings(max_examples=40)
@given(STEPS)
def test_a_message_that_is_stored_is_stored_whole_whenever_the_share_changes(steps):
    paced = Paced()
    for step, *counts in steps:
        if step == "batch":
            paced.micro_batch(*counts)
        else:
            paced.tell_levels()
    paced.look()
    paced.micro_batch(0, len(paced.open))
    verdicts = {
        row["root"]: row["verdict"] for row in paced.store.select("SELECT root, verdict FROM messages")
    }
    assert {*verdicts.values()} <= {"ACKED"}
    packs = [unpacked(row["body"]) for row in paced.store.select("SELECT body FROM packs")]
    told = Counter(
        root
        for part in chain.from_iterable(packs)
        for root in [*part.links["root"].tolist(), *part.executions["root"].tolist()]
    )
    assert told == dict.fromkeys(verdicts, 3), "two links and an execution of each"


def test_messages_that_are_named_stay_and_open_ones_beyond_the_share_go():
    paced = Paced()
    recorder = paced.recorder
    recorder.emitted(chunk_of(2, attempts=[NAMED | 1, NAMED | 1]), ["a", "b"])
    paced.next = 2
    paced.micro_batch(40_000, 0)
    for _ in range(4):
        paced.micro_batch(20_000, 0)
    before = paced.store.count()
    paced.tell_levels()
    paced.look()
    ids = [each.message_id for each in Traces(paced.store).find(limit=1000)]
    assert {"'a'", "'b'"} <= {*ids}
    assert len(ids) < before
    numbers = recorder.numbers(EventLog(None, "numbers", is_threaded=False))
    assert before - len(ids) <= numbers.dropped["bounds"] <= before - len(ids) + 5


@pytest.fixture
def plan():
    with bench(Ends()) as running:
        yield running.running.plan


class Ends(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


def test_the_levels_are_told_before_the_driver_traces_less(plan):
    paced, sent = Paced(), []
    watch = Watch(plan, paced.recorder, sent.append)
    watch.set_debug(on=True, component=None, percent=50)
    watch.keep_pace()
    for _ in range(5):
        paced.micro_batch(40_000, 0)
    watch.keep_pace()
    watch.keep_pace()
    assert [(order.trace_rate, order.debug) for order in sent[1:]] == [(paced.recorder.rate, {"": 0.5})]
    assert paced.recorder.rate < SMALL
    watch.set_rate(1.0)
    watch.keep_pace()
    assert (paced.recorder.rate, watch.order.trace_rate, len(sent)) == (1.0, 1.0, 3)


def test_a_share_that_cannot_be_ordered_stops_nothing_and_is_ordered_later(plan, caplog):
    paced, sent = Paced(), []

    def full(order):
        if not sent:
            sent.append(None)
            raise OSError(28, "No space left on device")
        sent.append(order)

    watch = Watch(plan, paced.recorder, full)
    for _ in range(5):
        paced.micro_batch(40_000, 0)
    watch.keep_pace()
    watch.keep_pace()
    assert (watch.order.trace_rate, paced.recorder.rate, sent) == (SMALL, SMALL, [None])
    assert "No space left" in caplog.text
    for _ in range(5):
        paced.micro_batch(40_000, 0)
    watch.keep_pace()
    assert sent[1].trace_rate == paced.recorder.rate < SMALL
