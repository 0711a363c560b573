"""What passes a gate, in a LocalCluster: beside a naive reader of the verdicts."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from acktree import ArrowBolt, BasicBolt, Bolt, Config, Retry, Spout, TopologyBuilder
from acktree.core.tracking.origins import Origin
from acktree.testing import FeederSpout, LocalCluster

QUICK = Retry(max_attempts=2, backoff_secs=(0.01, 0.01))


class Pairs(Bolt):
    """Emits a tuple for each two, anchored to both; acks and fails them as the second says."""

    outputs = ["pair"]
    remembers = ["first"]
    first = None

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        if self.first is None:
            self.first = tup
            return
        self.collector.emit([f"{self.first['name']}{tup['name']}"], anchors=[self.first, tup])
        for one in (self.first, tup):
            if one["fate"] == "ack":
                self.collector.ack(one)
            elif one["fate"] == "fail":
                self.collector.fail(one)
        self.first = None


class Passes(BasicBolt):
    outputs = ["pair"]

    def execute(self, tup, collector):
        collector.emit([tup["pair"]])
        if tup["pair"] == "raises":
            raise ValueError("a pair that raises")


def run(*rows, secs=200):
    feeder = FeederSpout(["name", "fate"])
    builder = TopologyBuilder("pairs")
    builder.set_spout("rows", feeder)
    builder.set_bolt("pairs", Pairs()).global_grouping("rows")
    builder.set_bolt("passes", Passes(), exactly_once=True, retry=QUICK).global_grouping("pairs")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(message_timeout_secs=30))
        for number, row in enumerate(rows):
            feeder.feed([*row], message_id=number)
        cluster.advance(secs=secs)
        waiting = running._gates.waiting("__gate/passes/pairs/default", 0)
        passed = [pair for [pair] in running.tuples("passes")]
        return passed, waiting, [(letter.spout, letter.values) for letter in running.dead_letters]


def test_a_tuple_of_several_messages_passes_when_all_are_acked_and_goes_with_the_first_that_is_not():
    acked, failed, late = "ack", "fail", "never"
    assert run(("a", acked), ("b", acked))[:2] == (["ab"], 0)
    for fates in (
        (acked, failed),
        (failed, acked),
        (acked, late),
        (late, acked),
        (late, failed),
        (late, late),
    ):
        assert run(*zip("ab", fates, strict=True))[:2] == ([], 0)


def test_a_tuple_waits_as_long_as_one_of_its_messages_is_open():
    assert run(("a", "ack"), ("b", "never"), secs=1)[:2] == ([], 1)


def test_a_tuple_that_has_passed_is_open_and_does_not_wait_in_front_of_its_gate():
    gate, feeder = "__gate/passes/rows/default", FeederSpout(["pair"])
    builder = TopologyBuilder("passing")
    builder.set_spout("rows", feeder)
    later = Retry(max_attempts=2, backoff_secs=(30, 30))
    builder.set_bolt("passes", Passes(), exactly_once=True, retry=later).global_grouping("rows")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for number in range(5):
            feeder.feed(["raises"], message_id=number)
        seen = []
        for _ in range(100):
            cluster.advance(secs=0.2)
            numbers = running.stats()[gate]
            seen.append((numbers.open, numbers.lag))
            if numbers.total.failed:
                break
        assert seen[-1] == (5, 0)  # each waits for its second attempt
        assert all(is_open + waiting <= 5 for is_open, waiting in seen)
        cluster.advance(secs=100)
        assert (running.stats()[gate].open, running.stats()[gate].lag) == (0, 0)


def test_a_tuple_that_is_given_up_behind_a_gate_is_a_letter_of_the_gate_and_leaves_no_trace():
    passed, waiting, letters = run(("rai", "ack"), ("ses", "ack"), ("c", "ack"), ("d", "ack"))
    assert (passed, waiting) == (["cd"], 0)
    assert letters == [("__gate/passes/pairs/default", ["raises"])]


class Unreadable:
    """A value that no process can unpickle again."""

    def __reduce__(self):
        return _refuses, ()


def _refuses():
    raise ValueError("cannot be loaded")


class Wraps(BasicBolt):
    outputs = ["n", "value"]

    def execute(self, tup, collector):
        collector.emit([tup["name"], Unreadable() if tup["name"] == 2 else object])


class Sees(BasicBolt):
    outputs = ["n"]
    calls = 0

    def prepare(self, config, context):
        assert dict(context.input_fields) == {("wraps", "default"): ("n", "value")}

    def execute(self, tup, collector):
        tup["value"]
        collector.emit([tup["n"]])


CHANCE = random.Random(0)
CALLS = Counter()


class Totals(BasicBolt):
    """One tuple in fifty runs raises, after it was added."""

    outputs = ["number", "total"]
    remembers = ["total"]
    total = 0

    def execute(self, tup, collector):
        CALLS["execute"] += 1
        self.total += tup["number"]
        collector.emit([tup["number"], self.total])
        if CHANCE.random() < 0.02:
            raise ValueError("at random")


class TotalsAtTheEnd(Totals):
    """Ends its micro-batch in ``flush``, so it runs as a whole."""

    def flush(self, collector):
        CALLS["flush"] += 1


@pytest.mark.parametrize(("bolt", "count", "most_calls"), [(Totals, 1000, 8), (TotalsAtTheEnd, 100, 40)])
def test_where_tuples_fail_at_random_each_is_counted_once_and_what_did_not_fail_is_seldom_run_again(
    bolt, count, most_calls
):
    CHANCE.seed(0)
    CALLS.clear()
    feeder = FeederSpout(["number"])
    builder = TopologyBuilder("totals")
    builder.set_spout("numbers", feeder)
    retry = Retry(max_attempts=100, backoff_secs=(0.01, 0.01))
    builder.set_bolt("totals", bolt(), exactly_once=True, retry=retry).global_grouping("numbers")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for number in range(count):
            feeder.feed([number], message_id=number)
        cluster.advance(secs=100)
        numbers, totals = zip(*running.tuples("totals"), strict=True)
        assert [*running.dead_letters] == []
        counted = running.stats()["totals"]
    total = counted.total
    assert (total.acked, total.executed) == (count, count + total.failed)  # each attempt once
    assert total.failed > 0
    assert sum(counted.execute_spread.values()) == total.executed < CALLS["execute"]
    assert sorted(numbers) == [*range(count)]
    assert [*totals] == [*accumulate(numbers)]
    assert count < CALLS["execute"] < most_calls * count


class EvenOnesFail(BasicBolt):
    """Raises for even numbers in their first attempt, after it has emitted."""

    outputs = ["number"]
    remembers = ["total"]
    total: object = 0

    def execute(self, tup, collector):
        self.total += tup["number"]
        collector.emit([tup["number"]])
        time.sleep(0.002)
        if tup.attempt == 1 and tup["number"] % 2 == 0:
            raise ValueError("an even number")


class OnThreads(EvenOnesFail):
    threads = 3


class AsCoroutines(BasicBolt):
    outputs = ["number"]
    max_concurrency = 4

    async def execute(self, tup, collector):
        await asyncio.sleep(0.002)
        EvenOnesFail.execute(SimpleNamespace(total=0), tup, collector)


SEEN: set[int] = set()


class EvenRowsFail(ArrowBolt):
    """Fails rows; a batch with zero raises as a whole, the first time."""

    outputs = ["number"]
    raises = True

    def execute_batch(self, batch, collector):
        time.sleep(0.01)
        numbers = batch["number"].to_pylist()
        new = {number for number in numbers if number % 2 == 0} - SEEN
        SEEN.update(new)
        if self.raises and 0 in new:
            raise ValueError("a batch with zero")
        collector.fail_rows([row for row, number in enumerate(numbers) if number in new])
        collector.emit_batch(batch.select(["number"]), [*range(len(numbers))])


class EvenRowsFailAlone(EvenRowsFail):
    raises = False


class FlushFails(EvenOnesFail):
    def execute(self, tup, collector):
        time.sleep(0.002)
        self.total = tup.attempt

    def flush(self, collector):
        if self.total == 1:
            raise ValueError("a first attempt")


class CannotBeSaved(EvenOnesFail):
    def execute(self, tup, collector):
        time.sleep(0.002)
        self.total = threading.Lock() if tup.attempt == 1 else 0


@pytest.mark.parametrize(
    ("bolt", "failed"),
    [
        (EvenOnesFail, 5), (OnThreads, 5), (AsCoroutines, 5), (EvenRowsFail, 10),
        (EvenRowsFailAlone, 5), (FlushFails, 10), (CannotBeSaved, 10),
    ],
)  # fmt: skip
def test_an_attempt_that_fails_is_counted_and_timed_with_and_without_exactly_once(bolt, failed):
    numbers = {}
    for exactly_once in (False, True):
        SEEN.clear()
        feeder, builder = FeederSpout(["number"]), TopologyBuilder("counted")
        builder.set_spout("numbers", feeder, retry=QUICK)
        retry = QUICK if exactly_once else None
        builder.set_bolt("fails", bolt(), exactly_once=exactly_once, retry=retry).global_grouping("numbers")
        with LocalCluster() as cluster:
            running = cluster.submit(builder.create_topology())
            for number in range(10):
                feeder.feed([number], message_id=number)
            cluster.advance(secs=30)
            assert [*running.dead_letters] == []
            found = running.stats()["fails"]
        total = found.total
        assert (total.executed, total.failed) == (10 + failed, failed)
        assert sum(found.execute_spread.values()) == total.executed
        assert found.streams["numbers:default"].executed == total.executed
        assert total.execute_ms > 0.5
        numbers[exactly_once] = total
    assert numbers[True].acked == 10
    assert numbers[True].emitted <= numbers[False].emitted  # what a failed attempt emits goes nowhere
    assert numbers[True].errors == numbers[False].errors


def test_a_value_that_cannot_be_unpickled_fails_its_own_tuple_and_stops_no_gate():
    feeder = FeederSpout(["name"])
    builder = TopologyBuilder("values")
    builder.set_spout("rows", feeder)
    builder.set_bolt("wraps", Wraps()).shuffle_grouping("rows")
    builder.set_bolt("sees", Sees(), exactly_once=True, retry=QUICK).shuffle_grouping("wraps")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for number in range(5):
            feeder.feed([number], message_id=number)
        cluster.advance(secs=60)
        assert sorted(n for [n] in running.tuples("sees")) == [0, 1, 3, 4]
        [letter] = running.dead_letters
        assert letter.component == "sees"


# --- dead letters of gates name the messages of spouts ----------------------------------------------------


class Labels(Spout):
    """Emits rows with labels."""

    outputs = ["name", "fate"]

    def __init__(self, rows):
        self.rows = list(rows)

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.rows:
            name = self.rows.pop(0)
            self.collector.emit([name, "ack"], message_id=f"id-{name}", label=f"order-{name}")


class Refuses(BasicBolt):
    """Raises for one pair, until it is mended."""

    outputs = ["pair"]
    wrong = {"ab"}

    def execute(self, tup, collector):
        if tup["pair"] in self.wrong:
            raise ValueError("not this pair")
        collector.emit([tup["pair"]])


def chain_of_gates(spout, pairs):
    builder = TopologyBuilder("chain")
    builder.set_spout("rows", spout)
    builder.set_bolt("pairs", pairs).global_grouping("rows")
    builder.set_bolt("first", Passes(), exactly_once=True, retry=QUICK).global_grouping("pairs")
    builder.set_bolt("second", Refuses(), exactly_once=True, retry=QUICK).global_grouping("first")
    return builder.create_topology()


A, B = Origin("rows", "'id-a'", "order-a"), Origin("rows", "'id-b'", "order-b")


def test_a_letter_of_a_gate_names_the_messages_of_spouts_through_all_gates_before_it():
    with LocalCluster() as cluster:
        running = cluster.submit(chain_of_gates(Labels("cdabef"), Pairs()))
        cluster.advance(secs=60)
        assert sorted(pair for [pair] in running.tuples("second")) == ["cd", "ef"]
        [letter] = running.dead_letters.find(label="order-a")
        assert letter.spout == "__gate/second/first/default"
        assert letter.origins == (A, B)
        assert "'id-a' of 'rows'" in letter.story()


class Arrays(Spout):
    """Emits the rows of a batch whose ids are an array."""

    outputs = ["name", "fate"]
    redelivers = False

    def open(self, config, context, collector):
        self.collector, self.is_done = collector, False

    def next_tuple(self):
        if not self.is_done:
            batch = pa.record_batch({"name": ["a", "b"], "fate": ["ack", "ack"]})
            self.collector.emit_batch(batch, np.array([7, 9]))
            self.is_done = True


def test_an_origin_whose_id_was_in_an_array_is_named_by_the_number():
    with LocalCluster() as cluster:
        running = cluster.submit(chain_of_gates(Arrays(), Pairs()))
        cluster.advance(secs=60)
        [letter] = running.dead_letters
        assert letter.origins == (Origin("rows", "7"), Origin("rows", "9"))


def test_a_letter_of_a_gate_is_sent_again_behind_the_gate_and_the_next_names_the_same(monkeypatch):
    with LocalCluster() as cluster:
        running = cluster.submit(chain_of_gates(Labels("ab"), Pairs()))
        cluster.advance(secs=60)
        [letter] = running.dead_letters
        for _ in range(2):
            assert running.dead_letters.redrive([letter.id]) == 1
            cluster.advance(secs=60)
            before, letter = letter, list(running.dead_letters)[-1]
            assert running.dead_letters.dead_again([*running.dead_letters][:-1])[before.id] == letter.id
            assert (letter.origins, letter.label) == ((A, B), "order-a")
        assert running.tuples("pairs") == [["ab"]]  # the messages of the spout do not run again
        monkeypatch.setattr(Refuses, "wrong", set())
        running.dead_letters.redrive([letter.id])
        cluster.advance(secs=60)
        assert running.tuples("second") == [["ab"]]


class Mended(BasicBolt):
    outputs = ["pair"]
    is_broken = True

    def execute(self, tup, collector):
        if self.is_broken:
            raise ValueError("broken")
        collector.emit(["ab"])


def test_a_message_of_a_spout_that_is_sent_again_is_the_origin_of_what_it_leads_to(monkeypatch):
    builder = TopologyBuilder("again")
    builder.set_spout("rows", Labels("a"), retry=QUICK)
    builder.set_bolt("once", Mended()).global_grouping("rows")
    builder.set_bolt("second", Refuses(), exactly_once=True, retry=QUICK).global_grouping("once")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        cluster.advance(secs=60)
        [first] = running.dead_letters
        monkeypatch.setattr(Mended, "is_broken", False)
        running.dead_letters.redrive([first.id])
        cluster.advance(secs=60)
        _, letter = running.dead_letters
        assert letter.origins == (Origin("rows", f"Redriven(letter_id={first.id})", "order-a"),)


class Redelivers(Spout):
    """Emits a message, and loses it while it is open: its queue delivers it again."""

    outputs = ["n"]

    def __init__(self, key):
        self.key = key

    def open(self, config, context, collector):
        self.collector, self.context, self.deliveries = collector, context, 0

    def next_tuple(self):
        if self.deliveries < 2 and self.context.now_ms() >= 1000 * self.deliveries:
            if self.deliveries:
                self.collector.lost()
            self.deliveries += 1
            self.collector.emit([1], message_id=self.deliveries, key=self.key)


class Waits(Bolt):
    """Acks what it has with each tick."""

    outputs = ["n"]
    remembers = ["held"]
    tick_secs = 5

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        self.held.append(tup)

    def tick(self, tup):
        for each in self.held:
            self.collector.emit(each.values, anchors=each)
            self.collector.ack(each)
        self.held = []


@pytest.mark.parametrize("key", [None, "order-1"])
def test_a_message_with_a_key_that_is_lost_while_it_is_open_and_comes_again_passes_its_gate_once(key):
    builder = TopologyBuilder("lost")
    builder.set_spout("rows", Redelivers(key))
    builder.set_bolt("waits", Waits()).global_grouping("rows")
    builder.set_bolt("passes", Numbered(), exactly_once=True).global_grouping("waits")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        cluster.advance(secs=60)
        assert running.tuples("waits") == [[1]] * (1 if key else 2)
        assert running.tuples("passes") == [[1]] * (1 if key else 2)
        assert running.stats()["rows"].open == 0
        assert running._gates.waiting("__gate/passes/waits/default", 0) == 0


class Numbered(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        collector.emit([tup["n"]])
