"""A small share is lowered where very many messages are traced, and what is kept lacks nothing."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree.core.data.frames import Kind, WireRow
from acktree.core.ids import root_ids
from acktree.core.micro_batch import MicroBatch
from acktree.core.tracking.attempts import NAMED
from acktree.core.tracking.sampling import Share, is_sampled
from acktree.driver.operator_orders import Watch
from acktree.tasks.chunk import Chunk
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.tasks.watch_order import WatchOrder
from acktree.traces.pace import MOST_PER_SEC, SMALL, TracePace
from acktree.traces.packs import unpacked
from acktree.traces.recorder import TraceRecorder
from acktree.traces.store import IN_MEMORY, TraceStore
from tests.unit.traces.facts import body_of

SALT = 7


def counted(pace: TracePace, per_sec: float, secs: int = 2, start_ms: int = 0) -> tuple[int, int] | None:
    """What is proposed when that many traced messages were counted for some seconds."""
    pace.look(start_ms)
    pace.emitted(round(per_sec * secs))
    pace.look(start_ms + 1000 * secs)
    return pace.proposed


def test_a_share_is_lowered_until_few_enough_are_traced_and_raised_by_halves_after_longer():
    pace = TracePace(SMALL)
    most = MOST_PER_SEC
    assert counted(pace, 9 * most) == (16, 3 * 9 * most / SMALL)
    pace.taken()
    assert counted(pace, 1 * most, 30, 10_000) is None
    assert counted(pace, most // 5, 2, 50_000) is None
    pace.refused()
    assert counted(pace, most // 5, 20, 60_000) == (8, 3 * most // 5 * 16 / SMALL)
    pace.taken()
    assert pace.divisor == 8
    assert counted(pace, 2 * most, 2, 100_000)[0] == 16


def test_a_proposal_waits_for_the_levels_and_is_dropped_where_they_cannot_be_told():
    pace = TracePace(SMALL)
    proposed = counted(pace, 9 * MOST_PER_SEC)
    assert counted(pace, 90 * MOST_PER_SEC, 2, 10_000) == proposed
    pace.refused()
    assert (pace.proposed, pace.divisor) == (None, 1)
    assert counted(pace, 9 * MOST_PER_SEC, 2, 20_000) == proposed


def test_a_clock_that_goes_back_begins_anew():
    pace = TracePace(SMALL)
    counted(pace, 0, 1, 50_000)
    assert counted(pace, 9 * MOST_PER_SEC, 2, 1000)[0] == 16


def test_who_asks_for_a_large_share_gets_it():
    assert counted(TracePace(0.02), 1000 * MOST_PER_SEC) is None


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([1, 2, 4, 8])), max_size=4),
    st.sampled_from([SMALL, 0.3]),
    st.booleans(),
)
def test_the_share_of_a_message_is_that_of_the_last_step_before_it(steps, rate, again):
    steps = sorted(dict(steps).items())
    sequences = np.arange(0, 6000, 7)
    attempts = np.full(len(sequences), 2, np.int32) if again else None
    roots = np.concatenate([root_ids(SALT, task, sequences) for task in (1, 2)])
    both = None if attempts is None else np.concatenate([attempts, attempts])
    found = Share(rate, {1: steps} if steps else {}, SALT).traces(roots, both)
    for at, (root, sequence) in enumerate(zip(roots, [*sequences, *sequences], strict=True)):
        divisor = next((d for first, d in reversed(steps) if first <= sequence), 1)
        divisor = divisor if at < len(sequences) else 1
        one = is_sampled(np.array([root]), rate / divisor, None if both is None else both[at : at + 1])
        assert found[at] == one[0]


def chunk_of(count: int, first: int = 0, attempts: list[int] | None = None) -> Chunk:
    given = None if attempts is None else np.array(attempts, np.int32)
    return Chunk(
        "source", 1, "default", is_tracked=True, first_sequence=first, emitted_ms=first,
        values=pa.record_batch({"n": range(count)}), attempts=given,
    )  # fmt: skip


class Paced:
    """A recorder and its levels: each message is one tuple, executed in a micro-batch of its own."""

    def __init__(self) -> None:
        self.store = TraceStore(IN_MEMORY)
        self.recorder = TraceRecorder(self.store, SMALL, SALT, is_threaded=False)
        self.clock_ms = self.next = 0
        self.sent: list[WatchOrder] = []
        self.open: list[int] = []
        self.waiting: list[Chunk] = []
        plan = SimpleNamespace(topology=SimpleNamespace(spouts=[]))
        self.watch = Watch(plan, self.recorder, self.send, lambda: {1: self.next})

    def send(self, order: WatchOrder) -> None:
        self.sent.append(order)

    @property
    def share(self) -> Share:
        """Of the levels."""
        return Share(SMALL, self.sent[-1].trace_steps if self.sent else {}, SALT)

    def emit(self, count: int) -> None:
        """Hand a chunk over, which waits in the inbox."""
        chunk = chunk_of(count, self.next)
        self.next += count
        self.recorder.emitted(chunk, [*range(count)])
        self.waiting.append(chunk)

    def micro_batch(self, acked: int) -> None:
        """Run the chunks that wait, and execute and ack the oldest open messages of earlier micro-batches."""
        self.clock_ms += 700
        fresh = np.concatenate([np.zeros(0, np.int64), *(chunk.sequences for chunk in self.waiting)])
        done = np.array(self.open[:acked], np.int64)
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
        self.open, self.waiting = self.open[acked:] + fresh.tolist(), []

    def traced(self, sequences: np.ndarray) -> list[int]:
        roots = root_ids(SALT, 1, sequences)
        return roots[self.share.traces(roots)].tolist()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.sampled_from([1, 15_000, 20_000])),
        st.tuples(st.just("micro_batch"), st.integers(0, 20_000)),
        st.just(("pace",)),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=60)
@given(STEPS)
def test_a_message_that_is_stored_is_stored_whole_whenever_the_share_changes(steps):
    paced = Paced()
    for step, *count in steps:
        if step == "pace":
            paced.watch.keep_pace()
        else:
            getattr(paced, step)(*count)
    paced.micro_batch(0)
    paced.micro_batch(len(paced.open))
    rows = paced.store.select("SELECT root, verdict, message_id FROM messages")
    assert [row for row in rows if row["verdict"] != "ACKED" or row["message_id"] is None] == []
    roots = root_ids(SALT, 1, np.arange(paced.next))
    assert {row["root"] for row in rows} == {*roots[paced.share.traces(roots)].tolist()}
    packs = [unpacked(row["body"]) for row in paced.store.select("SELECT body FROM packs")]
    told = Counter(
        root
        for part in chain.from_iterable(packs)
        for root in [*part.links["root"].tolist(), *part.executions["root"].tolist()]
    )
    assert told == dict.fromkeys((row["root"] for row in rows), 3), "two links and an execution of each"


def busy(paced: Paced, batches: int = 5) -> Paced:
    for _ in range(batches):
        paced.emit(40_000)
        paced.micro_batch(0)
    return paced


def test_a_run_that_goes_on_takes_what_an_earlier_one_lowered_for_whole():
    """Its levels know no steps: they record more than is stored, which is left out."""
    paced = busy(Paced())
    paced.watch.keep_pace()
    busy(paced, 20)
    before = paced.store.count()
    assert paced.share.steps
    assert before < 25 * 400
    later = Paced()
    later.store, later.next, later.clock_ms, later.open = paced.store, paced.next, paced.clock_ms, paced.open
    later.recorder = TraceRecorder(paced.store, SMALL, SALT, is_threaded=False)
    later.micro_batch(len(later.open))
    assert paced.store.select("SELECT verdict, count(*) n FROM messages GROUP BY 1") == [
        {"verdict": "ACKED", "n": before}
    ]


def test_attempts_that_only_levels_know_get_their_verdicts():
    """Chunks that wait in the inbox while the share is raised."""
    paced = Paced()
    paced.recorder.set_rate(SMALL / 50)
    again = np.full(20_000, 2, np.int32)
    chunk = chunk_of(20_000, attempts=[2] * 20_000)
    paced.recorder.emitted(chunk, [*range(20_000)])
    paced.recorder.set_rate(SMALL)
    roots = root_ids(SALT, 1, np.arange(20_000))
    traced = roots[is_sampled(roots, SMALL, again)].tolist()
    links = [[root, root, [], "source", 1, "default", "source", 1, []] for root in traced]
    paced.recorder.add(MicroBatch(1, 1), [WireRow(0, 0, Kind.TRACE, 0, 0, 0, b"", body_of(links))])
    paced.recorder.judged(MicroBatch(1, 1), {1: VerdictBatch(acked=np.arange(20_000))})
    assert paced.store.select("SELECT verdict, count(*) n FROM messages GROUP BY 1") == [
        {"verdict": "ACKED", "n": len(traced)}
    ]


def test_the_levels_are_told_and_an_operators_order_is_kept():
    paced = Paced()
    paced.watch = Watch(paced.watch._plan, paced.recorder, paced.send, lambda: {1: paced.next, 2: 70})
    paced.watch._order = WatchOrder(SMALL, {"": 0.5})
    paced.watch.keep_pace()
    assert paced.sent == []
    busy(paced)
    assert paced.recorder.rate == SMALL
    paced.watch.keep_pace()
    paced.watch.keep_pace()
    [order] = paced.sent
    assert (order.trace_rate, order.debug) == (SMALL, {"": 0.5})
    [(first, divisor)] = order.trace_steps[1]
    assert first > paced.next
    assert order.trace_steps[2] == [(70 + first - paced.next, divisor)]
    assert paced.recorder.rate == SMALL / divisor < SMALL
    assert WatchOrder.from_bytes(order.to_bytes()) == order
    paced.watch.set_rate(1.0)
    paced.watch.keep_pace()
    assert (paced.recorder.rate, paced.watch.order) == (1.0, WatchOrder(1.0, {"": 0.5}))


def test_messages_that_are_named_are_not_counted():
    paced = Paced()
    for _ in range(5):
        paced.recorder.emitted(chunk_of(2000, paced.next, [NAMED | 1] * 2000), [*range(2000)])
        paced.next += 2000
        paced.micro_batch(0)
    paced.watch.keep_pace()
    assert (paced.sent, paced.store.count()) == ([], 10_000)


def test_a_share_that_cannot_be_ordered_stops_nothing_and_is_ordered_later():
    paced, tried = Paced(), []

    def full(order):
        tried.append(order)
        if len(tried) == 1:
            raise OSError(28, "No space left on device")
        paced.sent.append(order)

    paced.watch = Watch(paced.watch._plan, paced.recorder, full, lambda: {1: paced.next})
    busy(paced)
    paced.watch.keep_pace()
    paced.watch.keep_pace()
    assert (len(tried), paced.recorder.rate, paced.watch.order) == (1, SMALL, WatchOrder(SMALL))
    busy(paced)
    paced.watch.keep_pace()
    assert (len(tried), len(paced.sent)) == (2, 1)
    assert paced.recorder.rate < SMALL


def test_many_changes_keep_the_last_steps_of_a_task():
    paced = Paced()
    for change in range(100):
        paced.recorder.pace.proposed = 2 if change % 2 else 4, 10
        paced.watch.keep_pace()
    steps = paced.sent[-1].trace_steps[1]
    assert len(steps) == 8
    assert steps == sorted(steps)
    assert steps[-1] == (10 + 99, 2)
