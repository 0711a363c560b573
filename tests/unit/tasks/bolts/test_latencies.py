"""How long a tuple took: its execute, and from that to its ack, which for a held one comes later."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pyarrow as pa
import pytest

from acktree import ArrowBolt, Config
from acktree.core.stats.numbers import Numbers
from acktree.tasks.bolts import collectors
from acktree.tasks.bolts import kinds as bolt_kinds
from acktree.tasks.bolts.kinds import HandBoltTask
from tests.unit.tasks.bolts.bolt_harness import Bench, Calls, CallsByHand, bench

ALL = Config(stats_sample_rate=1.0)


def numbers(running: Bench) -> Numbers:
    return running.running.stats()["b0"].total


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stopwatch that moves on by one second whenever it is looked at."""
    seconds = count(1)
    for module in (bolt_kinds, collectors):
        monkeypatch.setattr(module, "perf_counter", lambda: next(seconds))
    return


def test_a_basic_bolt_acks_when_execute_returns_so_both_times_are_one() -> None:
    with bench(Calls(lambda bolt, tup, collector: sum(range(10_000)))) as running:
        running.feed(1, 2, 3)
        assert numbers(running).execute_ms > 0
        assert numbers(running).process_ms == pytest.approx(numbers(running).execute_ms, abs=0.001)


def test_a_tuple_that_fails_was_never_processed() -> None:
    with bench(Calls(lambda bolt, tup, collector: [][tup["value"]])) as running:
        running.feed(1, 2)
        assert numbers(running).execute_ms is not None
        assert numbers(running).process_ms is None


class Whole(ArrowBolt):
    outputs = pa.schema([("value", pa.int64())])

    def execute_batch(self, batch, collector):
        collector.fail_rows([0])


def test_a_row_of_a_batch_is_processed_when_the_batch_is() -> None:
    with bench(Whole(), outputs=pa.schema([("value", pa.int64())])) as running:
        running.feed(1, 2, 3, 4)
        assert numbers(running).acked == 3
        assert numbers(running).process_ms == pytest.approx(4 * numbers(running).execute_ms, abs=0.005)


def ack_both(bolt, tup):
    """Holds a tuple until the next one comes, and acks the two."""
    if bolt.held is None:
        bolt.held = tup
    else:
        bolt.collector.ack(bolt.held)
        bolt.collector.ack(tup)
        bolt.held = None


HOLDING = {"remembers": ("held",), "held": lambda: None}


def test_what_waits_for_its_neighbour_is_timed_until_its_own_ack(stopwatch: None) -> None:
    with bench(CallsByHand(ack_both, **HOLDING), config=ALL) as running:
        running.feed(1, 2)  # executed at 1 s and 2 s, acked at 3 s and 4 s
        assert running.acked == [1, 2]
        assert numbers(running).process_ms == 2000


def test_what_is_held_over_micro_batches_is_timed_by_their_clocks(stopwatch: None) -> None:
    with bench(CallsByHand(ack_both, **HOLDING), config=ALL) as running:
        running.feed(1)
        assert numbers(running).process_ms is None
        running.cluster.advance(7)
        running.feed(2)  # 1 s by the stopwatch
        assert running.acked == [1, 2]
        assert numbers(running).process_ms == (7000 + 1000) / 2


def test_a_clock_that_was_set_back_makes_nothing_take_less_than_no_time(stopwatch: None) -> None:
    with bench(CallsByHand(ack_both, **HOLDING), config=ALL) as running:
        running.cluster.advance(9)
        running.feed(1)
        running.cluster.now_ms -= 5000
        running.feed(2)
        assert numbers(running).process_ms == (0 + 1000) / 2


def test_what_a_tick_acks_counts_and_the_tick_does_not(stopwatch: None) -> None:
    class Ticks(CallsByHand):
        tick_secs = 3

        def tick(self, tup):
            if self.held is not None:
                self.collector.ack(self.held)
                self.held = None

    with bench(Ticks(lambda bolt, tup: setattr(bolt, "held", tup), **HOLDING), config=ALL) as running:
        running.cluster.advance(2)
        running.feed(1)
        running.cluster.advance(1)
        assert running.acked == [1]
        assert numbers(running).process_ms == 1000
        assert list(running.running.stats()["b0"].streams) == ["source:default"]


def test_where_nothingis_sampled_nothing_is_timed_tuple_by_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bolt_kinds, "perf_counter", None)  # nobody may ask
    monkeypatch.setattr(collectors, "perf_counter", None)
    tiny = Config(stats_sample_rate=2.0**-64)
    with bench(CallsByHand(lambda bolt, tup: bolt.collector.ack(tup)), config=tiny) as running:
        running.feed(1, 2)
        assert running.acked == [1, 2]
        assert numbers(running).process_ms is None
        assert numbers(running).execute_ms is not None


@pytest.mark.parametrize(("rate", "least", "most"), [(0.05, 150, 250), (0.5, 1900, 2100), (1.0, 4000, 4000)])
def test_the_share_of_micro_batches_that_is_timed_is_the_one_that_was_asked_for(rate, least, most) -> None:
    def timed(task: int) -> list[bool]:
        return [
            HandBoltTask.is_sampled(
                SimpleNamespace(
                    task=task,
                    outputs=SimpleNamespace(clock_ms=1_800_000_000_000 + 137 * number),
                    plan=SimpleNamespace(config=Config(stats_sample_rate=rate)),
                )
            )
            for number in range(4000)
        ]

    assert least <= sum(timed(1)) <= most
    assert timed(1) == timed(1)  # a micro-batch that runs again measures alike
    assert rate == 1 or timed(1) != timed(2)
